"""Configuration from a preset, a TOML file and single switches, each overriding the one before; every value checked.

A switch has one name, whatever command takes it and however deep its class holds it: `epochs`. Of two switches of one name the
one nearer to the top is meant (a grid's list of `candidates`, not the one number of what it is made of).
"""

import copy
import tomllib
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tandemrank._base.files import regular
from tandemrank.errors import ConfigError, shortened

Model = TypeVar("Model", bound=BaseModel)

MOST = 60  # characters of a wrong value that a message repeats


def resolve(
    model: type[Model],
    *,
    preset: dict[str, Any] | None = None,
    file: str | Path | None = None,
    switches: Sequence[str] = (),
    flags: dict[str, Any] | None = None,
) -> Model:
    """The configuration: defaults, then preset, then file, then `name=value` switches, then flags that are not None.

    All of them by the plain names of the switches: `epochs=5`, and `{"epochs": 5}` in `preset` and `flags`.
    """
    values: dict[str, Any] = {}
    given = [*(preset or {}).items(), *({} if file is None else _read(Path(file))).items()]
    for switch in switches:
        name, sign, text = switch.partition("=")
        if not sign:
            raise ConfigError(f"a switch is name=value, for example epochs=5; got {switch!r}.")
        given.append((name.strip(), _value(text.strip())))
    given += [(name, value) for name, value in (flags or {}).items() if value is not None]
    paths = switch_paths(model)
    for name, value in given:
        if name not in paths:
            raise ConfigError(_no_such(name, paths))
        *folders, last = paths[name]
        reduce(lambda inside, folder: inside.setdefault(folder, {}), folders, values)[last] = copy.deepcopy(value)
    return validated(model, values)


def validated(model: type[Model], values: dict[str, Any]) -> Model:
    """The model with these values, or one error that names every switch at fault."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        paths = switch_paths(model)
        lines = [_problem(problem, paths) for problem in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def switch_paths(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Where each switch of a configuration stands, by its name."""
    inner = _inner(model)
    found: dict[str, tuple[str, ...]] = {name: (name,) for name in model.model_fields if name not in inner}
    for name, config in inner.items():
        for switch, path in switch_paths(config).items():
            found.setdefault(switch, (name, *path))
    return found


def switch_values(config: BaseModel) -> dict[str, Any]:
    """Every switch of a configuration by its name, as plain values."""
    values = {name: reduce(getattr, path, config) for name, path in switch_paths(type(config)).items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def switch_help(model: type[BaseModel]) -> dict[str, str]:
    """What every switch means, by its name."""
    inner = _inner(model)
    own = {name: field.description or "" for name, field in model.model_fields.items() if name not in inner}
    return reduce(lambda found, config: switch_help(config) | found, inner.values(), own)


def _inner(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The configurations that a configuration holds, by their fields."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def _problem(problem: ErrorDetails, paths: dict[str, tuple[str, ...]]) -> str:
    """One line for one problem, under the plain name of its switch."""
    location = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        return _no_such(location[-1], paths)
    if problem["type"] == "value_error":
        return f"{problem['msg'].removeprefix('Value error, ')}."
    names = {part for path in paths.values() for part in path}
    name = next((part for part in reversed(location) if part in names), ".".join(location))
    return f"{name}: {problem['msg'].lower()}; got {shortened(problem['input'], MOST)}."


def _no_such(name: str, paths: dict[str, tuple[str, ...]]) -> str:
    if (last := name.split(".")[-1]) in paths and last != name:
        return f"{name}: there is no such switch; it is called {last}, wherever it is used."
    return f"{name[:MOST]}: there is no such switch. There are: {', '.join(paths)}."


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(regular(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, or numbers and nesting beyond what Python reads
        raise ConfigError(f"{path} is not TOML: {error}. Expected lines such as epochs = 5.") from error
    if sections := [name for name, value in values.items() if isinstance(value, dict)]:
        raise ConfigError(f"{path}: switches have no sections; write epochs = 5 without [{sections[0]}] above it.")
    return values


def _value(text: str) -> Any:
    """A TOML value where the text is one, else the text itself: `exact` need not be quoted."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):  # the switch then says what it takes
        return text
