"""Data sets by name or path (`load`): the embedded synthetic world, MovieLens, read or downloaded, own ratings (`ratings`).

What has a name of its own is in `NAMED`.
"""

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pooch

from tandemrank._base.files import regular, replacing
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError, DownloadError
from tandemrank.experiments.ratings import Task, assemble, from_ratings, task_of
from tandemrank.experiments.synthetic import synthetic_world

MOVIELENS_PAGE = "https://grouplens.org/datasets/movielens/"


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
    task = assemble(name, table.drop("timestamp"), threshold, graded, where=str(path))
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
) -> Task:
    """The task that `data` names.

    `data` is "synthetic" (of size `queries` x `items`, from `seed`), "ml-1m" or "ml-100k" (downloaded once, unless a
    file or folder of that name is here), the path of a MovieLens zip or folder, or of a .csv or .parquet file with the
    three columns named; or another name in `NAMED`. `threshold` is 3 unless given; for own ratings it must be given. With
    `graded` what is above it is relevant by the share of the way to the highest rating, else by 1.
    """
    path = Path(data)
    if str(data) != "synthetic" and (queries is not None or items is not None):
        raise ConfigError(
            f"the numbers of queries and items size the synthetic world, but the data is {data}. Leave them out."
        )
    if str(data) == "synthetic" or (str(data) in NAMED and not os.path.exists(path)):
        return NAMED[str(data)](Asked(str(data), queries, items, seed, threshold, graded, cache))
    if os.path.isdir(path) or path.suffix.lower() == ".zip":
        return movielens(path, threshold=3.0 if threshold is None else threshold, graded=graded)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(
            f"unknown data {str(data)!r}: expected {', '.join(map(repr, NAMED))}, "
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
    ratings, known = synthetic_world(queries, items, seed=seed)
    ids = Vocabulary(pl.Series("query_id", np.arange(1, queries + 1)), pl.Series("item_id", np.arange(1, items + 1)))
    tastes = {f"taste {n + 1}": column for n, column in enumerate(known.T)}
    task = task_of("synthetic", ratings, ids, threshold, graded)
    return replace(task, item_features=pl.DataFrame({"item_id": ids.item_ids, **tastes}))


@dataclass(frozen=True)
class Asked:
    """What `load` was asked for by name. `queries` and `items` size the synthetic world; the threshold may be open."""

    name: str
    queries: int | None
    items: int | None
    seed: int
    threshold: float | None
    graded: bool
    cache: Path | None

    @property
    def stars(self) -> float:
        """The threshold, by default more than three stars."""
        return 3.0 if self.threshold is None else self.threshold


def _synthetic(asked: Asked) -> Task:
    sizes = {"queries": asked.queries, "items": asked.items}
    given = {name: n for name, n in sizes.items() if n is not None}
    return synthetic(**given, seed=asked.seed, threshold=asked.stars, graded=asked.graded)


def _downloaded(asked: Asked) -> Task:
    path = download_movielens(asked.name, cache=asked.cache)
    return movielens(path, threshold=asked.stars, graded=asked.graded)


# Every data set with a name of its own. A file or folder of that name, if there is one, is meant instead.
NAMED: dict[str, Callable[[Asked], Task]] = {"synthetic": _synthetic, **dict.fromkeys(RELEASES, _downloaded)}
