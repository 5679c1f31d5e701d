"""The networks of a policy as ONNX, each checked with onnxruntime against our own scores before it is kept.

    ranker.onnx, generator.onnx         a model of one's own: (q, items) -> scores [B, M]; q -> scores of all items [B, D]
    f.onnx                              the belief's model of features: (u, z) or (u, z, pair) -> f [n]
    query_tower.onnx, item_tower.onnx   the same where it is a product: u -> [n, r], z -> [n, r]

u and z of known queries and items are in `query_inputs.npy` and `item_inputs.npy`. Trees, services and whatever else is no
function of tensors is refused.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tandemrank.beliefs.models import FeatureModel, ProductModel, Trees, members_of
from tandemrank.beliefs.scorer import Believed
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.policies.memory import base_of
from tandemrank.policies.own import Generator, OwnModel
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy

OPSET = 17
CLOSE = 1e-4  # of scores, relative and absolute


class _Function(nn.Module):
    """A function of tensors whose weights are those of a module."""

    def __init__(self, owner: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.owner, self.function = owner, function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@dataclass(frozen=True)
class Exported:
    """A function, and each of its inputs by name, twice: to trace it by, and to check it by, of another size."""

    name: str
    owner: nn.Module
    function: Callable[..., Tensor]
    inputs: dict[str, tuple[Tensor, Tensor]]


def extra(name: str) -> ModuleType:
    """A package of the extra `export`."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"this export needs {name}: pip install 'tandemrank[export]' ({error}).") from error


def write(policy: TwoStagePolicy, place: Path) -> None:
    """Every network of the policy; refuses a policy that has none."""
    extra("onnx")
    runtime = extra("onnxruntime")
    found = list(networks(policy))
    if not found:
        raise PolicyError(
            "onnx: expected a model of one's own, or a belief with a model of features that is a network; got neither. The "
            "generator's vectors are for numpy and faiss."
        )
    for network in found:
        _write(network, place / f"{network.name}.onnx", runtime)
    if isinstance(ranker := base_of(policy.ranker), Believed) and (f := ranker.f) is not None:
        for side, name in ((f.query, "query_inputs"), (f.item, "item_inputs")):
            np.save(place / f"{name}.npy", side.rows.numpy())


def networks(policy: TwoStagePolicy) -> Iterator[Exported]:
    """What of a policy is a function of tensors."""
    generator, ranker = base_of(policy.generator), base_of(policy.ranker)
    if isinstance(ranker, OwnModel):
        yield _own_ranker(ranker, policy)
    elif isinstance(ranker, Believed) and ranker.f is not None:
        yield from _of_features(ranker.f)
    if isinstance(generator, Generator):
        yield _own_generator(generator, len(policy.vocabulary.query_ids))


def _plain(scorer: Scorer, name: str) -> Callable[..., Tensor]:
    """A method as the user wrote it, without the checks around it."""
    method = getattr(type(scorer), name)
    bare = getattr(method, "__wrapped__", method)
    return lambda *inputs: bare(scorer, *inputs)


def _own_ranker(ranker: OwnModel, policy: TwoStagePolicy) -> Exported:
    Q, D = len(policy.vocabulary.query_ids), len(policy.vocabulary.item_ids)
    rng = np.random.default_rng(0)
    q = torch.from_numpy(rng.integers(0, Q, 2)), torch.from_numpy(rng.integers(0, Q, 1))
    items = np.stack([rng.permutation(D)[:3] for _ in range(2)]), rng.permutation(D)[None, :5]
    inputs = {"q": q, "items": (torch.from_numpy(items[0]), torch.from_numpy(items[1]))}
    return Exported("ranker", ranker, _plain(ranker, "score"), inputs)


def _own_generator(generator: Generator, Q: int) -> Exported:
    inputs = {"q": (torch.arange(2) % Q, torch.tensor([Q - 1]))}
    return Exported("generator", generator, _plain(generator, "forward"), inputs)


def _of_features(f: FeatureModel) -> Iterator[Exported]:
    """The model of features, and its towers."""
    model, sizes = f.model, dict(zip(("u", "z", "pair"), f.model.sizes, strict=True))
    if any(isinstance(member, Trees) for member in members_of(model)):
        return
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: (torch.randn(2, size, generator=generator), torch.randn(5, size, generator=generator))
        for name, size in sizes.items()
    }
    if sizes["pair"]:
        yield Exported("f", model, model, inputs)
    else:
        del inputs["pair"]
        yield Exported("f", model, lambda u, z: model(u, z, u[:, :0]), inputs)
    if isinstance(model, ProductModel):
        yield Exported("query_tower", model, model.queries, {"u": inputs["u"]})
        yield Exported("item_tower", model, model.items, {"z": inputs["z"]})


@torch.no_grad()
def _write(network: Exported, path: Path, runtime: Any) -> None:
    """Traces the function, writes it, and compares what comes out of the file with what it should be."""
    module = _Function(network.owner, network.function).eval()
    traced, checked = ({name: both[place] for name, both in network.inputs.items()} for place in (0, 1))
    out = network.function(*traced.values())
    axes = {
        name: {axis: f"{name}_{axis}" for axis in range(1 if x.is_floating_point() else x.ndim)}
        for name, x in traced.items()
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of the tracer and of its age
            torch.onnx.export(
                module, tuple(traced.values()), str(path), input_names=list(traced), output_names=["scores"],
                dynamic_axes=axes | {"scores": {axis: f"scores_{axis}" for axis in range(out.ndim)}},
                opset_version=OPSET, dynamo=False,
            )  # fmt: skip
        session = runtime.InferenceSession(str(path))
        inputs = {one.name for one in session.get_inputs()}
        given = {name: x.numpy() for name, x in checked.items() if name in inputs}
        [found] = session.run(None, given)
    except Exception as error:  # whatever a model of somebody else, torch or onnxruntime raises
        raise PolicyError(
            f"onnx: the {network.name} is no function of tensors ({type(error).__name__}: {error!s:.200})."
        ) from error
    wanted = network.function(*checked.values()).numpy()
    if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=CLOSE, atol=CLOSE):
        raise PolicyError(
            f"onnx: the {network.name} has other scores there than here: it computes some outside of torch, or fixes the "
            "number of queries (write q.shape[0] for len(q)). Else export its lists (trec)."
        )
