"""What every command prints with --json: schemas made of what the commands print in the tests, which every test holds them to.

    python tests/json_schemas.py            docs/reference/schemas anew, from all tests
    python tests/json_schemas.py TEST ...   wider by what these tests print

A schema is made of values before they are JSON, so it knows what their classes say of their fields, all members of an
enumeration, and that a number may be null: what is not finite becomes null. What a class does not say, the results that are put
together by name, it has from what is printed. Names are fixed: what is not in a schema may not be printed.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference" / "schemas"
RECORD = "TANDEMRANK_RECORD_JSON"  # a folder: what is printed is recorded there, and not held to anything
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Objects whose names are data, such as the names of policies.
BY_NAME = {"systems"}
# What calls `print_json`, where a command prints other things by other options.
FORMS = {
    "print_systems": "several --shadow: by their names",
    "print_differences": "--shadow",
    "_how_many": "several --candidates",
    "_print_list_value": "--list-reward",
    "_live_demo": "--live",
    "_study": "--preset stages",
    "sessions": "--sessions",
    "": "",
}
Schema = dict[str, Any]


# Of a value


def schema_of(value: Any, name: str = "") -> Schema:
    """What a value shows of its schema, and what its type says of what it does not show."""
    if is_dataclass(value) and not isinstance(value, type):
        return merged(
            _of_type(type(value)), _object({f.name: schema_of(getattr(value, f.name)) for f in fields(value)})
        )
    if hasattr(value, "_asdict"):
        return schema_of(value._asdict())
    if hasattr(value, "tolist"):
        return schema_of(value.tolist())
    if isinstance(value, dict):
        if name in BY_NAME:
            return {"type": ["object"], "additionalProperties": _merged_of([schema_of(x) for x in value.values()])}
        return _object({str(k): schema_of(v, str(k)) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return {"type": ["array"], "items": _merged_of([schema_of(x) for x in value])}
    return _of_type(type(value)) or {"type": ["string"]}


PLAIN = {
    bool: ["boolean"],
    int: ["integer"],
    float: ["null", "number"],
    str: ["string"],
    Path: ["string"],
    NoneType: ["null"],
}


def _of_type(kind: Any) -> Schema:
    """What a type says; nothing where it says nothing."""
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"type": ["string"], "enum": sorted(map(str, inner))}
    if origin in (Union, UnionType):
        return _merged_of([_of_type(x) for x in inner])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": ["object"], "additionalProperties": _of_type(inner[1])}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": ["array"], "items": _merged_of([_of_type(x) for x in inner if x is not ...])}
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, StrEnum):
        return {"type": ["string"], "enum": sorted(map(str, kind))}
    if is_dataclass(kind):
        hints = _hints(kind)
        return _object({f.name: _of_type(hints[f.name]) for f in fields(kind)})
    return {}


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # what only type checkers import
        return {field.name: Any for field in fields(kind)}


def _object(properties: dict[str, Schema]) -> Schema:
    names = {"properties": properties, "required": sorted(properties)}
    return {"type": ["object"], **names, "additionalProperties": False}


def merged(a: Schema, b: Schema) -> Schema:
    """What allows both."""
    if not a or not b:
        return a or b
    found: Schema = {
        "type": sorted({*a["type"], *b["type"]} - ({"integer"} if "number" in a["type"] + b["type"] else set()))
    }
    texts = [x.get("enum") for x in (a, b) if "string" in x["type"]]
    if texts and all(texts):
        found["enum"] = sorted({*texts[0], *texts[-1]})
    if arrays := [x["items"] for x in (a, b) if "array" in x["type"]]:
        found["items"] = _merged_of(arrays)
    objects = [x for x in (a, b) if "object" in x["type"]]
    if named := [x for x in objects if "properties" in x]:
        of = [x["properties"] for x in named]
        names = dict.fromkeys(name for properties in of for name in properties)
        found["properties"] = {name: _merged_of([p[name] for p in of if name in p]) for name in names}
        found["required"] = sorted(set.intersection(*(set(x["required"]) for x in named)))
        found["additionalProperties"] = False
    if named and len(named) < len(objects):  # the type says that the names are data
        values = [*found.pop("properties").values(), *(x["additionalProperties"] for x in objects if x not in named)]
        found["additionalProperties"] = _merged_of(values)
        del found["required"]
    elif objects and not named:
        found["additionalProperties"] = _merged_of([x["additionalProperties"] for x in objects])
    return found


def _merged_of(schemas: Iterable[Schema]) -> Schema:
    found: Schema = {}
    for one in schemas:
        found = merged(found, one)
    return found


# Of a command


@cache
def _commands() -> dict[Any, str]:
    """The code of every command, and its name."""
    from tandemrank.cli.main import app

    found = {}
    for command in app.registered_commands:
        run = inspect.unwrap(command.callback)  # type: ignore[arg-type]
        found[run.__code__] = command.name or run.__name__
    return found


def _printing() -> tuple[str, str] | None:
    """Which command prints, and which form; None where something else does."""
    frame, form = inspect.currentframe(), None
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if form is None and file.parent.name == "cli" and file.name != "terminal.py":
            form = "sessions" if file.name == "sessions.py" else frame.f_code.co_name
        if frame.f_code in _commands():
            return _commands()[frame.f_code], form if form in FORMS else ""  # type: ignore[return-value]
        frame = frame.f_back
    return None


recorded: dict[str, dict[str, Schema]] = {}


@contextmanager
def watching() -> Iterator[None]:
    """Everything that a command prints as JSON is held to its schema, or recorded."""
    from tandemrank._base import files

    plain = files.as_json

    def watched(value: Any) -> str:
        text = plain(value)
        caller = inspect.currentframe().f_back  # type: ignore[union-attr]
        if caller.f_code.co_name == "print_json" and (found := _printing()):  # type: ignore[union-attr]
            check(*found, value, text)
        return text

    files.as_json = watched
    try:
        yield
    finally:
        files.as_json = plain
        if RECORD in os.environ and recorded:
            handle, _ = tempfile.mkstemp(".json", dir=os.environ[RECORD])
            with open(handle, "w") as file:
                json.dump(recorded, file)


def check(command: str, form: str, value: Any, text: str) -> None:
    """Holds what a command prints to its schema, or records it."""
    if RECORD in os.environ:
        forms = recorded.setdefault(command, {})
        forms[form] = merged(forms.get(form, {}), schema_of(value))
    elif wrong := next(_validator(command).iter_errors(json.loads(text)), None):
        wrong = next(iter(sorted(wrong.context, key=lambda one: -len(one.absolute_path))), wrong)
        raise AssertionError(
            f"{command} --json is not what docs/reference/schemas/{command}.json says, at "
            f"{'/'.join(map(str, wrong.absolute_path))!r}: {wrong.message[:400]}. If it is meant: "
            "python tests/json_schemas.py THIS_TEST, and a line in CHANGELOG.md."
        )


@cache
def _validator(command: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads((FOLDER / f"{command}.json").read_text()))


# The files


def published(command: str, forms: dict[str, Schema]) -> Schema:
    """The schema of a command: of one form, or of any of several."""
    head = {"$schema": DIALECT, "title": f"tandemrank {command} --json"}
    if set(forms) == {""}:
        return head | _tidy(forms[""])
    said = {form: {"description": f"With {FORMS[form]}."} if form else {} for form in forms}
    return head | {"anyOf": [said[form] | _tidy(forms[form]) for form in sorted(forms)]}


def _tidy(schema: Schema) -> Schema:
    """A single type by itself; what may be null is among the members of an enumeration."""
    found = _each(schema, _tidy)
    if "enum" in found and "null" in found["type"]:
        found["enum"] = [*found["enum"], None]
    if len(found.get("type", ())) == 1:
        found["type"] = found["type"][0]
    return found


def _untidy(schema: Schema) -> Schema:
    """What `_tidy` was given."""
    found = _each({key: x for key, x in schema.items() if key not in ("$schema", "title", "description")}, _untidy)
    if isinstance(found.get("type"), str):
        found["type"] = [found["type"]]
    if "enum" in found:
        found["enum"] = [x for x in found["enum"] if x is not None]
    return found


def _each(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A schema whose parts are changed."""
    found = dict(schema)
    if "properties" in found:
        found["properties"] = {name: change(one) for name, one in found["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = change(found[key])
    return found


def _forms(path: Path) -> dict[str, Schema]:
    """The forms of a published schema."""
    found = json.loads(path.read_text())
    form_of = {f"With {words}.": form for form, words in FORMS.items()}
    return {form_of.get(one.get("description", ""), ""): _untidy(one) for one in found.get("anyOf", [found])}


def main() -> None:
    """Runs the tests, and writes the schemas."""
    asked = sys.argv[1:]
    known = {path.stem: _forms(path) for path in FOLDER.glob("*.json")} if asked else {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", *(asked or ["tests"])]
        subprocess.run(command, env=os.environ | {RECORD: folder}, cwd=FOLDER.parents[2])
        for path in Path(folder).glob("*.json"):
            for name, forms in json.loads(path.read_text()).items():
                for form, schema in forms.items():
                    of = known.setdefault(name, {})
                    of[form] = merged(of.get(form, {}), schema)
    FOLDER.mkdir(exist_ok=True)
    for name, forms in known.items():
        (FOLDER / f"{name}.json").write_text(_written(published(name, forms)) + "\n")


def _written(value: Any, depth: int = 0) -> str:
    """JSON with everything in one line that fits in one."""
    line = json.dumps(value, sort_keys=True)
    if len(line) + depth <= 120 or not isinstance(value, dict | list):
        return line
    if isinstance(value, list):
        inside, (first, last) = [_written(x, depth + 1) for x in value], "[]"
    else:
        inside = [f"{json.dumps(name)}: {_written(value[name], depth + 1)}" for name in sorted(value)]
        first, last = "{}"
    space = "\n" + " " * (depth + 1)
    return first + space + f",{space}".join(inside) + "\n" + " " * depth + last


if __name__ == "__main__":
    main()
