"""Candidates out of very many documents: the first race without drawing every clock, and exact retrieval.

    T_d ~ Exp(lambda_d),  lambda_d = exp(s_d);    the candidates are the K2 first arrivals (Plackett-Luce)

Only who arrives before a horizon T matters. *Head*: documents with s_d > b; they have clocks, as in the dense race. *Tail*:
the others, whose rates are at most e^b. All arrivals of the tail before T are a thinned Poisson stream: proposals come
with rate n e^b, each is a uniform document out of n, kept with chance lambda_d / e^b; the first kept proposal of a document is its
arrival. If fewer than K2 + 1 have arrived by T the race goes on with new clocks for all others, as clocks have no memory.
So the law is exact whatever b and T are: they are chosen, from a sample of the scores, to make it cheap.

The scores come as products of factors (`Products`), computed in blocks, once for all races; no [B, D] object exists.
Or as a tensor. Random numbers are a function of (key of the query, sample, stage, document or proposal).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.race import chunks, compiling, keys_for

# Queries whose products are computed at once; documents that tell level and horizon.
_TILE, _SAMPLE = 64, 4096
# The number of the sample of which the pattern is made, behind those of all races.
_PATTERN = 2**32 - 1


@dataclass(frozen=True)
class Products:
    """The scores of a factorised generator, s[q, d] = <queries[q], items[d]>.  Shapes: queries [B, F], items [D, F]."""

    queries: Tensor
    items: Tensor

    def __post_init__(self) -> None:
        x, y = self.queries, self.items
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or y.shape[0] == 0 or x.shape[1] == 0:
            raise PolicyError(
                f"products need factors [queries, F] and [items, F] with F and items at least 1; "
                f"got {tuple(x.shape)} and {tuple(y.shape)}."
            )


GeneratorScores: TypeAlias = Products | Tensor


@dataclass(frozen=True)
class Source:
    """Scores as the kernels see them: factors, or given numbers (then F = 0).

    Shapes: X [B, F]; Y [D, F]; given [B, D], or [B, 0] where there are factors.
    """

    X: NDArray[np.float32]
    Y: NDArray[np.float32]
    given: NDArray[np.float32]

    @staticmethod
    def of(scores: GeneratorScores) -> "Source":
        if isinstance(scores, Products):
            X, Y = _plain(scores.queries), _plain(scores.items)
            return Source(X, Y, np.empty((len(X), 0), np.float32))
        if scores.ndim != 2 or scores.shape[1] == 0:
            raise PolicyError(f"scores must be [queries, documents], at least one document; got {tuple(scores.shape)}.")
        given = _plain(scores)
        return Source(np.empty((len(given), 0), np.float32), np.empty((given.shape[1], 0), np.float32), given)

    @property
    def D(self) -> int:
        return len(self.Y)

    @property
    def B(self) -> int:
        return len(self.X)

    def some(self) -> NDArray[np.int64]:
        """Documents at equal distances: enough of them to know how the scores are distributed."""
        n = min(self.D, _SAMPLE)
        return np.arange(n, dtype=np.int64) * self.D // n

    def blocks(self) -> Iterator[tuple[int, int, NDArray[np.float32]]]:
        """(first query, first document, scores [queries, documents]) of one part of the matrix after another."""
        from tandemrank.gradients._lazy_race_kernel import BLOCK

        X, Y = torch.from_numpy(self.X), torch.from_numpy(self.Y)
        room = torch.empty(min(_TILE, self.B) * min(BLOCK, self.D))
        for first in range(0, self.D, BLOCK):
            documents = Y[first : first + BLOCK].T
            for tile in range(0, self.B, _TILE):
                if self.given.size:
                    part = np.ascontiguousarray(self.given[tile : tile + _TILE, first : first + BLOCK])
                    yield tile, first, part
                else:
                    rows = X[tile : tile + _TILE]
                    out = room[: len(rows) * documents.shape[1]].view(len(rows), -1)
                    yield tile, first, torch.mm(rows, documents, out=out).numpy()


def _plain(x: Tensor) -> NDArray[np.float32]:
    return x.detach().to(torch.float32).contiguous().cpu().numpy()


@dataclass(frozen=True)
class Races:
    """The candidates of S independent races of each query, and a further sample of the documents.

    Shapes: candidates, s [B, S, K2 + 1], the last to arrive first, behind the candidates who just missed, -1 where nobody is; count
    [B, S], how many are candidates; log_edge [B, S, 2], the times of the last candidate and of who missed, +inf where
    everybody is a candidate; log_tau [B], when K2 arrivals are expected; sample, sample_s [B, n], sample_n [B]: all who
    arrive before `wide` times tau in a race of its own.
    """

    candidates: NDArray[np.int32]
    s: NDArray[np.float32]
    count: NDArray[np.int64]
    log_edge: NDArray[np.float32]
    log_tau: NDArray[np.float32]
    sample: NDArray[np.int32]
    sample_s: NDArray[np.float32]
    sample_n: NDArray[np.int64]


@dataclass(frozen=True)
class Horizons:
    """Level b, rounding margin, horizons of the races (and of the sample), typical time.  Shapes: [B], [B], [B, U], [B]."""

    b: NDArray[np.float32]
    margin: NDArray[np.float32]
    log_T: NDArray[np.float32]
    log_tau: NDArray[np.float32]


def horizons(source: Source, K2: int, samples: int, wide: float | None) -> Horizons:
    """What makes the races cheap: functions of the scores alone."""
    from tandemrank.gradients import _lazy_race_kernel as kernel

    B, units = source.B, samples + (wide is not None)
    b, margin, log_tau = (np.empty(B, np.float32) for _ in range(3))
    log_T = np.empty((B, units), np.float32)
    kernel.set_horizons(
        source.X, source.Y, source.given, source.some(), K2, samples, wide or 1.0, chunks(B), b, margin, log_T, log_tau
    )
    return Horizons(b, margin, log_T, log_tau)


def races(source: Source, K2: int, samples: int, keys: NDArray[np.uint64], wide: float | None = None) -> Races:
    """S independent races to K2 candidates and who just missed; with `wide` a sample of the documents too."""
    from tandemrank.gradients import _lazy_race_kernel as kernel

    K2 = min(K2, source.D)
    with compiling():
        at = horizons(source, K2, samples, wide)
        numbers = np.array([*range(samples), *([_PATTERN] if wide is not None else [])], np.uint64)
        docs, scores, times, filled = _arrived(source, at, keys, numbers, K2)
        B, n = source.B, chunks(source.B)
        candidates, s = np.empty((B, samples, K2 + 1), np.int32), np.empty((B, samples, K2 + 1), np.float32)
        count, log_edge = np.empty((B, samples), np.int64), np.empty((B, samples, 2), np.float32)
        kernel.finish(
            source.X, source.Y, source.given, at.log_T, keys, numbers, K2, n, docs, scores, times, filled,
            candidates, s, count, log_edge,
        )  # fmt: skip
    sample = (docs[:, -1], scores[:, -1], filled[:, -1]) if wide is not None else (docs[:, 0], scores[:, 0], filled[:, 0] * 0)
    return Races(candidates, s, count, log_edge, at.log_tau, *sample)


Entries: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]


def _arrived(
    source: Source, at: Horizons, keys: NDArray[np.uint64], numbers: NDArray[np.uint64], K2: int
) -> Entries:
    """All who arrive before the horizons: documents, scores, times [B, U, capacity] and how many there are [B, U]."""
    from tandemrank.gradients import _lazy_race_kernel as kernel

    shape, capacity = at.log_T.shape, min(source.D, 2 * K2 + kernel.BLOCK)
    docs, filled = np.empty((*shape, capacity), np.int32), np.zeros(shape, np.int64)
    scores, times = np.empty((*shape, capacity), np.float32), np.empty((*shape, capacity), np.float32)
    bad = np.full(source.B, -1, np.int64)
    for tile, first, part in source.blocks():
        if filled.max(initial=0) + min(kernel.BLOCK, source.D - first) > capacity:
            capacity = min(source.D, 2 * capacity)
            docs, scores, times = (_longer(x, capacity) for x in (docs, scores, times))
        kernel.scan(
            part, tile, first, source.X, source.Y, at.b, at.margin, at.log_T, keys, numbers, chunks(len(part)),
            docs, scores, times, filled, bad,
        )  # fmt: skip
    _refuse(bad)
    return docs, scores, times, filled


def _longer(x: NDArray[np.generic], capacity: int) -> NDArray[np.generic]:
    longer = np.empty((*x.shape[:-1], capacity), x.dtype)
    longer[..., : x.shape[-1]] = x
    return longer


def _refuse(bad: NDArray[np.int64]) -> None:
    """NaN and +inf, which no threshold excludes, end in the head; they are refused by name."""
    if (bad >= 0).any():
        q = int(np.flatnonzero(bad >= 0)[0])
        raise PolicyError(
            f"generator scores of {int((bad >= 0).sum())} queries are NaN or +inf (first: row {q}, document {bad[q]}). "
            f"Scores must be finite, or -inf for a document that is not available; check the model's weights and the "
            f"learning rate."
        )


def candidates(scores: GeneratorScores, K2: int, *, generator: torch.Generator) -> NDArray[np.int32]:
    """One draw of K2 candidates for each query, Plackett-Luce, in no order; -1 where fewer are available.

    Shapes: scores [B, D] -> [B, K2].
    """
    if K2 < 1:
        raise ConfigError(f"K2 must be at least 1; got {K2}.")
    source = Source.of(scores)
    found = races(source, K2, 1, keys_for(source.B, generator))
    inside = np.arange(found.candidates.shape[2]) < found.count[:, 0, None]
    drawn = np.where(inside, found.candidates[:, 0], -1)
    return _padded(drawn, K2)


def _padded(drawn: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    result = np.full((len(drawn), n), -1, np.int32)
    result[:, : min(n, drawn.shape[1])] = drawn[:, :n]
    return result


def top(scores: GeneratorScores, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The n documents with the highest scores of each query and their scores, the highest first, ties to the lower number.

    Exact: blocks of products, and a level for each query below which nothing is looked at. -1 and -inf where fewer are available.
    Shapes: scores [B, D] -> two of [B, n].
    """
    from tandemrank.gradients import _lazy_race_kernel as kernel

    if n < 1:
        raise ConfigError(f"at least 1 document must be asked for; got {n}.")
    source = Source.of(scores)
    B = source.B
    b, margin = np.empty(B, np.float32), np.empty(B, np.float32)
    with compiling():
        kernel.set_levels(source.X, source.Y, source.given, source.some(), n, chunks(B), b, margin)
        docs, found, filled = _exceeding(source, b, margin, n)
        short = np.flatnonzero(filled < min(n, source.D))
        best, best_score = np.empty((B, n), np.int32), np.empty((B, n), np.float32)
        kernel.highest(docs, found, filled, n, chunks(B), best, best_score)
        if len(short) and np.any(b[short] > -np.inf):
            # The sample promised more than there is: these few queries look at everything.
            rest = Source(source.X[short], source.Y, source.given[short])
            everything = np.full(len(short), -np.inf, np.float32)
            docs, found, filled = _exceeding(rest, everything, margin[short], n)
            part, part_score = np.empty((len(short), n), np.int32), np.empty((len(short), n), np.float32)
            kernel.highest(docs, found, filled, n, chunks(len(short)), part, part_score)
            best[short], best_score[short] = part, part_score
    return best, best_score


def _exceeding(
    source: Source, b: NDArray[np.float32], margin: NDArray[np.float32], n: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    from tandemrank.gradients import _lazy_race_kernel as kernel

    capacity = min(source.D, 2 * n + kernel.BLOCK)
    docs, filled = np.empty((source.B, capacity), np.int32), np.zeros(source.B, np.int64)
    scores, bad = np.empty((source.B, capacity), np.float32), np.full(source.B, -1, np.int64)
    for tile, first, part in source.blocks():
        if filled.max(initial=0) + min(kernel.BLOCK, source.D - first) > capacity:
            capacity = min(source.D, 2 * capacity)
            docs, scores = _longer(docs, capacity), _longer(scores, capacity)
        kernel.scan_above(
            part, tile, first, source.X, source.Y, b, margin, chunks(len(part)), docs, scores, filled, bad
        )
    _refuse(bad)
    return docs, scores, filled
