"""Files at a URL, by fsspec (the extra `bucket`): s3://, gs://, abfs://, memory://, and whatever else it has a package for.

What is read is fetched into a temporary folder, one file at a time, and is there no longer than it is needed. What is written
appears in one piece, and never over something else. Whatever a store refuses, in the words of whichever library, is one line
in an `OSError`.
"""

import importlib
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tandemrank.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters or more: C:// is a disk
_AT_ONCE = {"s3", "s3a", "gs", "gcs"}  # an object appears there when it is whole, and only if there is none of its name


def is_url(path: object) -> bool:
    """Whether a path is the URL of something that is perhaps not on this machine."""
    return isinstance(path, str) and _SCHEME.match(path) is not None


class _Place(NamedTuple):
    """A store, and a path in it."""

    store: Any
    path: str


def check(url: str) -> None:
    """Refuses a URL of a protocol that nobody knows, or whose package is not installed; nothing is asked over a network."""
    _place(url)


def _place(url: str) -> _Place:
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
    except FileExistsError:
        raise
    except FileNotFoundError as error:
        raise OSError(f"there is nothing at {url}") from error
    except PermissionError as error:
        raise OSError(f"no permission for {url} ({_words(error)})") from error
    except Exception as error:  # botocore, google.auth and azure raise classes of their own
        raise OSError(f"{url} does not answer as it should: {type(error).__name__}, {_words(error)}") from error


def files(url: str) -> list[str]:
    """The URLs of the files at a URL, in order: itself, those below a folder, those of a pattern."""
    if not any(c in url for c in "*?["):
        return [url] if (inside := sizes(url)).keys() == {""} else [f"{url.rstrip('/')}/{name}" for name in inside]
    base = url[: url.rindex("/", 0, min(url.index(c) for c in "*?[" if c in url)) + 1]
    with _asking(url) as (store, path):
        store.invalidate_cache()
        root, found = _place(base).path.rstrip("/"), store.glob(path, detail=True)
        names = [name for name, info in found.items() if info["type"] == "file"]
        return sorted(base + name.removeprefix(root).lstrip("/") for name in names)


def sizes(url: str) -> dict[str, int]:
    """How many bytes every file below a URL has, by its path there, in order; that of a file itself is empty."""
    with _asking(url) as (store, path):
        store.invalidate_cache()  # what another process wrote since is seen
        try:
            found = store.find(path, detail=True)
        except FileNotFoundError:
            return {}
        root = path.rstrip("/")
        return {name.removeprefix(root).lstrip("/"): int(found[name]["size"]) for name in sorted(found)}


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


def end(url: str, count: int) -> bytes:
    """The last bytes of a file, so many or all."""
    with _asking(url) as (store, path):
        return bytes(store.tail(path, count))


def create(path: Path, url: str) -> None:
    """Copies a file to a URL where nothing is; it appears there in one piece. A `FileExistsError` where something is."""
    with _asking(url) as (store, target):
        if store.exists(target):
            raise FileExistsError(f"there is something at {url}")
        if url.partition("://")[0].lower() in _AT_ONCE:
            store.put_file(str(path), target, mode="create")
            return
        folder, _, name = target.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}"  # readers of logs do not look at what is hidden
        try:
            store.makedirs(folder or "/", exist_ok=True)
            store.put_file(str(path), temporary)
            store.mv(temporary, target)
        except BaseException:
            with suppress(Exception):
                store.rm_file(temporary)
            raise
