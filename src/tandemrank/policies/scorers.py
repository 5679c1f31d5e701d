"""Scorers: what gives items a score for each query, and so makes a stage, Plackett-Luce on its scores.

`MatrixFactorisation` is the paper's model, `GivenScores` holds the scores of any outside system. The default generator is in
`memory`, the default re-ranker in `beliefs.scorer`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix, issparse, sparray, spmatrix
from torch import Tensor, nn
from torch.nn import functional

from tandemrank._base.ids import Vocabulary
from tandemrank._base.sparse import canonical_csr, entries_of_rows, places_in_rows
from tandemrank.errors import PolicyError
from tandemrank.gradients import _bridge, products
from tandemrank.gradients.products import Products
from tandemrank.policies.features import FeatureSource, FeatureValues

MODELS = "tandemrank.models"  # the group of entry points: the name of a kind, and its class
LARGEST = 1e15  # of a weight, in size: the sum of ten million products of two of them is a number of single precision


class Scorer(nn.Module, ABC):
    """Scores of some items of each query, `scorer.score(q, items)`, shapes q [B], items [B, M] -> [B, M], and of all items,
    `scorer(q)`, shapes q [B] -> [B, D]; -inf means not available.

    A re-ranker may be too heavy for all items: its class says `scores_everything = False` and has no `forward`. The score of
    an item never depends on which others are asked about. All state is in parameters and buffers, and `from_spec(spec())`
    followed by `load_state_dict` restores it.
    """

    kind: ClassVar[str]
    scores_everything: bool = True
    """Whether it has scores of all items; a generator must, a re-ranker need not."""
    needs_generator: ClassVar[bool] = False
    """Whether its scores are made of the generator's: it learns after the generator, and is no stage alone (`linked`)."""
    kinds: ClassVar[dict[str, type["Scorer"]]] = {}
    """Every kind of scorer that was imported, by its name."""
    lengths: ClassVar[tuple[str, ...]] = ()
    """What of the spec, beside Q and D, is a length of weights: checked against a file before anything is made of it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            Scorer.kinds[cls.kind] = cls

    @staticmethod
    def of_kind(kind: str) -> type["Scorer"] | None:
        """The class of a kind: one that was imported, or that a package offers as an entry point; None if nobody does."""
        if kind not in Scorer.kinds:
            for entry in entry_points(group=MODELS, name=kind):
                entry.load()
        return Scorer.kinds.get(kind)

    def forward(self, q: Tensor) -> Tensor:
        """Scores of all items.  Shapes: q [B] -> [B, D]."""
        raise PolicyError(
            f"a {self.kind} scores the candidates of a generator only, not all items of {len(q)} queries. Use it as the "
            "re-ranker of a policy, or ask for `score(q, items)`."
        )

    @abstractmethod
    def score(self, q: Tensor, items: Tensor) -> Tensor:
        """Scores of some items, the same as in `forward`.  Shapes: q [B], items [B, M], both int64 -> [B, M]."""

    def bind(self, vocabulary: Vocabulary) -> None:
        """Hears the ids of the policy that it is a stage of; only a model of one's own needs them."""

    def linked(self, generator: "Scorer") -> "Scorer":
        """The same scorer for the candidates of this generator; one that does not need the generator stays as it is."""
        return self

    @property
    def query_columns(self) -> tuple[str, ...]:
        """The features of queries that it knows."""
        return ()

    def query_table(self, values: FeatureValues) -> pl.DataFrame:
        """The features of one query as a table; what is not given is missing."""
        raise PolicyError(f"this {self.kind} was learned without features of queries: leave them out.")

    # The same scorer for other ids, all of them: `ids`.

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Scorer":
        """For queries that it has not seen, and no others: by a table of their features, or else as the average query."""
        raise PolicyError(f"a {self.kind} cannot score queries that it has not seen.")

    def more_items(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Scorer":
        """With more items after its own, which it has not seen: by a table of their features, or else as the average item."""
        raise PolicyError(f"a {self.kind} cannot score items that it has not seen.")

    def more_pairs(self, features: FeatureSource, ids: Vocabulary) -> "Scorer":
        """With the numbers of more pairs."""
        raise PolicyError(f"this {self.kind} was learned without features of pairs: leave them out.")

    def joined(self, other: "Scorer", ids: Vocabulary) -> "Scorer":
        """For its own queries, then for those of another one of its kind."""
        raise PolicyError(f"a {self.kind} cannot take more queries.")

    def after(self, old: "Scorer", new: "Scorer", ids: Vocabulary) -> "Scorer":
        """The generator of a re-ranker that was `old`, and is `new` for `strangers` or with `more_items`."""
        grown = len(ids.item_ids) > self.spec()["D"]
        return self.more_items(None, ids) if grown else self.strangers(None, ids)

    def of_queries(self, q: NDArray[np.int64]) -> "Scorer":
        """The same scorer for some of its queries, in order, and no others.  Shapes: q [n]."""
        raise PolicyError(f"a {self.kind} cannot be cut into parts by queries.")

    @property
    def context_columns(self) -> tuple[str, ...]:
        """The columns of a context that it knows."""
        return ()

    def in_contexts(self, base: NDArray[np.int64], contexts: pl.DataFrame) -> "Scorer":
        """The same scorer for queries in a context each, a row of the table; `base`: the place of each query's own.

        One that knows no contexts has the scores of the query.  Shapes: base [n]; contexts [n, C].
        """
        return Repeated(self, base)

    def factors(self, q: Tensor) -> Products | None:
        """The scores of all items as products of factors, or None where they are no such: a large catalogue is then scored in
        blocks, and nothing of the size [B, D] exists."""
        return None

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What `from_spec` needs, as JSON for `config.json`; always with the number of queries Q and of items D."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Scorer":
        """A scorer of this spec with undefined weights."""

    @abstractmethod
    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        """The parameters whose entries each belong to one query; all others are shared, and training moves them slower."""

    def owners(self) -> Sequence[Tensor]:
        """The query of each row of each of these parameters: by default they have a row per query."""
        return [torch.arange(len(x)) for x in self.per_query_parameters()]

    def check(self) -> None:
        """Refuses weights that give no scores, as loading a damaged file would bring: by default what is not finite, or so
        large that their products may not be."""
        for name, t in self.state_dict().items():
            if t.is_floating_point() and not bool((t.abs() <= LARGEST).all()):
                raise PolicyError(
                    f"{name} of the {self.kind} has numbers that are not finite, or above {LARGEST:g} in size"
                )


def checked_scores(found: object, shape: tuple[int, ...], scorer: Scorer, stage: str) -> Tensor:
    """What a stage answered, if it is one number per query and item, none of them NaN or +inf.  Shapes: found [B, M]."""
    if not isinstance(found, Tensor):
        raise PolicyError(f"the {stage} ({scorer.kind}) must return a tensor of scores; got {type(found).__name__}.")
    if tuple(found.shape) != tuple(shape):
        raise PolicyError(
            f"the {stage} ({scorer.kind}) was asked for scores of the shape {tuple(shape)}, one per query and item; "
            f"got {tuple(found.shape)}."
        )
    if not found.is_floating_point():
        raise PolicyError(f"the {stage} ({scorer.kind}) must return scores as floats; got {found.dtype}.")
    _bridge.check_scores(found.detach(), "ranker" if stage == "re-ranker" else stage)
    return found.float()


def _floats(values: ArrayLike | Tensor, what: str) -> NDArray[np.float32]:
    """Numbers row by row in memory, whatever they come as: lists, arrays in any order, tensors with a gradient."""
    try:
        found = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        return np.ascontiguousarray(found, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise PolicyError(f"expected {what} as an array of numbers; got {type(values).__name__} ({error}).") from error


class Repeated(Scorer):
    """A scorer with its queries in other places, some of them more than once; not to be saved, hence no kind of its own.

    Buffer: rows [n].
    """

    rows: Tensor

    def __init__(self, of: Scorer, rows: NDArray[np.int64]) -> None:
        super().__init__()
        self.of, self.kind = of, of.kind  # type: ignore[misc]
        self.scores_everything = of.scores_everything
        self.register_buffer("rows", torch.from_numpy(np.array(rows, np.int64)))

    def forward(self, q: Tensor) -> Tensor:
        found: Tensor = self.of(self.rows[q])
        return found

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        return self.of.score(self.rows[q], items)

    def factors(self, q: Tensor) -> Products | None:
        return self.of.factors(self.rows[q])

    def spec(self) -> dict[str, Any]:
        return {"Q": len(self.rows), "D": self.of.spec()["D"]}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Repeated":
        raise PolicyError("expected a policy that can be loaded; got one in a context. Save the policy itself.")

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return []

    def check(self) -> None:
        """Refuses to be saved."""
        raise PolicyError("a policy in a context is not saved: save the policy itself.")


class OnTop(Scorer):
    """A scorer that changes the scores of another, its `base`, and leaves all else to it."""

    base: Scorer

    def bind(self, vocabulary: Vocabulary) -> None:
        self.base.bind(vocabulary)

    @property
    def query_columns(self) -> tuple[str, ...]:
        return self.base.query_columns

    def query_table(self, values: FeatureValues) -> pl.DataFrame:
        return self.base.query_table(values)

    @property
    def context_columns(self) -> tuple[str, ...]:
        return self.base.context_columns

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return self.base.per_query_parameters()

    def owners(self) -> Sequence[Tensor]:
        return self.base.owners()

    def spec(self) -> dict[str, Any]:
        sizes = self.base.spec()
        return {"Q": sizes["Q"], "D": sizes["D"], "base": {"kind": self.base.kind, "sizes": sizes}}

    @staticmethod
    def base_from(spec: dict[str, Any]) -> Scorer:
        """The base of a scorer of this spec, with undefined weights."""
        kind = Scorer.of_kind(spec["base"]["kind"])
        if kind is None:
            raise PolicyError(f"unknown kind {spec['base']['kind']!r:.60}")
        return kind.from_spec(spec["base"]["sizes"])


def averages(rows: Tensor, n: int) -> Tensor:
    """The mean of rows, n times.  Shapes: rows [m, F] -> [n, F]."""
    return rows.detach().mean(0).expand(n, -1)


class MatrixFactorisation(Scorer):
    """The paper's model: score(q, d) = <queries[q], items[d]>.  Shapes: queries [Q, F], items [D, F]."""

    kind = "matrix-factorisation"
    lengths = ("F",)

    def __init__(self, queries: ArrayLike | Tensor, items: ArrayLike | Tensor) -> None:
        super().__init__()
        # Row by row in memory, as a checkpoint gives them back: a resumed training is then the same bit by bit.
        self.queries = nn.Parameter(torch.from_numpy(_floats(queries, "embeddings")))
        self.items = nn.Parameter(torch.from_numpy(_floats(items, "embeddings")))
        if self.queries.ndim != 2 or self.items.ndim != 2 or self.queries.shape[1] != self.items.shape[1]:
            raise PolicyError(
                f"embeddings must be [queries, F] and [items, F]; got {tuple(self.queries.shape)} and "
                f"{tuple(self.items.shape)}."
            )

    def forward(self, q: Tensor) -> Tensor:
        return self.queries[q] @ self.items.T

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        # Sparse gradients: a step then costs what it touches, however many queries and items there are.
        return products.at(functional.embedding(q, self.queries, sparse=True), self.items, items, sparse=True)

    def factors(self, q: Tensor) -> Products:
        return Products(self.queries[q], self.items)

    # It knows no features: who is new is the average.

    def of_queries(self, q: NDArray[np.int64]) -> "MatrixFactorisation":
        return MatrixFactorisation(self.queries.detach()[torch.from_numpy(q)], self.items.detach())

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> "MatrixFactorisation":
        return MatrixFactorisation(averages(self.queries, len(ids.query_ids)), self.items.detach())

    def more_items(self, features: pl.DataFrame | None, ids: Vocabulary) -> "MatrixFactorisation":
        new = averages(self.items, len(ids.item_ids) - len(self.items))
        return MatrixFactorisation(self.queries.detach(), torch.cat([self.items.detach(), new]))

    def joined(self, other: Scorer, ids: Vocabulary) -> "MatrixFactorisation":
        assert isinstance(other, MatrixFactorisation)
        return MatrixFactorisation(torch.cat([self.queries, other.queries]).detach(), other.items.detach())

    def spec(self) -> dict[str, Any]:
        return {"Q": self.queries.shape[0], "D": self.items.shape[0], "F": self.items.shape[1]}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "MatrixFactorisation":
        return cls(torch.empty(spec["Q"], spec["F"]), torch.empty(spec["D"], spec["F"]))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.queries]


def check_rows(first: NDArray[np.int64], item: NDArray[np.integer], D: int, what: str) -> None:
    """Refuses pairs by rows of queries that are out of range, out of order or twice.  Shapes: first [Q + 1]; item [n]."""
    if first[0] != 0 or first[-1] != len(item) or (np.diff(first) < 0).any():
        raise PolicyError(f"the rows of the {what} do not fit their entries")
    if len(item) and (item.min() < 0 or item.max() >= D):
        raise PolicyError(f"{what}: expected items from 0 to {D - 1}; got others")
    pair = np.repeat(np.arange(len(first) - 1), np.diff(first)) * np.int64(D) + item
    if (np.diff(pair) <= 0).any():
        raise PolicyError(f"{what}: the items of a query are not in order, or one is there twice")


class GivenScores(Scorer):
    """Scores that came as numbers, dense [Q, D] or sparse (then what is absent is not available, what is stored as 0 is)."""

    kind = "given-scores"
    lengths = ("entries",)
    first: Tensor
    item: Tensor

    def __init__(self, scores: ArrayLike | spmatrix | sparray) -> None:
        super().__init__()
        if issparse(scores):
            scores = canonical_csr(scores)
        else:
            dense = _floats(scores, "scores")
            if dense.ndim != 2:
                raise PolicyError(f"scores must be [queries, items]; got the shape {dense.shape}.")
            Q, D = dense.shape
            scores = csr_matrix((dense.ravel(), np.tile(np.arange(D), Q), np.arange(Q + 1) * D), shape=(Q, D))
        self.D = int(scores.shape[1])
        self.register_buffer("first", torch.from_numpy(scores.indptr.astype(np.int64)))
        self.register_buffer("item", torch.from_numpy(scores.indices.astype(np.int64)))
        self.given = nn.Parameter(torch.from_numpy(scores.data.astype(np.float32)))
        _bridge.check_scores(self.given.detach()[None], "given")

    def forward(self, q: Tensor) -> Tensor:
        rows, entries = (torch.from_numpy(x) for x in entries_of_rows(self.first.numpy(), q.numpy()))
        empty = self.given.new_full((len(q), self.D), -torch.inf)
        return empty.index_put((rows, self.item[entries]), self.given[entries])

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        at = torch.from_numpy(places_in_rows(self.first.numpy(), self.item.numpy(), q.numpy(), items.numpy(), self.D))
        if not len(self.given):
            return self.given.new_full(items.shape, -torch.inf)
        return torch.where(at >= 0, self.given[at.clamp(min=0)], -torch.inf)

    def of_queries(self, q: NDArray[np.int64]) -> "GivenScores":
        first, item, given = (x.detach().numpy() for x in (self.first, self.item, self.given))
        return GivenScores(csr_matrix((given, item, first), shape=(len(first) - 1, self.D))[q])

    def spec(self) -> dict[str, Any]:
        return {"Q": len(self.first) - 1, "D": self.D, "entries": len(self.given)}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "GivenScores":
        made = cls(csr_matrix((spec["Q"], spec["D"]), dtype=np.float32))
        made.item = torch.zeros(spec["entries"], dtype=torch.int64)
        made.given = nn.Parameter(torch.zeros(spec["entries"]))
        return made

    def check(self) -> None:
        """Refuses entries out of range, out of order or twice, and scores that are NaN or +inf."""
        check_rows(self.first.numpy(), self.item.numpy(), self.D, "given scores")
        _bridge.check_scores(self.given.detach()[None], "given")

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.given]

    def owners(self) -> Sequence[Tensor]:
        return [torch.repeat_interleave(torch.arange(len(self.first) - 1), self.first.diff())]
