"""The embedded synthetic world: ratings that resemble MovieLens-1M, of any size, the same for the same seed.

User u and item d have a taste match m[u, d] = p_u . x_d of rank 20; what is watched and how it is rated follow from it:

    watched by u  = the n_u first arrivals of a race with rates  popularity_d * exp(m[u, d])   (a Plackett-Luce draw)
    liking[u, d]  = 0.6 m[u, d] + 0.9 quality_d + 0.5 mildness_u + 1.2 noise    (the last three standard normal)
    rating[u, d]  = liking, cut into 1 .. 5 so that the five shares are those of MovieLens-1M

Popular items tend to be better (correlation 0.7). Activity n_u and popularity are long-tailed: powers of gamma
variables, at evenly spaced quantiles in random order, so that a world's totals hardly depend on its seed.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import gammaincinv, ndtri

from tandemrank.errors import ConfigError
from tandemrank.gradients import lazy_race
from tandemrank.gradients.products import Source

# MovieLens-1M: its size, its activity, the shares of its ratings 1 .. 5.
_ITEMS, _MEAN_ACTIVITY, _LEAST_ACTIVITY = 3706, 165.6, 20.0
_SHARES = (0.0562, 0.1075, 0.2611, 0.3490, 0.2262)

# Fitted by hand to its popularity curve, its singular values and the NDCG of popularity and of rank-50 SVD.
_RANK, _TASTE = 20, 1.2
_BLOCK = 2_000_000  # race clocks that are drawn at a time
KNOWN = 6  # tastes of an item that its features tell, roughly
LARGE = 50_000  # items above which the clocks are drawn lazily, and activity is MovieLens-1M's
_USERS = 256  # that watch at a time in a large world


def synthetic_world(queries: int, items: int, *, seed: int = 0) -> tuple[csr_matrix, NDArray[np.int8]]:
    """Ratings 1 .. 5 of the synthetic world; each query likes (rates above 3) at least one item. And what is known of an item:
    whether it is below, within or above the middle of each of its first tastes (-1, 0, 1).

    Shapes: -> [queries, items] sparse, [items, KNOWN]. Work is proportional to queries * items (one product each), memory
    to the ratings.
    """
    if min(queries, items) < 1 or seed < 0:
        raise ConfigError(
            f"a synthetic world needs at least 1 query, 1 item and a seed >= 0, "
            f"got {queries} queries, {items} items and seed {seed}."
        )
    rng = np.random.default_rng(seed)
    activity = _activity(queries, items, rng)
    level = _quantile_levels(items, rng)
    popularity = gammaincinv(2.5, level) ** 3
    quality = 0.7 * ndtri(level) + np.sqrt(1 - 0.7**2) * rng.standard_normal(items)
    spectrum = 1 / np.sqrt(np.arange(1, _RANK + 1))  # a few strong tastes, many faint ones
    p = rng.standard_normal((queries, _RANK)) * (_TASTE * spectrum / np.linalg.norm(spectrum))
    x = rng.standard_normal((items, _RANK))

    watch = _watch if items <= LARGE else _watch_lazily
    u, d, match = (np.concatenate(parts) for parts in zip(*watch(p, x, popularity, activity, rng), strict=True))
    start = np.searchsorted(u, np.arange(queries + 1))
    mildness = rng.standard_normal(queries)
    liking = 0.6 * match + 0.9 * quality[d] + 0.5 * mildness[u] + 1.2 * rng.standard_normal(len(d))
    rating = 1 + np.searchsorted(np.quantile(liking, np.cumsum(_SHARES[:-1])), liking)
    favourite = liking == np.maximum.reduceat(liking, start[:-1])[u]
    rating[favourite] = np.maximum(rating[favourite], 4)  # so that every query has something to find
    known = np.sign(np.where(np.abs(x[:, :KNOWN]) < 0.43, 0, x[:, :KNOWN])).astype(np.int8)  # a third each
    return csr_matrix((rating.astype(np.float32), d, start), shape=(queries, items)), known


def _quantile_levels(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """n evenly spaced levels in (0, 1), in random order: a sample of a uniform variable without its sampling noise."""
    return rng.permutation((np.arange(n) + 0.5) / n)


def _activity(queries: int, items: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many items each query rates: least + gamma(0.6), as in MovieLens-1M, at most three quarters of all items.

    It grows with the square root of the catalogue: that takes MovieLens-1M's 166 ratings per user at 3,706 items to 112
    at 1,682, where MovieLens-100K has 106, and leaves a small world enough to learn from. In a large world (above LARGE) it is
    MovieLens-1M's: nobody watches thousands.

    Shapes: -> [queries].
    """
    scale = np.sqrt(items / _ITEMS) if items <= LARGE else 1.0
    least, mean = max(_LEAST_ACTIVITY * scale, 5.0), max(_MEAN_ACTIVITY * scale, 10.0)
    excess = gammaincinv(0.6, _quantile_levels(queries, rng))
    n: NDArray[np.float64] = np.round(least + (mean - least) * excess / excess.mean())
    return np.minimum(n, np.ceil(0.75 * items)).astype(np.int64)


Watched = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]  # users, items, taste matches


def _watch(
    p: NDArray[np.float64],
    x: NDArray[np.float64],
    popularity: NDArray[np.float64],
    activity: NDArray[np.int64],
    rng: np.random.Generator,
) -> Iterator[Watched]:
    """The activity[u] first arrivals of each user's race, sorted by user and item, some users at a time.

    Shapes: p [Q, rank], x [D, rank], popularity [D], activity [Q] -> three arrays [sum(activity)] in all.
    """
    block = max(1, _BLOCK // len(x))
    for first in range(0, len(p), block):
        n = activity[first : first + block]
        m = p[first : first + block] @ x.T
        time = rng.standard_exponential(m.shape) * np.exp(-m) / popularity
        last = np.take_along_axis(np.sort(time, axis=1), n[:, None] - 1, axis=1)
        u, d = np.nonzero(time <= last)
        yield first + u, d, m[u, d]


def _watch_lazily(
    p: NDArray[np.float64],
    x: NDArray[np.float64],
    popularity: NDArray[np.float64],
    activity: NDArray[np.int64],
    rng: np.random.Generator,
) -> Iterator[Watched]:
    """The same race where most clocks are never drawn (`lazy_race`): scores p_u . x_d + log popularity_d, in blocks."""
    Y = np.concatenate([x, np.log(popularity)[:, None]], 1).astype(np.float32)
    X = np.concatenate([p, np.ones((len(p), 1))], 1).astype(np.float32)
    keys = rng.integers(2**63, size=(len(p), 1)).astype(np.uint64)
    for first in range(0, len(p), _USERS):
        part = slice(first, first + _USERS)
        source = Source(X[part], Y, np.empty((len(X[part]), 0), np.float32))
        arrived = lazy_race.races(source, int(activity[part].max()), keys[part]).in_order().first[:, 0]
        u, place = np.nonzero(np.arange(arrived.shape[1]) < activity[part, None])
        d = arrived[u, place].astype(np.int64)
        order = np.lexsort((d, u))
        u, d = u[order], d[order]
        yield first + u, d, np.einsum("nf,nf->n", p[first + u], x[d])
