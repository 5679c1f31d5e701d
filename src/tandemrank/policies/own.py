"""Models of one's own: as a stage, `Ranker` scores candidates and `Generator` every item; and any module as the f of the
beliefs. See docs/how-to/own-models.md.

Nothing but the class itself is needed to save and load one: the constructor's arguments are kept as JSON, of a stage arrays and
tensors among them beside the weights, and loading calls the constructor again. A saved folder imports nothing:
the class is one that was imported already, was given (`load(folder, models=[...])`), or is an entry point of a package.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tandemrank._base.ids import Vocabulary, plain_ids, positions_of, same_ids
from tandemrank.errors import ConfigError, JobError, PolicyError, TandemRankError
from tandemrank.gradients import products
from tandemrank.gradients.products import Products
from tandemrank.policies.scorers import MODELS, Scorer, checked_scores

ARGUMENT = "argument_"  # a tensor among the arguments, as a buffer of the model: argument_0, argument_1, ...
PLACE = "tensor of the arguments"  # the key of a dictionary that stands for one in the JSON
FRAME = "columns of the frame"  # the same of a polars frame


class OwnModel(Scorer):
    """What `Ranker` and `Generator` share. Call `super().__init__()` first.

    Queries and items come as positions. `self.vocabulary` has their ids in that order (`query_ids`, `item_ids`); it is set when
    the model becomes a stage of a policy, and then `prepare` is called, once: put rows in order there, or make what has a row
    per query or item. `kind`, the name in a saved policy, is the name of the class.

    A score is a function of query and item: dropout is off and batch norm keeps its statistics, in training too.
    """

    vocabulary: Vocabulary | None = None
    _given: "Arguments"

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            return  # only what users make of it is a kind
        if "kind" not in cls.__dict__:
            cls.kind = cls.__name__
        super().__init_subclass__()
        for name in ("score", "forward", "vectors"):
            if name in cls.__dict__:
                setattr(cls, name, _explained(cls.__dict__[name]))

    def __new__(cls, *arguments: Any, **keywords: Any) -> "OwnModel":
        made = super().__new__(cls)
        made.__dict__["_given"] = Arguments.of(arguments, keywords)
        return made

    def __init__(self) -> None:
        super().__init__()
        for number, t in enumerate(self._given.tensors):
            self.register_buffer(f"{ARGUMENT}{number}", t)

    def prepare(self) -> None:
        """Called once, when `self.vocabulary` is known, and before weights are loaded; by default there is nothing to do."""

    def bind(self, vocabulary: Vocabulary) -> None:
        known = self.vocabulary
        if known is None:
            self.vocabulary = vocabulary
            self.prepare()
        elif not same_ids(known, vocabulary):
            raise PolicyError(
                f"this {self.kind} is a stage of a policy with other queries or items. Make another {self.kind}."
            )
        self.eval()

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        """The parameters with a row per query, which move faster: by default `self.queries`, if it is one."""
        found = getattr(self, "queries", None)
        return [found] if isinstance(found, nn.Parameter) else []

    def spec(self) -> dict[str, Any]:
        if self.vocabulary is None:
            raise PolicyError(
                f"this {self.kind} is not a stage of a policy yet: give it to `learn` or `TwoStagePolicy`."
            )
        ids = self.vocabulary
        return {"Q": len(ids.query_ids), "D": len(ids.item_ids), **self._given.plain}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "OwnModel":
        return cls(*spec["arguments"], **spec["keywords"])

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> Scorer:
        return self._for(ids, Vocabulary(ids.query_ids.clear(), ids.item_ids))

    def more_items(self, features: pl.DataFrame | None, ids: Vocabulary) -> "OwnModel":
        return self._for(ids, self._ids())

    def joined(self, other: Scorer, ids: Vocabulary) -> "OwnModel":
        return self._for(ids, self._ids())

    def _ids(self) -> Vocabulary:
        assert self.vocabulary is not None  # a stage has one
        return self.vocabulary

    def _for(self, ids: Vocabulary, known: Vocabulary) -> "OwnModel":
        """The same model for other ids: made again of its arguments and prepared for them, with its weights. What has a row
        per query or item has the mean of the rows for those that are not known."""
        given = {f"{ARGUMENT}{number}": t for number, t in enumerate(self._given.tensors)}
        try:
            if self._given.problem:
                raise TypeError(f"its arguments are not known ({self._given.problem})")
            made = type(self).from_spec(with_tensors(self._given.plain, given))
            made.bind(ids)
        except Exception as error:  # whatever a model of somebody else raises
            raise PolicyError(
                f"a {self.kind} cannot score what it has not seen: {type(error).__name__}: {error}. Its constructor and "
                "`prepare` must take new ids."
            ) from error
        of_queries = {id(p) for p in self.per_query_parameters()}
        own, old = dict(self.named_parameters()), self._ids()
        with torch.no_grad():
            for name, new in made.named_parameters():
                if id(own[name]) in of_queries:
                    new.copy_(_rows(own[name], old.query_ids, known.query_ids, ids.query_ids))
                elif new.shape == own[name].shape:
                    new.copy_(own[name])
                else:
                    new.copy_(_rows(own[name], old.item_ids, known.item_ids, ids.item_ids))
        return made

    def check(self) -> None:
        """Refuses arguments that cannot be saved, and parameters that are not finite."""
        if self._given.problem:
            raise PolicyError(
                f"{self.kind} cannot be saved: expected numbers, texts, lists, dictionaries, arrays, tensors and frames of "
                f"polars as arguments of its constructor; got {self._given.problem}. Give what it is made of instead, such as "
                "the name of a file."
            )
        for name, p in self.named_parameters():
            if not bool(torch.isfinite(p).all()):
                raise PolicyError(f"{name} of the {self.kind} has numbers that are not finite")


def _rows(rows: Tensor, own: pl.Series, known: pl.Series, wanted: pl.Series) -> Tensor:
    """The row of every id that is known, the mean of all rows for others.

    Shapes: rows [n, ...]; own [n]; wanted [m] -> [m, ...].
    """
    there = plain_ids(wanted).is_in(plain_ids(known).implode()).to_numpy()
    place = np.where(there, positions_of(own, wanted, "policy", missing="mark"), -1)
    return torch.cat([rows, rows.mean(0, keepdim=True)])[torch.from_numpy(place)]


class Ranker(OwnModel):
    """A re-ranker of one's own: `score(q, items)`, shapes q [B], items [B, M], both int64 -> [B, M], is all it needs.

    It is asked about candidates only. One that is trained elsewhere has no parameters, and stays as it is.
    """

    scores_everything = False


class Generator(OwnModel):
    """A generator of one's own: vectors of all queries and items, `self.queries` [Q, F] and `self.items` [D, F], or
    `vectors(q)`; or the scores of all items, `forward(q)`, shapes q [B] -> [B, D].
    """

    def vectors(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors whose products are the scores.  Shapes: q [B] -> [B, F], [D, F]."""
        queries, items = getattr(self, "queries", None), getattr(self, "items", None)
        if not isinstance(queries, Tensor) or not isinstance(items, Tensor):
            raise PolicyError(
                f"expected a generator ({self.kind}) with vectors, `self.queries` and `self.items` or `vectors(q)`, or with "
                "the scores of all items, `forward(q)`; got none of them."
            )
        return queries[q], items

    @property
    def has_vectors(self) -> bool:
        """Whether the scores are products: `forward` is ours."""
        return type(self).forward is Generator.forward

    def forward(self, q: Tensor) -> Tensor:
        queries, items = self.vectors(q)
        return queries @ items.T

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        if not self.has_vectors:
            return self(q).gather(1, items)  # type: ignore[no-any-return]
        queries, of_items = self.vectors(q)
        return products.at(queries, of_items, items)

    def factors(self, q: Tensor) -> Products | None:
        return Products(*(x.float() for x in self.vectors(q))) if self.has_vectors else None


def buffer(values: ArrayLike | Tensor) -> nn.Buffer:
    """Numbers of a model that are not trained, such as features: an array, a list, a tensor or a frame. Floats are single.

    They are made of the constructor's arguments, which are saved, so they are not saved again.
    """
    t = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values))
    return nn.Buffer(t.float() if t.is_floating_point() else t, persistent=False)


# --- the arguments of a constructor as JSON and tensors ----------------------------------------------------------------


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
        t = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
        tensors.append(t)
        return {PLACE: len(tensors) - 1, "shape": list(t.shape), "array": not isinstance(value, Tensor)}
    if isinstance(value, pl.DataFrame):
        return {FRAME: {name: _column(value[name], tensors) for name in value.columns}}
    if isinstance(value, list | tuple):
        return [_plain(one, tensors) for one in value]
    if isinstance(value, Mapping) and all(isinstance(name, str) and name not in (PLACE, FRAME) for name in value):
        return {name: _plain(one, tensors) for name, one in value.items()}
    raise TypeError(f"{type(value).__name__} ({str(value)[:60]})")


def _column(values: pl.Series, tensors: list[Tensor]) -> Any:
    """A column of a frame: numbers as a tensor, null as NaN; texts each once, and which of them every row has."""
    if values.dtype.is_numeric() or values.dtype == pl.Boolean:
        return _plain(values.to_numpy(), tensors)
    if values.dtype not in (pl.String, pl.Categorical, pl.Enum):
        raise TypeError(f"a frame with {values.dtype} in the column {values.name}")
    texts, code = np.unique(values.cast(pl.String).fill_null("").to_numpy().astype(str), return_inverse=True)
    return {"texts": texts.tolist(), "row": _plain(np.where(values.is_null(), -1, code), tensors)}


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
    if FRAME in value:
        columns = {name: _with_tensors(one, tensors, prefix) for name, one in value[FRAME].items()}
        texts = {
            name: np.array([*x["texts"], None], object)[x["row"]] for name, x in columns.items() if isinstance(x, dict)
        }
        return pl.DataFrame(columns | texts)
    return {name: _with_tensors(one, tensors, prefix) for name, one in value.items()}


# --- a module as f ----------------------------------------------------------------------------------------------------

MODULES: dict[str, type[nn.Module]] = {}  # that were used, given or imported by a plugin, by the names of their classes


class UnknownModelError(PolicyError):
    """Nothing may be wrong with a saved policy: the class of a model is not here."""

    def __init__(self, what: str, name: str) -> None:
        known = name[:60] if name.isidentifier() else "ITS_CLASS"
        super().__init__(
            f"{what}. If it is a model of your own, give its class, `load(folder, models=[{known}])`, or the file or module "
            "that defines it, `--plugin models.py`. Else save the policy again."
        )


def register(models: Iterable[type[nn.Module]]) -> None:
    """Classes that saved policies may be made of: stages by their kind, modules by their name."""
    for model in models:
        if not (isinstance(model, type) and issubclass(model, nn.Module)):
            raise ConfigError(
                f"models: expected classes made of tr.Ranker, tr.Generator or nn.Module; got {str(model)[:60]}."
            )
        if issubclass(model, Scorer):
            Scorer.kinds[model.kind] = model
        else:
            MODULES[model.__name__] = model


def arguments_of(module: nn.Module) -> Arguments:
    """What the constructor of a module was called with: its attributes of the same names."""
    names = inspect.signature(type(module)).parameters
    if absent := [name for name, p in names.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
        return Arguments({}, (), f"*{absent[0]}, which nobody can know later")
    if absent := [name for name in names if not hasattr(module, name)]:
        return Arguments({}, (), f"no attribute {absent[0]}: write self.{absent[0]} = {absent[0]}")
    found = Arguments.of((), {name: getattr(module, name) for name in names})
    return Arguments({}, (), "arrays or tensors") if found.tensors else found


def module_class(name: str) -> type[nn.Module] | None:
    """The class of a module by its name: one that is known here, or that a package offers as an entry point."""
    if name not in MODULES:
        register(entry.load() for entry in entry_points(group=MODELS, name=name))
    return MODULES.get(name)


def module_of(spec: Mapping[str, Any]) -> nn.Module:
    """A module of the class and the arguments of a spec, its weights still to be loaded."""
    made = module_class(name := str(spec["class"]))
    if made is None:
        raise UnknownModelError(f"the model of features is of the unknown class {name[:60]!r}", name)
    try:
        return made(**spec["keywords"])
    except Exception as error:  # whatever a module of somebody else raises
        raise PolicyError(f"{name} cannot be made again: {type(error).__name__}: {error}") from error


# --- what goes wrong in a model ---------------------------------------------------------------------------------------


def _explained(method: Callable[..., Any]) -> Callable[..., Any]:
    """A user's method whose errors, and answers that are no scores, are one sentence."""

    @wraps(method)
    def run(self: OwnModel, q: Tensor, *items: Tensor) -> Any:
        stage = "re-ranker" if isinstance(self, Ranker) else "generator"
        try:
            found = method(self, q, *items)
        except TandemRankError:
            raise
        except Exception as error:
            raise JobError(f"the {stage} ({self.kind}) failed: {type(error).__name__}: {error}") from error
        if method.__name__ == "vectors" or self.vocabulary is None:
            return found
        shape = tuple(items[0].shape) if items else (len(q), len(self.vocabulary.item_ids))
        return checked_scores(found, shape, self, stage)

    return run


# --- where classes come from ------------------------------------------------------------------------------------------


def import_plugin(name: str) -> ModuleType:
    """Imports the module, or the file that ends in .py, that a user names: its models can then be loaded."""
    try:
        if not name.endswith(".py"):
            return _registered(import_module(name))
        found = importlib.util.spec_from_file_location(Path(name).stem, name)
        if found is None or found.loader is None:
            raise ImportError(f"{name} is not a Python file")
        module = importlib.util.module_from_spec(found)
        sys.modules.setdefault(Path(name).stem, module)
        found.loader.exec_module(module)
        return _registered(module)
    except Exception as error:  # whatever a module of somebody else raises
        raise ConfigError(
            f"--plugin: expected a module or a .py file that can be imported; got {name} ({type(error).__name__}: {error})."
        ) from error


def _registered(module: ModuleType) -> ModuleType:
    """The module, its own classes known; stages register themselves."""
    classes = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    register(x for x in classes if issubclass(x, nn.Module) and not issubclass(x, Scorer))
    return module
