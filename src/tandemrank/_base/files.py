"""Writing results: nobody ever sees half of one, and nothing is replaced or deleted that we did not write.

The one rule of every output:

- a target that exists and is not a result of ours, of the same kind and with nothing else in it, is refused;
- a target that is an input, or a folder above one, is refused;
- what is written appears in one piece: under a temporary name first, on disk, then by a rename.

A result that is replaced as a whole (a policy, a log) is known by what is in it (`Kind`); a folder that is filled bit by
bit (a grid, a training) is marked when it is claimed (`claim`), and files in it are ours by their names.
"""

import errno
import glob
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from tandemrank.errors import ConfigError, OutputError, TandemRankError

MARK = ".tandemrank"  # in a claimed folder: the kind of what is written there

# Beside a target while it is written: `lock`, which its process holds, `new/NAME`, and `old/NAME`, what NAME was before.
_HOLDER = re.compile(r"\.tandemrank-[a-z0-9_]{8}")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how polars and safetensors pass on what the system said


# --- what is ours -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of result, and how one of ours is told from anything else.

    `name` is what it is called ("saved policy"). `files` is a regular expression that every relative path in its folder
    matches, folders with a slash at their end; without it the result is a single file. `check` looks inside.
    """

    name: str
    files: str | None = None
    check: Callable[[Path], bool] = lambda path: True

    def objection(self, path: Path) -> str | None:
        """Why what is at `path` is not one of ours, in words; None where it is one, or an empty folder."""
        if self.files is None or not path.is_dir():
            of_this_form = path.is_file() if self.files is None else False
            return None if of_this_form and self.check(path) else "it is something else"
        inside = list(_relative_paths(path))
        if stranger := next((p for p in inside if p != MARK and not re.fullmatch(self.files, p)), None):
            return f"{stranger} is in it"
        return None if not inside or self.check(path) else "it is damaged, or was written by another program"


def _relative_paths(folder: Path) -> Iterator[str]:
    """Everything below a folder, in order; folders end with a slash, links are not followed."""

    def refuse(error: OSError) -> None:
        raise error  # a folder that cannot be read is not an empty one

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        inside = os.path.relpath(place, folder)
        for name in sorted(names) + [f"{name}/" for name in folders]:
            yield name if inside == "." else f"{inside}/{name}".replace(os.sep, "/")


def has_keys(path: Path, *keys: str) -> bool:
    """Whether a file is a JSON object with these keys: a `check` for kinds that have a `config.json`."""
    try:
        value = json.loads(regular(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and set(keys) <= value.keys()


def check_target(path: str | Path, kind: Kind | None = None, inputs: Iterable[object] = ()) -> Path:
    """The real path of a target, links followed; refuses one that must not be written to.

    `inputs` are the paths and patterns that the job reads; anything else among them is ignored. Without a kind the target
    is a file in a folder of ours.
    """
    with _reporting(path):
        os.fspath(path).encode()  # what writes tables takes no other name
        real = Path(os.path.realpath(path))
        for source in _real_inputs(inputs):
            if real == source or real in source.parents:
                raise ConfigError(
                    f"cannot write to {path}: {'it is' if real == source else 'it holds'} the input {source}. "
                    f"Give another path."
                )
        try:
            os.lstat(real)
        except FileNotFoundError:
            return real
        if kind is None:
            if not real.is_file():
                raise ConfigError(f"cannot write {path}: expected a file; there is a folder or a device.")
        elif objection := kind.objection(real):
            raise ConfigError(
                f"{path} exists and is not a {kind.name} of ours: {objection}. Give another path, or remove it yourself."
            )
    return real


def regular(path: str | Path) -> Path:
    """The path of a file that can be read to its end; an `OSError` in words for anything else.

    A pipe or a device would be waited for without end, and no reader of tables takes a name that is not UTF-8.
    """
    try:
        os.fspath(path).encode()
        kind = os.stat(path).st_mode
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "its name is not UTF-8; rename it") from None
    except ValueError:
        raise OSError(errno.EINVAL, "a path has no null bytes") from None
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "it is a pipe or a device; write what it gives to a file")
    return Path(path)


def plain(path: Any) -> Any:
    """The path of a `file://` URL; anything else as it is."""
    return path.removeprefix("file://") if isinstance(path, str) else path


def _real_inputs(inputs: Iterable[object]) -> Iterator[Path]:
    for source in map(plain, inputs):
        if isinstance(source, str | Path):
            for found in [source] if os.path.lexists(source) else glob.glob(str(source), recursive=True):
                yield from {Path(os.path.realpath(found)), Path(os.path.abspath(found))}


def claim(folder: str | Path, kind: Kind, inputs: Iterable[object] = ()) -> Path:
    """Makes `folder` one that is filled bit by bit with a result of that kind, and returns it.

    It must be new, empty, or claimed for the same kind before. What a killed process left in it is cleaned.
    """
    real = check_target(folder, Kind(kind.name, "(?s:.*)"), inputs)
    with _reporting(folder):
        if real.is_dir():
            for place, _, _ in os.walk(real):
                clean(place)
        there = sorted(os.listdir(real)) if real.is_dir() else []
        if there and not _is_marked(real, kind):
            raise ConfigError(
                f"{folder} exists and is not a {kind.name} of ours: {there[0]} is in it. Give a new folder, or an empty one."
            )
    if not there:
        write_text(real / MARK, f"{kind.name}\n")
    return Path(folder)


def _is_marked(folder: Path, kind: Kind) -> bool:
    mark = folder / MARK
    return mark.is_file() and mark.read_text(encoding="utf-8", errors="replace") == f"{kind.name}\n"


@contextmanager
def claimed(folder: str | Path, kind: Kind, inputs: Iterable[object] = ()) -> Iterator[Path]:
    """`claim` around a job: if it fails before it has written anything, no folder of ours stays behind."""
    place = Path(folder)
    made = [p for p in (place, *place.parents) if not os.path.lexists(p)]
    try:
        yield claim(folder, kind, inputs)
    except BaseException:
        with suppress(OSError):
            if os.listdir(place) == [MARK] and _is_marked(place, kind):
                (place / MARK).unlink()
            for empty in made:
                empty.rmdir()
        raise


# --- writing in one piece ---------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: str | Path, kind: Kind | None = None, inputs: Iterable[object] = ()) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what was written there, a file or a folder, becomes `path` on success.

    On any failure, Ctrl-C included, `path` is as it was. What may be replaced says `check_target`. A full disk, and
    whatever else the system refuses, is one `OutputError`.
    """
    inputs = list(inputs)
    real = check_target(path, kind, inputs)
    with _reporting(path), _holder(real) as holder:
        temporary = holder / "new" / real.name
        yield temporary
        _sync(temporary, os.stat(holder / "lock").st_mode & 0o666)
        check_target(path, kind, inputs)  # again: the job may have taken hours
        if real.is_dir():
            os.rename(real, holder / "old" / real.name)
        os.replace(temporary, real)
        _sync_folder(real.parent)


@contextmanager
def _reporting(path: str | Path) -> Iterator[None]:
    """Whatever the system refuses becomes one message, also through polars or safetensors."""
    try:
        yield
    except TandemRankError:
        raise
    except BaseException as error:
        if reason := _system_reason(error):
            raise OutputError(
                f"cannot write {path}: {reason}. What was there before is as it was. "
                f"Give a path in a folder you can write to, with room for it."
            ) from error
        raise


def _system_reason(error: BaseException) -> str | None:
    """What the system said, in words; None where it was not the system."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, ValueError) and "null byte" in str(error):
        return "a path has no null bytes"
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return "its name is not UTF-8"
    passed_on = _OS_ERROR.search(str(error))
    return os.strerror(int(passed_on[1])) if passed_on else None


def _sync(path: Path, mode: int) -> None:
    """Has a file, or all files of a folder, on disk before anybody sees it: a rename may outlive what it names.

    All have the mode that files of this process have by default; safetensors would let nobody else read its own.
    """
    for place, _, names in os.walk(path):
        for name in names:
            _sync(Path(place) / name, mode)
        _sync_folder(place)
    if not path.is_dir():
        path.chmod(mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _sync_folder(path: str | Path) -> None:
    with suppress(OSError):  # not every system can
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- the temporary place ----------------------------------------------------------------------------------------------


@contextmanager
def _holder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` with a lock that lives as long as this process; at its end all is settled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clean(path.parent)
    holder, handle = _locked_holder(path.parent)
    try:
        yield holder
    finally:
        try:
            _settle(holder)
        finally:
            os.close(handle)


def _locked_holder(folder: Path) -> tuple[Path, int]:
    while True:
        holder = Path(tempfile.mkdtemp(prefix=".tandemrank-", dir=folder))
        handle = os.open(holder / "lock", os.O_RDWR | os.O_CREAT)
        # Another process may take it for a leftover before it is locked, and clean it: then a new one.
        if lock(handle) is not False and os.fstat(handle).st_nlink:
            for name in ("new", "old"):
                (holder / name).mkdir()
            return holder, handle
        os.close(handle)


def clean(folder: str | Path) -> None:
    """Settles what killed processes left in a folder: their temporary folders, known by name, content and a free lock."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _HOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _clean_holder(Path(entry.path))


def _clean_holder(holder: Path) -> None:
    inside = set(os.listdir(holder))
    if not inside and time.time() - holder.stat().st_mtime > 60:
        holder.rmdir()  # its process died before it had locked it, or after it had deleted the rest
    if "lock" not in inside or not inside <= {"lock", "new", "old"}:
        return
    handle = os.open(holder / "lock", os.O_RDWR)
    try:
        if lock(handle):
            _settle(holder)
    finally:
        os.close(handle)


def _settle(holder: Path) -> None:
    """Puts back what was moved away and not replaced, then deletes the rest. The caller holds the lock."""
    for old in (holder / "old").iterdir() if (holder / "old").is_dir() else ():
        target = holder.parent / old.name
        if not os.path.lexists(target):
            try:
                os.rename(old, target)
            except OSError as error:
                raise OutputError(f"{target} could not be put back ({error.strerror}). It is at {old}.") from error
    for name in ("new", "old"):
        shutil.rmtree(holder / name, ignore_errors=True)
    with suppress(OSError):
        (holder / "lock").unlink()
        holder.rmdir()


if sys.platform == "win32":

    def lock(handle: int) -> bool | None:
        """There are no such locks: what a killed process left stays there."""
        return None

else:
    import fcntl

    def lock(handle: int) -> bool | None:
        """Whether this process has the lock now; False where another one has it, None where there are no locks."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


def hold(path: Path, *, seconds: float = 0.0) -> int | None:
    """A file for this process alone, until it lets go or ends, however it ends; None if another has it for so long."""
    until = time.monotonic() + seconds
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        mine = lock(handle)
        # Another process may have replaced the file before it was locked: then that one counts.
        if mine is None or (mine and path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
            return handle
        os.close(handle)
        if mine is False and time.monotonic() >= until:
            return None
        time.sleep(0.01)


def let_go(handle: int | None) -> None:
    """Of what `hold` gave."""
    if handle is not None:
        os.close(handle)


@contextmanager
def held(path: Path, *, seconds: float = 0.0) -> Iterator[bool]:
    """Whether this process has the file for itself, while it does."""
    handle = hold(path, seconds=seconds)
    try:
        yield handle is not None
    finally:
        let_go(handle)


# --- text and JSON ----------------------------------------------------------------------------------------------------


def as_json(value: Any) -> str:
    """JSON that every program reads: NaN and infinities become null, dataclasses and named tuples objects, arrays lists."""
    return json.dumps(_plain(value), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "tolist"):
        value = value.tolist()
    elif isinstance(value, Path):
        value = str(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value: Any) -> Path:
    """Writes `value` as JSON in one piece and returns the path."""
    return write_text(path, as_json(value))


def write_text(path: str | Path, text: str, kind: Kind | None = None) -> Path:
    """Writes `text` to `path` in one piece and returns the path."""
    with replacing(path, kind) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
