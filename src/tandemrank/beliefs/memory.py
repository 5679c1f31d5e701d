"""The memory of a log: what a pair's own showings say about its relevance, exactly, as one number per pair that was shown.

An examined item is clicked with chance r1 if it is relevant to the query and r0 if it is not, and rank k is examined with
chance theta_k. Then the showings of a pair enter every posterior through their log-likelihood ratio alone,

    l[q, d] = sum over showings [ c log(r1 / r0) + (1 - c) log((1 - theta_k r1) / (1 - theta_k r0)) ]

It needs no propensity and no clip, and pairs that were never shown have none: it is sparse. A score that is a log-odds
plus the memory is the log-odds of the posterior. How noisy clicks are, r1 and r0, is fitted to pairs that were shown again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tandemrank._base import random
from tandemrank._base.sparse import sums_by
from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.policies.memory import Memory, memory_from

Floats = NDArray[np.float64]

# What one showing may say at most: with r0 = 0 a click proves relevance, and two proofs against each other stay a number.
LARGEST = 30.0


@dataclass(frozen=True)
class Noise:
    """The chance that an examined item is clicked: `relevant` (r1) if it is relevant, `irrelevant` (r0) if it is not."""

    relevant: float
    irrelevant: float

    def __post_init__(self) -> None:
        """Refuses what is not 0 <= r0 < r1 <= 1."""
        if not 0 <= self.irrelevant < self.relevant <= 1:
            raise ConfigError(
                f"expected click chances 0 <= irrelevant < relevant <= 1; irrelevant = {self.irrelevant} and "
                f"relevant = {self.relevant} came."
            )

    def rate(self, p: Floats) -> Floats:
        """The click chance of an examined item that is relevant with chance p.  Shapes: p [...] -> [...]."""
        return self.irrelevant + (self.relevant - self.irrelevant) * p


def memory_of(feedback: Feedback, theta: Floats, noise: Noise) -> Memory:
    """The memory of a log, from its sums per rank.  Shapes: theta [K]."""
    starts = pair_starts(feedback)
    ratio = log_ratio(feedback, theta, noise)
    value = np.add.reduceat(ratio, starts) if len(starts) else ratio
    query, item = feedback.query[starts], feedback.item[starts]
    return memory_from(query, item, value.astype(np.float32), feedback.Q, feedback.D)


def pair_starts(feedback: Feedback) -> NDArray[np.int64]:
    """The first row of every pair.  Shapes: -> [pairs]."""
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    return np.flatnonzero(new)


def log_ratio(feedback: Feedback, theta: Floats, noise: Noise) -> Floats:
    """The log-likelihood ratio of the showings of every row of the feedback.  Shapes: theta [K] -> [P]."""
    exposure(feedback, theta)  # refuses a curve that is too short
    theta_k = np.asarray(theta, np.float64)[feedback.rank]
    r1, r0 = noise.relevant, noise.irrelevant
    click = min(np.log(r1) - np.log(r0), LARGEST) if r0 > 0 else LARGEST
    with np.errstate(divide="ignore"):  # theta_k r1 = 1: without a click it is irrelevant, for sure
        skip = np.maximum(np.log1p(-theta_k * r1) - np.log1p(-theta_k * r0), -LARGEST)
    found: Floats = feedback.clicks * click + (feedback.shown - feedback.clicks) * skip
    return found


# Beta priors with modes .9 and .1, worth five examinations each: pseudo-counts of (1, 0).
RELEVANT, IRRELEVANT = (4.5, 0.5), (0.5, 4.5)
GROUPS = 20
PAIRS = 60_000  # pairs shown again that are enough, drawn at random
GROUP_PRIOR = 0.5, 0.1  # pairs that a mean of .1 counts for in p_g
STEPS = 15  # of p_g for each (r1, r0)
START = Noise(0.9, 0.1)


@dataclass(frozen=True)
class _Again:
    """Pairs that were shown again, row by row, and all clicks by group.

    Shapes: pair, shown, clicks, theta_k [rows]; group [pairs]; group_clicks, group_seen [G].
    """

    pair: NDArray[np.int64]
    shown: Floats
    clicks: Floats
    theta_k: Floats
    group: NDArray[np.int64]
    group_clicks: Floats
    group_seen: Floats


def fit_noise(feedback: Feedback, theta: Floats, *, seed: int = 0) -> Noise:
    """r1 and r0 of a log, by the likelihood above; the modes of their priors where the log has no click.  Shapes: theta [K]."""
    if not feedback.clicks.any():
        return START
    data = _again(feedback, np.asarray(theta, np.float64), seed)
    start = [_logit(START.relevant), _logit(START.irrelevant / START.relevant)]
    found = minimize(
        lambda x: -_log_posterior(data, *x), start, method="Nelder-Mead",
        options={"xatol": 0.01, "fatol": 0.01, "maxfev": 200},
    )  # fmt: skip
    r1 = float(_sigmoid(found.x[0]))
    return Noise(r1, r1 * float(_sigmoid(found.x[1])))


def _again(feedback: Feedback, theta: Floats, seed: int) -> _Again:
    seen, D = exposure(feedback, theta), feedback.D
    clicks_d, seen_d = sums_by(feedback.item, feedback.clicks, D), sums_by(feedback.item, seen, D)
    order = np.argsort(seen_d, kind="stable")
    group = np.empty(D, np.int64)
    share = np.cumsum(seen_d[order]) / max(float(seen_d.sum()), np.finfo(float).tiny)
    group[order] = np.minimum((share * GROUPS).astype(np.int64), GROUPS - 1)
    starts = pair_starts(feedback)
    again = np.flatnonzero(np.add.reduceat(feedback.shown, starts) >= 2)
    if len(again) > PAIRS:
        draw = random.uniforms(random.random_keys(seed, random.Stream.NOISE, again))
        again = np.sort(again[np.argsort(draw)[:PAIRS]])
    chosen = np.zeros(len(starts), np.bool_)
    chosen[again] = True
    pair = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(feedback.query))))
    rows = np.flatnonzero(chosen[pair])
    return _Again(
        (np.cumsum(chosen) - 1)[pair[rows]], feedback.shown[rows], feedback.clicks[rows], theta[feedback.rank[rows]],
        group[feedback.item[starts[again]]], sums_by(group, clicks_d, GROUPS), sums_by(group, seen_d, GROUPS),
    )  # fmt: skip


def _log_posterior(data: _Again, x1: float, x0: float) -> float:
    """Of r1 = sigmoid(x1) and r0 = r1 sigmoid(x0), up to a constant."""
    r1, u = float(np.clip(_sigmoid(x1), 1e-9, 1 - 1e-9)), float(np.clip(_sigmoid(x0), 1e-9, 1 - 1e-9))
    r0, n = r1 * u, len(data.group)
    relevant, irrelevant = (
        sums_by(data.pair, data.clicks * np.log(data.theta_k * r + 1e-300) + _skips(data, r), n) for r in (r1, r0)
    )
    ratio = np.exp(np.clip(relevant - irrelevant, -60, 60))
    rate = data.group_clicks / np.maximum(data.group_seen, np.finfo(float).tiny)
    p = _shares(data, ratio, np.clip((rate - r0) / (r1 - r0), 1e-3, 1 - 1e-3))[data.group]
    possible = np.clip(rate, r0, r1)
    found = float((irrelevant + np.log1p(p * (ratio - 1))).sum())
    found += float((data.group_clicks * np.log(possible) - data.group_seen * possible).sum())
    prior = (
        RELEVANT[0] * np.log(r1)
        + RELEVANT[1] * np.log1p(-r1)
        + IRRELEVANT[0] * np.log(u)
        + IRRELEVANT[1] * np.log1p(-u)
    )
    return found + float(prior)


def _skips(data: _Again, r: float) -> Floats:
    """log P of what was not clicked.  Shapes: -> [rows]."""
    skips: Floats = (data.shown - data.clicks) * np.log1p(-np.minimum(data.theta_k * r, 1 - 1e-12))
    return skips


def _shares(data: _Again, ratio: Floats, p: Floats) -> Floats:
    """p_g at its best, by expectation-maximisation.  Shapes: ratio [pairs]; p [G] -> [G]."""
    pairs, (worth, mean) = np.bincount(data.group, minlength=GROUPS), GROUP_PRIOR
    for _ in range(STEPS):
        odds = (p / (1 - p))[data.group] * ratio
        total = sums_by(data.group, odds / (1 + odds), GROUPS)
        p = np.clip((total + worth * mean) / (pairs + worth), 1e-6, 1 - 1e-6)
    return p


def _sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(x, -40, 40))))


def _logit(p: float) -> float:
    return float(np.log(p) - np.log1p(-p))
