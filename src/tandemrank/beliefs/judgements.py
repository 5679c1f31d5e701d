"""Judgements out and in: the believed relevance of what a log showed, as files that tools of evaluation take.

| ending | what it is |
| --- | --- |
| .qrels, .txt | TREC: `query 0 item grade`, whole grades; a blank or % in an id is written as %20, %25 |
| .json | OpenSearch Search Relevance Workbench: `judgmentRatings`, ratings of three digits |
| .csv | Quepid: `query,docid,rating`, whole grades |
| .parquet | query_id, item_id, relevance, low, high, shown, clicks, rating: nothing is rounded |

Clicks over expected clicks divide by what *all* items got at a rank, relevance included, so what stands high is held to be
worse than it is; and a pair that was shown once is 0 or huge. A belief divides by examination, and knows item and query.
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import beta

from tandemrank._base.arguments import checked
from tandemrank._base.files import Kind, as_json, regular, replacing
from tandemrank._base.frames import UNREADABLE
from tandemrank._base.results import Result
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.fitting import fit
from tandemrank.clicks.examination import ExaminationCurve, as_read
from tandemrank.clicks.models import CellCurve, examination_curve
from tandemrank.errors import ConfigError, DataError, InputError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.reading import read
from tandemrank.logs.sources import Source

Floats = NDArray[np.float64]
BEST = 0.9  # of the queries, by their best item: what that is worth has the highest grade
COLUMNS = ("query_id", "item_id", "rating")


@dataclass(frozen=True, repr=False)
class Judgements(Result):
    """The believed relevance of every pair that a log shows: clicks per examination, with an interval.

    `rows`: query_id, item_id, relevance, low, high, shown, clicks, and rating = (grades - 1) min(relevance / top, 1).
    """

    rows: pl.DataFrame
    top: float
    grades: int
    level: float

    def _rows(self) -> list[dict[str, Any]]:
        return self.rows.rename({"relevance": "value"}).to_dicts()

    def to_frame(self) -> pl.DataFrame:
        """Every pair."""
        return self.rows

    def summary(self) -> dict[str, object]:
        """In a few numbers."""
        width = self.rows["high"] - self.rows["low"]
        return {
            "pairs": len(self.rows),
            "queries": self.rows["query_id"].n_unique(),
            "items": self.rows["item_id"].n_unique(),
            "level": self.level,
            "median_width": width.median(),
            "relevance_of_the_highest_grade": self.top,
            "pairs_by_grade": [int(n) for n in np.bincount(_whole(self.rows).to_numpy(), minlength=self.grades)],
        }


@checked
def judge(
    log: Source | Feedback,
    *,
    examination: str | Sequence[float] | CellCurve | ExaminationCurve = "reciprocal",
    grades: int = 4,
    level: float = 0.95,
    seed: int = 0,
) -> Judgements:
    """Judgements by a log: beliefs are fitted to it (`fitting`), and R of each pair has a Beta interval of their moments.

    `examination`: the curve, as in `clicks.models.examination_curve`, or as `examine` finds it. `grades`: how many, 0 among
    them.
    """
    if not 2 <= grades <= 101:
        raise ConfigError(f"grades must be from 2 to 101; got {grades}.")
    if not 0.5 <= level < 1:
        raise ConfigError(f"level must be from 0.5 to below 1; got {level}.")
    curve = examination.curve if isinstance(examination, ExaminationCurve) else examination
    by = curve.states if isinstance(curve, CellCurve) else None
    sums = log if isinstance(log, Feedback) else read(as_read(log, curve), by=by)
    theta = curve.array if isinstance(curve, CellCurve) else examination_curve(int(sums.rank.max(initial=0)) + 1, curve)
    beliefs = fit(Counts.of([sums], theta), seed=seed)
    counts = beliefs.counts
    mean, variance = beliefs.remembered
    low, high = interval(mean, variance, level)
    if (grade := beliefs.chosen.grades).is_bit:  # there is nothing beyond its two levels
        low, high = np.clip([low, high], grade.R.min(), grade.R.max())
    best = np.zeros(counts.Q)
    np.maximum.at(best, counts.query, mean)
    top = float(np.quantile(best[counts.rows], BEST))
    names = sums.vocabulary
    rows = pl.DataFrame(
        {
            "query_id": names.query_ids.gather(counts.query),
            "item_id": names.item_ids.gather(counts.item),
            "relevance": mean,
            "low": low,
            "high": high,
            "shown": counts.n,
            "clicks": counts.C,
            "rating": (grades - 1) * np.minimum(mean / top, 1.0),
        }
    )
    return Judgements(rows, top, grades, level)


def interval(mean: Floats, variance: Floats, level: float) -> tuple[Floats, Floats]:
    """Of the Beta distribution with these moments, a = m n, b = (1 - m) n, n = m (1 - m) / v - 1.  Shapes: [n] each."""
    m = np.clip(mean, 1e-9, 1 - 1e-9)
    n = np.maximum(m * (1 - m) / np.maximum(variance, 1e-15) - 1, 1e-3)
    low, high = (beta.ppf(share, m * n, (1 - m) * n) for share in ((1 - level) / 2, (1 + level) / 2))
    return np.minimum(low, mean), np.maximum(high, mean)


# --- files ------------------------------------------------------------------------------------------------------------


def write(found: Judgements, path: str | Path, inputs: list[str] | None = None) -> Path:
    """Writes judgements, in the format that the ending says."""
    path = Path(path)
    if (ending := path.suffix.lower()) not in WRITERS:
        raise ConfigError(f"{path} ends in {ending!r}: expected {', '.join(WRITERS)}.")
    with replacing(path, Kind("file of judgements", check=_is_one), inputs=inputs or ()) as place:
        WRITERS[ending](found, place)
    return path


def _is_one(path: Path) -> bool:
    try:
        return bool(len(read_judgements(path)))
    except InputError:
        return False


def _whole(rows: pl.DataFrame) -> pl.Series:
    return rows["rating"].round().cast(pl.Int64)


def _write_trec(found: Judgements, place: Path) -> None:
    ids = [_token(found.rows[column]) for column in COLUMNS[:2]]
    lines = pl.select(pl.format("{} 0 {} {}", *ids, _whole(found.rows))).to_series()
    place.write_text("\n".join(lines.to_list()) + "\n", encoding="utf-8")


def _token(ids: pl.Series) -> pl.Series:
    """Ids without blanks."""
    return ids.cast(pl.String).str.replace_all("%", "%25", literal=True).str.replace_all(r"\s", "%20")


def _write_opensearch(found: Judgements, place: Path) -> None:
    rated = pl.struct(docId=pl.col("item_id").cast(pl.String), rating=pl.col("rating").round(3))
    queries = found.rows.group_by("query_id", maintain_order=True).agg(ratings=rated)
    ratings = [{"query": str(query), "ratings": rows} for query, rows in queries.iter_rows()]
    about = {"name": "TandemRank", "description": "Believed relevance by a click log", "type": "IMPORT_JUDGMENT"}
    place.write_text(as_json(about | {"judgmentRatings": ratings}), encoding="utf-8")


def _write_quepid(found: Judgements, place: Path) -> None:
    found.rows.select(query="query_id", docid="item_id", rating=_whole(found.rows)).write_csv(place)


WRITERS: dict[str, Callable[[Judgements, Path], None]] = {
    ".qrels": _write_trec,
    ".txt": _write_trec,
    ".json": _write_opensearch,
    ".csv": _write_quepid,
    ".parquet": lambda found, place: found.rows.write_parquet(place),
}


def read_judgements(path: str | Path) -> pl.DataFrame:
    """Judgements of a file of any of these formats: query_id, item_id (texts, but of Parquet), rating of 0 or more."""
    path = Path(path)
    try:
        regular(path)
        rows = READERS.get(path.suffix.lower(), _read_trec)(path)
    except (*UNREADABLE, ValueError, KeyError, TypeError, IndexError, AttributeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise DataError(f"{path} cannot be read as judgements: {str(why).splitlines()[0]}. {EXPECTED}") from error
    rating = rows["rating"]
    if not len(rows) or rating.null_count() or not ((rating >= 0) & rating.is_finite()).all():
        raise DataError(f"{path}: expected judgements with ratings of 0 or more; got none, or others. {EXPECTED}")
    return rows.unique(COLUMNS[:2], keep="last", maintain_order=True)


EXPECTED = (
    "Expected qrels of TREC (query 0 item grade), JSON of OpenSearch (judgmentRatings), CSV (query,docid,rating) or Parquet "
    "(query_id, item_id, rating)."
)


def _frame(queries: list[str], items: list[str], ratings: list[float]) -> pl.DataFrame:
    columns = dict(zip(COLUMNS, (queries, items, ratings), strict=True))
    return pl.DataFrame(columns, schema=dict(zip(COLUMNS, (pl.String, pl.String, pl.Float64), strict=True)))


def _read_trec(path: Path) -> pl.DataFrame:
    fields = [line.split() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if wrong := next((n for n, some in enumerate(fields, 1) if len(some) != 4), None):
        raise ValueError(f"line {wrong} has {len(fields[wrong - 1])} words")
    return _frame([unquote(f[0]) for f in fields], [unquote(f[2]) for f in fields], [float(f[3]) for f in fields])


def _read_opensearch(path: Path) -> pl.DataFrame:
    found = json.loads(path.read_text(encoding="utf-8-sig"))["judgmentRatings"]
    rows = [(one["query"], some["docId"], float(some["rating"])) for one in found for some in one["ratings"]]
    return _frame([str(q) for q, _, _ in rows], [str(d) for _, d, _ in rows], [rating for *_, rating in rows])


def _read_quepid(path: Path) -> pl.DataFrame:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    return _frame([r["query"] for r in rows], [r["docid"] for r in rows], [float(r["rating"]) for r in rows])


READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".json": _read_opensearch,
    ".csv": _read_quepid,
    ".parquet": lambda path: pl.read_parquet(path, glob=False).select(COLUMNS),
}
