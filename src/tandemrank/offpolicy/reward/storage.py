"""Saved reward models: a folder of `model.json` and `arrays.safetensors`."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tandemrank._base.files import Kind, has_keys, replacing
from tandemrank.errors import InputError
from tandemrank.offpolicy.reward.item_rate import ItemRate
from tandemrank.offpolicy.reward.model import RewardModel
from tandemrank.offpolicy.reward.posterior import Posterior

FORMAT = 1
SAVED = Kind(
    "saved reward model",
    r"model\.json|arrays\.safetensors",
    lambda folder: has_keys(folder / "model.json", "format", "kind"),
)
MODELS: dict[str, type[RewardModel]] = {cls.kind: cls for cls in (ItemRate, Posterior)}


def save(model: RewardModel, path: str | Path) -> Path:
    """Writes the folder `path` in one piece."""
    described = {"format": FORMAT, "kind": model.kind, "constants": model.constants()}
    with replacing(path, SAVED) as folder:
        folder.mkdir()
        (folder / "model.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        arrays = {name: np.ascontiguousarray(array) for name, array in model.arrays().items()}
        save_file(arrays, folder / "arrays.safetensors")
        shutil.copymode(folder / "model.json", folder / "arrays.safetensors")  # safetensors lets nobody else read it
    return Path(path)


def load(path: str | Path) -> RewardModel:
    """The model in the folder `path`; one that is damaged or of another version is refused."""
    folder = Path(path)
    try:
        described = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if described["format"] != FORMAT:
            raise ValueError(f"it has format {described['format']}, this version reads {FORMAT}")
        arrays = load_file(folder / "arrays.safetensors")
        if wrong := [n for n, x in arrays.items() if x.dtype.kind == "f" and not np.isfinite(x).all()]:
            raise ValueError(f"{wrong[0]} has numbers that are not finite")
        model = MODELS[described["kind"]].restored(described["constants"], arrays)
        if isinstance(model, Posterior):
            _check(model)
        return model
    except (LookupError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise InputError(f"{folder} is no whole reward model ({error}). Fit it again, and save it.") from error


def _check(model: Posterior) -> None:
    """Refuses arrays of sizes that do not fit each other, and a memory of pairs that are none."""
    memory, (Q, F), D = model.memory, model.queries.shape, model.memory.D
    shapes = {"items": (D, F), "offset": (D,), "query_spread": (Q,), "item_spread": (D,)}
    if wrong := [name for name, shape in shapes.items() if getattr(model, name).shape != shape]:
        raise ValueError(f"{wrong[0]} is not of {Q} queries and {D} items")
    first, item, n = memory.first, memory.item, len(memory.value)
    fits = len(first) == Q + 1 and first[0] == 0 and first[-1] == n == len(item) and (np.diff(first) >= 0).all()
    if not fits or (n and not 0 <= item.min() <= item.max() < D):
        raise ValueError("its memory is of other queries or items")
