"""A small world with features: what is relevant to a query is what is like it, in a way that is no product."""

import numpy as np
import polars as pl

Q, D, K = 400, 40, 4
NEW = 900  # a query, and an item, that no log has
RNG = np.random.default_rng(5)
U, Z = RNG.uniform(-1, 1, size=(Q + 1, 2)), RNG.uniform(-1, 1, size=(D + 1, 2))
APART = np.abs(U[:, None, 0] - Z[None, :, 0])
RELEVANCE = 1 / (1 + np.exp(4 * APART - 1.5))  # the last query and item are new


def table(side: str, rows: slice = slice(None, -1)) -> pl.DataFrame:
    """The features of one side; of the new one by `slice(-1, None)`."""
    x, ids = (U, [*range(Q), NEW]) if side == "query" else (Z, [*range(D), NEW])
    return pl.DataFrame({f"{side}_id": ids[rows], "a": x[rows, 0], "b": x[rows, 1]})


def log(n: int = 4000, seed: int = 0, late: int | None = None) -> pl.DataFrame:
    """Random lists of all items but the new one; an item that is `late` is there from the middle on."""
    rng = np.random.default_rng(seed)
    query, chance = rng.integers(Q, size=n), rng.random((n, D))
    if late is not None:
        chance[: n // 2, late] = 1
    items = np.argsort(chance, 1)[:, :K]
    clicks = rng.random((n, K)) < RELEVANCE[query[:, None], items] / np.arange(1, K + 1)
    lists = {"items": items.tolist(), "clicks": clicks.astype(int).tolist()}
    return pl.DataFrame({"query_id": query, **lists, "timestamp": np.arange(n, dtype=float)})
