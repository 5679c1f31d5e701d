"""The arguments of a constructor as JSON and tensors: what a model of one's own is saved by (`own`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

ARGUMENT = "argument_"  # a tensor among the arguments, as a buffer of the model: argument_0, argument_1, ...
PLACE = "tensor of the arguments"  # the key of a dictionary that stands for one in the JSON


@dataclass(frozen=True)
class Arguments:
    """The arguments of a constructor: JSON, the tensors that it names, and what of them cannot be saved."""

    plain: dict[str, Any]
    tensors: tuple[Tensor, ...]
    problem: str | None = None

    @staticmethod
    def of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> "Arguments":
        tensors: list[Tensor] = []
        try:
            plain = {"arguments": _plain(arguments, tensors), "keywords": _plain(keywords, tensors)}
        except TypeError as error:
            return Arguments({"arguments": [], "keywords": {}}, (), str(error))
        return Arguments(plain, tuple(tensors))


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """A value as JSON; tensors go to the list, and their places into the JSON. Refuses others with a TypeError."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):
        t = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        tensors.append(t)
        return {PLACE: len(tensors) - 1, "shape": list(t.shape), "array": not isinstance(value, Tensor)}
    if isinstance(value, list | tuple):
        return [_plain(one, tensors) for one in value]
    if isinstance(value, Mapping) and all(isinstance(name, str) and name != PLACE for name in value):
        return {name: _plain(one, tensors) for name, one in value.items()}
    raise TypeError(f"{type(value).__name__} ({str(value)[:60]})")


def with_tensors(spec: dict[str, Any], tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Any]:
    """A spec with the tensors of its constructor's arguments in their places; also of the scorer inside another, its `base`."""
    found = {name: _with_tensors(x, tensors, prefix) for name, x in spec.items() if name != "base"}
    if "base" in spec:
        base = spec["base"]
        found["base"] = {**base, "sizes": with_tensors(base["sizes"], tensors, f"{prefix}base.")}
    return found


def _with_tensors(value: Any, tensors: Mapping[str, Tensor], prefix: str) -> Any:
    if isinstance(value, list):
        return [_with_tensors(one, tensors, prefix) for one in value]
    if not isinstance(value, dict):
        return value
    if PLACE in value:
        t = tensors[f"{prefix}{ARGUMENT}{value[PLACE]}"]
        return t.numpy() if value["array"] else t
    return {name: _with_tensors(one, tensors, prefix) for name, one in value.items()}
