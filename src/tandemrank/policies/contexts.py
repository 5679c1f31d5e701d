"""What a context, such as a device, changes in the scores of a stage: of items, and of single pairs.

    score in a context = score + shift[d, values]          a sum over the context's columns
    of a listed pair     its own number there, where it has one

Values have codes, 1, 2, ... by how frequent they are, 0 for an unknown one, and places among the values of all columns.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tandemrank._base.sparse import entries_of_rows
from tandemrank.errors import PolicyError
from tandemrank.policies.features import Categorical

Whole = NDArray[np.int64]

QUERIES = 2**27  # more than there are: a query in a context has one number of both


def codes_of(columns: Sequence[Categorical], table: pl.DataFrame) -> Whole:
    """The codes of contexts.  Shapes: table [n, C] -> [n, C]."""
    found = np.zeros((len(table), len(columns)), np.int64)
    for j, column in enumerate(columns):
        code = {value: number for number, value in enumerate(column.values, 1)}
        found[:, j] = [code.get(value, 0) for value in table[column.name].to_list()]
    return found


def places_of(columns: Sequence[Categorical], codes: Whole) -> Whole:
    """Where values are among those of all columns; after the last for an unknown one.  Shapes: codes [n, C] -> [n, C]."""
    first = np.cumsum([0, *(len(column.values) for column in columns)])
    found: Whole = np.where(codes > 0, codes - 1 + first[:-1], first[-1])
    return found


def numbers_of(columns: Sequence[Categorical], query: Whole, codes: Whole) -> Whole:
    """One number of a query and its context.  Shapes: query [n]; codes [n, C] -> [n]."""
    number = np.zeros(len(query), np.int64)
    for column, code in zip(columns, codes.T, strict=True):
        number = number * (len(column.values) + 1) + code
    return number * QUERIES + query


class ContextShift(nn.Module):
    """The shifts of a stage, and its lists in a context.

    Buffers: shift [D, V]; by_item [J + 1, V], the shift that features suggest, the constant last; key [m], the queries in a
    context that have a list, sorted, and first [m + 1], item, value [n], their lists; now [Q, V], the context of every query of
    a policy in a context, no rows else.
    """

    shift: Tensor
    by_item: Tensor
    key: Tensor
    first: Tensor
    item: Tensor
    value: Tensor
    now: Tensor

    def __init__(
        self, columns: Sequence[dict[str, Any]], D: int, J: int, lists: int, entries: int, scale: float = 1.0
    ) -> None:
        """`scale`: how many of our units one of log-odds is."""
        super().__init__()
        self.scale = float(scale)
        self.columns = tuple(Categorical(str(one["name"]), tuple(map(str, one["values"]))) for one in columns)
        V = sum(len(column.values) for column in self.columns)
        self.register_buffer("shift", torch.zeros(D, V))
        self.register_buffer("by_item", torch.zeros(J + 1, V))
        self.register_buffer("key", torch.zeros(lists, dtype=torch.int64))
        self.register_buffer("first", torch.zeros(lists + 1, dtype=torch.int64))
        self.register_buffer("item", torch.zeros(entries, dtype=torch.int32))
        self.register_buffer("value", torch.zeros(entries))
        self.register_buffer("now", torch.zeros(0, V), persistent=False)

    def spec(self) -> dict[str, Any]:
        """The arguments of its constructor, plain JSON."""
        columns = [{"name": column.name, "values": list(column.values)} for column in self.columns]
        D, J = len(self.shift), len(self.by_item) - 1
        lists = {"lists": len(self.key), "entries": len(self.item)}
        return {"columns": columns, "D": D, "J": J, **lists, "scale": self.scale}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a context."""
        return tuple(column.name for column in self.columns)

    def at(self, q: Tensor) -> Tensor | float:
        """The shifts of all items; 0 where no context is.  Shapes: q [B] -> [B, D]."""
        return self.now[q] @ self.shift.T if len(self.now) else 0.0

    def at_items(self, q: Tensor, items: Tensor) -> Tensor | float:
        """The same of some items.  Shapes: q [B]; items [B, M] -> [B, M]."""
        return torch.einsum("bv,bmv->bm", self.now[q], self.shift[items]) if len(self.now) else 0.0

    def of_queries(self, now: Tensor) -> "ContextShift":
        """For queries in a context, or for others.  Shapes: now [Q, V], or no rows."""
        return self._with(now=now)

    def without_lists(self) -> "ContextShift":
        """For queries that nothing is known of."""
        none = {name: getattr(self, name)[:0] for name in ("key", "item", "value")}
        return self._with(**none, first=self.first[:1])

    def with_items(self, n: int, shift: Tensor | None = None) -> "ContextShift":
        """With n more items: with these shifts, or with the mean of the others.  Shapes: shift [n, V]."""
        more = self.shift.mean(0).expand(n, -1) if shift is None else shift
        return self._with(shift=torch.cat([self.shift, more]))

    def scaled(self, scale: float, value: NDArray[np.float32]) -> "ContextShift":
        """In the scale of another stage, with its numbers of the lists.  Shapes: value [n]."""
        found = self._with(shift=self.shift * scale, value=torch.from_numpy(value))
        found.scale = scale
        return found

    def _with(self, **buffers: Tensor) -> "ContextShift":
        found = copy.copy(self)
        found._buffers = {**self._buffers, **buffers}
        return found

    def one_hot(self, codes: Whole) -> Tensor:
        """Contexts as numbers.  Shapes: codes [n, C] -> [n, V]."""
        V = self.shift.shape[1]
        found = torch.zeros(len(codes), V + 1)
        return found.scatter_(1, torch.from_numpy(places_of(self.columns, codes)), 1.0)[:, :V]

    def moved(
        self, base: Whole, codes: Whole, rows: Whole, item: NDArray[np.int32], value: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Numbers of listed pairs in a context: shifted, or as its own list has them.

        Shapes: base [n], codes [n, C], the query and the context of every row; rows, item, value [m], sorted by row and item.
        """
        place = places_of(self.columns, codes)[rows]
        padded = np.column_stack([self.shift.numpy(), np.zeros(len(self.shift), np.float32)])
        found: NDArray[np.float32] = (value + padded[item[:, None], place].sum(1)).astype(np.float32)
        wanted, keys = numbers_of(self.columns, base, codes), self.key.numpy()
        at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        has = np.flatnonzero(keys[at] == wanted) if len(keys) else np.zeros(0, np.int64)
        own, entries = entries_of_rows(self.first.numpy(), at[has])
        D = len(self.shift)
        pair, sought = rows * np.int64(D) + item, has[own] * np.int64(D) + self.item.numpy()[entries]
        there = np.minimum(np.searchsorted(pair, sought), max(len(pair) - 1, 0))
        known = pair[there] == sought if len(pair) else np.zeros(len(sought), np.bool_)
        found[there[known]] = self.value.numpy()[entries[known]]
        return found

    def check(self, Q: int) -> None:
        """Refuses lists that are out of order, and a policy in a context, which is not saved."""
        if len(self.now):
            raise PolicyError("a policy in a context is not saved: save the policy itself.")
        first, key = self.first.numpy(), self.key.numpy()
        if first[0] != 0 or first[-1] != len(self.item) or (np.diff(first) < 0).any() or (np.diff(key) <= 0).any():
            raise PolicyError("the lists of contexts do not fit their entries")
        if len(key) and (key[0] < 0 or (key % QUERIES >= Q).any()):
            raise PolicyError(f"lists of contexts: expected queries from 0 to {Q - 1}; got others")
        item = self.item.numpy()
        if len(item) and (item.min() < 0 or item.max() >= len(self.shift)):
            raise PolicyError(f"lists of contexts: expected items from 0 to {len(self.shift) - 1}; got others")
