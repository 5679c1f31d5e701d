"""Any outside system as a policy: from its scores, or from a run of TREC, a fixed list per query."""

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from tandemrank._base.files import regular
from tandemrank._base.ids import Vocabulary, plain_ids
from tandemrank.errors import PolicyError
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy, default_candidates

SCORES = ("query_id", "item_id", "candidate_score", "ranker_score")
STEP = 100.0  # between the scores of two ranks of a run: its list is drawn with a chance of 1, but for e^-100


def policy_from_file(path: str | Path, K2: int | None, K: int, vocabulary: Vocabulary | None = None) -> TwoStagePolicy:
    """Any outside system as a policy, from Parquet of scores, or from a run: any other ending."""
    if Path(path).suffix.lower() == ".parquet":
        return policy_from_scores(path, K2, K, vocabulary)
    return policy_from_run(path, K, vocabulary)


def policy_from_run(path: str | Path, K: int, vocabulary: Vocabulary | None = None) -> TwoStagePolicy:
    """A run of TREC as a policy that always shows its list: lines `query Q0 item rank score tag`, the highest score first.

    Ids are whole numbers where all of them are, else texts; those of a vocabulary are of its types.
    """
    rows = _run(Path(path))
    kinds = (None, None) if vocabulary is None else (vocabulary.query_ids.dtype, vocabulary.item_ids.dtype)
    ids = {name: _as_ids(rows[name], kind) for name, kind in zip(SCORES[:2], kinds, strict=True)}
    rows = rows.with_columns(**ids).sort("query_id", pl.col("score"), "rank", descending=[False, True, False])
    score = -STEP * pl.int_range(pl.len()).over("query_id").cast(pl.Float64)
    listed = rows.select("query_id", "item_id", candidate_score=score, ranker_score=score)
    D = listed["item_id"].n_unique() if vocabulary is None else len(vocabulary.item_ids)
    longest = int(listed["query_id"].value_counts()["count"].max() or 1)  # type: ignore[arg-type]
    return policy_from_scores(listed, min(max(longest, K), D), min(K, D), vocabulary)


def _run(path: Path) -> pl.DataFrame:
    """The lines of a run."""
    try:
        lines = regular(path).read_text(encoding="utf-8-sig").splitlines()
        fields = [line.split() for line in lines if line.strip()]
        if wrong := next((n for n, some in enumerate(fields, 1) if len(some) != 6), None):
            raise ValueError(f"line {wrong} has {len(fields[wrong - 1])} words")
        rows = [(unquote(f[0]), unquote(f[2]), int(f[3]), float(f[4])) for f in fields]
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise PolicyError(f"{path}: expected a run of TREC, `query Q0 item rank score tag`; {why}.") from error
    if not rows or not all(np.isfinite(score) for *_, score in rows):
        raise PolicyError(f"{path}: expected a run of TREC with finite scores; got nothing, or others.")
    return pl.DataFrame(rows, schema=["query_id", "item_id", "rank", "score"], orient="row")


def _as_ids(texts: pl.Series, kind: pl.DataType | None) -> pl.Series:
    """Texts as ids of a type; without one as whole numbers where all of them are."""
    numbers = texts.cast(pl.Int64, strict=False)
    whole = not numbers.null_count() and (numbers.cast(pl.String) == texts).all()
    return numbers if whole and (kind is None or kind.is_integer()) else texts


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
