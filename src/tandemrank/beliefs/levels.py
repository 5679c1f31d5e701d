"""How relevant an item is on the whole: the mean log-odds of every item, by empirical Bayes.

    clicks_d ~ Poisson(examinations_d rate(g_d)),   g_d ~ N(z_d . w, 1 / (n p0_d (1 - p0_d))),   p0_d = sigmoid(z_d . w)

z_d is what is known of an item before a click: a constant, production's mean score, features. n says how many queries' full
knowledge that is worth; w is fitted, n is chosen by the evidence (Laplace's approximation).
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.cluster import ALONE, Group
from tandemrank.beliefs.grades import Grades, sigmoid
from tandemrank.beliefs.regression import Suggestion

Floats = NDArray[np.float64]

KNOWLEDGE = 10.0 ** np.arange(-0.5, 5.1, 0.5)  # the values of n that are tried
SOME = 20_000  # examined items that are enough to choose n by
RIDGE = 1e-3  # keeps w finite where a column of z says nothing
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)  # of the prior of features' weights
FARTHEST = 12.0  # log-odds beyond it are not told apart
STEPS = 30
# Log-odds at which the rate and its slope are taken; between them it is even.
AT = np.linspace(-FARTHEST, FARTHEST, 16_001)
Rates = tuple[Floats, Floats]
ROUNDS, ENOUGH = 40, 20_000  # of expectation-maximisation, and items that are enough for it
NODES = np.linspace(-4, 4, 33)  # of a normal distribution
NORMAL = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()
LEAST = 1e-3  # of a standard deviation
FEW = 20  # showings from which how often an item is shown is known


@dataclass(frozen=True)
class Levels:
    """The log-odds of each item: `before` any click, and `after` them; `knowledge` is n, w the weights of the design's columns
    and of features after them.  Shapes: before, after [D]; w [J]."""

    before: Floats
    after: Floats
    w: Floats
    knowledge: float
    evidence: float

    @property
    def by_shown(self) -> float:
        """The weight of the design's second column."""
        return float(self.w[1]) if len(self.w) > 1 else 0.0


def log_shown(number: Floats, time: Floats, numbers: NDArray[np.floating]) -> Floats:
    """How often items are shown, in logarithms around their mean; of one that never was what is to be expected.

        n_d ~ Poisson(time_d e^x_d),   x_d ~ N(by features, tau^2);     a share of the items is new: n_d = 0, whatever x_d is

    Where items like it are shown often, or none is shown seldom, an item that never was is new: it had no chance, and x_d is as
    its features say. Where others are shown as seldom as that, production had the chance, and x_d is low. By
    expectation-maximisation.  Shapes: number, time [D]; numbers [D, J], of features -> [D].
    """
    x: Floats = np.log((number + 0.5) / time)
    never, few = number == 0, number < FEW
    if never.any() and not never.all():
        every = -(-len(x) // ENOUGH)
        some = np.zeros(len(x), np.bool_)
        some[np.flatnonzero(never)[::every]] = some[np.flatnonzero(~never)[::every]] = True
        by = Suggestion(numbers, some) if numbers.shape[1] else None
        mean, variance, new = x.copy(), np.zeros(len(x)), 0.5
        mu, tau = np.full(len(x), x[~never].mean()), x[~never].std() + LEAST
        for step in range(ROUNDS + 1):
            asked = np.flatnonzero(never if step == ROUNDS else few & some)
            for part in np.array_split(asked, -(-len(asked) // (2 * ENOUGH))):
                n, at = number[part, None], mu[part, None] + tau * NODES
                likely = n * at - np.exp(at) * time[part, None]
                best = likely.max(1, keepdims=True)
                likely = NORMAL * np.exp(likely - best)
                chance = (1 - new) * likely.sum(1) * np.exp(best[:, 0])
                had = np.where(n[:, 0] > 0, 1.0, chance / (chance + new))
                mean[part] = had * (likely * at).sum(1) / likely.sum(1) + (1 - had) * mu[part]
                square = had * (likely * at**2).sum(1) / likely.sum(1) + (1 - had) * (mu[part] ** 2 + tau**2)
                variance[part] = square - mean[part] ** 2
                new = float((1 - had).sum() / some.sum()) if step < ROUNDS else new
            centre = mean[some].mean()
            mu = np.full(len(x), centre)
            mu = mu if by is None else mu + by.of((mean - centre)[:, None]).at(by.numbers)[:, 0]
            tau = float(np.sqrt((np.square(mean - mu) + variance)[some].mean())) + LEAST
        x[never] = mean[never]
    x -= x.mean()
    return x


def item_levels(
    clicks: Floats,
    seen: Floats,
    design: Floats,
    grades: Grades,
    features: NDArray[np.floating] | None = None,
    *,
    group: Group = ALONE,
) -> Levels:
    """The levels of all items, from their clicks and examinations.

    What production says never counts against an item: columns of the design whose weight would be negative count 0.
    Features have a normal prior as strong as the evidence says; without them is among the choices. `group`: who has the same
    numbers, and tries some n each.
    Shapes: clicks, seen [D]; design [D, J], its first column constant; features [D, F].
    """
    examined = (seen > 0) | (clicks > 0)  # others, perhaps most, say nothing, and are where they are expected
    clicks, seen, every, own = clicks[examined], seen[examined], design, design[examined]
    rates = grades.rate_and_slope(AT)
    w = _regression(clicks, seen, own, rates)
    while (w[1:] < 0).any():
        own = np.where(np.arange(len(w)) == 1 + np.argmin(w[1:]), 0.0, own)
        w = _regression(clicks, seen, own, rates)
    ridge, some = np.full(len(w), RIDGE), slice(None, None, max(1, len(own) // SOME))
    few = clicks[some], seen[some], own[some]
    tried = group.shared([partial(_levels, *few, w, n, rates, ridge) for n in KNOWLEDGE])
    best = max(tried, key=lambda x: x.evidence)
    if len(own) >= 2 * SOME:
        best = _levels(clicks, seen, own, w, best.knowledge, rates, ridge)
    if features is not None and features.shape[1]:
        both, F, n = np.hstack([own, features[examined]]), features.shape[1], best.knowledge
        of_both = partial(_levels, clicks, seen, both, np.append(w, np.zeros(F)), n, rates)
        found = group.shared([partial(of_both, np.append(ridge, np.full(F, strength))) for strength in STRENGTHS])
        best = max((best, *found), key=lambda x: x.evidence)
        every = np.hstack([every, features]) if len(best.w) > len(w) else every
    before = np.clip(every @ best.w, -FARTHEST, FARTHEST)
    after = before.copy()
    after[examined] = best.after
    return replace(best, before=before, after=after)


def _likelihood(g: Floats, clicks: Floats, seen: Floats, rates: Rates) -> tuple[Floats, Floats, Floats]:
    """Of each item: the log-likelihood of g up to a constant, its slope, and the expected information.  Shapes: [D] each."""
    rate, change = (np.interp(g, AT, values) for values in rates)
    return clicks * np.log(rate) - seen * rate, (clicks / rate - seen) * change, seen * change**2 / rate


def _regression(clicks: Floats, seen: Floats, design: Floats, rates: Rates) -> Floats:
    """w without deviations of single items: damped Newton steps on the likelihood, a faint ridge.  Shapes: -> [J]."""
    total = (clicks.sum() + 0.5) / (seen.sum() + 1)
    w = np.zeros(design.shape[1])
    w[0] = np.clip(np.interp(total, rates[0], AT), -9, 9)

    def value(w: Floats) -> float:
        return float(_likelihood(design @ w, clicks, seen, rates)[0].sum() - RIDGE / 2 * (w[1:] ** 2).sum())

    ridge, height = RIDGE * np.eye(len(w)), value(w)
    for _ in range(STEPS):
        _, slope, information = _likelihood(design @ w, clicks, seen, rates)
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


def _levels(clicks: Floats, seen: Floats, design: Floats, w: Floats, n: float, rates: Rates, ridge: Floats) -> Levels:
    """The levels for one n: deviations and w in turn.  Shapes: w, ridge [J]."""
    before = np.clip(design @ w, -FARTHEST, FARTHEST)
    after = before.copy()
    for _ in range(STEPS):
        p = sigmoid(before)
        precision = n * p * (1 - p)
        _, slope, information = _likelihood(after, clicks, seen, rates)
        step = np.clip((slope - precision * (after - before)) / (information + precision), -1, 1)
        after = np.clip(after + step, -FARTHEST, FARTHEST)
        weighed = design.T @ (precision[:, None] * design) + np.diag(ridge)
        w = np.asarray(np.linalg.solve(weighed, design.T @ (precision * after)), np.float64)
        before = np.clip(design @ w, -FARTHEST, FARTHEST)
        if np.abs(step).max(initial=0.0) < 1e-3:
            break
    value, _, information = _likelihood(after, clicks, seen, rates)
    p = sigmoid(before)
    precision = n * p * (1 - p)
    prior = precision * (after - before) ** 2 + np.log1p(information / precision)
    # What is not known of w: the weights are integrated out, too.
    told = design.T @ ((information * precision / (information + precision))[:, None] * design) + np.diag(ridge)
    occam = np.log(ridge).sum() - np.linalg.slogdet(told)[1] - ridge @ np.square(w)
    evidence = float((value - prior / 2).sum() + occam / 2)
    return Levels(before=before, after=after, w=w, knowledge=float(n), evidence=evidence)
