"""`Feedback`: the sums of a click log that every estimator needs.

    exposure of a row        theta_k * (impressions that showed d to q at rank k)

Nothing here has the size queries x items.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base import files
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import LogError

PROPENSITY_UNIT = 2.0**-36
FEEDBACK = files.Kind("folder of feedback", r"(sums|queries|items)\.parquet", lambda folder: _columns_fit(folder))


@dataclass(frozen=True)
class Feedback:
    """What a log says, one row for each distinct (query, item, rank), sorted: enough for every estimator.

    `shown` and `clicks` are (weighted) numbers of impressions, `logged` the sum of the logged propensities in units of
    2^-36 or None where the log has none, `impressions` the (weighted) number of impressions of each query.
    Shapes: query, item, rank, shown, clicks, logged [P]; impressions [Q].
    """

    vocabulary: Vocabulary
    query: NDArray[np.int32]
    item: NDArray[np.int32]
    rank: NDArray[np.int16]
    shown: NDArray[np.float64]
    clicks: NDArray[np.float64]
    logged: NDArray[np.int64] | None
    impressions: NDArray[np.float64]

    @property
    def N(self) -> float:
        """The (weighted) number of impressions."""
        return float(self.impressions.sum())

    @property
    def Q(self) -> int:
        """The number of queries, logged or not."""
        return len(self.vocabulary.query_ids)

    @property
    def D(self) -> int:
        """The number of items, shown or not."""
        return len(self.vocabulary.item_ids)

    @property
    def propensity(self) -> NDArray[np.float64] | None:
        """The mean logged propensity of each row. Shapes: -> [P]."""
        return None if self.logged is None else self.logged * PROPENSITY_UNIT / self.shown


def exposure(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """The examination that each row collected: theta_k * shown. Shapes: theta [K] -> [P]."""
    if len(feedback.rank) and feedback.rank.max() >= len(theta):
        raise LogError(
            f"the log shows items at rank {feedback.rank.max() + 1}, but the examination curve ends at rank "
            f"{len(theta)}. Give a longer curve, with zeros where nobody looks."
        )
    theta_k: NDArray[np.float64] = np.asarray(theta)[feedback.rank]
    return theta_k * feedback.shown


def always_the_same(feedback: Feedback) -> NDArray[np.bool_]:
    """Whether all lists of a query were the same: each item at each rank as often as there are impressions.

    Shapes: -> [Q].
    """
    varied = feedback.shown < feedback.impressions[feedback.query]
    return np.asarray(np.bincount(feedback.query[varied], minlength=feedback.Q) == 0)


def save(feedback: Feedback, path: str | Path) -> Path:
    """Writes feedback as a folder of three small Parquet files: the sums, the queries, the items."""
    columns = {name: getattr(feedback, name) for name in ("query", "item", "rank", "shown", "clicks", "logged")}
    with files.replacing(path, FEEDBACK) as folder:
        folder.mkdir()
        sums = pl.DataFrame({name: values for name, values in columns.items() if values is not None})
        sums.write_parquet(folder / "sums.parquet", compression="zstd", compression_level=1)
        queries = {"query_id": feedback.vocabulary.query_ids, "impressions": feedback.impressions}
        pl.DataFrame(queries).write_parquet(folder / "queries.parquet")
        pl.DataFrame({"item_id": feedback.vocabulary.item_ids}).write_parquet(folder / "items.parquet")
    return Path(path)


def _columns_fit(folder: Path) -> bool:
    """Whether the files have the columns of ours."""
    expected = {"sums": {"query", "item", "rank"}, "queries": {"query_id", "impressions"}, "items": {"item_id"}}
    try:
        return all(names <= pl.read_parquet_schema(folder / f"{n}.parquet").keys() for n, names in expected.items())
    except (pl.exceptions.PolarsError, OSError):
        return False


def load(path: str | Path) -> Feedback:
    """Reads feedback that `save` wrote; refuses a folder that is not one."""
    try:
        sums, queries, items = (pl.read_parquet(Path(path) / f"{n}.parquet") for n in ("sums", "queries", "items"))
        query, item, rank, shown, clicks = (sums[n].to_numpy() for n in ("query", "item", "rank", "shown", "clicks"))
        logged = sums["logged"].to_numpy() if "logged" in sums.columns else None
        vocabulary = Vocabulary(queries["query_id"], items["item_id"])
        feedback = Feedback(vocabulary, query, item, rank, shown, clicks, logged, queries["impressions"].to_numpy())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LogError(
            f"{path} is not saved feedback, or it is damaged: {error}. Build it from the log again."
        ) from error
    if len(query) and (query.max() >= feedback.Q or item.max() >= feedback.D):
        raise LogError(f"{path} is damaged: its sums name positions without an id. Build it from the log again.")
    return feedback
