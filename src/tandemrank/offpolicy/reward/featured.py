"""The posterior on features: a prior mean for queries and items that the log knows little or nothing of.

    x_q ~ N(A u_q, I),     y_d ~ around B z_d,     levels of the items: z_d . w                       (u, z the features)

two linear towers, A for queries and B for items, whose product is the prior mean of a pair's log-odds. They are fitted to the
vectors of the posterior of the log alone, by ridge regression with the strength that predicts left-out rows best (one of the
strengths leaves nothing of the features), and the queries' vectors are then found again around their new means. What a pair's
own showings say, and what the log says of a query or an item, stays as it was; features speak where it is silent.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import InputError
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy.estimators import sums_by
from tandemrank.offpolicy.reward import posterior, steps
from tandemrank.offpolicy.reward.memory import Noise
from tandemrank.offpolicy.reward.posterior import Posterior
from tandemrank.offpolicy.reward.space import Space
from tandemrank.offpolicy.reward.tables import Tables

Floats = NDArray[np.float64]

STRENGTHS = (1.0, 10.0, 100.0, 1000.0, np.inf)  # of the ridge, in rows; the last leaves nothing
FOLDS = 5
ROUNDS = 2  # of expectation-maximisation: vectors around their means, means from the vectors


def fit(feedback: Feedback, theta: Floats, tables: Tables, *, noise: Noise | None = None, seed: int = 0) -> Posterior:
    """The posterior of a log with features; without any it is that of the log alone.  Shapes: theta [K]."""
    for name, table, n in (("queries", tables.queries, feedback.Q), ("items", tables.items, feedback.D)):
        if table is not None and (table.ndim != 2 or len(table) != n or not np.isfinite(table).all()):
            raise InputError(f"features of {name} must be finite, one row for each of {n}; {table.shape} came.")
    design = None if tables.items is None else np.column_stack([np.ones(feedback.D), standardised(tables.items)])
    found = posterior.fit(feedback, theta, noise=noise, design=design, seed=seed)
    if tables.items is not None:
        seen = sums_by(feedback.item, exposure(feedback, np.asarray(theta, np.float64)), feedback.D)
        found = _with_item_tower(found, standardised(tables.items), seen)
    rows = np.unique(feedback.query).astype(np.int64)
    if tables.queries is None and tables.items is None:
        return found
    return _with_query_tower(found, None if tables.queries is None else standardised(tables.queries), rows)


def standardised(table: Floats) -> Floats:
    """Columns with mean 0 and variance 1; a column that never varies is 0.  Shapes: [n, J] -> [n, J]."""
    centred = table - table.mean(0)
    spread = centred.std(0)
    found: Floats = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12)
    return found


def ridge(X: Floats, Y: Floats, weight: Floats) -> Floats:
    """The coefficients of the strength that predicts left-out rows best.  Shapes: X [n, J]; Y [n, F]; weight [n] -> [J, F]."""
    fold = np.arange(len(X)) % FOLDS
    errors = [
        sum(float((weight[fold == f, None] * np.square(Y - X @ _solved(X, Y, weight * (fold != f), c))[fold == f]).sum())
            for f in range(FOLDS))
        for c in STRENGTHS
    ]  # fmt: skip
    return _solved(X, Y, weight, STRENGTHS[int(np.argmin(errors))])


def _solved(X: Floats, Y: Floats, weight: Floats, strength: float) -> Floats:
    if not np.isfinite(strength):
        return np.zeros((X.shape[1], Y.shape[1]))
    W = X * weight[:, None]
    return np.asarray(np.linalg.solve(W.T @ X + strength * np.eye(X.shape[1]), W.T @ Y), np.float64)


def _with_item_tower(found: Posterior, z: Floats, seen: Floats) -> Posterior:
    """Directions of items: their own as far as they were examined, and that of their features for the rest."""
    y = found.items[:, :-1].astype(np.float64)
    known = seen / (seen + max(float(np.median(seen[seen > 0])), 1e-9))
    prior = z @ ridge(z, y, known)
    items = np.column_stack([y + (1 - known)[:, None] * prior, np.ones(len(y))])
    return replace(found, items=items.astype(np.float32), chosen=replace(found.chosen, source="the log and features"))


def _with_query_tower(found: Posterior, u: Floats | None, rows: NDArray[np.int64]) -> Posterior:
    """The queries' vectors around the means of their features, or around 0 without any, with the items as they are now."""
    F = found.items.shape[1] - 1
    precision = np.diag(np.append(np.ones(F), 1 / found.chosen.shape.level))
    space = Space(found.items, found.offset, np.zeros((len(found.queries), F + 1)), precision)
    x = steps.query_step(space, found.memory, rows)
    for _ in range(ROUNDS):
        if u is None:
            break
        spread = steps.spread_of(space, found.memory, rows, x)
        known = np.clip(1 - spread.query[rows] / max(float(spread.query.max()), 1e-9), 1e-3, 1)
        mean = u @ ridge(u[rows], x[rows], known)
        space = replace(space, mean=mean)
        x = steps.query_step(space, found.memory, rows)
    spread = steps.spread_of(space, found.memory, rows, x)
    return replace(
        found, queries=x.astype(np.float32), query_spread=spread.query, item_spread=spread.item,
        chosen=replace(found.chosen, source="the log and features"),
    )  # fmt: skip
