"""Files of other systems as rows: JSON lines as people and engines write them, JSON, CSV and Parquet.

An engine's dump wraps its documents: a line `{"index": {...}}` before each (bulk), `{"_source": {...}}` around each (scroll),
or all of them in one answer, `{"hits": {"hits": [...]}}`. Whatever is around them goes.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from tandemrank._base import files
from tandemrank._base.frames import UNREADABLE
from tandemrank.errors import LogError
from tandemrank.logs.importers.lists import Ledger

# What is wanted of a record: None a text, a list of one shape a list of these, a mapping the named fields.
Shape = None | list[Any] | Mapping[str, Any]
TEXT = None
LINES, JSON = (".jsonl", ".ndjson"), (".jsonl", ".ndjson", ".json")
ACTIONS = ("index", "create", "update", "delete")  # of a bulk request
NO_VALUE = ("NULL", r"\N")  # a missing value in a CSV
AT_ONCE = 50_000


def table(path: Path) -> pl.DataFrame:
    """A file as a table with types of its own, by its ending."""
    kind = path.suffix.lower()
    try:
        files.regular(path)
        if kind == ".parquet":
            return pl.read_parquet(path, glob=False)
        if kind == ".csv":
            return pl.read_csv(path, infer_schema_length=None, glob=False, null_values=list(NO_VALUE))
        if kind in LINES:
            return pl.read_ndjson(_unwrapped(path), infer_schema_length=None)
        if kind == ".json":
            return pl.read_json(_without_mark(path), infer_schema_length=None)
    except (*UNREADABLE, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = (_damaged_line(path) if kind in LINES else None) or reason
        raise LogError(f"cannot read {path}: {reason}. Expected a whole file of that kind.") from error
    raise LogError(f"{path} ends in {kind!r}: expected .jsonl, .ndjson, .json, .csv or .parquet.")


def events(path: Path, shape: Mapping[str, Shape], ledger: Ledger) -> pl.DataFrame:
    """The records of a file with the fields of a shape, all of them texts: what is not there is null.

    Real events are of mixed types: an id is a number here and a text there, a field is missing, or is something else.
    Lines that are no records are counted.
    """
    schema = {name: _type(inner) for name, inner in shape.items()}
    if path.suffix.lower() in JSON:
        records = _records(path, ledger)
    else:
        records = (_nested(row) for part in table(path).iter_slices(AT_ONCE) for row in part.to_dicts())
    parts = [pl.DataFrame(schema=schema)]
    while some := [_fitted(record, shape) for record in islice(records, AT_ONCE)]:
        parts.append(pl.DataFrame(some, schema=schema))
    return pl.concat(parts)


def _type(shape: Shape) -> Any:
    if shape is None:
        return pl.String
    if isinstance(shape, list):
        return pl.List(_type(shape[0]))
    return pl.Struct({name: _type(inner) for name, inner in shape.items()})


def _fitted(value: Any, shape: Shape) -> Any:
    """A value in a shape; null where it is something else. Lists and objects may be JSON in a text, as in a CSV."""
    if value is None:
        return None
    if shape is None:
        return _text(value)
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if isinstance(shape, list):
        several = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else [value]
        return [_fitted(one, shape[0]) for one in several]
    return {name: _fitted(value.get(name), inner) for name, inner in shape.items()} if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    """A value as text: lists as JSON, objects as nothing."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    if isinstance(value, list):
        return json.dumps(value)
    return None if isinstance(value, dict) else str(value)


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose columns are named `a.b`, as engines write them to a CSV, as a record with fields in fields."""
    if not any("." in name for name in row):
        return row
    record: dict[str, Any] = {}
    for name, value in row.items():
        *path, last = name.split(".")
        place = record
        for part in path:
            inner = place.get(part)
            place[part] = place = inner if isinstance(inner, dict) else {}
        if value is not None:
            place[last] = value
    return record


# --- JSON -------------------------------------------------------------------------------------------------------------


def _records(path: Path, ledger: Ledger) -> Iterator[dict[str, Any]]:
    """The documents of a file of JSON, or of JSON lines whatever its ending."""
    try:
        files.regular(path)
        if path.suffix.lower() == ".json" and (whole := _whole(path)) is not None:
            yield from (found for one in whole if (found := _document(one)) is not None)
            return
        bad: list[int] = []
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if (one := _parsed(line)) is None:
                    bad += [number] if line.strip() else []
                elif (found := _document(one)) is not None:
                    yield found
        if bad:
            ledger.drop("lines", f"are no JSON objects (first: {path.name}, line {bad[0]})", len(bad))
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror or error}. Expected a whole file of that kind.") from error


def _whole(path: Path) -> list[Any] | None:
    """What one JSON document holds: an array, or the hits of a search; None where the file is no single document."""
    try:
        found = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict) and isinstance(hits := found.get("hits"), dict):
        found = hits.get("hits", [])
    return found if isinstance(found, list) else [found]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _document(record: Any) -> dict[str, Any] | None:
    """What an engine's dump wraps; None of the line before a document in a bulk request, and of what is no object."""
    if not isinstance(record, dict):
        return None
    if isinstance(inner := record.get("_source"), dict):
        return inner
    return None if _is_action(record) else record


def _is_action(record: dict[str, Any]) -> bool:
    [(name, inner), *more] = record.items() or [("", None)]
    return name in ACTIONS and not more and isinstance(inner, dict) and all(key.startswith("_") for key in inner)


def _unwrapped(path: Path) -> Path | BytesIO:
    """JSON lines for polars: the file itself, unless an engine wrapped its documents."""
    with path.open("rb") as file:
        first = _parsed(file.readline())
    if first is None or _document(first) is first:
        return _without_mark(path)
    with path.open("rb") as file:
        parsed = [_parsed(line) for line in file if line.strip()]
    if None in parsed:  # polars says what is wrong
        return path
    return BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in map(_document, parsed) if one is not None))


def _without_mark(path: Path) -> Path | BytesIO:
    """The file, or its bytes after the mark that some systems put before UTF-8."""
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            return path
        return BytesIO(file.read())


def _damaged_line(path: Path) -> str | None:
    """Which line is no JSON, in words; None where none is, or where the file cannot be read at all."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and _parsed(line) is None:
                    return f"line {number} is no JSON ({line[:40].decode(errors='replace')!r})"
    except OSError:
        return None
    return None
