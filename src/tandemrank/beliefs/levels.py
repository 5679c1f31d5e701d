"""How relevant an item is on the whole: the mean log-odds of every item, by empirical Bayes.

    clicks_d ~ Poisson(examinations_d rate(g_d)),   g_d ~ N(z_d . w, 1 / (n p0_d (1 - p0_d))),   p0_d = sigmoid(z_d . w)

z_d is what is known of an item before a click: a constant, production's mean score, features. n says how many queries' full
knowledge that is worth; w is fitted, n is chosen by the evidence (Laplace's approximation).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs.grades import Grades, sigmoid

Floats = NDArray[np.float64]

KNOWLEDGE = 10.0 ** np.arange(-0.5, 5.1, 0.5)  # the values of n that are tried
RIDGE = 1e-3  # keeps w finite where a column of z says nothing
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)  # of the prior of features' weights
FARTHEST = 12.0  # log-odds beyond it are not told apart
STEPS = 30


@dataclass(frozen=True)
class Levels:
    """The log-odds of each item: `before` any click, and `after` them; `knowledge` is n.  Shapes: before, after [D]."""

    before: Floats
    after: Floats
    knowledge: float
    evidence: float


def item_levels(
    clicks: Floats, seen: Floats, design: Floats, grades: Grades, features: NDArray[np.floating] | None = None
) -> Levels:
    """The levels of all items, from their clicks and examinations.

    What production says never counts against an item: columns of the design whose weight would be negative are left out.
    Features have a normal prior as strong as the evidence says; without them is among the choices.
    Shapes: clicks, seen [D]; design [D, J], its first column constant; features [D, F].
    """
    w = _regression(clicks, seen, design, grades)
    while (w[1:] < 0).any():
        design = np.delete(design, 1 + np.argmin(w[1:]), axis=1)
        w = _regression(clicks, seen, design, grades)
    ridge = np.full(len(w), RIDGE)
    best = max((_levels(clicks, seen, design, w, n, grades, ridge) for n in KNOWLEDGE), key=lambda x: x.evidence)
    if features is None or not features.shape[1]:
        return best
    both, F, n = np.hstack([design, features]), features.shape[1], best.knowledge
    start = np.append(w, np.zeros(F))
    found = [
        _levels(clicks, seen, both, start, n, grades, np.append(ridge, np.full(F, strength))) for strength in STRENGTHS
    ]
    return max((best, *found), key=lambda x: x.evidence)


def _likelihood(g: Floats, clicks: Floats, seen: Floats, grades: Grades) -> tuple[Floats, Floats, Floats]:
    """Of each item: the log-likelihood of g up to a constant, its slope, and the expected information.  Shapes: [D] each.

    All 0 of an item that was never examined: of very many items most may be such.
    """
    shown = np.flatnonzero((seen > 0) | (clicks > 0))
    c, n, found = clicks[shown], seen[shown], np.zeros((3, len(g)))
    rate, change = grades.rate_and_slope(np.clip(g[shown], -FARTHEST, FARTHEST))
    found[:, shown] = c * np.log(rate) - n * rate, (c / rate - n) * change, n * change**2 / rate
    return found[0], found[1], found[2]


def _regression(clicks: Floats, seen: Floats, design: Floats, grades: Grades) -> Floats:
    """w without deviations of single items: damped Newton steps on the likelihood, a faint ridge.  Shapes: -> [J]."""
    total = (clicks.sum() + 0.5) / (seen.sum() + 1)
    at = np.linspace(-FARTHEST, FARTHEST, 481)
    w = np.zeros(design.shape[1])
    w[0] = np.clip(np.interp(total, grades.rate(at), at), -9, 9)

    def value(w: Floats) -> float:
        return float(_likelihood(design @ w, clicks, seen, grades)[0].sum() - RIDGE / 2 * (w[1:] ** 2).sum())

    ridge, height = RIDGE * np.eye(len(w)), value(w)
    for _ in range(STEPS):
        _, slope, information = _likelihood(design @ w, clicks, seen, grades)
        step = np.linalg.solve(design.T @ (information[:, None] * design) + ridge, design.T @ slope - RIDGE * w)
        t = 1.0
        while t > 1e-3 and not value(w + t * step) > height:
            t /= 2
        if t <= 1e-3:
            break
        gained = value(w + t * step) - height
        w, height = w + t * step, height + gained
        if gained < 1e-4:
            break
    return w


def _levels(clicks: Floats, seen: Floats, design: Floats, w: Floats, n: float, grades: Grades, ridge: Floats) -> Levels:
    """The levels for one n: deviations and w in turn.  Shapes: w, ridge [J]."""
    before = np.clip(design @ w, -FARTHEST, FARTHEST)
    after = before.copy()
    for _ in range(STEPS):
        p = sigmoid(before)
        precision = n * p * (1 - p)
        _, slope, information = _likelihood(after, clicks, seen, grades)
        step = np.clip((slope - precision * (after - before)) / (information + precision), -1, 1)
        after = np.clip(after + step, -FARTHEST, FARTHEST)
        weighed = design.T @ (precision[:, None] * design) + np.diag(ridge)
        w = np.asarray(np.linalg.solve(weighed, design.T @ (precision * after)), np.float64)
        before = np.clip(design @ w, -FARTHEST, FARTHEST)
        if np.abs(step).max() < 1e-3:
            break
    value, _, information = _likelihood(after, clicks, seen, grades)
    p = sigmoid(before)
    precision = n * p * (1 - p)
    prior = precision * (after - before) ** 2 + np.log1p(information / precision)
    # What is not known of w: the weights are integrated out, too.
    told = design.T @ ((information * precision / (information + precision))[:, None] * design) + np.diag(ridge)
    occam = np.log(ridge).sum() - np.linalg.slogdet(told)[1] - ridge @ np.square(w)
    return Levels(before, after, float(n), float((value - prior / 2).sum() + occam / 2))
