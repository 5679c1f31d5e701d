"""Candidates out of very many documents: the first race without drawing every clock.

    T_d ~ Exp(lambda_d),  lambda_d = exp(s_d);    the candidates are the K first arrivals (Plackett-Luce)

Only who arrives before a horizon T matters. *Head*: documents with s_d > b; they have clocks, as in the dense race.
*Tail*: the others, whose rates are at most e^b. All arrivals of the tail before T are a thinned Poisson stream: proposals
come with rate n e^b, each is a uniform document out of n, kept with chance lambda_d / e^b; the first kept proposal of a
document is its arrival. If fewer than K + 1 have arrived by T the race goes on with new clocks for all others, as clocks
have no memory. So the law is exact whatever b and T are: they are chosen, from a sample of the scores, to make it cheap.

The scores come as products of factors (`products.Products`), computed in blocks, once for all races; no [B, D] object exists.
Or as a tensor. Random numbers are a function of (key of the race, stage, document or proposal).

`top`, exact retrieval, is the same race without chance: the highest scores come first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.random import GOLDEN, mix
from tandemrank.errors import ConfigError
from tandemrank.gradients._bridge import compiling, over_rows
from tandemrank.gradients.products import GeneratorScores, Source, longer, refuse, room


def streams(keys: NDArray[np.uint64], numbers: Sequence[int]) -> NDArray[np.uint64]:
    """The keys of some races of each query, as `stream` of the kernels makes them.  Shapes: keys [B], numbers [U] -> [B, U]."""
    return mix(keys[:, None] + GOLDEN * (np.array(numbers, np.uint64) + np.uint64(1)))


@dataclass(frozen=True)
class LazyRaces:
    """The K first arrivals of S independent races of each query, and P further samples of the documents.

    A sample is all who arrive, by clocks of its own, before exp(log_reach).
    Shapes: first, s, log_t [B, S, K + 1], documents, scores and log times, the last of the K in front, and behind them who just
    missed; -1, -inf and +inf where nobody is left. log_tau, log_reach [B], when K are expected, and as many as a sample has;
    sampled, sampled_s [B, P, n], of which count [B, P] are filled.
    """

    first: NDArray[np.int32]
    s: NDArray[np.float32]
    log_t: NDArray[np.float32]
    log_tau: NDArray[np.float32]
    log_reach: NDArray[np.float32]
    sampled: NDArray[np.int32]
    sampled_s: NDArray[np.float32]
    count: NDArray[np.int64]

    def in_order(self) -> "LazyRaces":
        """The same with the arrivals in their order: the first K are a Plackett-Luce list."""
        order = np.argsort(self.log_t, axis=2, kind="stable")
        first, s = np.take_along_axis(self.first, order, 2), np.take_along_axis(self.s, order, 2)
        return replace(self, first=first, s=s, log_t=np.take_along_axis(self.log_t, order, 2))


@dataclass(frozen=True)
class Horizons:
    """Level b, rounding margin, horizons of races and samples, typical times.  Shapes: [B], [B], [B, U], [B], [B].

    `is_drawn`: by chance, or the highest scores first.
    """

    b: NDArray[np.float32]
    margin: NDArray[np.float32]
    log_T: NDArray[np.float32]
    log_tau: NDArray[np.float32]
    log_reach: NDArray[np.float32]
    is_drawn: bool


def horizons(source: Source, K: int, races: int, samples: int, size: int, *, is_drawn: bool = True) -> Horizons:
    """What makes so many races and samples cheap: functions of the scores alone."""
    from tandemrank.gradients._kernels import lazy_race as kernel

    b, margin, log_tau, log_reach = (np.empty(source.B, np.float32) for _ in range(4))
    log_T = np.empty((source.B, races + samples), np.float32)
    over_rows(
        kernel.set_horizons, source.B, source.arrays, source.some(), K, size, races, is_drawn, b, margin,
        log_T, log_tau, log_reach,
    )  # fmt: skip
    return Horizons(b=b, margin=margin, log_T=log_T, log_tau=log_tau, log_reach=log_reach, is_drawn=is_drawn)


def races(
    source: Source, K: int, keys: NDArray[np.uint64], sample_keys: NDArray[np.uint64] | None = None, size: int = 0
) -> LazyRaces:
    """A race to K for each key, and a sample of about `size` documents for each further key, from one pass over the scores.

    Shapes: keys [B, S]; sample_keys [B, P].
    """
    S = keys.shape[1]
    own = keys if sample_keys is None else np.concatenate([keys, sample_keys], 1)
    with compiling():
        at = horizons(source, K, S, own.shape[1] - S, min(size, source.D))
        entries = _arrived(source, at, own, max(K, size))
        first, s, log_t = _first(source, at, own, entries, K, S)
    docs, scores, _, filled = entries
    return LazyRaces(
        first=first,
        s=s,
        log_t=log_t,
        log_tau=at.log_tau,
        log_reach=at.log_reach,
        sampled=docs[:, S:],
        sampled_s=scores[:, S:],
        count=filled[:, S:],
    )


def top(scores: GeneratorScores, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The n documents with the highest scores of each query and their scores, the highest first, ties to the lower number.

    Exact: blocks of products, and for each query a level below which nothing is looked at. -1 and -inf where too few are
    available.
    Shapes: scores [B, D] -> two of [B, n].
    """
    if n < 1:
        raise ConfigError(f"at least 1 document must be asked for; got {n}.")
    source = Source.of(scores)
    wanted, none = min(n, source.D), np.zeros((source.B, 1), np.uint64)
    with compiling():
        at = horizons(source, wanted, 1, 0, 0, is_drawn=False)
        entries = _arrived(source, at, none, wanted)
        first, s, _ = _first(source, at, none, entries, wanted, 1)
    found, score = first[:, 0, :wanted], s[:, 0, :wanted]
    order = np.lexsort((found, -score), axis=1)
    more = ((0, 0), (0, n - wanted))
    return (
        np.pad(np.take_along_axis(found, order, 1), more, constant_values=-1),
        np.pad(np.take_along_axis(score, order, 1), more, constant_values=-np.inf),
    )


# Who arrived: documents, scores, log times [B, U, capacity], and how many of them there are [B, U].
Entries: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]


def _arrived(source: Source, at: Horizons, keys: NDArray[np.uint64], n: int) -> Entries:
    """All who arrive before the horizons, about n of each race; without chance the n first at least."""
    from tandemrank.gradients._kernels import lazy_race as kernel
    from tandemrank.gradients._kernels.products import BLOCK

    # Horizons are late where few of very many are wanted: what little a sample knows of these is doubted.
    shape, capacity = at.log_T.shape, min(source.D, 2 * (n + BLOCK))
    docs, filled = room((*shape, capacity), np.int32), np.zeros(shape, np.int64)
    scores, times = room((*shape, capacity), np.float32), room((*shape, capacity), np.float32)
    bad = np.full(source.B, -1, np.int64)
    for tile, start, part in source.blocks():
        most = int(filled[tile : tile + len(part)].max(initial=0))
        if at.is_drawn and most + min(BLOCK, source.D - start) > capacity:
            capacity, used = min(source.D, 2 * capacity), int(filled.max())
            docs, scores, times = (
                longer(docs, capacity, used),
                longer(scores, capacity, used),
                longer(times, capacity, used),
            )
        over_rows(
            kernel.scan, len(part), part, tile, start, source.arrays, at.b, at.margin, at.log_T, keys, at.is_drawn,
            n, docs, scores, times, filled, bad,
        )  # fmt: skip
    refuse(bad)
    return docs, scores, times, filled


Arrivals: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]


def _first(source: Source, at: Horizons, keys: NDArray[np.uint64], entries: Entries, K: int, samples: int) -> Arrivals:
    """The K first arrivals of each query's first races, the last of them in front, and at place K who comes next.

    Shapes: keys [B, U] -> documents, scores, log times [B, S, K + 1]; -1, -inf and +inf where nobody is left.
    """
    from tandemrank.gradients._kernels import lazy_race as kernel

    shape = (source.B, samples, K + 1)
    first, s, log_t = np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(shape, np.float32)
    over_rows(
        kernel.finish, source.B, source.arrays, at.log_T, keys, at.is_drawn, K, *entries, first, s, log_t,
    )  # fmt: skip
    return first, s, log_t
