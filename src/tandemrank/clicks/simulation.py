"""The simulation of click logs: who comes, what is shown, what is clicked.

A logging policy is any function `draw(queries [n], keys [n]) -> items [n, K]` whose lists depend on query and key
alone; `one_stage` makes one from scores. A simulated log is a function of its seed: neither the size of the parts nor
the order of the work changes an impression.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base import random
from tandemrank._base.ids import in_batches
from tandemrank._base.random import Stream
from tandemrank._base.sparse import canonical_csr
from tandemrank.clicks.models import ClickModel, click_probability
from tandemrank.errors import ConfigError, DataError
from tandemrank.gradients import plackett_luce
from tandemrank.logs.impressions import Impressions

PART = 200_000  # impressions in memory at once

Scores = Callable[[NDArray[np.int64]], NDArray[np.float32]]
Draw = Callable[[NDArray[np.int64], NDArray[np.uint64]], NDArray[np.int32]]


def relevance_of(relevance: csr_matrix, query: NDArray[np.integer], items: NDArray[np.integer]) -> NDArray[np.float64]:
    """R[q, d] of every shown document, 0 for padding. Shapes: relevance [Q, D]; query [n]; items [n, K] -> [n, K]."""
    rows = np.repeat(query, items.shape[1])
    found = np.asarray(relevance[rows, np.maximum(items, 0).ravel()], dtype=np.float64)
    return np.where(items >= 0, found.reshape(items.shape), 0.0)


def one_stage(scores: Scores, K: int, *, chunk: int = 256) -> Draw:
    """A logging policy that draws K documents by Plackett-Luce from `scores(queries [b]) -> [b, D]`.

    Scores are computed once for each distinct query of a call, `chunk` queries at a time.
    """

    def draw(queries: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        items = np.empty((len(queries), K), dtype=np.int32)
        for part, lists, rows in in_batches(queries, chunk):
            items[lists] = plackett_luce.draw(scores(part), rows, keys[lists], K)
        return items

    return draw


def simulate(
    draw: Draw,
    relevance: csr_matrix,
    queries: NDArray[np.integer],
    N: int,
    click_model: ClickModel,
    *,
    seed: int,
    part: int = PART,
) -> Iterator[Impressions]:
    """N impressions of a logging policy in the order of time, in parts: users uniform with replacement from `queries`.

    Every impression is a function of seed and number, so the parts only decide how much is in memory at once.
    Shapes: relevance [Q, D] with values in [0, 1]; queries [n].
    """
    logged = np.asarray(queries, dtype=np.int64)
    Q = relevance.shape[0]
    if N < 1 or part < 1 or not len(logged) or logged.min() < 0 or logged.max() >= Q:
        raise ConfigError(
            f"expected N >= 1 impressions, parts of >= 1, and queries from 0 to {Q - 1}; "
            f"got N = {N}, part = {part} and {len(logged)} queries."
        )
    relevance = canonical_csr(relevance)  # sorted and distinct columns: each look-up is a binary search
    if relevance.nnz and not (relevance.data.min() >= 0 and relevance.data.max() <= 1):
        raise DataError("expected relevance from 0 to 1; got other values. Binarise ratings with a threshold.")
    return (
        _impressions(draw, relevance, logged, np.arange(first, min(first + part, N)), click_model, seed)
        for first in range(0, N, part)
    )


def _impressions(
    draw: Draw,
    relevance: csr_matrix,
    queries: NDArray[np.int64],
    numbers: NDArray[np.int64],
    click_model: ClickModel,
    seed: int,
) -> Impressions:
    """The impressions with the given numbers. Shapes: numbers [n]."""
    chosen = random.uniforms(random.random_keys(seed, Stream.USERS, numbers)) * len(queries)
    query = queries[chosen.astype(np.int64)]
    items = draw(query, random.random_keys(seed, Stream.LISTS, numbers))
    K = items.shape[1]
    if len(click_model.alpha) < K:
        raise ConfigError(f"expected a click model for the {K} ranks shown; got {len(click_model.alpha)}.")
    ranks = np.arange(K, dtype=np.uint64)
    u = random.uniforms(random.mix(np.add.outer(random.random_keys(seed, Stream.CLICKS, numbers), ranks)))
    probability = click_probability(click_model, relevance_of(relevance, query, items))
    clicks = (u < probability) & (items >= 0)
    return Impressions(query.astype(np.int32), items, clicks.view(np.uint8))
