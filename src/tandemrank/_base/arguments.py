"""The arguments of public functions, held to what their annotations say: a wrong one is refused by its name.

Only plain kinds are looked at: whole numbers (NumPy's become Python's), numbers, truth values, texts, paths, functions,
mappings and our own classes. What may be an array, a frame or anything else is the function's own business.
"""

import inspect
import operator
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
from scipy.sparse import csr_matrix

from tandemrank._base.sparse import canonical_csr
from tandemrank.errors import ConfigError, shortened

P = ParamSpec("P")
R = TypeVar("R")

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Path: "a path",
    Mapping: "a mapping",
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments of the wrong kind."""
    signature = inspect.signature(function)
    kinds = {name: _kinds(p.annotation) for name, p in signature.parameters.items()}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if (known := kinds[name]) is not None and value is not signature.parameters[name].default:
                bound.arguments[name] = of_kind(name, value, *known)
        return function(*bound.args, **bound.kwargs)

    return call


def _kinds(annotation: Any) -> tuple[Any, ...] | None:
    """The kinds of value that an annotation allows; None where it allows others than those that are looked at."""
    if get_origin(annotation) in (Union, UnionType):
        inner = [_kinds(part) for part in get_args(annotation)]
        return None if None in inner else tuple(kind for part in inner if part for kind in part)
    if get_origin(annotation) is Literal:
        return (str,) if all(isinstance(value, str) for value in get_args(annotation)) else None
    if get_origin(annotation) in (Callable, Mapping):
        return (get_origin(annotation),)
    ours = isinstance(annotation, type) and annotation.__module__.startswith("tandemrank.")
    return (annotation,) if ours or annotation in (*WORDS, type(None), None) else None


def of_kind(name: str, value: Any, *kinds: Any) -> Any:
    """The value as one of the kinds, or a refusal."""
    for kind in kinds:
        if kind is int and hasattr(value, "__index__") and not isinstance(value, bool | np.ndarray):
            try:
                return operator.index(value)
            except TypeError:
                continue
        if kind is float and isinstance(value, Real) and not isinstance(value, bool):
            return value
        if kind is bool and isinstance(value, np.bool_):
            return bool(value)
        if kind in (None, type(None)) and value is None:
            return value
        if kind is Callable and callable(value):
            return value
        if isinstance(kind, type) and kind not in (int, float) and isinstance(value, kind):
            return value
    expected = " or ".join(dict.fromkeys(_words(kind) for kind in kinds))
    raise ConfigError(f"{name}: expected {expected}; got {type(value).__name__} ({shortened(value)}).")


def matrix(name: str, values: Any, **how: bool) -> csr_matrix:
    """A matrix by rows (`sparse.canonical_csr`) from whatever the user gave for one.  Shapes: [n, m] -> [n, m]."""
    try:
        return canonical_csr(values, **how)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name}: expected a matrix of numbers; got {type(values).__name__} ({error}).") from error


def _words(kind: Any) -> str:
    if kind in (None, type(None)):
        return "None"
    return "a function" if kind is Callable else WORDS.get(kind, f"a {getattr(kind, '__name__', kind)}")
