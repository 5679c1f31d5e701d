"""MovieLens, from the published zip, from its unpacked folder, or downloaded; its checksum is verified."""

import hashlib
import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pooch

from tandemrank._base.files import replacing
from tandemrank.errors import ConfigError, DataError, DownloadError
from tandemrank.experiments.ratings import Task, assemble

MOVIELENS_PAGE = "https://grouplens.org/datasets/movielens/"


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
    return assemble(name, table.drop("timestamp"), threshold, graded, where=str(path))


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
