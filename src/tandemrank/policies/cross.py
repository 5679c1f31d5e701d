"""A cross network: a re-ranker that is too heavy for everything, over features of the query, of the item and of the pair.

    x_0 = [f(q), g(d), x(q, d), s(q, d)]          embeddings (`towers`), numbers of the pair, the generator's score
    x_1 = x_0 * (W x_0 + b) + x_0                 (a cross layer: all products of two inputs; Wang et al. 2021, DCN-V2)
    score(q, d) = <v, x_1> + <u, relu(V x_1 + c)>

Sides without features are known by their ids, pairs by what `pairs` has of them. It scores candidates only.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.policies import features
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.pairs import PairFeatures
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.tower import Sizes, Tower, check_categories, tower_of

START = 0.1  # standard deviation of what starts near 0


class CrossNetwork(Scorer):
    """Scores of candidates by a cross layer and an MLP.

    Shapes: n inputs, `width` hidden units: cross [n, n], cross_bias [n], hidden [n, width], hidden_bias [width], linear [n],
    last [width].
    """

    kind = "cross-network"
    lengths = ("width", "dimension", "entries")
    scores_everything, takes_score = False, True

    def __init__(self, queries: Tower, items: Tower, pairs: PairFeatures) -> None:
        super().__init__()
        self.queries, self.items, self.pairs = queries, items, pairs
        width = queries.sizes.width
        n = queries.sizes.dimension + items.sizes.dimension + pairs.width + 1
        self.cross, self.cross_bias = nn.Parameter(torch.zeros(n, n)), nn.Parameter(torch.zeros(n))
        self.hidden, self.hidden_bias = nn.Parameter(torch.zeros(n, width)), nn.Parameter(torch.zeros(width))
        self.linear, self.last = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(width))

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        return self.score_with(q, items, torch.zeros(items.shape))

    def score_with(self, q: Tensor, items: Tensor, s: Tensor) -> Tensor:
        """The same with the generator's scores.  Shapes: q [B]; items, s [B, M] -> [B, M]."""
        rows, place = torch.unique(items, return_inverse=True)
        ours = self.queries(q)[:, None].expand(-1, items.shape[1], -1)
        x_0 = torch.cat([ours, self.items(rows)[place], self.pairs.at(q, items), s[..., None]], 2)
        x_1 = x_0 * (x_0 @ self.cross + self.cross_bias) + x_0
        hidden = torch.relu(x_1 @ self.hidden + self.hidden_bias)
        found: Tensor = x_1 @ self.linear + hidden @ self.last
        return found

    def spec(self) -> dict[str, Any]:
        own = self.queries.sizes
        return {
            "Q": own.rows,
            "D": self.items.sizes.rows,
            "width": own.width,
            "dimension": own.dimension,
            "queries": self.queries.encoder.as_json(),
            "items": self.items.encoder.as_json(),
            "entries": len(self.pairs.item),
            "pairs": self.pairs.spec(),
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "CrossNetwork":
        sides = [(spec["queries"], spec["Q"]), (spec["items"], spec["D"])]
        queries, items = (
            Tower(features.encoder_from(encoder), Sizes(rows, spec["width"], spec["dimension"], True))
            for encoder, rows in sides
        )
        return cls(queries, items, PairFeatures.from_spec(spec["pairs"], spec["Q"], spec["D"], spec["entries"]))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [] if self.queries.own is None else [self.queries.own]

    def check(self) -> None:
        """Refuses weights that are not finite, categories that the tables do not have, and pairs that are none."""
        super().check()
        for tower in (self.queries, self.items):
            check_categories(tower)
        self.pairs.check()


def from_features(
    query_features: FeatureSource | None,
    item_features: FeatureSource | None,
    pairs: PairFeatures,
    vocabulary: Vocabulary,
    *,
    width: int = 64,
    dimension: int = 16,
    seed: int = 0,
) -> CrossNetwork:
    """A cross network before training, with small scores, for the ids of `vocabulary`."""
    if min(width, dimension) < 1:
        raise ConfigError(f"expected a width and a dimension of 1 or more; {width} and {dimension} came.")
    generator = torch.Generator().manual_seed(seed)
    sides = [(query_features, "query_id", vocabulary.query_ids), (item_features, "item_id", vocabulary.item_ids)]
    queries, items = (
        tower_of(source, column, ids, width=width, dimension=dimension, ids=True, generator=generator)
        for source, column, ids in sides
    )
    made = CrossNetwork(queries, items, pairs)
    n = len(made.linear)
    with torch.no_grad():
        # An input of a side without features starts at 0, and would stay there if the other side's did too.
        for tower in (queries, items):
            if tower.own is not None and not tower.columns:
                tower.own.copy_(START * torch.randn(tower.own.shape, generator=generator))
        made.cross.copy_(torch.randn(n, n, generator=generator) / n**0.5)
        made.hidden.copy_(torch.randn(n, width, generator=generator) * (2 / n) ** 0.5)
        made.linear.copy_(torch.full((n,), 1 / n**0.5))
        made.linear[-1] = 0.0
        made.last.copy_(START * torch.randn(width, generator=generator) / width**0.5)
    return made
