"""The folder of a job of many cells, a grid or a study: whose it is, and what of it is finished.

    config.json   cells/<name>.json   and at the end what is made of them: table.json and reports

Every file is written in one piece, and one that cannot be read is made again. Whose cells these are cannot be made again: a
folder with cells and without its own `config.json` is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tandemrank._base.files import MARK, Kind, check_target, claim, write_text
from tandemrank._base.processes import alone_in
from tandemrank.errors import ConfigError
from tandemrank.experiments.results import from_json

Result = TypeVar("Result")


@contextmanager
def opened(
    folder: Path, kind: Kind, config: str, *, data: str, resume: bool = False, anew: bool = False
) -> Iterator[None]:
    """The folder as this job's own, and no other process's meanwhile. `config`: its switches, as JSON; `data`: what it reads.

    Refused: another job's folder, and without `resume` one with finished cells; `anew` clears those of the same job. A
    folder in which no cell was ever finished is free, whatever switches were tried there.
    """
    claim(folder, kind, inputs=[data])
    with alone_in(folder, MARK):
        path = folder / "config.json"
        before = _text(path)
        if next((folder / "cells").glob("*.json"), None) is None or (anew and before == config):
            _clear(folder, kind)
        elif before != config:
            raise ConfigError(
                f"{folder} holds a {kind.name} with other switches, or its config.json is missing or damaged. Give another "
                "folder, or the same switches."
            )
        elif not resume:
            raise ConfigError(f"{folder} holds this {kind.name} already. Go on with --resume, or give another folder.")
        write_text(path, config)
        yield


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _clear(folder: Path, kind: Kind) -> None:
    """Removes what such a job has written; refused where there is anything else."""
    check_target(folder, kind)
    for path in (*folder.glob("*"), *folder.glob("cells/*")):
        if path.is_file() and path.name != MARK:
            path.unlink()


def read(path: Path, kind: type[Result]) -> Result | None:
    """What a file of the folder holds; None where it is not there, or damaged."""
    try:
        return from_json(kind, path.read_bytes())
    except (OSError, ValueError):
        return None
