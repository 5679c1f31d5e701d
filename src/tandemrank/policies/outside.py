"""Any outside system as a policy, from its scores."""

from pathlib import Path

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from tandemrank._base.files import regular
from tandemrank._base.ids import Vocabulary, plain_ids
from tandemrank.errors import PolicyError
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy, default_candidates

SCORES = ("query_id", "item_id", "candidate_score", "ranker_score")


def policy_from_scores(
    scores: pl.DataFrame | str | Path, K2: int | None, K: int, vocabulary: Vocabulary | None = None
) -> TwoStagePolicy:
    """Any outside system as a policy, from rows `query_id, item_id, candidate_score, ranker_score`.

    Both stages are Plackett-Luce on these scores; items without a row are not available to that query. For a system that
    always shows its best list multiply its scores by a large number. Without a vocabulary the ids are those of the rows;
    without K2 it is 500, or all items if fewer.
    """
    name = "the frame" if isinstance(scores, pl.DataFrame) else str(scores)
    try:
        frame = scores if isinstance(scores, pl.DataFrame) else pl.read_parquet(regular(scores), glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise PolicyError(f"{name} cannot be read as Parquet: {error}. Is it whole?") from error
    _check_scores(frame, name)
    ids = [plain_ids(frame[column]) for column in SCORES[:2]]
    if vocabulary is None:
        vocabulary = Vocabulary(ids[0].unique().sort(), ids[1].unique().sort())
    q, d = vocabulary.queries(ids[0]), vocabulary.items(ids[1])
    shape = len(vocabulary.query_ids), len(vocabulary.item_ids)
    stages = [csr_matrix((frame[column].cast(pl.Float32).to_numpy(), (q, d)), shape=shape) for column in SCORES[2:]]
    K2 = default_candidates(shape[1], K) if K2 is None else K2
    return TwoStagePolicy(GivenScores(stages[0]), GivenScores(stages[1]), K2, K, vocabulary)


def _check_scores(frame: pl.DataFrame, name: str) -> None:
    """Refuses the first bad row by name."""
    if missing := [column for column in SCORES if column not in frame.columns]:
        raise PolicyError(f"{name}: expected the columns {', '.join(SCORES)}; {', '.join(missing)} is not there.")
    if not len(frame):
        raise PolicyError(f"{name}: expected scores; it has no rows.")
    for column in SCORES:
        is_id, dtype = column in SCORES[:2], frame[column].dtype
        if not (dtype.is_integer() or (dtype in (pl.String, pl.Categorical) if is_id else dtype.is_float())):
            raise PolicyError(f"{name}, column {column}: {'ids' if is_id else 'numbers'} expected; {dtype} came.")
        values = frame[column]
        bad = values.is_null() if is_id else values.is_null() | ~(values.cast(pl.Float32) < np.inf)
        _refuse(bad, values, name, column, "an id" if is_id else "a number below infinity, or -inf")
    again = frame.select(~pl.struct(SCORES[:2]).is_first_distinct()).to_series()
    _refuse(again, frame["item_id"], name, "item_id", "one row for each query and item")


def _refuse(bad: pl.Series, values: pl.Series, name: str, column: str, expected: str) -> None:
    if count := int(bad.fill_null(True).sum()):
        row = int(bad.fill_null(True).arg_max() or 0)
        raise PolicyError(
            f"{name}, row {row}, column {column}: expected {expected}; {values[row]!r} came. {count} rows have the "
            "problem. Correct or drop them."
        )
