"""The names of what is chosen among: kinds of propensities, clips, estimators, curves. Types alone, below all their users."""

from typing import Literal

Kind = Literal["logged", "exact", "frequency", "fitted"]
Asked = Literal["auto"] | Kind
Clip = Literal["paper", "quantile", "none"] | float
Estimator = Literal["auto", "doubly_robust", "ips", "self_normalised", "beta_ips"]
Curve = Literal["reciprocal", "dcg"]
