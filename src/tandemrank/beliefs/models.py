"""f(q, d): models over features of queries, items and pairs.

    linear     u' A z + a . z + c . p                   A of few dimensions
    towers     <g(u), h(z)> + a . h(z) + c . p          two networks of one hidden layer
    network    a cross layer and a network over (u, z, p, U u * V z)
    trees      LightGBM on (u, z, p, products and their sum of production's opinion)                       (extra `trees`)
    own        the user's module: module(u, z, p) -> [n]
    mean       of several of them

u, z, p are the inputs of query, item and pair (`features`). Each model is an `nn.Module` of a JSON `spec` and tensors; LightGBM
is saved as its text. `FeatureModel` is one of them with the rows of all queries and items. How they are fitted:
`model_fit`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tandemrank.beliefs.features import PairNumbers, PairTable, Side
from tandemrank.errors import ConfigError, JobError, PolicyError
from tandemrank.policies import own

Floats = NDArray[np.float64]
Items = NDArray[np.integer]

ROWS = 50_000  # pairs that are scored at once
KEPT = 8_000_000  # pairs of all queries with all items, at most, whose f is kept once it was asked for: 64 MB
HIDDEN, OUT = 48, 16  # of towers: hidden units, dimensions of the product
CROSS, WIDE = 16, 64  # of the network: products of query and item, hidden units


class InputModel(nn.Module, ABC):
    """A function of inputs.  Shapes: u [n, Ju], z [n, Jz], pair [n, Jp] -> [n].

    `sizes` are Ju, Jz, Jp: the first columns of the rows, all of them or those before the user's own.
    """

    kind: ClassVar[str]

    def __init__(self, sizes: tuple[int, int, int]) -> None:
        super().__init__()
        self.sizes = sizes

    @abstractmethod
    def forward(self, u: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        """f of pairs."""

    def spec(self) -> dict[str, Any]:
        """What `model_from` needs, plain JSON."""
        return {"kind": self.kind, "sizes": list(self.sizes)}

    def check(self) -> None:
        """Refuses a model that could not be loaded again."""


class ProductModel(InputModel):
    """A product of vectors of query and item, and a sum over the columns of pairs: vectors serve a generator."""

    def __init__(self, sizes: tuple[int, int, int], query: nn.Module, item: nn.Module) -> None:
        super().__init__(sizes)
        self.query, self.item, self.level = query, item, nn.Linear(OUT, 1, bias=False)
        self.pair = nn.Linear(sizes[2], 1, bias=False) if sizes[2] else None
        # One side begins small, the other with all its directions: f begins near 0 and is free to grow.
        for parameter in self.query.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.5 / np.sqrt(parameter.shape[1]))
        for layer in (self.level, self.pair):
            if layer is not None:
                nn.init.zeros_(layer.weight)

    def queries(self, u: Tensor) -> Tensor:
        """Vectors of queries, the last number 1 for the level.  Shapes: [n, Ju] -> [n, OUT + 1]."""
        a = self.query(u)
        return torch.cat([a, torch.ones_like(a[:, :1])], 1)

    def items(self, z: Tensor) -> Tensor:
        """Vectors of items, the last number their level.  Shapes: [n, Jz] -> [n, OUT + 1]."""
        b = self.item(z)
        return torch.cat([b, self.level(b)], 1)

    def forward(self, u: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        found = (self.queries(u) * self.items(z)).sum(1)
        return found if self.pair is None else found + self.pair(pair)[:, 0]


class Linear(ProductModel):
    """A bilinear form."""

    kind = "linear"

    def __init__(self, sizes: tuple[int, int, int]) -> None:
        super().__init__(sizes, nn.Linear(sizes[0], OUT), nn.Linear(sizes[1], OUT))


class Towers(ProductModel):
    """Two networks of one hidden layer."""

    kind = "towers"

    def __init__(self, sizes: tuple[int, int, int]) -> None:
        super().__init__(sizes, *(_hidden(n, HIDDEN, OUT) for n in sizes[:2]))


class Network(InputModel):
    """x = (u, z, p, U u * V z); x + x * W x; a network of one hidden layer."""

    kind = "network"

    def __init__(self, sizes: tuple[int, int, int]) -> None:
        super().__init__(sizes)
        n = sum(sizes) + CROSS
        self.query, self.item = nn.Linear(sizes[0], CROSS), nn.Linear(sizes[1], CROSS)
        self.cross = nn.Sequential(nn.Linear(n, CROSS, bias=False), nn.Linear(CROSS, n))
        self.out = _hidden(n, WIDE, 1)
        for layer in (self.cross[1], self.out[2]):
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.weight)

    def forward(self, u: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        x = torch.cat([u, z, pair, self.query(u) * self.item(z)], 1)
        found: Tensor = self.out(x + x * self.cross(x))[:, 0]
        return found


class Trees(InputModel):
    """A sum of trees; `F` columns from `first` on are those of production's opinion on both sides.

    Buffer: text, a uint8 tensor.
    """

    kind = "trees"
    text: Tensor

    def __init__(self, sizes: tuple[int, int, int], first: tuple[int, int], F: int, length: int) -> None:
        super().__init__(sizes)
        self.first, self.F = first, F
        self.register_buffer("text", torch.zeros(length, dtype=torch.uint8))

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "first": list(self.first), "F": self.F, "length": len(self.text)}

    def table(self, u: Tensor, z: Tensor, pair: Tensor) -> NDArray[np.float32]:
        """What the trees see.  Shapes: -> [n, J]."""
        a, b = (x[:, k : k + self.F] for x, k in ((u, self.first[0]), (z, self.first[1])))
        return torch.cat([u, z, pair, a * b, (a * b).sum(1, keepdim=True)], 1).numpy()

    @cached_property
    def booster(self) -> Any:
        """The trees of the text."""
        import lightgbm

        return lightgbm.Booster(model_str=bytes(self.text.numpy()).decode())

    def forward(self, u: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        return torch.from_numpy(self.booster.predict(self.table(u, z, pair), num_threads=1).astype(np.float32))


class Own(InputModel):
    """The user's module (`policies.own`): saved by the name of its class and the arguments of its constructor."""

    kind = "own"

    def __init__(self, sizes: tuple[int, int, int], module: nn.Module) -> None:
        super().__init__(sizes)
        own.register([type(module)])
        self.module = module.eval()
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            self(*(torch.zeros(2, size) for size in sizes))  # lazy layers learn their sizes

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "class": type(self.module).__name__, **own.arguments_of(self.module).plain}

    def check(self) -> None:
        """Refuses a module that could not be made again: its arguments are not known, or give another one."""
        name, problem = type(self.module).__name__, own.arguments_of(self.module).problem
        if problem is None:
            again = model_from(json.loads(json.dumps(self.spec())))
            inputs = [torch.linspace(-1, 1, 5 * size).view(5, size) for size in self.sizes]
            try:
                again.load_state_dict(self.state_dict())
                problem = None if torch.equal(again(*inputs), self(*inputs)) else "others, which give another module"
            except RuntimeError as error:
                problem = f"others, which give another module ({str(error).splitlines()[-1].strip()})"
        if problem is not None:
            raise PolicyError(
                f"{name} cannot be saved: expected the arguments of its constructor, numbers, texts, lists and dictionaries, "
                f"as attributes of the same names; got {problem}."
            )

    def forward(self, u: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        name = type(self.module).__name__
        try:
            found = self.module(u, z, pair)
        except Exception as error:  # whatever a module of somebody else raises
            raise JobError(f"the model of features ({name}) failed: {type(error).__name__}: {error}") from error
        if not isinstance(found, Tensor) or found.shape != (len(u),):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"{name}: expected a tensor with one number for each of {len(u)} pairs; got {got}. Check its forward(u, z, p)."
            )
        if not bool(torch.isfinite(found).all()):
            raise ConfigError(f"{name}: expected finite numbers; got NaN or infinite ones. Check its forward(u, z, p).")
        return found


class MeanModel(InputModel):
    """The mean of several models, each of which sees its own columns."""

    kind = "mean"

    def __init__(self, members: Sequence[InputModel]) -> None:
        u, z, pair = (max(member.sizes[k] for member in members) for k in range(3))
        super().__init__((u, z, pair))
        self.members = nn.ModuleList(members)

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "members": [member.spec() for member in members_of(self)]}

    def check(self) -> None:
        for member in members_of(self):
            member.check()

    def forward(self, u: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        found = [m(*(x[:, :n] for x, n in zip((u, z, pair), m.sizes, strict=True))) for m in members_of(self)]
        return torch.stack(found).mean(0)


def members_of(model: InputModel) -> list[InputModel]:
    """The models whose mean it is, or itself."""
    return [m for m in model.members if isinstance(m, InputModel)] if isinstance(model, MeanModel) else [model]


def _hidden(n: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, out))


def model_from(spec: Mapping[str, Any]) -> InputModel:
    """The model of a spec, its weights still to be loaded."""
    u, z, pair = spec["sizes"]
    if spec["kind"] == MeanModel.kind:
        return MeanModel([model_from(member) for member in spec["members"]])
    if spec["kind"] == Own.kind:
        return Own((u, z, pair), own.module_of(spec))
    if spec["kind"] == Trees.kind:
        return Trees((u, z, pair), (spec["first"][0], spec["first"][1]), spec["F"], spec["length"])
    kinds: dict[str, Callable[[tuple[int, int, int]], InputModel]] = {k.kind: k for k in (Linear, Towers, Network)}
    if spec["kind"] not in kinds:
        raise PolicyError(f"expected a model of features among {', '.join(kinds)}, trees, own; got {spec['kind']!r}.")
    return kinds[spec["kind"]]((u, z, pair))


class FeatureModel(nn.Module):
    """f of a log: a model, and the rows of its queries, items and pairs.

    `of_new`: whether it is used of queries, and of items, that the log has not seen; otherwise f is 0 there.
    """

    def __init__(
        self, model: InputModel, query: Side, item: Side, pairs: PairNumbers, of_new: tuple[bool, bool] = (True, True)
    ) -> None:
        super().__init__()
        self.model, self.query, self.item, self.pairs, self.of_new = model, query, item, pairs, of_new

    def spec(self) -> dict[str, Any]:
        """What `from_spec` needs, plain JSON; with `state_dict` it is all of f."""
        parts: dict[str, InputModel | Side | PairNumbers]
        parts = {"model": self.model, "query": self.query, "item": self.item, "pairs": self.pairs}
        return {name: part.spec() for name, part in parts.items()} | {"of_new": list(self.of_new)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "FeatureModel":
        """f of a spec, its tensors still to be loaded (`load_state_dict`)."""
        model, pairs = model_from(spec["model"]), PairNumbers(**spec["pairs"])
        queries, items = spec["of_new"]
        return cls(model, Side(**spec["query"]), Side(**spec["item"]), pairs, (queries, items))

    @torch.no_grad()
    def at(self, q: Items, d: Items) -> Floats:
        """f of pairs.  Shapes: [n] each -> [n]."""
        found = np.empty(len(q))
        with one_thread():
            for first in range(0, len(q), ROWS):
                part = slice(first, first + ROWS)
                rows, items = (torch.from_numpy(np.asarray(x[part], np.int64)) for x in (q, d))
                if isinstance(self.model, ProductModel):
                    a, b = self.vectors
                    used = self._used(0)[rows] * self._used(1)[items]
                    value = (a[rows] * b[items]).sum(1) + self._of_pairs(rows, items) * used
                else:
                    value = self._of(self.query.rows[rows], self.item.rows[items], self.pairs.at(rows, items))
                    value = value * self._used(0)[rows] * self._used(1)[items]
                found[part] = value.numpy()
        return found

    def matrix(self, q: Items) -> Floats:
        """f of all items.  Shapes: q [B] -> [B, D]."""
        D, q = len(self.item.rows), np.asarray(q, np.int64)
        if self.model.sizes[2] or not isinstance(self.model, ProductModel):
            if len(self.query.rows) * D > KEPT:
                return self.at(np.repeat(q, D), np.tile(np.arange(D), len(q))).reshape(len(q), D)
            there, kept = self._kept
            if len(new := np.unique(q[~there[q]])):
                kept[new] = self.at(np.repeat(new, D), np.tile(np.arange(D), len(new))).reshape(len(new), D)
                there[new] = True
            return kept[q]
        a, b = self.vectors
        found: Floats = (a[torch.from_numpy(q)] @ b.T).numpy().astype(np.float64)
        return found

    @cached_property
    def _kept(self) -> tuple[NDArray[np.bool_], Floats]:
        """Which queries were asked for before, and their f of all items: values ask for most of them again.

        Shapes: -> [Q], [Q, D]."""
        Q, D = len(self.query.rows), len(self.item.rows)
        return np.zeros(Q, np.bool_), np.empty((Q, D))

    @cached_property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """f as a product, of pairs without numbers of their own: only of a `ProductModel`.  Shapes: -> [Q, F], [D, F]."""
        if not isinstance(self.model, ProductModel):
            raise ConfigError(f"expected a model that is a product (linear, towers); got {self.model.kind}.")
        with torch.no_grad(), one_thread():
            sizes = self.model.sizes
            a, b = self.model.queries(self.query.rows[:, : sizes[0]]), self.model.items(self.item.rows[:, : sizes[1]])
        return a * self._used(0)[:, None], b * self._used(1)[:, None]

    def _of(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.model(*(x[:, :size] for x, size in zip(inputs, self.model.sizes, strict=True)))
        return found

    def _used(self, side: int) -> Tensor:
        """1 of rows that f is used of, 0 of others.  Shapes: -> [n]."""
        seen = (self.query, self.item)[side].seen
        return torch.ones(len(seen)) if self.of_new[side] else seen.float()

    @torch.no_grad()
    def new(
        self, *, query: Mapping[str, object] | None = None, item: Mapping[str, object] | None = None, known: Items
    ) -> Floats:
        """f of a new query and known items, or of a new item and known queries, by features.  Shapes: known [n] -> [n]."""
        rows = torch.from_numpy(np.asarray(known, np.int64))
        none = torch.zeros(len(rows), self.pairs.width)
        if (query is None) == (item is None):
            raise ConfigError(
                "expected the features of a new query or of a new item; got both or none. Give one of them."
            )
        if query is not None:
            u, z = self.query.unseen(self.query.encoded(query)).expand(len(rows), -1), self.item.rows[rows]
        else:
            u, z = self.query.rows[rows], self.item.unseen(self.item.encoded(item or {})).expand(len(rows), -1)
        found: Floats = self._of(u, z, none).numpy().astype(np.float64)
        return found * self.of_new[0 if item is None else 1]

    def of_queries(self, q: Tensor) -> "FeatureModel":
        """f of some of its queries, each as often as it is asked for.  Shapes: q [n]."""
        query = self.query.with_rows(self.query.rows[q], self.query.seen[q])
        return FeatureModel(self.model, query, self.item, self.pairs.of_queries(q), self.of_new)

    def with_queries(self, rows: Tensor) -> "FeatureModel":
        """f of other queries, none of which has numbers of pairs.  Shapes: rows [n, J]."""
        query = self.query.with_rows(rows, torch.zeros(len(rows), dtype=torch.bool))
        return FeatureModel(self.model, query, self.item, self.pairs.of_no_query(), self.of_new)

    def of_sides(self, query: Side, pairs: PairNumbers) -> "FeatureModel":
        """f of other queries of the log."""
        return FeatureModel(self.model, query, self.item, pairs, self.of_new)

    def with_items(self, rows: Tensor) -> "FeatureModel":
        """f of more items.  Shapes: rows [n, J]."""
        seen = torch.cat([self.item.seen, torch.zeros(len(rows), dtype=torch.bool)])
        more = self.item.with_rows(torch.cat([self.item.rows, rows]), seen)
        return FeatureModel(self.model, self.query, more, self.pairs.with_items(len(more.rows)), self.of_new)

    def with_pairs(self, table: PairTable) -> "FeatureModel":
        """f with numbers of more pairs."""
        return FeatureModel(self.model, self.query, self.item, self.pairs.plus(table), self.of_new)

    def joined(self, other: "FeatureModel") -> "FeatureModel":
        """f of our queries, then of the other's, with the other's items."""
        rows, seen = (torch.cat([getattr(x.query, name) for x in (self, other)]) for name in ("rows", "seen"))
        pairs = self.pairs.with_items(other.pairs.D)
        return FeatureModel(self.model, self.query.with_rows(rows, seen), other.item, pairs, self.of_new)

    def _of_pairs(self, q: Tensor, d: Tensor) -> Tensor | float:
        layer = self.model.pair
        if not isinstance(layer, nn.Linear):
            return 0.0
        found: Tensor = layer(self.pairs.at(q, d))[:, 0]
        return found


class one_thread:  # noqa: N801 - used like a function
    """Small products on several threads wait for each other."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)
