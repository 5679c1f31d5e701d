"""Data sets by name or path (`load`): the embedded synthetic world, MovieLens, read or downloaded, own ratings.

All become a `Task`: who asks (queries, here users), what there is (documents), and what is relevant to whom. The relevance `R`
of the paper's click model (label click-model) is 1 where the rating is above a threshold and 0 elsewhere, also where nobody
rated.
"""

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
import pooch
from scipy.sparse import csr_matrix

from tandemrank._base.files import regular, replacing
from tandemrank._base.frames import UNREADABLE, refuse_rows
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError, DownloadError
from tandemrank.experiments.synthetic import synthetic_world

STARS = 3.0  # a rating above it is relevant, where nothing else is asked for
LARGEST = float(np.finfo(np.float32).max)  # of a rating, in size
COLUMNS = ("user", "item", "rating")


@dataclass(frozen=True, eq=False)
class Task:
    """A ranking task: what was rated, what is relevant, and the outside ids.

    `item_features`: what is known of the items beside, with `item_id`; None where nothing is.
    Shapes: ratings [Q, D] sparse, 0 = not rated; relevance [Q, D] sparse in [0, 1].
    """

    name: str
    ratings: csr_matrix
    relevance: csr_matrix
    vocabulary: Vocabulary
    item_features: pl.DataFrame | None = None

    @property
    def Q(self) -> int:
        """Number of queries."""
        return int(self.relevance.shape[0])

    @property
    def D(self) -> int:
        """Number of documents."""
        return int(self.relevance.shape[1])


def load(
    data: str | Path = "synthetic",
    *,
    queries: int | None = None,
    items: int | None = None,
    seed: int = 0,
    threshold: float | None = None,
) -> Task:
    """The task that `data` names.

    `data` is "synthetic" (of size `queries` x `items`, from `seed`), "ml-1m" (downloaded once, unless a file or
    folder of that name is here), the path of a MovieLens zip or folder, or of a .csv or .parquet file with the
    columns user, item and rating; or another name in `NAMED`. `threshold` is 3 unless given; for own ratings it must be given.
    """
    name, path, stars = str(data), Path(data), STARS if threshold is None else threshold
    if name == "synthetic":
        sizes = {"queries": queries, "items": items}
        return synthetic(**{size: n for size, n in sizes.items() if n is not None}, seed=seed, threshold=stars)
    if queries is not None or items is not None:
        raise ConfigError(
            f"the numbers of queries and items size the synthetic world, but the data is {data}. Leave them out."
        )
    if name in NAMED and not os.path.exists(path):
        return NAMED[name](stars)
    if os.path.isdir(path) or path.suffix.lower() == ".zip":
        return movielens(path, threshold=stars)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(
            f"unknown data {name!r}: expected {', '.join(map(repr, ('synthetic', *NAMED)))}, "
            "a MovieLens zip or folder, or a .csv or .parquet file of ratings."
        )
    if threshold is None:
        raise ConfigError(
            f"the ratings in {path} need a threshold: a rating above it counts as relevant (--set threshold=3)."
        )
    return from_ratings(path, threshold=threshold)


def synthetic(queries: int = 6040, items: int = 3706, *, seed: int = 0, threshold: float = STARS) -> Task:
    """The embedded synthetic world, made to resemble MovieLens-1M; the same for the same seed. Ids count from 1."""
    ratings, known = synthetic_world(queries, items, seed=seed)
    ids = Vocabulary(pl.Series("query_id", np.arange(1, queries + 1)), pl.Series("item_id", np.arange(1, items + 1)))
    tastes = {f"taste {n + 1}": column for n, column in enumerate(known.T)}
    task = _task("synthetic", ratings, ids, threshold, where="synthetic")
    return replace(task, item_features=pl.DataFrame({"item_id": ids.item_ids, **tastes}))


# --- MovieLens-1M -----------------------------------------------------------------------------------------------------

URL, PAGE = "https://files.grouplens.org/datasets/movielens/ml-1m.zip", "https://grouplens.org/datasets/movielens/"
RATINGS, MOVIES = "ratings.dat", "movies.dat"
MD5 = "a89aa3591bc97d6d4e0c89459ff39362"  # of the ratings, so that it also holds for a re-packed zip


def movielens(path: str | Path, *, threshold: float = STARS) -> Task:
    """MovieLens-1M, from the published zip or its unpacked folder; its checksum is verified."""
    table = pl.read_csv(
        io.BytesIO(_ratings(Path(path)).replace(b"::", b"\t")),
        separator="\t",
        has_header=False,
        schema={"user": pl.Int64, "item": pl.Int64, "rating": pl.Float64, "timestamp": pl.Int64},
    )
    task = _assembled("ml-1m", table.drop("timestamp"), threshold, where=str(path))
    movies = _file(Path(path), MOVIES)
    return task if movies is None else replace(task, item_features=_item_features(movies, task))


def _item_features(content: bytes, task: Task) -> pl.DataFrame | None:
    """The genres and the decade of every rated item: `item_id`, a column of 0 and 1 per genre, `decade`.

    None where the file is not as published: nothing but features depends on it.
    """
    lines = [line.split("::") for line in content.decode("latin-1").splitlines() if line]
    if not lines or not all(len(line) == 3 and line[0].isdigit() for line in lines):
        return None
    frame = pl.DataFrame(lines, schema=["item_id", "title", "genres"], orient="row").select(
        pl.col("item_id").cast(pl.Int64),
        pl.col("genres").str.split("|"),
        decade=pl.col("title").str.extract(r"\((\d{3})\d\)\s*$"),
    )
    names = sorted(set(frame["genres"].explode().drop_nulls()) - {""})
    flags = [pl.col("genres").list.contains(name).cast(pl.Int8).alias(f"genre {name}") for name in names]
    rated = pl.DataFrame({"item_id": task.vocabulary.item_ids})
    found = rated.join(frame.select("item_id", *flags, "decade"), on="item_id", how="inner", maintain_order="left")
    return found if len(found) == len(rated) else None


def download_movielens(*, cache: Path | None = None, url: str | None = None) -> Path:
    """Fetches the zip into the cache, once, and returns its path. Only a zip with the right ratings is kept."""
    url = url or URL
    target = (Path(pooch.os_cache("tandemrank")) if cache is None else Path(cache)) / "ml-1m.zip"
    if target.is_file() and _intact(target):
        return target
    by_hand = f"Fetch ml-1m.zip by hand from {PAGE} and give its path (--data path/to/ml-1m.zip)."
    with replacing(target) as temporary:
        try:
            pooch.HTTPDownloader(progressbar=False, timeout=30)(url, str(temporary), None)
        except OSError as error:  # every error of requests is one
            answer = getattr(error, "response", None)
            reason = (
                f"the connection failed ({type(error).__name__})" if answer is None else f"status {answer.status_code}"
            )
            raise DownloadError(f"cannot download ml-1m from {url}: {reason}. {by_hand}") from error
        if not _intact(temporary):
            raise DownloadError(
                f"{url} has not given ml-1m: expected a zip with {RATINGS} of md5 {MD5}. Nothing was kept. {by_hand}"
            )
    return target


def _ratings(path: Path) -> bytes:
    """The ratings file of a zip or folder; refuses one that is not the published one, byte for byte."""
    if not os.path.exists(path):
        raise DataError(f"there is no {path}. Expected the zip or folder of MovieLens-1M; get it from {PAGE}.")
    content = _file(path, RATINGS)
    if content is None:
        raise DataError(f"{path} holds no ratings of MovieLens-1M: expected {RATINGS}. Get it from {PAGE}.")
    if (md5 := hashlib.md5(content).hexdigest()) != MD5:
        raise DataError(
            f"{RATINGS} in {path} is not the published one: expected md5 {MD5}, but it is {md5}. Fetch it again from {PAGE}, "
            "or export your own ratings as CSV or Parquet."
        )
    return content


def _file(path: Path, name: str) -> bytes | None:
    """The first file of that name in a zip or folder; None where there is none."""
    try:
        if path.is_dir():
            found = next(chain(path.glob(name), path.glob(f"*/{name}")), None)
            return None if found is None else found.read_bytes()
        with zipfile.ZipFile(regular(path)) as archive:
            entry = next((entry for entry in archive.namelist() if entry.rsplit("/", 1)[-1] == name), None)
            return None if entry is None else archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
        raise DataError(
            f"cannot read {path}: {error}. Expected a MovieLens zip; fetch it again from {PAGE}."
        ) from error


def _intact(path: Path) -> bool:
    """Whether `path` is a readable zip that holds the ratings."""
    try:
        return bool(_ratings(path))
    except DataError:
        return False


# Other data sets with a name, by the threshold. A file or folder of that name, if there is one, is meant instead.
NAMED: dict[str, Callable[[float], Task]] = {
    "ml-1m": lambda threshold: movielens(download_movielens(), threshold=threshold)
}


# --- ratings of one's own ---------------------------------------------------------------------------------------------


def from_ratings(source: str | Path | pl.DataFrame, *, threshold: float) -> Task:
    """A task from one's own ratings: a .csv file, a .parquet file or a frame, one row for each rated (user, item).

    Its columns are user, item and rating; ids are integers or strings. Positions follow the sorted ids. A rating above
    `threshold` is relevant.
    """
    is_frame = isinstance(source, pl.DataFrame)
    where = "the frame" if is_frame else str(source)
    table = _read(source, where)
    clean = pl.DataFrame(
        {
            "user": _ids(table["user"], where),
            "item": _ids(table["item"], where),
            "rating": _numbers(table["rating"], where),
        }
    )
    return _assembled("ratings" if is_frame else Path(str(source)).stem, clean, threshold, where=where)


def _read(source: str | Path | pl.DataFrame, where: str) -> pl.DataFrame:
    """The columns of `source` that are needed; values are not checked yet."""
    try:
        lazy = source.lazy() if isinstance(source, pl.DataFrame) else _scan(Path(source))
        there = lazy.collect_schema().names()
        if missing := [column for column in COLUMNS if column not in there]:
            raise DataError(
                f"{where} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, there))[:500]}. "
                "Rename its columns to user, item and rating."
            )
        table = lazy.select(COLUMNS).collect()
    except UNREADABLE as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"cannot read ratings from {where}: {reason}. Expected a CSV or Parquet table.") from error
    if table.is_empty():
        raise DataError(f"{where} holds no ratings. Expected one row for each rated (user, item).")
    return table


def _scan(path: Path) -> pl.LazyFrame:
    """A CSV or Parquet file as a lazy frame. CSV columns stay text, so that a bad value can be named with its row."""
    try:
        regular(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. Expected a .csv or .parquet file.") from error
    if path.suffix.lower() == ".csv":
        return pl.scan_csv(path, infer_schema=False, glob=False)
    if path.suffix.lower() == ".parquet":
        return pl.scan_parquet(path, glob=False)
    raise DataError(f"{path} ends in {path.suffix!r}. Expected a .csv or .parquet file.")


def _ids(values: pl.Series, where: str) -> pl.Series:
    """Ids as Int64 or String. Text that is all plain integers, as in a CSV, becomes integers ("007" stays text)."""
    if not (values.dtype.is_integer() or values.dtype == pl.String):
        raise DataError(
            f"{where}, column {values.name}: expected ids that are integers or strings; got {values.dtype}. Convert them."
        )
    refuse_rows(values.is_null(), values, where, "an id")
    integers = values.cast(pl.Int64, strict=False)
    if values.dtype == pl.String:
        return integers if (integers.cast(pl.String) == values).fill_null(False).all() else values
    refuse_rows(integers.is_null(), values, where, "an integer of at most 64 bits with a sign")
    return integers


def _numbers(values: pl.Series, where: str) -> pl.Series:
    """Ratings as Float64, every one of them finite also in single precision."""
    if not (values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.String)):
        raise DataError(
            f"{where}, column {values.name}: expected ratings that are numbers; got {values.dtype}. Convert them."
        )
    numbers = values.cast(pl.Float64, strict=False)
    refuse_rows(~(numbers.abs() <= LARGEST).fill_null(False), values, where, "a finite number")
    return numbers


def _assembled(name: str, table: pl.DataFrame, threshold: float, *, where: str) -> Task:
    """Clean columns user, item, rating -> Task. Positions follow the sorted ids; refuses a pair that is rated twice.

    `where` is what messages call the ratings.
    """
    ids = Vocabulary(table["user"].unique().sort().rename("query_id"), table["item"].unique().sort().rename("item_id"))
    q, d = ids.queries(table["user"]), ids.items(table["item"])
    shape = (len(ids.query_ids), len(ids.item_ids))
    rows = table.select("user", "item").with_row_index("row")
    repeats = rows.filter(~pl.struct("user", "item").is_first_distinct())
    if len(repeats):
        again, user, item = repeats.row(0)
        first = rows.filter((pl.col("user") == user) & (pl.col("item") == item))["row"][0]
        raise DataError(
            f"{where}: user {user!r} rated item {item!r} twice, in rows {first} and {again}. "
            "Expected one rating per pair; keep one of them, for example the last."
        )
    ratings = csr_matrix((table["rating"].to_numpy(), (q, d)), shape=shape)
    return _task(name, ratings, ids, threshold, where=where)


def _task(name: str, ratings: csr_matrix, vocabulary: Vocabulary, threshold: float, *, where: str) -> Task:
    """R[q, d] = 1 where rating > threshold, else 0 (label click-model); refuses a world where nothing is relevant.

    Shapes: ratings [Q, D].
    """
    if not abs(threshold) <= LARGEST:
        raise ConfigError(
            f"threshold: expected a number of single precision, at most {LARGEST:g} in size; got {threshold}. "
            "Ratings above it are relevant."
        )
    above = ratings.data > threshold
    if not above.any():
        raise DataError(
            f"{where}: no rating is above the threshold {threshold:g}; the highest is {ratings.data.max():g}. "
            "Lower the threshold, so that something is relevant."
        )
    relevance = csr_matrix((above.astype(np.float32), ratings.indices.copy(), ratings.indptr.copy()), ratings.shape)
    relevance.eliminate_zeros()
    return Task(name, ratings.astype(np.float32), relevance, vocabulary)
