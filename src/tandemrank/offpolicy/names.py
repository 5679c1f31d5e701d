"""The names of what is chosen among: kinds of propensities, clips, estimators, curves. Types alone, below all their users."""

from typing import Literal

Kind = Literal["logged", "exact", "frequency", "fitted"]
Asked = Literal["auto"] | Kind
Clip = Literal["paper", "quantile", "none"] | float
Estimator = Literal["auto", "doubly_robust", "ips", "clipped", "self_normalised", "beta_ips", "direct"]
MODELLED: tuple[Estimator, ...] = ("doubly_robust", "direct")  # those that use a reward model
Curve = Literal["reciprocal", "dcg"]
