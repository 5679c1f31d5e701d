"""Writing results so that nobody ever sees half of one: a temporary name first, then a rename."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandemrank.errors import OutputError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what was written there, a file or a folder, becomes `path` on success.

    On any failure the temporary is removed and `path` is as it was. A folder replaces an earlier folder.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}. Give a path in a folder you can write to."
        ) from error
    temporary = holder / path.name
    try:
        yield temporary
        if path.is_dir() and not path.is_symlink():
            if not temporary.is_dir():
                raise OutputError(
                    f"cannot write {path}: it is a folder, and a file was to be written. Give another path."
                )
            path.rename(holder / "before")
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}. Give a path in a folder you can write to."
        ) from error
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def as_json(value: Any) -> str:
    """JSON that every program reads: NaN and infinities become null."""
    return json.dumps(_plain(value), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value: Any) -> Path:
    """Writes `value` as JSON in one piece and returns the path."""
    return write_text(path, as_json(value))


def write_text(path: str | Path, text: str) -> Path:
    """Writes `text` to `path` in one piece and returns the path."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
