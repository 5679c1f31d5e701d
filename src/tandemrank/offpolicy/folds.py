"""Parts of a log by query, for cross-fitting."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank.logs.feedback import Feedback

QUERY_FOLDS = 5


def query_folds(log: Feedback, seed: int) -> list[tuple[Feedback, Feedback]]:
    """Parts of a log by query, each with the rest: sums cannot be parted by impression."""
    fold_of = fold_of_queries(log.Q, seed)
    return [(of_queries(log, fold_of == fold), of_queries(log, fold_of != fold)) for fold in range(QUERY_FOLDS)]


def fold_of_queries(Q: int, seed: int) -> NDArray[np.int64]:
    """The fold of each query, by its position and the seed alone.  Shapes: -> [Q]."""
    keys = random.random_keys(seed, random.Stream.FOLDS, np.arange(Q))
    return (random.uniforms(keys) * QUERY_FOLDS).astype(np.int64)


def of_queries(log: Feedback, chosen: NDArray[np.bool_]) -> Feedback:
    """The sums of some queries alone.  Shapes: chosen [Q]."""
    rows = chosen[log.query]
    columns = {name: getattr(log, name)[rows] for name in ("query", "item", "rank", "shown", "clicks")}
    logged, others = (None if x is None else x[rows] for x in (log.logged, log.others))
    return replace(log, **columns, logged=logged, others=others, impressions=np.where(chosen, log.impressions, 0.0))


def rows_of(part: Feedback, log: Feedback) -> NDArray[np.int64]:
    """Where the rows of a part are among those of the whole log.  Shapes: -> [P of the part]."""
    ranks = 1 + max(int(x.rank.max(initial=0)) for x in (part, log))
    part_key, log_key = (
        (x.query.astype(np.int64) * x.D + x.item) * ranks + x.rank  # in the order of the rows
        for x in (part, log)
    )
    at: NDArray[np.int64] = np.searchsorted(log_key, part_key)
    return at
