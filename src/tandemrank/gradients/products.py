"""Scores as products of factors, for very many documents: in blocks, and those of some documents.

    s[q, d] = <queries[q], items[d]>,          but of pairs that are listed as it is listed: what is remembered of single pairs

`at` scores some documents of each query, with gradients. `Source` feeds the lazy race. An object [B, D] never exists, but
for scores that come as such.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.errors import PolicyError
from tandemrank.gradients._bridge import compiling, over_rows, row_major

# Queries whose products are computed at once; documents that tell how the scores are distributed.
_TILE, _SAMPLE = 64, 4096


@dataclass(frozen=True)
class Listed:
    """Scores of single pairs, those of query b at first[b] .. first[b + 1], their documents in order.

    Shapes: first [B + 1]; item, value [n].
    """

    first: NDArray[np.int64]
    item: NDArray[np.int32]
    value: NDArray[np.float32]


@dataclass(frozen=True)
class Products:
    """The scores of a factorised generator, s[q, d] = <queries[q], items[d]> unless they are listed.

    Shapes: queries [B, F], items [D, F].
    """

    queries: Tensor
    items: Tensor
    listed: Listed | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        x, y = self.queries, self.items
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or y.shape[0] == 0 or x.shape[1] == 0:
            raise PolicyError(
                f"products need factors [queries, F] and [items, F] with F and items at least 1; "
                f"got {tuple(x.shape)} and {tuple(y.shape)}."
            )

    def whole(self) -> Tensor:
        """The scores of all documents.  Shapes: -> [B, D]."""
        found = self.queries @ self.items.T
        if self.listed is not None:
            rows = np.repeat(np.arange(len(found)), np.diff(self.listed.first))
            places = torch.from_numpy(rows), torch.from_numpy(self.listed.item).long()
            found = found.index_put(places, torch.from_numpy(self.listed.value))
        return found


GeneratorScores: TypeAlias = Products | Tensor
Arrays: TypeAlias = tuple[
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.float32],
]


@dataclass(frozen=True)
class Source:
    """Scores as the kernels see them: factors, and what is listed instead; or given numbers (then F = 0).

    Shapes: X [B, F]; Y [D, F]; given [B, D], or [B, 0] where there are factors.
    """

    X: NDArray[np.float32]
    Y: NDArray[np.float32]
    given: NDArray[np.float32]
    listed: Listed | None = None

    @staticmethod
    def of(scores: GeneratorScores) -> "Source":
        if isinstance(scores, Products):
            X, Y = row_major(scores.queries), row_major(scores.items)
            return Source(X, Y, np.empty((len(X), 0), np.float32), scores.listed)
        if scores.ndim != 2 or scores.shape[1] == 0:
            raise PolicyError(f"scores must be [queries, documents], at least one document; got {tuple(scores.shape)}.")
        given = row_major(scores)
        return Source(np.empty((len(given), 0), np.float32), np.empty((given.shape[1], 0), np.float32), given)

    @cached_property
    def arrays(self) -> Arrays:
        """X, Y, given, and where the listed pairs of each query begin, their documents and scores."""
        none = Listed(np.zeros(self.B + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
        own = self.listed or none
        return self.X, self.Y, self.given, own.first, own.item, own.value

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

    def at(self, q: NDArray[np.int64], d: NDArray[np.integer]) -> NDArray[np.float32]:
        """The scores of pairs.  Shapes: q, d [n] -> [n]."""
        from tandemrank.gradients._kernels import products as kernel

        found = np.empty(len(q), np.float32)
        with compiling():
            kernel.own_scores(self.arrays, q, d.astype(np.int32, copy=False), found)
        return found

    def blocks(self) -> Iterator[tuple[int, int, NDArray[np.float32]]]:
        """(first query, first document, scores [queries, documents]) of one part of the matrix after another."""
        from tandemrank.gradients._kernels.products import BLOCK

        write = self._listed_in(BLOCK)
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
                    scores = torch.mm(rows, documents, out=out).numpy()
                    write(tile, first, scores)
                    yield tile, first, scores

    def _listed_in(self, block: int) -> Callable[[int, int, NDArray[np.float32]], None]:
        """Who writes the listed scores over the products of a part of `blocks`."""
        if self.listed is None:
            return lambda tile, first, scores: None
        item, value, tiles = self.listed.item, self.listed.value, -(-self.B // _TILE)
        row = np.repeat(np.arange(self.B), np.diff(self.listed.first))
        part = (item // block) * tiles + row // _TILE
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(-(-self.D // block) * tiles + 1))

        def write(tile: int, first: int, scores: NDArray[np.float32]) -> None:
            number = first // block * tiles + tile // _TILE
            own = order[bounds[number] : bounds[number + 1]]
            scores[row[own] - tile, item[own] - first] = value[own]

        return write


Numbers = TypeVar("Numbers", bound=np.generic)


def room(shape: tuple[int, ...], dtype: type[Numbers]) -> NDArray[Numbers]:
    """Space of which little will be used: what is not touched costs nothing. numpy would ask the system for pages of 2 MB,
    which it hands out as zeros, every one with a number in it."""
    found: NDArray[Numbers] = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype).numpy()
    return found


def longer(x: NDArray[Numbers], capacity: int, used: int) -> NDArray[Numbers]:
    """The same first entries, `used` at most, with more room behind them.  Shapes: x [..., n] -> [..., capacity]."""
    more = room((*x.shape[:-1], capacity), x.dtype.type)
    more[..., :used] = x[..., :used]
    return more


def refuse(bad: NDArray[np.int64]) -> None:
    """NaN and +inf, which no threshold excludes, end in the head; they are refused by name."""
    if (bad >= 0).any():
        q = int(np.flatnonzero(bad >= 0)[0])
        raise PolicyError(
            f"generator scores of {int((bad >= 0).sum())} queries are NaN or +inf (first: row {q}, document {bad[q]}). "
            f"Scores must be finite, or -inf for a document that is not available; check the model's weights and the "
            f"learning rate."
        )


class _At(torch.autograd.Function):
    """The products at some documents; by the items a sparse gradient, only rows that count, or a dense one."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, items: Tensor, documents: Tensor, sparse: bool) -> Tensor:
        from tandemrank.gradients._kernels import products as kernel

        ctx.save_for_backward(queries, items, documents)
        ctx.sparse = sparse
        scores = np.empty(documents.shape, np.float32)
        with compiling():
            over_rows(kernel.scores_at, len(scores), row_major(queries), row_major(items), documents.numpy(), scores)
        return torch.from_numpy(scores).to(queries)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        queries, items, documents = ctx.saved_tensors
        gradient, by_query, by_item = row_major(grad_outputs[0]), None, None
        # The gradient by all scores, as a matrix [B, D] of those that are not 0.
        kept = gradient != 0
        first = np.concatenate([[0], np.cumsum(kept.sum(1))])
        G = csr_matrix((gradient[kept], documents.numpy()[kept], first), shape=(len(queries), len(items)))
        if ctx.needs_input_grad[0]:
            by_query = torch.from_numpy(G @ row_major(items)).to(queries)
        if ctx.needs_input_grad[1]:
            by_item = _item_gradient(G, queries, items)
            by_item = by_item if ctx.sparse else by_item.to_dense()
        return by_query, by_item, None, None


def _item_gradient(G: csr_matrix, queries: Tensor, items: Tensor) -> Tensor:
    """The transpose of G times the queries: a coalesced sparse tensor [D, F], of the rows that count."""
    by_document = G.T.tocsr()
    rows = np.flatnonzero(np.diff(by_document.indptr))
    first = by_document.indptr[np.append(0, rows + 1)]  # without the documents that have no entry
    few = csr_matrix((by_document.data, by_document.indices, first), shape=(len(rows), len(queries)))
    found = torch.from_numpy(few @ row_major(queries)).to(items)
    index = torch.from_numpy(rows)[None]
    return torch.sparse_coo_tensor(index, found, items.shape, is_coalesced=True, check_invariants=False)


def at(queries: Tensor, items: Tensor, documents: Tensor, *, sparse: bool = False) -> Tensor:
    """The scores of some documents of each query, <queries[q], items[documents[q, j]]>, differentiable in both factors.

    `sparse`: the gradient by the items is a sparse tensor, of the rows that count; a step then costs what it touches.
    Shapes: queries [B, F]; items [D, F]; documents [B, M], int64 -> [B, M].
    """
    Products(queries, items)
    if documents.ndim != 2 or len(documents) != len(queries) or documents.dtype != torch.int64:
        raise PolicyError(
            f"documents must be int64 [{len(queries)}, M], one row per query; got {documents.dtype} {tuple(documents.shape)}."
        )
    if documents.numel() and not 0 <= int(documents.min()) <= int(documents.max()) < len(items):
        raise PolicyError(
            f"documents must lie in 0 ... {len(items) - 1}; got {int(documents.min())} ... {int(documents.max())}."
        )
    result: Tensor = _At.apply(queries, items, documents.contiguous(), sparse)  # type: ignore[no-untyped-call]
    return result
