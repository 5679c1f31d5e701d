"""The estimators by the names that users give them: how each is called with a pair's `Exposure` and what a log says."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy import estimators
from tandemrank.offpolicy.diagnostics import Exposure
from tandemrank.offpolicy.estimate import Estimate
from tandemrank.offpolicy.folds import rows_of
from tandemrank.offpolicy.names import Estimator
from tandemrank.offpolicy.reward.model import RewardModel

Floats = NDArray[np.float64]


class Says(Protocol):
    """What a log says: its curve, its propensities, and parts of it, each with a reward model of others.

    Shapes: theta [K]; rho_0 [P].
    """

    @property
    def log(self) -> Feedback: ...
    @property
    def theta(self) -> Floats: ...
    @property
    def rho_0(self) -> Floats: ...
    @property
    def parts(self) -> Sequence[tuple[Feedback, RewardModel]]: ...


def _ips(exposure: Exposure, evidence: Says) -> Estimate:
    return estimators.ips(exposure.rho, evidence.rho_0, evidence.log)


def _self_normalised(exposure: Exposure, evidence: Says) -> Estimate:
    return estimators.self_normalised(exposure.rho, evidence.rho_0, evidence.log, theta=evidence.theta)


def _beta_ips(exposure: Exposure, evidence: Says) -> Estimate:
    rho, rho_0 = exposure.rho, evidence.rho_0
    return estimators.beta_ips(rho, rho_0, evidence.log, theta=evidence.theta, total=exposure.total)


def _doubly_robust(exposure: Exposure, evidence: Says) -> Estimate:
    rho, rho_0, theta = exposure.rho, evidence.rho_0, evidence.theta
    parts = []
    for (part, reward), direct in zip(evidence.parts, exposure.direct, strict=True):
        at, r_hat = rows_of(part, evidence.log), reward.at(part.query, part.item).mean
        parts.append(estimators.doubly_robust(rho[at], rho_0[at], part, theta=theta, r_hat=r_hat, direct=direct))
    return estimators.pooled(parts)


ESTIMATORS: dict[Estimator, Callable[[Exposure, Says], Estimate]] = {
    "doubly_robust": _doubly_robust,
    "ips": _ips,
    "self_normalised": _self_normalised,
    "beta_ips": _beta_ips,
}
