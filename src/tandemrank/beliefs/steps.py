"""The steps of the fit: directions of a log, queries given items, items given queries, and what is left of their spread."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.cluster import ALONE, Group
from tandemrank._base.sparse import sums_by
from tandemrank.beliefs import _newton_kernel
from tandemrank.beliefs.choice import right_singular
from tandemrank.beliefs.chunks import in_chunks
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.grades import FLAT, Floats32, Grades
from tandemrank.beliefs.space import Directions, Space

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

STEPS, TOLERANCE = 12, 1e-3  # Newton steps of a vector at most, and the gain of log-likelihood below which they end
ITEM_STEPS = 2  # of an item at most: most of the gain


@dataclass(frozen=True)
class Seen:
    """Shown pairs for the steps: where each query begins, items, the evidence of each pair as its kind, what does not move.

    `group`: who has the pairs of other queries.
    Shapes: first [Q + 1]; item, kind, other [pairs]; table [J, kinds], likelihoods of the levels.
    """

    first: Whole
    item: NDArray[np.int32]
    kind: NDArray[np.int32]
    table: Floats32
    other: Floats32
    grades: Grades
    group: Group = ALONE

    @property
    def Q(self) -> int:
        """Queries, shown something or not."""
        return len(self.first) - 1

    @property
    def query(self) -> Whole:
        """The query of every pair."""
        return np.repeat(np.arange(self.Q), np.diff(self.first))

    def terms(self, space: Space, x: Floats) -> tuple[Floats, Floats, Floats]:
        """`Grades.terms` of all pairs, at the vectors x.  Shapes: x [Q, F + 1] -> [pairs] each."""
        s = space.s(self.query, self.item, x) + self.other
        return self.grades.terms_of_kinds(s, self.table, self.kind)


def from_log(seen: Seen, g: Floats, rows: Whole, level: float, *, most: int, seed: int) -> Directions:
    """The directions of a log alone: singular vectors of what levels of items and queries leave unexplained.

        B[q, d] = d/ds log P(showings) / sqrt((I_q + median) (I_d + median)),   I the information of the pairs

    Singular values are shrunk by the last one, which is noise.  Shapes: g [D]; rows, the queries with a log [n].
    """
    Q, D, query = seen.Q, len(g), seen.query
    offset = (g * np.sqrt(1 + FLAT * level)).astype(np.float32)
    flat = Space(np.ones((D, 1), np.float32), offset, np.zeros((Q, 1)), np.array([1 / level]))
    x = query_step(flat, seen, rows)
    _, slope, h = seen.terms(flat, x)
    group, shown = seen.group, np.flatnonzero(seen.group.sum(sums_by(seen.item, np.ones(len(h)), D)))
    of_queries, of_items = sums_by(query, h, Q), group.sum(sums_by(seen.item, h, D))
    weights = [
        1 / np.sqrt(information + max(float(np.median(known)), 1e-9))
        for information, known in ((of_queries, group.gather(of_queries[rows])), (of_items, of_items[shown]))
    ]
    F = max(1, min(most, group.before(Q)[1] // 2, len(shown) // 2))
    values = slope * weights[0][query] * weights[1][seen.item]
    V, S = _singular(csr_matrix((values, seen.item, seen.first), shape=(Q, D))[:, shown], F, seed, group)
    kept = np.sqrt(np.maximum(S**2 - (0.98 * S[-1]) ** 2, 0)) if len(S) > 1 else S
    found = np.zeros((D, len(S)))
    found[shown] = V * weights[1][shown, None] * kept
    return Directions(found)


def _singular(B: csr_matrix, F: int, seed: int, group: Group) -> tuple[Floats, Floats]:
    """Right singular vectors and singular values of a sparse matrix, everybody has some rows of it: four steps of the power
    method.  -> [D, F], [F]."""
    V = np.random.default_rng(seed).standard_normal((B.shape[1], min(F + 10, B.shape[1])))
    for _ in range(4):
        V, _ = np.linalg.qr(group.sum(B.T @ (B @ V)))
    R, S = right_singular(B @ V, group)
    return (V @ R)[:, :F], S[:F]


def query_step(space: Space, seen: Seen, rows: Whole, x: Floats | None = None) -> Floats:
    """The vectors of some queries at their posterior mode, all others at the prior's mean; from x, if given.

    Shapes: rows [n]; x [Q, F + 1] -> [Q, F + 1].
    """
    found = space.mean.copy()
    if x is not None:
        found[rows] = x[rows]
    _ascend(
        seen, rows, space.offset[seen.item] + seen.other, space.items, space.precision[None], space.mean, found, STEPS
    )
    return found


def _ascend(
    seen: Seen, rows: Whole, offset: Floats32, W: Floats32, P: Floats, m: Floats, x: Floats, steps: int
) -> None:
    """Newton steps of some rows of x, in place: queries, or items with queries in their place (`_newton_kernel.ascend`)."""
    family = seen.grades.family()

    def work(own: slice) -> None:
        _newton_kernel.ascend(
            rows[own], seen.first, seen.item, seen.kind, seen.table, family, offset, W, P, m, x, steps, TOLERANCE
        )

    in_chunks(work, len(rows))


@dataclass(frozen=True)
class Spread:
    """How sure the vectors are: variance of s[q, d] ~ query_q item_d, and the mean covariance of the vectors.

    `asked`: the variance of the pairs that were asked for.  Shapes: query [Q]; item [D]; mean [F + 1, F + 1]; asked [n].
    """

    query: Floats
    item: Floats
    mean: Floats
    asked: Floats


def spread_of(space: Space, seen: Seen, rows: Whole, x: Floats, asked: Counts | None = None) -> Spread:
    """The spread of the vectors by Laplace's approximation; queries without a log have that of the prior."""
    W, Q, D = space.items.astype(np.float64), seen.Q, len(space.items)
    G = W.T @ W / max(D, 1)
    first, item = (np.zeros(Q + 1, np.int64), np.zeros(0, np.int32)) if asked is None else (asked.first, asked.item)
    offset, family = space.offset[seen.item] + seen.other, seen.grades.family()
    trace, variance = np.full(Q, float(np.diag(G) @ (1 / space.precision))), np.zeros(len(item), np.float32)
    sums: dict[int, Floats] = {}

    def work(own: slice) -> None:
        total = sums[own.start] = np.zeros_like(G)
        _newton_kernel.spread(
            rows[own], seen.first, seen.item, seen.kind, seen.table, family, offset, space.items, space.precision[None],
            space.mean, x, G, first, item, total, trace, variance,
        )  # fmt: skip

    in_chunks(work, len(rows))
    # In order: the same bits with any number of threads.
    total = seen.group.sum(np.sum([sums[k] for k in sorted(sums)], axis=0) if sums else np.zeros_like(G))
    n = seen.group.total(len(rows))[0]
    mean = total / n if n else np.diag(1 / space.precision)
    size = max(float((mean * G).sum()), np.finfo(float).tiny)
    return Spread(trace / size, np.einsum("df,fg,dg->d", W, mean, W, optimize=True), mean, variance.astype(np.float64))


def items_of(pairs: Floats, group: Group) -> Whole:
    """Where the items of each of a group begin, by their numbers of pairs.  Shapes: pairs [D] -> [size + 1]."""
    share = np.arange(group.size + 1) / group.size
    found: Whole = np.searchsorted(np.cumsum(pairs), share * pairs.sum()).astype(np.int64)
    found[0], found[-1] = 0, len(pairs)
    return found


def _by_item(seen: Seen, levels: Floats32, D: int, own: Whole) -> Seen:
    """The pairs of the whole log by item, of our items alone, with queries in their place; `levels` of their queries are added
    to what does not move.  Shapes: levels [pairs]; own [size + 1] -> first [D + 1]."""
    group = seen.group
    order = csr_matrix((np.arange(len(seen.item)), seen.item, seen.first), shape=(seen.Q, D)).tocsc()
    at, first = order.data, order.indptr.astype(np.int64)
    query, other = order.indices.astype(np.int32), (seen.other + levels)[at]
    if group.size == 1:
        return replace(seen, first=first, item=query, kind=seen.kind[at], other=other)
    query += np.int32(group.before(seen.Q)[0])
    bounds = [slice(*first[own[[k, k + 1]]]) for k in range(group.size)]
    item = np.repeat(np.arange(D, dtype=np.int32), np.diff(first))
    parts = group.exchange([(item[b], query[b], seen.kind[at[b]], other[b]) for b in bounds])
    # Everybody's kinds of evidence one after the other.
    tables = group.gather(np.ascontiguousarray(seen.table.T))
    kinds = np.append(0, np.cumsum(group.gather(np.array([seen.table.shape[1]]))))
    item, query, kind, other = (
        np.concatenate([part[j] + (kinds[rank] if j == 2 else 0) for rank, part in enumerate(parts)]) for j in range(4)
    )
    order = np.argsort(item, kind="stable")  # by item, then by query: everybody's queries come after those before
    return replace(
        seen,
        first=np.searchsorted(item[order], np.arange(D + 1)).astype(np.int64),
        item=query[order],
        kind=kind[order].astype(np.int32),
        table=np.ascontiguousarray(tables.T),
        other=other[order],
    )


@dataclass(frozen=True)
class ItemPrior:
    """Normal priors of the items' directions and offsets.  Shapes: centre, precision [D, F + 1], the last the offset."""

    centre: Floats
    precision: Floats


def item_step(space: Space, seen: Seen, x: Floats, mean: Floats, prior: ItemPrior) -> Space:
    """The items' directions and offsets at their posterior mode, with the queries' vectors known up to their spread.

    What is not known of x counts as information about it times its variance, a ridge; of the bit it also brings the mean over x
    of sigmoid(s), sigmoid(kappa s), nearer to 1/2.
    Shapes: x [Q, F + 1]; mean [F + 1, F + 1], the covariance of a query's vector.
    """
    F, D, group = space.items.shape[1] - 1, len(space.items), seen.group
    _, _, h = seen.terms(space, x)
    of_items, pairs = (group.sum(sums_by(seen.item, values, D)) for values in (h, np.ones(len(h))))
    shown = np.flatnonzero(pairs)  # the others stay where they are expected
    pairs, W = pairs[shown], space.items[shown]
    precision = prior.precision[shown]
    m = prior.centre[shown] * precision
    precision[:, :F] += of_items[shown, None] * np.diag(mean)[None, :F]
    m /= precision
    y = np.column_stack([W[:, :F], space.offset[shown]]).astype(np.float64)
    kappa = 1.0
    if seen.grades.is_bit:  # all is scaled by kappa, and so is the sum of log-likelihood and prior
        variance = np.einsum("df,fg,dg->d", W, mean, W, optimize=True)
        kappa = 1 / np.sqrt(1 + FLAT * float(pairs @ variance) / max(float(pairs.sum()), 1.0))
    own = items_of(pairs, group)
    place = np.zeros(D, np.int32)
    place[shown] = np.arange(len(shown))
    by_item = _by_item(replace(seen, item=place[seen.item]), x[seen.query, F].astype(np.float32), len(shown), own)
    table, offset = (
        by_item.table ** np.float32(kappa) if kappa < 1 else by_item.table,
        np.float32(kappa) * by_item.other,
    )
    vectors = np.column_stack([x[:, :F], np.ones(len(x))]).astype(np.float32, "C")
    ours, mine = np.arange(own[group.rank], own[group.rank + 1]), replace(by_item, table=table)
    y *= kappa
    _ascend(mine, ours, offset, group.gather(vectors), precision / kappa, kappa * m, y, ITEM_STEPS)
    items, offset = prior.centre.astype(np.float32), prior.centre[:, F].astype(np.float32)
    y = group.gather(y[ours]) / kappa
    items[shown], offset[shown] = y, y[:, F]
    items[:, F] = 1
    return replace(space, items=items, offset=offset)
