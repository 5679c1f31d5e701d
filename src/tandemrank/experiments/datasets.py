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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pooch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.files import regular, replacing
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError, DownloadError
from tandemrank.experiments.synthetic import synthetic_world

STARS = 3.0  # a rating above it is relevant, where nothing else is asked for
LARGEST = float(np.finfo(np.float32).max)  # of a rating, in size
MOVIELENS_PAGE = "https://grouplens.org/datasets/movielens/"
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

    `data` is "synthetic" (of size `queries` x `items`, from `seed`), "ml-1m" or "ml-100k" (downloaded once, unless a
    file or folder of that name is here), the path of a MovieLens zip or folder, or of a .csv or .parquet file with the
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


# --- MovieLens --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Release:
    """A published MovieLens data set. The checksum is of the ratings file, so it also holds for a re-packed zip."""

    url: str
    file: str
    separator: bytes
    checksum: str  # "algorithm:hex digits"
    items: str  # titles and genres


RELEASES = {
    "ml-1m": Release(
        "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        "ratings.dat",
        b"::",
        "md5:a89aa3591bc97d6d4e0c89459ff39362",
        "movies.dat",
    ),
    "ml-100k": Release(
        "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        "u.data",
        b"\t",
        "sha256:06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
        "u.item",
    ),
}


def movielens(path: str | Path, *, threshold: float = STARS) -> Task:
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
    task = _assembled(name, table.drop("timestamp"), threshold, where=str(path))
    found = _file(Path(path), [release.items])
    return task if found is None else replace(task, item_features=_item_features(found[1], release, task))


def _item_features(content: bytes, release: Release, task: Task) -> pl.DataFrame | None:
    """The genres and the decade of every rated item: `item_id`, a column of 0 and 1 per genre, `decade`.

    None where the file is not as published: nothing but features depends on it.
    """
    lines = [line.split(release.separator.decode()) for line in content.decode("latin-1").splitlines() if line]
    if release.separator == b"\t":
        lines = [line[0].split("|") for line in lines]  # 100K: 19 columns of 0 and 1, one per genre
        lines = [[*line[:2], "|".join(str(n) for n, x in enumerate(line[5:]) if x == "1")] for line in lines]
    if not lines or not all(len(line) == 3 and line[0].isdigit() for line in lines):
        return None
    columns = dict(zip(("item_id", "title", "genres"), zip(*lines, strict=True), strict=True))
    frame = pl.DataFrame({**columns, "item_id": [int(number) for number in columns["item_id"]]}).with_columns(
        pl.col("genres").str.split("|"), decade=pl.col("title").str.extract(r"\((\d{3})\d\)\s*$")
    )
    names = sorted(set(frame["genres"].explode().drop_nulls()) - {""})
    flags = [pl.col("genres").list.contains(name).cast(pl.Int8).alias(f"genre {name}") for name in names]
    rated = pl.DataFrame({"item_id": task.vocabulary.item_ids})
    found = rated.join(frame.select("item_id", *flags, "decade"), on="item_id", how="inner", maintain_order="left")
    return found if len(found) == len(rated) else None


def download_movielens(name: str = "ml-1m", *, cache: Path | None = None, url: str | None = None) -> Path:
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
        try:
            pooch.HTTPDownloader(progressbar=False, timeout=30)(url, str(temporary), None)
        except OSError as error:  # every error of requests is one
            answer = getattr(error, "response", None)
            reason = (
                f"the connection failed ({type(error).__name__})" if answer is None else f"status {answer.status_code}"
            )
            raise DownloadError(f"cannot download {name} from {url}: {reason}. {by_hand}") from error
        if not _intact(temporary, release):
            raise DownloadError(
                f"what came from {url} is not {name}: expected a zip with {release.file} of {release.checksum}. "
                f"Nothing was kept. {by_hand}"
            )
    return target


def _ratings_file(path: Path) -> tuple[str, bytes]:
    """Which release is at `path`, and the bytes of its ratings file."""
    if not os.path.exists(path):
        raise DataError(f"there is no {path}. Expected a MovieLens zip or folder; get one from {MOVIELENS_PAGE}.")
    names = {release.file: name for name, release in RELEASES.items()}
    found = _file(path, names)
    if found is None:
        raise DataError(
            f"{path} holds no MovieLens ratings: expected {' or '.join(names)}. Get it from {MOVIELENS_PAGE}."
        )
    return names[found[0]], found[1]


def _file(path: Path, names: Iterable[str]) -> tuple[str, bytes] | None:
    """The first file of one of these names in a zip or folder, with its name; None where there is none."""
    try:
        if path.is_dir():
            for member in (found for file in names for found in (*path.glob(file), *path.glob(f"*/{file}"))):
                return member.name, member.read_bytes()
        else:
            with zipfile.ZipFile(regular(path)) as archive:
                for entry in archive.namelist():
                    if (file := entry.rsplit("/", 1)[-1]) in names:
                        return file, archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
        raise DataError(
            f"cannot read {path}: {error}. Expected a MovieLens zip; fetch it again from {MOVIELENS_PAGE}."
        ) from error
    return None


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


def _downloaded(name: str, threshold: float) -> Task:
    return movielens(download_movielens(name), threshold=threshold)


# Other data sets with a name, by the threshold. A file or folder of that name, if there is one, is meant instead.
NAMED: dict[str, Callable[[float], Task]] = {name: partial(_downloaded, name) for name in RELEASES}


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
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
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


def _refuse(bad: pl.Series, values: pl.Series, where: str, expected: str) -> None:
    """Raises if any of `bad` is true, and names the first row, counted from 0 without the header, as in logs."""
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise DataError(
            f"{where}, row {row}, column {values.name}: expected {expected}; got {repr(values[row])[:60]}. "
            f"{bad.sum()} rows have the problem. Correct or drop them."
        )


def _ids(values: pl.Series, where: str) -> pl.Series:
    """Ids as Int64 or String. Text that is all plain integers, as in a CSV, becomes integers ("007" stays text)."""
    if not (values.dtype.is_integer() or values.dtype == pl.String):
        raise DataError(
            f"{where}, column {values.name}: expected ids that are integers or strings; got {values.dtype}. Convert them."
        )
    _refuse(values.is_null(), values, where, "an id")
    integers = values.cast(pl.Int64, strict=False)
    if values.dtype == pl.String:
        return integers if (integers.cast(pl.String) == values).fill_null(False).all() else values
    _refuse(integers.is_null(), values, where, "an integer of at most 64 bits with a sign")
    return integers


def _numbers(values: pl.Series, where: str) -> pl.Series:
    """Ratings as Float64, every one of them finite also in single precision."""
    if not (values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.String)):
        raise DataError(
            f"{where}, column {values.name}: expected ratings that are numbers; got {values.dtype}. Convert them."
        )
    numbers = values.cast(pl.Float64, strict=False)
    _refuse(~(numbers.abs() <= LARGEST).fill_null(False), values, where, "a finite number")
    return numbers


def _assembled(name: str, table: pl.DataFrame, threshold: float, *, where: str) -> Task:
    """Clean columns user, item, rating -> Task. Positions follow the sorted ids; refuses a pair that is rated twice.

    `where` is what messages call the ratings.
    """
    ids = Vocabulary(table["user"].unique().sort().rename("query_id"), table["item"].unique().sort().rename("item_id"))
    q, d = ids.queries(table["user"]), ids.items(table["item"])
    shape = (len(ids.query_ids), len(ids.item_ids))
    if (twice := _first_repeat(q * shape[1] + d)) is not None:
        first, again = twice
        user, item, _ = table.row(again)
        raise DataError(
            f"{where}: user {user!r} rated item {item!r} twice, in rows {first} and {again}. "
            "Expected one rating per pair; keep one of them, for example the last."
        )
    ratings = csr_matrix((table["rating"].to_numpy(), (q, d)), shape=shape)
    return _task(name, ratings, ids, threshold, where=where)


def _first_repeat(pairs: NDArray[np.int64]) -> tuple[int, int] | None:
    """The earliest position that repeats an earlier value, as (earlier, repeat)."""
    order = np.argsort(pairs, kind="stable")
    repeats = np.flatnonzero(np.diff(pairs[order]) == 0)
    if not len(repeats):
        return None
    k = repeats[np.argmin(order[repeats + 1])]
    return int(order[k]), int(order[k + 1])


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
