"""Two towers: a scorer that knows queries and items by their features, so that it also scores those it has not seen.

    score(q, d) = <f(q), g(d)>
    f(q) = 16/width V^T h + a + 0.3 u_q,   h = relu((x_q W + sum_c T[category c of q]) / sqrt(columns) + b)
    g(d) likewise, with weights of its own

x are the numeric features, T has a row for each category, and u_q is what was learnt of this query beyond its features:
it starts at 0, and is 0 for whoever comes later. A side without features has u alone, with the factor 1. The fixed factors
say how far one step of Adam moves an embedding: the same learning rate then serves every width and matrix factorisation,
and what features explain is learnt from them, before each query and item learns it for itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from tandemrank._base.ids import Vocabulary, plain_ids, positions_of
from tandemrank.errors import ConfigError, DataError, PolicyError
from tandemrank.gradients import products
from tandemrank.gradients.products import Products
from tandemrank.policies import features
from tandemrank.policies.features import Encoder, Features, FeatureSource
from tandemrank.policies.scorers import Scorer

PACE, OWN = 16.0, 0.3  # the fixed factors, for the default learning rates of `training`
START = 0.1  # standard deviation of the scores before training: the policy starts near the uniform one


@dataclass(frozen=True)
class Sizes:
    """The size of a tower: rows, hidden units, length of the embedding, whether rows have something of their own."""

    rows: int
    width: int
    dimension: int
    ids: bool


class Tower(nn.Module):
    """One side: the features of its rows as buffers, and the weights; all zero until they are set.

    Shapes: numeric [n, F], category [n, C]; first [F, width], table [categories, width], second [width, dimension],
    own [n, dimension].
    """

    numeric: Tensor
    category: Tensor

    def __init__(self, encoder: Encoder, sizes: Sizes) -> None:
        super().__init__()
        if min(sizes.width, sizes.dimension) < 1:
            raise ConfigError(
                f"expected a width and a dimension of 1 or more; {sizes.width} and {sizes.dimension} came."
            )
        self.encoder, self.sizes = encoder, sizes
        self.columns = encoder.width + len(encoder.categorical)
        n, width, dimension = sizes.rows, sizes.width, sizes.dimension
        F, C = encoder.width, len(encoder.categorical)
        self.register_buffer("numeric", torch.zeros(n, F))
        self.register_buffer("category", torch.zeros(n, C, dtype=torch.int64))
        self.first = nn.Parameter(torch.zeros(F, width))
        self.first_bias = nn.Parameter(torch.zeros(width))
        self.table = nn.Parameter(torch.zeros(int(offsets_of(encoder)[-1]), width))
        self.second = nn.Parameter(torch.zeros(width, dimension))
        self.second_bias = nn.Parameter(torch.zeros(dimension))
        self.own = nn.Parameter(torch.zeros(n, dimension)) if sizes.ids else None

    def forward(self, rows: Tensor | None = None) -> Tensor:
        """The embeddings of some rows, or of all.  Shapes: rows [B] -> [B, dimension]."""
        chosen: Tensor | slice = slice(None) if rows is None else rows
        out = self._from_features(self.numeric[chosen], self.category[chosen])
        return out if self.own is None else out + (OWN if self.columns else 1.0) * self.own[chosen]

    def of_stranger(self, values: Mapping[str, object]) -> Tensor:
        """The embedding of somebody known by features alone, by the names of the columns; what is not given is missing.

        Shapes: -> [1, dimension].
        """
        names = self.encoder.names
        if not self.columns or (strange := [name for name in values if name not in names]):
            came = strange[0] if self.columns else "no column"
            raise DataError(f"the features are {', '.join(names) or 'none'}; {came!r} came. Give those alone.")
        numbers = {
            c.name: pl.Series([_number(c.name, values.get(c.name))], dtype=pl.Float64) for c in self.encoder.numeric
        }
        texts = {c.name: pl.Series([_text(values.get(c.name))], dtype=pl.String) for c in self.encoder.categorical}
        frame = pl.DataFrame({self.encoder.id_column: [0], **numbers, **texts})
        found = features.encode(self.encoder, frame, frame[self.encoder.id_column])
        category = torch.from_numpy(found.categorical + offsets_of(self.encoder)[:-1])
        return self._from_features(torch.from_numpy(found.numeric), category)

    def _from_features(self, numeric: Tensor, category: Tensor) -> Tensor:
        hidden = numeric @ self.first
        if category.shape[1]:
            # Adds up its gradient in one order, whatever the threads: training is the same bit by bit.
            hidden = hidden + functional.embedding_bag(category, self.table, mode="sum")
        hidden = torch.relu(hidden / max(self.columns, 1) ** 0.5 + self.first_bias)
        out: Tensor = hidden @ self.second * (PACE / self.sizes.width) + self.second_bias
        return out


def _number(column: str, value: object) -> float | None:
    """A number, or missing; refuses text, and what is too large to be one."""
    if value is None or (isinstance(value, int | float) and abs(value) < features.LARGEST):
        return None if value is None else float(value)
    raise DataError(
        f"the feature {column} is a number below {features.LARGEST:g} in size, or null; {value!r:.60} came."
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def check_categories(tower: Tower) -> None:
    """Refuses codes that the tables of a tower do not have."""
    offsets, codes = offsets_of(tower.encoder), tower.category.numpy()
    if len(codes) and ((codes < offsets[:-1]) | (codes >= offsets[1:])).any():
        raise PolicyError(f"{tower.encoder.id_column}: categories out of range")


def tower_of(
    source: FeatureSource | None,
    id_column: str,
    names: pl.Series,
    *,
    width: int,
    dimension: int,
    ids: bool,
    generator: torch.Generator,
) -> Tower:
    """One tower before training, of all ids `names`; without a table they are known by their ids alone."""
    frame = None if source is None else features.read(source, id_column)
    encoder = Encoder(id_column) if frame is None else features.fit(frame, id_column, names)
    tower = Tower(encoder, Sizes(len(names), width, dimension, ids))
    if frame is not None:
        set_rows(tower, slice(None), features.encode(encoder, frame, names))
        _initialise(tower, generator)
    return tower


def offsets_of(encoder: Encoder) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where the rows of each categorical column begin in the table: code 0 of a column is its first row."""
    return np.cumsum([0, *(len(column.values) + 1 for column in encoder.categorical)])


def set_rows(tower: Tower, rows: Any, found: Features) -> None:
    """Puts encoded features into the buffers."""
    tower.numeric[rows] = torch.from_numpy(found.numeric)
    tower.category[rows] = torch.from_numpy(found.categorical + offsets_of(tower.encoder)[:-1])


def _initialise(tower: Tower, generator: torch.Generator) -> None:
    """Random weights such that hidden units have mean square 1 and scores the standard deviation START."""
    spread = (START / tower.sizes.dimension**0.5) ** 0.5  # of an embedding's entry: score variance = dimension spread^4
    scales = ((tower.first, 2**0.5), (tower.table, 2**0.5), (tower.second, spread * tower.sizes.width**0.5 / PACE))
    with torch.no_grad():
        for weight, scale in scales:
            weight.copy_(scale * torch.randn(weight.shape, generator=generator))
        tower.table[torch.from_numpy(offsets_of(tower.encoder)[:-1])] = 0  # what is missing or never seen says nothing


def extended(tower: Tower, frame: pl.DataFrame | None, ids: pl.Series) -> Tower:
    """The tower for all of `ids`, of which its own are the first; the rows in `frame` take their features from there.

    What was learnt stays; a new id has nothing but its features.  Shapes: ids [n].
    """
    what = tower.encoder.id_column.removesuffix("_id")
    larger = Tower(tower.encoder, replace(tower.sizes, rows=len(ids)))
    weights = larger.state_dict()
    for name, t in tower.state_dict().items():
        weights[name][: len(t)] = t  # whatever has a row for each id is longer now, the rest is as it was
    if frame is not None:
        if not tower.columns:
            raise PolicyError(f"this policy was trained without {what} features, so it cannot score a new {what}.")
        wanted = frame[tower.encoder.id_column]
        rows = torch.tensor(positions_of(ids, wanted, what))
        set_rows(larger, rows, features.encode(tower.encoder, frame, wanted))
    return larger


class TwoTowers(Scorer):
    """Scores by the features of both sides; `from_features` makes one.  Shapes: q [B] -> [B, D]."""

    kind = "two-towers"
    lengths = ("width", "dimension")

    def __init__(self, queries: Tower, items: Tower) -> None:
        super().__init__()
        self.queries, self.items = queries, items

    def forward(self, q: Tensor) -> Tensor:
        scores: Tensor = self.queries(q) @ self.items().T
        return scores

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        # An embedding of each item, however many queries want it.
        rows, place = torch.unique(items, return_inverse=True)
        return products.at(self.queries(q), self.items(rows), place)

    def factors(self, q: Tensor) -> Products:
        return Products(self.queries(q), self.items())

    def spec(self) -> dict[str, Any]:
        own = self.queries.sizes
        return {
            "Q": own.rows,
            "D": self.items.sizes.rows,
            "width": own.width,
            "dimension": own.dimension,
            "ids": own.ids,
            "queries": self.queries.encoder.as_json(),
            "items": self.items.encoder.as_json(),
        }

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [] if self.queries.own is None else [self.queries.own]

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "TwoTowers":
        if not isinstance(spec["ids"], bool):
            raise PolicyError(f"ids is true or false; {str(spec['ids'])[:60]} came")
        shared = spec["width"], spec["dimension"], spec["ids"]
        sides = [(spec["queries"], spec["Q"]), (spec["items"], spec["D"])]
        towers = [Tower(features.encoder_from(encoder), Sizes(rows, *shared)) for encoder, rows in sides]
        return cls(towers[0], towers[1])

    def check(self) -> None:
        """Refuses weights that are not finite, and categories that the tables do not have."""
        super().check()
        for tower in (self.queries, self.items):
            check_categories(tower)


def from_features(
    query_features: FeatureSource | None,
    item_features: FeatureSource | None,
    vocabulary: Vocabulary,
    *,
    width: int = 64,
    dimension: int = 32,
    ids: bool = True,
    seed: int = 0,
) -> TwoTowers:
    """Two towers before training, with scores near 0, for the ids of `vocabulary`; one without a row has its features missing.

    A side without a table is known by its ids alone. With `ids = False` nothing is learnt but of features.
    """
    if item_features is None and (query_features is None or not ids):
        raise ConfigError(
            "two towers need features of the items, or else features of the queries and ids. Give a table of features, "
            "or use matrix factorisation."
        )
    generator = torch.Generator().manual_seed(seed)
    sides = [
        (query_features, "query_id", vocabulary.query_ids),
        (item_features, "item_id", vocabulary.item_ids),
    ]
    queries, items = (
        tower_of(source, column, names, width=width, dimension=dimension, ids=ids, generator=generator)
        for source, column, names in sides
    )
    return TwoTowers(queries, items)


def more_rows(source: FeatureSource | None, id_column: str, known: pl.Series) -> tuple[pl.DataFrame | None, pl.Series]:
    """A table of features, and all ids: those known, then those that are only in the table."""
    if source is None:
        return None, known
    frame = features.read(source, id_column)
    ids, known = frame[id_column], plain_ids(known)
    if ids.dtype != known.dtype:
        raise DataError(f"column {id_column}: the policy's ids are {known.dtype}; {ids.dtype} came. Convert them.")
    return frame, pl.concat([known.alias(id_column), ids.filter(~ids.is_in(known.implode()))])
