"""Features of pairs: numbers of a query and an item together, which neither side has alone; only of some pairs.

    x[q, d] = (value - mean) / scale, within +-10, and a flag that is 0;   a pair without a row: all 0, and the flag is 1

With `missing = "refuse"` a pair without a row is an error instead of a flag: the policy says which.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tandemrank._base.ids import Vocabulary, positions_of
from tandemrank._base.sparse import places_in_rows
from tandemrank.errors import DataError, PolicyError
from tandemrank.policies import features
from tandemrank.policies.features import OUTLIER, FeatureSource

Missing = Literal["impute", "refuse"]
IDS = ("query_id", "item_id")


class PairFeatures(nn.Module):
    """The numbers of the pairs that have some, by rows.  Shapes: first [Q + 1]; item [n]; value [n, J]."""

    first: Tensor
    item: Tensor
    value: Tensor

    def __init__(self, Q: int, D: int, entries: int, columns: Sequence[str], missing: Missing = "impute") -> None:
        super().__init__()
        if missing not in ("impute", "refuse"):
            raise PolicyError(f"missing pairs are imputed or refused (impute, refuse); {str(missing)[:60]!r} came")
        self.Q, self.D, self.columns, self.missing = Q, D, tuple(columns), missing
        self.register_buffer("first", torch.zeros(Q + 1, dtype=torch.int64))
        self.register_buffer("item", torch.zeros(entries, dtype=torch.int64))
        self.register_buffer("value", torch.zeros(entries, len(self.columns)))

    @property
    def width(self) -> int:
        """How many numbers a pair has, its flag included; none where there are no columns."""
        return len(self.columns) + 1 if self.columns else 0

    def at(self, q: Tensor, items: Tensor) -> Tensor:
        """The numbers of some pairs.  Shapes: q [B], items [B, M] -> [B, M, J + 1]."""
        if not self.columns:
            return torch.zeros(*items.shape, 0)
        at = torch.from_numpy(places_in_rows(self.first.numpy(), self.item.numpy(), q.numpy(), items.numpy(), self.D))
        gone = at < 0
        if self.missing == "refuse" and bool(gone.any()):
            row, place = torch.nonzero(gone)[0].tolist()
            raise PolicyError(
                f"{int(gone.sum())} candidates have no pair features (first: query {int(q[row])}, item "
                f"{int(items[row, place])}, by position), and this policy refuses those (missing_pairs = refuse). Give a row "
                "for each, or train with missing_pairs = impute."
            )
        found = torch.zeros(*items.shape, self.width)
        if len(self.item):
            found[..., :-1] = torch.where(gone[..., None], 0.0, self.value[at.clamp(min=0)])
        found[..., -1] = gone.float()
        return found

    def spec(self) -> dict[str, Any]:
        """As JSON; `from_spec` makes an empty one of it, and of the number of entries."""
        return {"columns": list(self.columns), "missing": self.missing}

    @staticmethod
    def from_spec(spec: dict[str, Any], Q: int, D: int, entries: int) -> "PairFeatures":
        """Of this spec, with undefined numbers."""
        columns = spec["columns"]
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise PolicyError("pair features have names of columns; others came")
        return PairFeatures(Q, D, entries, columns, spec["missing"])

    def check(self) -> None:
        """Refuses pairs out of range, out of order or twice."""
        first, item = self.first.numpy(), self.item.numpy()
        if first[0] != 0 or first[-1] != len(item) or (np.diff(first) < 0).any():
            raise PolicyError("the rows of the pair features do not fit their entries")
        if len(item) and (item.min() < 0 or item.max() >= self.D):
            raise PolicyError(f"pair features are of items from 0 to {self.D - 1}; others came")
        query = np.repeat(np.arange(len(first) - 1), np.diff(first))
        if (np.diff(query * np.int64(self.D) + item) <= 0).any():
            raise PolicyError("pair features have pairs that are not in order, or one twice")


def from_table(source: FeatureSource | None, vocabulary: Vocabulary, missing: Missing = "impute") -> PairFeatures:
    """The features of pairs of a Parquet file or frame `query_id, item_id, numbers`; none at all without one.

    Rows of ids that the vocabulary does not know are left out; a value that is null is the mean.
    """
    Q, D = len(vocabulary.query_ids), len(vocabulary.item_ids)
    if source is None:
        return PairFeatures(Q, D, 0, ())
    frame, name = _read(source)
    q = positions_of(vocabulary.query_ids, frame["query_id"], "query", missing="mark", owner=name)
    d = positions_of(vocabulary.item_ids, frame["item_id"], "item", missing="mark", owner=name)
    known = np.flatnonzero((q >= 0) & (d >= 0))
    if not len(known):
        raise DataError(f"{name}: no row has a query and an item of the log. Check the ids.")
    order = known[np.lexsort((d[known], q[known]))]
    columns = [column for column in frame.columns if column not in IDS]
    made = PairFeatures(Q, D, len(order), columns, missing)
    made.first.copy_(torch.from_numpy(np.searchsorted(q[order], np.arange(Q + 1))))
    made.item.copy_(torch.from_numpy(d[order]))
    values = [_standardised(frame[column], order) for column in columns]
    made.value.copy_(torch.from_numpy(np.column_stack(values).astype(np.float32)))
    return made


def _standardised(column: pl.Series, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    fitted = features.scale_of(column)
    values = column.cast(pl.Float64).fill_nan(None).fill_null(fitted.mean).to_numpy()[rows]
    return np.clip((values - fitted.mean) / fitted.scale, -OUTLIER, OUTLIER)


def _read(source: FeatureSource) -> tuple[pl.DataFrame, str]:
    """The table, every column checked: ids, numbers, one row per pair; and its name."""
    frame, name = features.frame_of(source, "the frame of pairs")
    if gone := [column for column in IDS if column not in frame.columns]:
        raise DataError(f"{name}: expected the columns query_id, item_id and numbers; {', '.join(gone)} is not there.")
    frame = frame.with_columns(*(features.checked_ids(frame, column, name) for column in IDS))
    columns = [column for column in frame.columns if column not in IDS]
    if not columns:
        raise DataError(f"{name}: expected query_id, item_id and at least one column of numbers; there is none.")
    for column in columns:
        if not features.is_number(frame[column].dtype):
            raise DataError(f"{name}, column {column}: pair features are numbers; {frame[column].dtype} came.")
        features.refuse_large(frame[column], name)
    again = frame.select(~pl.struct(IDS).is_first_distinct()).to_series()
    if again.any():
        row = int(again.arg_max() or 0)
        raise DataError(
            f"{name}, row {row}: expected one row for each query and item; {frame['query_id'][row]!r}, "
            f"{frame['item_id'][row]!r} came again. {again.sum()} rows have the problem. Keep one of each."
        )
    return frame, name
