"""The context of an impression: columns of a log beside the query, such as a device, an hour, a language.

A log with contexts is read by queries in their context. Each has an id of its own, the JSON of both,

    {"query_id":17,"device":"phone","hour":"20"}

so that sums by (query, item, rank) are sums by (query, context, item, rank), and everything that counts a log counts these.
`Contexts` takes them apart again, and `pooled` has the sums without contexts, the same bits as if nobody had asked for them.
Values are texts, whatever the column has; null is unknown.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.frames import texts
from tandemrank._base.ids import Vocabulary, plain_ids
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.schema import KEY, LONG, WIDE
from tandemrank.logs.sums import pooled_sums

MOST = 50  # values of a column
BEGIN = '{"query_id":'  # of an id of a query in its context


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of context columns; refuses those that a log uses itself."""
    if isinstance(columns, str) or not all(isinstance(name, str) and name for name in columns):
        raise ConfigError(f'context: expected a list of columns of the log, such as ["device"]; got {columns!r:.60}.')
    if own := [name for name in columns if name in (*WIDE, *LONG, KEY) and name != "policy"]:
        raise ConfigError(f"context: expected columns that a log does not use itself; got {own[0]!r}.")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"context: expected every column once; got {', '.join(columns)}.")
    return tuple(columns)


def in_context(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """A log whose queries are queries in their context; a column that is not there is unknown."""
    if not columns:
        return frame
    found = [
        texts(frame[name]).alias(name) if name in frame.columns else pl.lit(None, pl.String).alias(name)
        for name in columns
    ]
    ids = frame.select(plain_ids(frame["query_id"]).alias("query_id"), *found)
    both = pl.when(pl.col("query_id").is_not_null()).then(pl.struct(ids.columns).struct.json_encode())
    return frame.with_columns(ids.select(both.alias("query_id")).to_series())


def _decoded(ids: pl.Series, columns: Sequence[str]) -> pl.DataFrame:
    """Ids of queries in their context as their parts."""
    kind = pl.String if len(ids) and ids[0].startswith(f'{BEGIN}"') else pl.Int64
    return ids.str.json_decode(pl.Struct({"query_id": kind, **dict.fromkeys(columns, pl.String)})).struct.unnest()


@dataclass(frozen=True)
class Contexts:
    """Queries in their context: the places of their queries in a vocabulary, and their values, a column each.

    Shapes: base [Q'], table [Q', C].
    """

    vocabulary: Vocabulary
    base: NDArray[np.int64]
    table: pl.DataFrame

    @classmethod
    def of(cls, ids: Vocabulary, columns: Sequence[str], known: Vocabulary | None = None) -> "Contexts":
        """Of the vocabulary of a log that was read so; `known`: the vocabulary that its queries and items must be in.

        Refuses columns without a value, and with too many.
        """
        found = _decoded(ids.query_ids, columns)
        for name in columns:
            number = found[name].drop_nulls().n_unique()
            if not number:
                raise LogError(f"context: expected a column {name} in the log; got none with a value. Check its name.")
            if number > MOST:
                raise LogError(
                    f"column {name}: expected at most {MOST} different values of a context; got {number:,}. Round numbers, or "
                    "cut them into bins, and give rare texts one name."
                )
        own = known or Vocabulary(found["query_id"].unique().sort(), ids.item_ids)
        own.items(ids.item_ids)
        return cls(own, own.queries(found["query_id"]), found.select(columns))

    @classmethod
    def within(cls, ids: Vocabulary) -> "Contexts | None":
        """Of a vocabulary that may be of queries in their context; None where it is not."""
        if ids.query_ids.dtype != pl.String or not len(ids.query_ids) or not ids.query_ids[0].startswith(BEGIN):
            return None
        columns = list(json.loads(ids.query_ids[0]))[1:]
        found = _decoded(ids.query_ids, columns)
        own = Vocabulary(found["query_id"].unique().sort(), ids.item_ids)
        return cls(own, own.queries(found["query_id"]), found.select(columns))

    def in_vocabulary(self, other: Vocabulary) -> "Contexts":
        """The same in the positions of another vocabulary, which has all ids of this one."""
        return replace(self, vocabulary=other, base=other.queries(self.vocabulary.query_ids)[self.base])

    def pooled(self, feedback: Feedback) -> Feedback:
        """The sums of a log without its contexts."""
        return pooled_sums(feedback, self.base, self.vocabulary)

    def of_lists(self, lists: Impressions, items: Vocabulary) -> Impressions:
        """Lists with their queries in place of queries in context."""
        place = np.append(self.vocabulary.items(items.item_ids), -1).astype(np.int32)
        return Impressions(self.base[lists.query].astype(np.int32), place[lists.items], lists.clicks)
