"""How relevant an item is on the whole: the log-odds of relevance of every item, by empirical Bayes.

    clicks_d ~ Poisson(examinations_d rate(p_d)),   p_d = sigmoid(g_d),   g_d ~ N(z_d . w, 1 / (n p0_d (1 - p0_d)))

z_d is what is known of an item before a click: a constant, what a policy thinks of it on average, its features. p0_d =
sigmoid(z_d . w), and n says how many queries' full knowledge that is worth: a share p0 seen in n queries has log-odds with
that variance. w is fitted, n is chosen by the evidence (Laplace's approximation).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs.memory import Noise

Floats = NDArray[np.float64]

KNOWLEDGE = 10.0 ** np.arange(-0.5, 5.1, 0.5)  # the values of n that are tried
RIDGE = 1e-3  # keeps w finite where a column of z says nothing
FARTHEST = 12.0  # log-odds beyond it are not told apart
STEPS = 30


@dataclass(frozen=True)
class Levels:
    """The log-odds of relevance of each item: `before` any click, and `after` them; `knowledge` is n.

    Shapes: before, after [D].
    """

    before: Floats
    after: Floats
    knowledge: float
    evidence: float


def item_levels(
    clicks: Floats, seen: Floats, design: Floats, noise: Noise, *, rising: NDArray[np.bool_] | None = None
) -> Levels:
    """The levels of all items, from their clicks and examinations.

    `rising` marks columns of the design whose weight must not be negative: those that are, are left out.
    Shapes: clicks, seen [D]; design [D, J], its first column constant; rising [J].
    """
    used = np.ones(design.shape[1], np.bool_)
    w = _regression(clicks, seen, design, noise)
    while rising is not None and (wrong := used & rising & _spread(w, used)).any():
        used[np.flatnonzero(wrong)[np.argmin(_spread_values(w, used)[wrong])]] = False
        w = _regression(clicks, seen, design[:, used], noise)
    found = [_levels(clicks, seen, design[:, used], w, n, noise) for n in KNOWLEDGE]
    return max(found, key=lambda levels: levels.evidence)


def _spread_values(w: Floats, used: NDArray[np.bool_]) -> Floats:
    """The weights of the used columns at their places among all.  Shapes: w [used] -> [J]."""
    every = np.zeros(len(used))
    every[used] = w
    return every


def _spread(w: Floats, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return _spread_values(w, used) < 0


def _likelihood(g: Floats, clicks: Floats, seen: Floats, noise: Noise) -> tuple[Floats, Floats, Floats]:
    """Of each item: the log-likelihood of g up to a constant, its slope, and the expected information.  Shapes: [D] each."""
    p = 1 / (1 + np.exp(-np.clip(g, -FARTHEST, FARTHEST)))
    rate, change = noise.rate(p), (noise.relevant - noise.irrelevant) * p * (1 - p)
    return clicks * np.log(rate) - seen * rate, (clicks / rate - seen) * change, seen * change**2 / rate


def _regression(clicks: Floats, seen: Floats, design: Floats, noise: Noise) -> Floats:
    """w without deviations of single items: damped Newton steps on the likelihood, a faint ridge.  Shapes: -> [J]."""
    total = (clicks.sum() + 0.5) / (seen.sum() + 1)
    share = np.clip((total - noise.irrelevant) / (noise.relevant - noise.irrelevant), 1e-4, 1 - 1e-4)
    w = np.zeros(design.shape[1])
    w[0] = np.log(share / (1 - share))

    def value(w: Floats) -> float:
        return float(_likelihood(design @ w, clicks, seen, noise)[0].sum() - RIDGE / 2 * (w[1:] ** 2).sum())

    ridge = RIDGE * np.eye(len(w))
    height = value(w)
    for _ in range(STEPS):
        _, slope, information = _likelihood(design @ w, clicks, seen, noise)
        step = np.linalg.solve(design.T @ (information[:, None] * design) + ridge, design.T @ slope - RIDGE * w)
        t = 1.0
        while t > 1e-3 and not value(w + t * step) > height:
            t /= 2
        if t <= 1e-3:
            break
        w, height = w + t * step, value(w + t * step)
    return w


def _levels(clicks: Floats, seen: Floats, design: Floats, w: Floats, n: float, noise: Noise) -> Levels:
    """The levels for one n: deviations and w in turn.  Shapes: w [J]."""
    before = np.clip(design @ w, -FARTHEST, FARTHEST)
    w, after, ridge = w.copy(), before.copy(), RIDGE * np.eye(len(w))
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-before))
        precision = n * p * (1 - p)
        _, slope, information = _likelihood(after, clicks, seen, noise)
        step = (slope - precision * (after - before)) / (information + precision)
        after = np.clip(after + np.clip(step, -1, 1), -FARTHEST, FARTHEST)
        w[:] = np.linalg.solve(design.T @ (precision[:, None] * design) + ridge, design.T @ (precision * after))
        before = np.clip(design @ w, -FARTHEST, FARTHEST)
    value, _, information = _likelihood(after, clicks, seen, noise)
    p = 1 / (1 + np.exp(-before))
    precision = n * p * (1 - p)
    prior = precision * (after - before) ** 2 + np.log1p(information / precision)
    return Levels(before, after, float(n), float((value - prior / 2).sum()))
