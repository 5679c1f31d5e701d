"""Files at a URL, by fsspec (the extra `bucket`): s3://, gs://, abfs://, memory://, and whatever else it has a package for.

What is read is fetched into a temporary folder, one file at a time, and is there no longer than it is needed. Whatever a store
refuses, in the words of whichever library, is one line in an `OSError`.
"""

import importlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tandemrank.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters or more: C:// is a disk


def is_url(path: object) -> bool:
    """Whether a path is the URL of something that is perhaps not on this machine."""
    return isinstance(path, str) and _SCHEME.match(path) is not None


class _Place(NamedTuple):
    """A store, and a path in it."""

    store: Any
    path: str


def _place(url: str) -> _Place:
    """Refuses a URL of a protocol that nobody knows, or whose package is not installed; nothing is asked over a network."""
    protocol = url.partition("://")[0].lower()
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise ConfigError(
            f"{url} needs the extra `bucket`: pip install 'tandemrank[bucket]' ({error.name})."
        ) from error
    try:
        store, path = core.url_to_fs(url)
    except ImportError as error:
        needed = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
        package = f"pip install {needed[protocol]}" if protocol in needed else _words(error)
        raise ConfigError(f"{url} needs a package of its own beside the extra `bucket`: {package}.") from error
    except Exception as error:  # a store may refuse a URL in any words of its own
        if "Protocol not known" in str(error):
            raise ConfigError(
                f"{url}: unknown protocol {protocol!r}. Expected a path, or a URL such as s3://bucket/prefix."
            ) from error
        raise ConfigError(f"{url} is not a URL of {protocol}: {_words(error)}.") from error
    return _Place(store, str(path))


def _words(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def _asking(url: str) -> Iterator[_Place]:
    """The place of a URL; whatever is refused there is an `OSError` in one line."""
    place = _place(url)
    try:
        yield place
    except FileNotFoundError as error:
        raise OSError(f"there is nothing at {url}") from error
    except PermissionError as error:
        raise OSError(f"no permission for {url} ({_words(error)})") from error
    except Exception as error:  # botocore, google.auth and azure raise classes of their own
        raise OSError(f"{url} does not answer as it should: {type(error).__name__}, {_words(error)}") from error


def files(url: str) -> list[str]:
    """The URLs of the files at a URL, in order: itself, those below a folder, those of a pattern."""
    is_pattern = any(c in url for c in "*?[")
    base = url[: url.rindex("/", 0, min(url.index(c) for c in "*?[" if c in url)) + 1] if is_pattern else url
    with _asking(url) as (store, path):
        store.invalidate_cache()  # what another process wrote since is seen
        try:
            found = store.glob(path, detail=True) if is_pattern else store.find(path, detail=True)
        except FileNotFoundError:
            return []
        root = _place(base).path.rstrip("/")
        inside = sorted(name.removeprefix(root).lstrip("/") for name, info in found.items() if info["type"] == "file")
    return [url] if inside == [""] else [f"{base.rstrip('/')}/{name}" for name in inside]


@contextmanager
def local(path: str | Path) -> Iterator[Path]:
    """A file on this machine: the path itself, or a copy of what is at a URL for as long as this lasts."""
    if not isinstance(path, str) or not is_url(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="tandemrank-") as folder:
        target = Path(folder) / PurePosixPath(path).name
        with _asking(path) as (store, remote):
            store.get_file(remote, str(target))
        yield target
