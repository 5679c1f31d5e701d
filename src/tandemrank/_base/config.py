"""Configuration from a preset, a TOML file and single switches, each overriding the one before; every value checked."""

import copy
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tandemrank.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def resolve(
    model: type[Model],
    *,
    preset: dict[str, Any] | None = None,
    file: str | Path | None = None,
    switches: Sequence[str] = (),
    flags: dict[str, Any] | None = None,
) -> Model:
    """The configuration: defaults, then preset, then file, then `name=value` switches, then flags that are not None.

    Names of nested switches are joined by a dot: `training.epochs=5`, and `{"training.epochs": 5}` in `flags`.
    """
    values: dict[str, Any] = {}
    _merge(values, copy.deepcopy(preset or {}))
    if file is not None:
        _merge(values, _read(Path(file)))
    for switch in switches:
        name, sign, text = switch.partition("=")
        if not sign:
            raise ConfigError(f"a switch is name=value, for example training.epochs=5; got {switch!r}.")
        _put(values, name.strip(), _value(text.strip()))
    for name, value in (flags or {}).items():
        if value is not None:
            _put(values, name, value)
    return validated(model, values)


def validated(model: type[Model], values: dict[str, Any]) -> Model:
    """The model with these values, or one error that names every switch at fault."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"] if not str(part).startswith(("literal[", "float")))
            if problem["type"] == "extra_forbidden":
                lines.append(f"{name}: there is no such switch. There are: {', '.join(_names(model))}.")
            else:
                lines.append(f"{name}: {problem['msg'].lower()}; got {problem['input']!r}.")
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def _names(model: type[BaseModel]) -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += [f"{name}.{x}" for x in _names(inner)]
        else:
            names.append(name)
    return names


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error


def _merge(values: dict[str, Any], others: dict[str, Any]) -> None:
    for name, value in others.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            _merge(values[name], value)
        else:
            values[name] = dict(value) if isinstance(value, dict) else value


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    *folders, last = name.split(".")
    for folder in folders:
        values = values.setdefault(folder, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{name}: {folder} already has the value {values!r}, so it holds no switches.")
    values[last] = value


def _value(text: str) -> Any:
    """A TOML value where the text is one, else the text itself: `exact` need not be quoted."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
