"""Ratings become a `Task`: who asks (queries, here users), what there is (documents), and what is relevant to whom.

Four sources, one entry point (`load`): the embedded synthetic world, MovieLens from a zip or a folder, MovieLens
downloaded, and a table of one's own ratings. The relevance `R` of the paper's click model (label click-model) is 1
where the rating is above a threshold and 0 elsewhere, also where nobody rated.
"""

import hashlib
import io
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pooch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from scipy.sparse import csr_matrix

from tandemrank._base.files import replacing
from tandemrank._base.ids import Vocabulary, lookup
from tandemrank.errors import ConfigError, DataError, DownloadError
from tandemrank.experiments.synthetic import synthetic_ratings

MOVIELENS_PAGE = "https://grouplens.org/datasets/movielens/"


@dataclass(frozen=True, eq=False)
class Task:
    """A ranking task: what was rated, what is relevant, and the outside ids.

    Shapes: ratings [Q, D] sparse, 0 = not rated; relevance [Q, D] sparse in [0, 1].
    """

    name: str
    ratings: csr_matrix
    relevance: csr_matrix
    vocabulary: Vocabulary

    @property
    def Q(self) -> int:
        """Number of queries."""
        return int(self.relevance.shape[0])

    @property
    def D(self) -> int:
        """Number of documents."""
        return int(self.relevance.shape[1])


@dataclass(frozen=True)
class Release:
    """A published MovieLens data set. The checksum is of the ratings file, so it also holds for a re-packed zip."""

    url: str
    file: str
    separator: bytes
    checksum: str  # "algorithm:hex digits"


RELEASES = {
    "ml-1m": Release(
        "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        "ratings.dat",
        b"::",
        "md5:a89aa3591bc97d6d4e0c89459ff39362",
    ),
    "ml-100k": Release(
        "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        "u.data",
        b"\t",
        "sha256:06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
    ),
}


def load(
    data: str | Path = "synthetic",
    *,
    queries: int | None = None,
    items: int | None = None,
    seed: int = 0,
    query_column: str = "user",
    item_column: str = "item",
    rating_column: str = "rating",
    threshold: float | None = None,
    graded: bool = False,
    cache: Path | None = None,
    progress: bool = False,
) -> Task:
    """The task that `data` names.

    `data` is "synthetic" (of size `queries` x `items`, from `seed`), "ml-1m" or "ml-100k" (downloaded once, unless a
    file or folder of that name is here), the path of a MovieLens zip or folder, or of a .csv or .parquet file with the
    three columns named. `threshold` is 3 unless given; for own ratings it must be given. With `graded` what is above
    it is relevant by the share of the way to the highest rating, else by 1.
    """
    path = Path(data)
    if str(data) == "synthetic":
        size = {"queries": queries, "items": items}
        given = {name: n for name, n in size.items() if n is not None}
        return synthetic(**given, seed=seed, threshold=3.0 if threshold is None else threshold, graded=graded)
    if queries is not None or items is not None:
        raise ConfigError(
            f"the numbers of queries and items size the synthetic world, but the data is {data}. Leave them out."
        )
    if str(data) in RELEASES and not path.exists():
        path = download_movielens(str(data), cache=cache, progress=progress)
    if path.is_dir() or path.suffix.lower() == ".zip":
        return movielens(path, threshold=3.0 if threshold is None else threshold, graded=graded)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(
            f"unknown data {str(data)!r}: expected 'synthetic', {', '.join(map(repr, RELEASES))}, "
            "a MovieLens zip or folder, or a .csv or .parquet file of ratings."
        )
    if threshold is None:
        raise ConfigError(
            f"the ratings in {path} need a threshold: a rating above it counts as relevant (--threshold 3)."
        )
    return from_ratings(
        path, query=query_column, item=item_column, rating=rating_column, threshold=threshold, graded=graded
    )


def synthetic(
    queries: int = 6040, items: int = 3706, *, seed: int = 0, threshold: float = 3.0, graded: bool = False
) -> Task:
    """The embedded synthetic world, made to resemble MovieLens-1M; the same for the same seed. Ids count from 1."""
    ratings = synthetic_ratings(queries, items, seed=seed)
    ids = Vocabulary(pl.Series("query_id", np.arange(1, queries + 1)), pl.Series("item_id", np.arange(1, items + 1)))
    return _task("synthetic", ratings, ids, threshold, graded)


def movielens(path: str | Path, *, threshold: float = 3.0, graded: bool = False) -> Task:
    """MovieLens-1M or -100K, from the published zip or its unpacked folder; its checksum is verified."""
    name, content = _ratings_file(Path(path))
    release = RELEASES[name]
    _verify(content, release, Path(path))
    table = pl.read_csv(
        io.BytesIO(content.replace(release.separator, b"\t")),
        separator="\t",
        has_header=False,
        schema={"user": pl.Int64, "item": pl.Int64, "rating": pl.Float64, "timestamp": pl.Int64},
    )
    return _assemble(name, table.drop("timestamp"), threshold, graded)


def from_ratings(
    source: str | Path | pl.DataFrame,
    *,
    query: str = "user",
    item: str = "item",
    rating: str = "rating",
    threshold: float,
    graded: bool = False,
) -> Task:
    """A task from one's own ratings: a .csv file, a .parquet file or a frame, one row for each rated (query, item).

    Ids are integers or strings. Positions follow the sorted ids. A rating above `threshold` is relevant.
    """
    columns = {"user": query, "item": item, "rating": rating}
    if len(set(columns.values())) < 3:
        raise ConfigError(
            f"query, item and rating must be three different columns, but they are {query!r}, {item!r}, {rating!r}."
        )
    where = "the frame" if isinstance(source, pl.DataFrame) else str(source)
    table = _read(source, columns, where)
    clean = pl.DataFrame(
        {
            "user": _ids(table["user"], query, where),
            "item": _ids(table["item"], item, where),
            "rating": _numbers(table["rating"], rating, where),
        }
    )
    return _assemble("ratings" if isinstance(source, pl.DataFrame) else Path(source).stem, clean, threshold, graded)


def download_movielens(
    name: str = "ml-1m", *, cache: Path | None = None, url: str | None = None, progress: bool = False
) -> Path:
    """Fetches a MovieLens zip into the cache, once, and returns its path. Only a zip with the right ratings is kept."""
    if name not in RELEASES:
        raise ConfigError(f"unknown MovieLens data set {name!r}: expected {' or '.join(map(repr, RELEASES))}.")
    release = RELEASES[name]
    url = url or release.url
    target = (Path(pooch.os_cache("tandemrank")) if cache is None else Path(cache)) / f"{name}.zip"
    if target.is_file() and _intact(target, release):
        return target
    by_hand = f"Fetch {name}.zip by hand from {MOVIELENS_PAGE} and give its path (--data path/to/{name}.zip)."
    with replacing(target) as temporary:
        bar = _Bar(f"Downloading {name}") if progress else None
        try:
            pooch.HTTPDownloader(progressbar=bar or False, timeout=30)(url, str(temporary), None)
        except OSError as error:  # every error of requests is one
            answer = getattr(error, "response", None)
            reason = (
                f"the connection failed ({type(error).__name__})" if answer is None else f"status {answer.status_code}"
            )
            raise DownloadError(f"cannot download {name} from {url}: {reason}. {by_hand}") from error
        finally:
            if bar:
                bar.close()
        if not _intact(temporary, release):
            raise DownloadError(
                f"what came from {url} is not {name}: expected a zip with {release.file} of {release.checksum}. "
                f"Nothing was kept. {by_hand}"
            )
    return target


class _Bar:
    """A progress bar with the four names that pooch calls; silent where the output is not a terminal."""

    def __init__(self, label: str) -> None:
        console = Console(stderr=True)
        self._progress = Progress(console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task(label, total=None)
        self._progress.start()
        self.total = 0

    def update(self, n: int) -> None:
        self._progress.update(self._task, total=self.total or None, advance=n)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()


def _ratings_file(path: Path) -> tuple[str, bytes]:
    """Which release is at `path`, and the bytes of its ratings file."""
    if not path.exists():
        raise DataError(f"there is no {path}. Expected a MovieLens zip or folder; get one from {MOVIELENS_PAGE}.")
    names = {release.file: name for name, release in RELEASES.items()}
    try:
        if path.is_dir():
            for member in (found for file in names for found in (*path.glob(file), *path.glob(f"*/{file}"))):
                return names[member.name], member.read_bytes()
        else:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.namelist():
                    if (file := entry.rsplit("/", 1)[-1]) in names:
                        return names[file], archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
        raise DataError(
            f"cannot read {path}: {error}. Expected a MovieLens zip; fetch it again from {MOVIELENS_PAGE}."
        ) from error
    raise DataError(f"{path} holds no MovieLens ratings: expected {' or '.join(names)}. Get it from {MOVIELENS_PAGE}.")


def _verify(content: bytes, release: Release, path: Path) -> None:
    """Refuses a ratings file that is not the published one, byte for byte."""
    algorithm, expected = release.checksum.split(":")
    if (came := hashlib.new(algorithm, content).hexdigest()) != expected:
        raise DataError(
            f"{release.file} in {path} is not the published one: expected {algorithm} {expected}, but it is {came}. "
            f"Fetch it again from {MOVIELENS_PAGE}, or export your own ratings as CSV or Parquet."
        )


def _intact(path: Path, release: Release) -> bool:
    """Whether `path` is a readable zip that holds the ratings of `release`."""
    try:
        _, content = _ratings_file(path)
        _verify(content, release, path)
    except DataError:
        return False
    return True


def _read(source: str | Path | pl.DataFrame, columns: dict[str, str], where: str) -> pl.DataFrame:
    """The wanted columns of `source`, as user, item, rating; values are not checked yet."""
    try:
        lazy = source.lazy() if isinstance(source, pl.DataFrame) else _scan(Path(source))
        came = lazy.collect_schema().names()
        if missing := [column for column in columns.values() if column not in came]:
            raise DataError(
                f"{where} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, came))}. "
                "Name the columns of query, item and rating."
            )
        table = lazy.select(pl.col(column).alias(name) for name, column in columns.items()).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"cannot read ratings from {where}: {reason}. Expected a CSV or Parquet table.") from error
    if table.is_empty():
        raise DataError(f"{where} holds no ratings. Expected one row for each rated (query, item).")
    return table


def _scan(path: Path) -> pl.LazyFrame:
    """A CSV or Parquet file as a lazy frame. CSV columns stay text, so that a bad value can be named with its row."""
    if not path.is_file():
        raise DataError(f"{path} is {'a folder' if path.exists() else 'not there'}. Expected a .csv or .parquet file.")
    if path.suffix.lower() == ".csv":
        return pl.scan_csv(path, infer_schema=False, glob=False)
    if path.suffix.lower() == ".parquet":
        return pl.scan_parquet(path, glob=False)
    raise DataError(f"{path} ends in {path.suffix!r}. Expected a .csv or .parquet file.")


def _refuse(bad: pl.Series, values: pl.Series, column: str, where: str, expected: str) -> None:
    """Raises if any of `bad` is true, and names the first row, counted from 1 without the header."""
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise DataError(
            f"column {column!r} of {where}, row {row + 1}: expected {expected}, but it is {values[row]!r} "
            f"({bad.sum()} such rows). Correct or remove them."
        )


def _ids(values: pl.Series, column: str, where: str) -> pl.Series:
    """Ids as Int64 or String. Text that is all plain integers, as in a CSV, becomes integers ("007" stays text)."""
    if not (values.dtype.is_integer() or values.dtype == pl.String):
        raise DataError(
            f"column {column!r} of {where} is {values.dtype}: expected ids that are integers or strings. Cast it."
        )
    _refuse(values.is_null(), values, column, where, "an id")
    integers = values.cast(pl.Int64, strict=False)
    if values.dtype == pl.String:
        return integers if (integers.cast(pl.String) == values).fill_null(False).all() else values
    _refuse(integers.is_null(), values, column, where, "an integer of at most 64 bits with a sign")
    return integers


def _numbers(values: pl.Series, column: str, where: str) -> pl.Series:
    """Ratings as Float64, every one of them finite also in single precision."""
    if not (values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.String)):
        raise DataError(f"column {column!r} of {where} is {values.dtype}: expected ratings that are numbers. Cast it.")
    numbers = values.cast(pl.Float64, strict=False)
    largest = float(np.finfo(np.float32).max)
    _refuse(~(numbers.abs() <= largest).fill_null(False), values, column, where, "a finite number")
    return numbers


def _assemble(name: str, table: pl.DataFrame, threshold: float, graded: bool) -> Task:
    """Clean columns user, item, rating -> Task. Positions follow the sorted ids; refuses a pair that is rated twice."""
    ids = Vocabulary(table["user"].unique().sort().rename("query_id"), table["item"].unique().sort().rename("item_id"))
    q, d = lookup(ids.query_ids, table["user"], "query"), lookup(ids.item_ids, table["item"], "item")
    shape = (len(ids.query_ids), len(ids.item_ids))
    if (twice := _first_repeat(q * shape[1] + d)) is not None:
        first, again = twice
        user, item, _ = table.row(again)
        raise DataError(
            f"{name}: user {user!r} rated item {item!r} twice, in rows {first + 1} and {again + 1}. "
            "Expected one rating for each pair; keep one of them, for example the last."
        )
    return _task(name, csr_matrix((table["rating"].to_numpy(), (q, d)), shape=shape), ids, threshold, graded)


def _first_repeat(pairs: NDArray[np.int64]) -> tuple[int, int] | None:
    """The earliest position that repeats an earlier value, as (earlier, repeat)."""
    order = np.argsort(pairs, kind="stable")
    repeats = np.flatnonzero(np.diff(pairs[order]) == 0)
    if not len(repeats):
        return None
    k = repeats[np.argmin(order[repeats + 1])]
    return int(order[k]), int(order[k + 1])


def _task(name: str, ratings: csr_matrix, vocabulary: Vocabulary, threshold: float, graded: bool) -> Task:
    """R[q, d] = 1 where rating > threshold, else 0 (label click-model); refuses a world where nothing is relevant.

    Graded: R = (rating - threshold) / (highest rating - threshold) where it is above.

    Shapes: ratings [Q, D].
    """
    if not math.isfinite(threshold):
        raise ConfigError(f"the threshold is {threshold}: expected a finite number; ratings above it are relevant.")
    if not (ratings.data > threshold).any():
        raise DataError(
            f"{name}: no rating is above the threshold {threshold:g}; the highest is {ratings.data.max():g}. "
            "Lower the threshold, so that something is relevant."
        )
    above = (ratings.data > threshold).astype(np.float32)
    if graded:
        above *= ((ratings.data - threshold) / (ratings.data.max() - threshold)).astype(np.float32)
    relevance = csr_matrix((above, ratings.indices, ratings.indptr), ratings.shape)
    relevance = relevance.copy()  # own indices: eliminating zeros works in place
    relevance.eliminate_zeros()
    return Task(name, ratings.astype(np.float32), relevance, vocabulary)
