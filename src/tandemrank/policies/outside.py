"""Any outside system as a policy: from its scores, or from a run of TREC, a fixed list per query."""

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from tandemrank._base.files import regular
from tandemrank._base.frames import Table, refuse_rows
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import DataError, PolicyError
from tandemrank.policies.features import table_of_pairs
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


def policy_from_scores(scores: Table, K2: int | None, K: int, vocabulary: Vocabulary | None = None) -> TwoStagePolicy:
    """Any outside system as a policy, from rows `query_id, item_id, candidate_score, ranker_score`.

    Both stages are Plackett-Luce on these scores; items without a row are not available to that query. For a system that
    always shows its best list multiply its scores by a large number. Without a vocabulary the ids are those of the rows;
    without K2 it is 500, or all items if fewer.
    """
    frame, name = table_of_pairs(scores, "the table of scores")
    stages = [_scores(frame, column, name) for column in SCORES[2:]]
    if vocabulary is None:
        vocabulary = Vocabulary(*(frame[column].unique().sort() for column in SCORES[:2]))
    q, d = vocabulary.queries(frame["query_id"]), vocabulary.items(frame["item_id"])
    shape = len(vocabulary.query_ids), len(vocabulary.item_ids)
    generator, ranker = (GivenScores(csr_matrix((one.to_numpy(), (q, d)), shape=shape)) for one in stages)
    K2 = default_candidates(shape[1], K) if K2 is None else K2
    return TwoStagePolicy(generator, ranker, K2, K, vocabulary)


def _scores(frame: pl.DataFrame, column: str, name: str) -> pl.Series:
    """A column of scores; refuses what is none."""
    if column not in frame.columns:
        raise DataError(f"{name}: expected the columns {', '.join(SCORES)}; {column} is not there.")
    if not frame[column].dtype.is_numeric():
        raise DataError(f"{name}, column {column}: expected numbers; got {frame[column].dtype}.")
    found = frame[column].cast(pl.Float32)
    refuse_rows(~(found < np.inf).fill_null(False), frame[column], name, "a number below infinity, or -inf")
    return found
