"""Where a training stands: its epochs so far, and on disk everything that changes, to go on from.

A checkpoint is one file per training, written in one piece after every epoch, and refused where it is another's,
truncated or edited.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tandemrank._base.files import Kind, replacing
from tandemrank.errors import ConfigError


class Epoch(NamedTuple):
    """One line of the history; `watched` is what a caller asked to record beside it."""

    phase: str
    epoch: int
    objective: float
    seconds: float
    watched: dict[str, float]


class Progress(NamedTuple):
    """Where a training stands: phase `phase` of `phases`, share `done` of epoch `epoch`, and the last full epoch."""

    phase: int
    phases: int
    epoch: int
    epochs: int
    done: float
    last: Epoch | None


@dataclass(frozen=True)
class Checkpoint:
    """Where a training stands: the phase, its epochs so far, the history, and every tensor that changes."""

    phase: int
    epoch: int
    history: tuple[Epoch, ...]
    tensors: dict[str, Tensor]


def identity_of(described: object, arrays: Iterable[NDArray[Any]]) -> str:
    """What a training depends on, in one digest: a checkpoint of another one is not continued."""
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for array in arrays:
        digest.update(_bytes_of(np.ascontiguousarray(array)))
    return digest.hexdigest()


def _is_ours(path: Path) -> bool:
    try:
        with safe_open(path, "pt") as file:
            return {"state", "digest"} <= (file.metadata() or {}).keys()
    except (SafetensorError, OSError):
        return False


CHECKPOINT = Kind("checkpoint", check=_is_ours)


def write(path: Path, identity: str, found: Checkpoint) -> None:
    """One file, in one piece. No two tensors may share their memory."""
    tensors = {name: t.contiguous() for name, t in found.tensors.items()}
    state = json.dumps(
        {"identity": identity, **{name: x for name, x in vars(found).items() if name != "tensors"}}, allow_nan=True
    )
    with replacing(path, CHECKPOINT) as temporary:
        save_file(tensors, temporary, {"state": state, "digest": _digest(state, tensors)})


def read(path: Path, identity: str) -> Checkpoint | None:
    """The checkpoint of the training with this identity; None where there is no file yet."""
    if not os.path.lexists(path):
        return None
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["state"]
        if metadata["digest"] != _digest(text, tensors):
            raise ValueError("it was changed after it was written")
        state = json.loads(text)
        found = state.pop("identity")
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a whole checkpoint ({error}). Delete it to start anew.") from error
    if found != identity:
        raise ConfigError(
            f"{path} is of another training (other switches, seed, examination curve, start or clicks). "
            f"Give the same ones to go on, or another folder to start anew."
        )
    return Checkpoint(**state | {"history": tuple(Epoch(*epoch) for epoch in state["history"])}, tensors=tensors)


def history_of(path: Path) -> tuple[Epoch, ...]:
    """The epochs that a checkpoint has so far, unchecked, for who only wants to watch; none where there is no file yet."""
    try:
        with safe_open(path, "pt") as file:
            return tuple(Epoch(*epoch) for epoch in json.loads(file.metadata()["state"])["history"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return ()


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _digest(state: str, tensors: dict[str, Tensor]) -> str:
    """Of everything that a checkpoint says."""
    digest = hashlib.sha256(state.encode())
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(_bytes_of(t.numpy()))
    return digest.hexdigest()


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of an array, which lies row by row in memory, without a copy of them."""
    return array.reshape(-1).view(np.uint8).data
