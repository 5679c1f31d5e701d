"""The practitioner's question, data in and answer out: what would this pair be worth if it were live, and may I believe it?

    estimate(policy, log, theta=..., ...)      value, interval, lower bound, diagnostics, a verdict in words
    compare(new, old, log, theta=..., ...)     the paired difference of two pairs, on the same draws of queries

The value is that of the log's queries, each as often as it came. Queries are taken as a sample: the interval covers what
other queries of the same kind would have given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.ids import positions_or_missing
from tandemrank.clicks.models import check_examination
from tandemrank.errors import ConfigError
from tandemrank.gradients import race
from tandemrank.logs import reading, sums
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.sources import Source
from tandemrank.offpolicy import estimators, uncertainty
from tandemrank.offpolicy.diagnostics import VERDICTS, Diagnostics, Exposure, Verdict, diagnose, judge
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.folds import query_folds, rows_of
from tandemrank.offpolicy.lists import read_lists
from tandemrank.offpolicy.propensities import Asked, Clip, Resolved, resolve
from tandemrank.offpolicy.reward import item_rate
from tandemrank.offpolicy.reward.item_rate import Reward
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Estimator = Literal["ips", "clipped", "self_normalised", "direct", "doubly_robust"]

CELLS = 2**21  # scores in memory at once: queries x items of a batch
STAGE_SAMPLES = 5  # of the candidates in random order: hardly any noise


@dataclass(frozen=True)
class Question:
    """How to ask: the keywords of `estimate` and `compare`.

    `theta`: the examination curve. `propensity`: as logged; exact from the `logging_policy`; the frequency in the log; or
    fitted to its lists. `clip`: propensities are raised to it (None: 0, for "clipped" the 1% quantile). `samples` of the
    race for each exposure, `replicates` of the bootstrap, `level` of interval and bound. `others`: impressions of the same
    vocabulary that are not in the log, for the reward model to learn from; without them the log itself is cut into folds.
    `engine`: what reads the log, as in `logs.read`; the same bits either way.
    """

    theta: Floats
    propensity: Asked = "auto"
    logging_policy: TwoStagePolicy | None = None
    estimator: Estimator = "doubly_robust"
    clip: Clip | None = None
    others: Feedback | None = None
    samples: int = 20
    replicates: int = 1000
    level: float = 0.95
    seed: int = 0
    engine: Engine = "local"

    def __post_init__(self) -> None:
        """Refuses by name what a switch does not take."""
        object.__setattr__(self, "theta", check_examination(self.theta))
        check_engine(self.engine)
        if self.estimator not in get_args(Estimator):
            raise ConfigError(f"estimator must be one of {', '.join(get_args(Estimator))}; {self.estimator!r} came.")
        if self.samples < 1 or self.replicates < 100 or not 0 < self.level < 1:
            raise ConfigError(
                f"needed: samples >= 1, replicates >= 100, 0 < level < 1; got {self.samples}, {self.replicates}, "
                f"{self.level}."
            )


@dataclass(frozen=True)
class Answer:
    """Expected clicks an impression, with interval, finite-sample lower bound (of IPS, whatever the estimator), verdict."""

    value: float
    standard_error: float
    interval: tuple[float, float]
    lower_bound: float
    diagnostics: Diagnostics
    verdict: Verdict
    reasons: tuple[str, ...]
    estimate: Estimate


@dataclass(frozen=True)
class Comparison:
    """Two pairs on one log: the difference new - old, its paired interval, and the share of the draws where new wins."""

    new: Answer
    old: Answer
    difference: float
    standard_error: float
    interval: tuple[float, float]
    wins: float
    verdict: Verdict
    reasons: tuple[str, ...]


def estimate(policy: TwoStagePolicy, log: Source | Feedback, **question: Any) -> Answer:
    """What the pair would be worth, by the clicks of the past. The keywords are the fields of `Question`."""
    asked = Question(**question)
    return _ask([policy], log, asked)[0][0]


def compare(new: TwoStagePolicy, old: TwoStagePolicy, log: Source | Feedback, **question: Any) -> Comparison:
    """The difference of two pairs on one log, by the same draws of queries. The keywords are the fields of `Question`."""
    asked = Question(**question)
    (a, b), values = _ask([new, old], log, asked)
    difference = values[:, 0] - values[:, 1]
    worse = max(a, b, key=lambda answer: VERDICTS.index(answer.verdict))
    return Comparison(
        a,
        b,
        a.value - b.value,
        float(np.sqrt(np.square(a.estimate.influence - b.estimate.influence).sum())),
        _quantiles(difference, asked.level),
        float(np.nanmean(difference > 0)),
        worse.verdict,
        (*(f"new: {reason}" for reason in a.reasons), *(f"old: {reason}" for reason in b.reasons)),
    )


@dataclass(frozen=True)
class _Evidence:
    """A log, its propensities (raised to the clip), and its folds, each with the reward model of the rest.

    Shapes: rho_0, raised [P].
    """

    feedback: Feedback
    rho_0: Floats
    raised: NDArray[np.bool_]
    folds: tuple[tuple[Feedback, Reward], ...]


def _evidence(log: Source | Feedback, asked: Question) -> _Evidence:
    if isinstance(log, Feedback):
        whole, folds = log, query_folds(log, asked.seed)
    else:
        # Folds of impressions: a model of the one half knows the pairs of the other.
        one, other = reading.read_split(log, 0.5, seed=asked.seed, K=len(asked.theta), engine=asked.engine)
        whole, folds = sums.merge([one, other]), [(one, other), (other, one)]
    found = _propensities(log, whole, asked)
    if asked.others is not None:
        folds = [(whole, asked.others)]
    if asked.estimator not in ("direct", "doubly_robust"):
        folds = []
    models = tuple((fold, item_rate.reward_model(rest, asked.theta)) for fold, rest in folds)
    return _Evidence(whole, found.rho_0[0], found.raised[0], models)


def _propensities(log: Source | Feedback, whole: Feedback, asked: Question) -> Resolved:
    """Those of every row, by the switches."""
    lists = None if isinstance(log, Feedback) else partial(read_lists, log, whole.vocabulary, len(asked.theta))
    clip = asked.clip if asked.clip is not None else "quantile" if asked.estimator == "clipped" else "none"
    return resolve(
        [whole], asked.theta, kind=asked.propensity, clip=clip, logging_policy=asked.logging_policy, lists=lists,
        seed=asked.seed,
    )  # fmt: skip


def _exposure(
    policy: TwoStagePolicy, log: Feedback, theta: Floats, rewards: Sequence[Reward], samples: int, seed: int
) -> Exposure:
    """One pass over the logged queries, a batch of them at a time: all items of a query, never of all queries."""
    logged = np.flatnonzero(log.impressions)
    positions = policy.vocabulary.queries(log.vocabulary.query_ids.gather(logged))
    here = positions_or_missing(policy.vocabulary.item_ids, log.vocabulary.item_ids)[log.item]
    there = positions_or_missing(log.vocabulary.item_ids, policy.vocabulary.item_ids)
    once = ((np.diff(log.query, prepend=-1) != 0) | (np.diff(log.item, prepend=-1) != 0)) & (here >= 0)
    rho, (total, supported, random) = np.zeros(len(log.query)), np.zeros((3, log.Q))
    direct = np.zeros((len(rewards), log.Q))
    generator = torch.Generator().manual_seed(seed)
    curve = torch.as_tensor(theta[: policy.K], dtype=torch.float32)
    step = max(1, CELLS // len(there))
    for first in range(0, len(logged), step):
        part = logged[first : first + step]
        with torch.no_grad():
            s_c, s_r = policy.scores(positions[first : first + step])
        every, shuffled = (
            race.exposure(s_c, s, curve, policy.K2, samples=n, generator=generator)[0].double().numpy()
            for s, n in ((s_r, samples), (torch.zeros_like(s_r), STAGE_SAMPLES))
        )
        rows = slice(*np.searchsorted(log.query, [part[0], part[-1] + 1]))
        at = np.searchsorted(part, log.query[rows]), np.maximum(here[rows], 0)
        rho[rows] = np.where(here[rows] >= 0, every[at], 0.0)
        total[part] = every.sum(1)
        supported[part] = np.bincount(at[0], np.where(once[rows], every[at], 0.0), len(part))
        random[part] = np.bincount(at[0], np.where(once[rows], shuffled[at], 0.0), len(part))
        random[part] /= np.maximum(shuffled.sum(1), np.finfo(float).tiny)  # nothing at all is available to some
        for fold, reward in enumerate(rewards):
            direct[fold, part] = (every * reward.matrix(part)[:, there]).sum(1)
    return Exposure(rho, total, supported, random, direct)


def _ask(pairs: Sequence[TwoStagePolicy], log: Source | Feedback, asked: Question) -> tuple[list[Answer], Floats]:
    """The answer for each pair, and the bootstrap's values [replicates, pairs] of one set of draws."""
    evidence = _evidence(log, asked)
    rewards = [reward for _, reward in evidence.folds]
    whole, theta, seed = evidence.feedback, asked.theta, asked.seed + 1  # other races than those of exact propensities
    return _answers([_exposure(pair, whole, theta, rewards, asked.samples, seed) for pair in pairs], evidence, asked)


def _answers(exposures: Sequence[Exposure], evidence: _Evidence, asked: Question) -> tuple[list[Answer], Floats]:
    log, rho_0 = evidence.feedback, evidence.rho_0
    estimates = [_estimate(exposure, evidence, asked) for exposure in exposures]
    values = uncertainty.bootstrap(estimates, replicates=asked.replicates, seed=asked.seed)
    answers = []
    for exposure, found, drawn in zip(exposures, estimates, values.T, strict=True):
        plain = estimators.ips(exposure.rho, rho_0, log)
        bound = uncertainty.lower_bound(plain, float(asked.theta.sum()), level=asked.level)
        diagnostics = diagnose(log, rho_0, evidence.raised, exposure, asked.theta)
        verdict, reasons = judge(diagnostics, modelled=asked.estimator == "direct")
        interval = _quantiles(drawn, asked.level)
        answers.append(Answer(found.value, found.standard_error, interval, bound, diagnostics, verdict, reasons, found))
    return answers, values


def _estimate(exposure: Exposure, evidence: _Evidence, asked: Question) -> Estimate:
    log, rho_0, rho = evidence.feedback, evidence.rho_0, exposure.rho
    if asked.estimator == "self_normalised":
        return estimators.self_normalised(rho, rho_0, log, theta=asked.theta)
    if asked.estimator in ("ips", "clipped"):
        return estimators.ips(rho, rho_0, log)  # rho_0 is clipped already
    parts = []
    for (fold, reward), direct in zip(evidence.folds, exposure.direct, strict=True):
        at = rows_of(fold, log)
        if asked.estimator == "direct":
            parts.append(estimators.direct_method(rho[at], rho_0[at], fold, direct=direct))
        else:
            r_hat = reward.at(fold.query, fold.item)
            parts.append(
                estimators.doubly_robust(rho[at], rho_0[at], fold, theta=asked.theta, r_hat=r_hat, direct=direct)
            )
    return estimators.pooled(parts)


def _quantiles(values: Floats, level: float) -> tuple[float, float]:
    if np.isnan(values).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
