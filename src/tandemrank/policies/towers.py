"""Two towers: a scorer that knows queries and items by their features, so that it also scores those it has not seen.

    score(q, d) = <f(q), g(d)>
    f(q) = 16/width V^T h + a + 0.3 u_q,   h = relu((x_q W + sum_c T[category c of q]) / sqrt(columns) + b)
    g(d) likewise, with weights of its own

x are the numeric features, T has a row for each category, and u_q is what was learnt of this query beyond its features:
it starts at 0, and is 0 for whoever comes later. A side without features has u alone, with the factor 1. The fixed factors
say how far one step of Adam moves an embedding: the same learning rate then serves every width and matrix factorisation,
and what features explain is learnt from them, before each query and item learns it for itself.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from tandemrank._base.ids import Vocabulary, plain_ids
from tandemrank.errors import ConfigError, DataError, PolicyError
from tandemrank.gradients import products
from tandemrank.gradients.products import Products
from tandemrank.policies import features
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.tower import Sizes, Tower, check_categories, tower_of


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
    """Two towers before training, with scores near 0, for the ids of `vocabulary`, which must all have features.

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
