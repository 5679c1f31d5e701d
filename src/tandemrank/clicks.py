"""Clicks: examination curves, click models, and the simulation of click logs.

    P(C = 1 | d, q, k) = theta_k R[q, d]                   the position-based model      (paper: click-model)
    P(C = 1 | d, q, k) = alpha_k R[q, d] + beta_k          with trust bias; theta = alpha and beta = 0 is the first

A logging policy is any function `draw(queries [n], keys [n]) -> items [n, K]` whose lists depend on query and key
alone; `one_stage` makes one from scores. A simulated log is a function of its seed: neither the size of the parts nor
the order of the work changes an impression.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from tandemrank import plackett_luce
from tandemrank.errors import ConfigError, DataError

Scores = Callable[[NDArray[np.int64]], NDArray[np.float32]]
Draw = Callable[[NDArray[np.int64], NDArray[np.uint64]], NDArray[np.int32]]

# Streams of one seed: who comes, what is shown, what is clicked (plackett_luce.random_keys).
USERS, LISTS, CLICKS = 0, 1, 2


@dataclass(frozen=True)
class ClickModel:
    """Click probability alpha_k R + beta_k at rank k. Shapes: alpha, beta [K]."""

    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Refuses curves that are not probabilities for every relevance in [0, 1]."""
        check_examination(self.alpha)
        if self.beta.shape != self.alpha.shape or not (np.all(self.beta >= 0) and np.all(self.alpha + self.beta <= 1)):
            raise ConfigError(
                f"expected trust bias beta >= 0 with alpha + beta <= 1 at each of {len(self.alpha)} ranks; "
                f"beta = {self.beta} came."
            )


@dataclass(frozen=True)
class Impressions:
    """Shown lists and their clicks, in inside positions; -1 pads a short list.

    Shapes: query [n]; items, clicks [n, K].
    """

    query: NDArray[np.int32]
    items: NDArray[np.int32]
    clicks: NDArray[np.uint8]


def examination(K: int = 10, curve: str | Sequence[float] = "reciprocal", power: float = 1.0) -> NDArray[np.float64]:
    """The chance theta_k that rank k is looked at; 0 after rank K.

    "reciprocal" 1/k^power, "dcg" 1/log2(k+1), or a curve of one's own, of which the first K ranks count.
    Shapes: -> [K].
    """
    k = np.arange(1, K + 1, dtype=np.float64)
    if K < 1 or not 0 <= power < np.inf:
        raise ConfigError(f"expected K >= 1 and a power >= 0; K = {K} and power = {power} came.")
    if curve == "reciprocal":
        return k**-power
    if curve == "dcg":
        return 1 / np.log2(k + 1)
    if isinstance(curve, str):
        raise ConfigError(f'expected the curve "reciprocal" or "dcg", or one of your own; {curve!r} came.')
    if len(curve) < K:
        raise ConfigError(f"expected an examination curve of {K} ranks or more; {len(curve)} came. Show fewer places.")
    return check_examination(curve[:K])


def read_curve(path: str | Path) -> tuple[float, ...]:
    """The curve in a JSON file: what `tandemrank examination --json` prints, or a list of numbers, rank 1 first."""
    expected = f"{path}: expected JSON with `theta`, a list of numbers, as `tandemrank examination --json` prints"
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        theta = [float(x) for x in (found["theta"] if isinstance(found, dict) else found)]
    except OSError as error:
        raise ConfigError(f"{expected}; it cannot be read ({error.strerror}).") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{expected}; something else came ({error}).") from error
    return tuple(check_examination(theta).tolist())


def check_examination(theta: ArrayLike) -> NDArray[np.float64]:
    """A curve given by the user as an array, refused unless its values are chances and the first is above 0.

    Shapes: theta [K] -> [K].
    """
    checked = np.asarray(theta, dtype=np.float64)
    if checked.ndim != 1 or not len(checked):
        raise ConfigError(f"expected an examination curve, one number for each rank; shape {checked.shape} came.")
    bad = np.flatnonzero(~((checked >= 0) & (checked <= 1)))
    if len(bad):
        raise ConfigError(
            f"expected examination from 0 to 1 at every rank; rank {bad[0] + 1} has {checked[bad[0]]}. "
            "Divide the curve by its largest value if it is only known up to a factor."
        )
    if checked[0] == 0:
        raise ConfigError("expected examination above 0 at rank 1; 0 came. Leave out ranks nobody looks at.")
    return checked


def position_based(theta: ArrayLike) -> ClickModel:
    """The position-based click model of an examination curve (paper: click-model). Shapes: theta [K]."""
    theta = check_examination(theta)
    return ClickModel(theta, np.zeros_like(theta))


def click_probability(model: ClickModel, R: NDArray[np.floating]) -> NDArray[np.float64]:
    """P(C = 1) of documents with relevance R at ranks 1, 2, ... of their list. Shapes: R [..., K] -> [..., K]."""
    K = R.shape[-1]
    return model.alpha[:K] * R + model.beta[:K]


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
        distinct, row = np.unique(queries, return_inverse=True)
        order = np.argsort(row, kind="stable")
        starts = np.searchsorted(row[order], np.arange(0, len(distinct) + chunk, chunk))
        items = np.empty((len(queries), K), dtype=np.int32)
        for c, first in enumerate(range(0, len(distinct), chunk)):
            lists = order[starts[c] : starts[c + 1]]
            s = scores(distinct[first : first + chunk])
            items[lists] = plackett_luce.draw(s, row[lists] - first, keys[lists], K)
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
    part: int = 200_000,
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
            f"N = {N}, part = {part} and {len(logged)} queries came."
        )
    if relevance.nnz and not (relevance.data.min() >= 0 and relevance.data.max() <= 1):
        raise DataError("expected relevance from 0 to 1; other values came. Binarise ratings with a threshold.")
    if not relevance.has_canonical_format:
        relevance = relevance.copy()
        relevance.sum_duplicates()  # sorted and distinct columns: each look-up is a binary search
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
    chosen = plackett_luce.uniforms(plackett_luce.random_keys(seed, USERS, numbers)) * len(queries)
    query = queries[chosen.astype(np.int64)]
    items = draw(query, plackett_luce.random_keys(seed, LISTS, numbers))
    K = items.shape[1]
    if len(click_model.alpha) < K:
        raise ConfigError(f"expected a click model for the {K} ranks shown; {len(click_model.alpha)} came.")
    ranks = np.arange(K, dtype=np.uint64)
    u = plackett_luce.uniforms(plackett_luce.mix(np.add.outer(plackett_luce.random_keys(seed, CLICKS, numbers), ranks)))
    probability = click_probability(click_model, relevance_of(relevance, query, items))
    clicks = (u < probability) & (items >= 0)
    return Impressions(query.astype(np.int32), items, clicks.view(np.uint8))
