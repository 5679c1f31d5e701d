"""Which model each stage is: any generator with any re-ranker.

    generator    factorisation of any rank, two towers, popularity plus features
    re-ranker    factorisation, two towers, features alone, a cross network, gradient-boosted trees;
                 and the generator's score handed to it, or not

`build` makes the two scorers; what training has for a factorisation anyway (production's, one of the clicks, a posterior)
comes from the caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandemrank._base.ids import Vocabulary
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.policies import cross, features, linear, pairs, towers
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.linear import LinearScores
from tandemrank.policies.memory import Memory
from tandemrank.policies.pairs import Missing
from tandemrank.policies.remembering import Remembering
from tandemrank.policies.scorers import MatrixFactorisation, Scorer
from tandemrank.policies.stacked import Stacked
from tandemrank.policies.trees import Trees, lightgbm

GeneratorName = Literal["factorisation", "towers", "features", "popularity"]
RankerName = Literal["factorisation", "towers", "features", "cross", "trees"]
Score = Literal["off", "sum", "stacked"]

# Hidden units and dimension: the generator scores every item, so it is the smaller model.
TOWERS = {"generator": (32, 16), "ranker": (128, 64)}
CROSS = (64, 16)


class Stages(BaseModel):
    """Which model each stage is; what is None is the model that training starts from, for both the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generator: GeneratorName | None = Field(
        default=None,
        description="model of the generator: a factorisation, two towers of features, a query's own weights of the items' "
        "features, or popularity plus these",
    )
    ranker: RankerName | None = Field(
        default=None,
        description="model of the re-ranker: a factorisation, two towers, a query's own weights of the items' features, a "
        "cross network, or gradient-boosted trees; the last two over features of the pair too",
    )
    generator_rank: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="dimension of the generator, where it is a factorisation; by default that of the re-ranker",
    )
    generator_score: Literal["off", "sum", "stacked", "auto"] = Field(
        default="off",
        description="whether the re-ranker is handed the generator's score: added to its own, or as one more input; or "
        "whichever held-out clicks prefer, in `learn`",
    )
    missing_pairs: Missing = Field(
        default="impute",
        description="a candidate without pair features: all numbers are the mean, and a flag says so; or it is refused",
    )

    @model_validator(mode="after")
    def _applies(self) -> "Stages":
        """Refuses a switch that would be ignored."""
        if self.generator_rank is not None and self.generator not in (None, "factorisation"):
            raise ValueError(
                f"generator_rank is the dimension of a factorisation, but the generator is {self.generator}. Leave one of the "
                "two out"
            )
        if self.missing_pairs == "refuse" and self.ranker not in ("cross", "trees"):
            raise ValueError("missing_pairs is for re-rankers with pair features: ranker = cross or trees")
        return self

    @property
    def are_one(self) -> bool:
        """Whether nothing is asked for: both stages are the one model that training starts from."""
        return self == Stages()

    @property
    def are_factorisations(self) -> bool:
        """Whether both stages are the factorisation that training starts from, of lower rank or not: nothing else to learn."""
        models = {self.generator, self.ranker}
        return models <= {None, "factorisation"} and self.generator_score == "off"

    @property
    def scores(self) -> tuple[Score, ...]:
        """What is to be tried of `generator_score`."""
        return get_args(Score) if self.generator_score == "auto" else (self.generator_score,)

    def handing(self, score: Score) -> "Stages":
        """With another `generator_score`."""
        return self.model_copy(update={"generator_score": score})

    def resolved(self, *, has_features: bool) -> "Stages":
        """With the model of both stages named, unless nothing is asked for: features without another model are two towers."""
        if self.are_one:
            return self
        usual: Literal["towers", "factorisation"] = "towers" if has_features else "factorisation"
        ours = "factorisation" if self.generator_rank is not None else usual
        update = {"generator": self.generator or ours, "ranker": self.ranker or usual}
        return self.model_copy(update=update)

    def size(self, stage: Literal["generator", "ranker"]) -> tuple[int, int] | None:
        """The usual width and dimension of a stage that has them."""
        model = self.generator if stage == "generator" else self.ranker
        return TOWERS[stage] if model == "towers" else CROSS if model == "cross" else None

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        first: str = self.generator or "as it starts"
        first += "" if self.generator_rank is None else f" of rank {self.generator_rank}"
        with_score = {
            "off": "", "sum": ", plus the generator's score", "stacked": ", with the generator's score",
            "auto": ", with the generator's score or without",
        }  # fmt: skip
        return f"generator {first}; re-ranker {self.ranker or 'as it starts'}{with_score[self.generator_score]}"


@dataclass(frozen=True)
class Known:
    """What the models are made of: the ids, how many queries clicked each item, tables of features where there are any, what is
    remembered of single pairs, and the width and dimension of towers and cross networks where they are not the usual ones.

    Shapes: clicked [D].
    """

    vocabulary: Vocabulary
    clicked: NDArray[np.float64]
    query_features: FeatureSource | None = None
    item_features: FeatureSource | None = None
    pair_features: FeatureSource | None = None
    memory: Memory | None = None
    sizes: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)


def check_pairs(stages: Stages, *, given: bool) -> None:
    """Refuses pair features for a re-ranker that takes none, and `missing_pairs = refuse` where there are none at all."""
    if given and stages.ranker not in ("cross", "trees"):
        raise ConfigError("pair features are for a re-ranker that takes them: ranker = cross or trees.")
    if not given and stages.missing_pairs == "refuse":
        raise ConfigError("missing_pairs = refuse needs pair features, and none are given. Give them, or leave it out.")


def build(stages: Stages, generator: Scorer, ranker: Scorer, known: Known, *, seed: int = 0) -> tuple[Scorer, Scorer]:
    """Both scorers before training: those that came, unless another model is asked for.

    A model that is made here gets the memory, if there is one; two towers learn their own pairs.
    """
    check_pairs(stages, given=known.pair_features is not None)
    if stages.generator_score == "auto":
        raise ConfigError(
            "generator_score = auto is for `learn`, where held-out clicks choose. Give off, sum or stacked."
        )
    first = (
        generator if stages.generator is None else _made(stages.generator, "generator", generator, stages, known, seed)
    )
    if stages.generator_rank is not None:
        first = low_rank(first, stages.generator_rank)
    second = ranker if stages.ranker is None else _made(stages.ranker, "ranker", ranker, stages, known, seed)
    if stages.generator_score == "off":
        return first, second
    # What the generator remembers is in its score already.
    alone = second.base if isinstance(second, Remembering) and isinstance(first, Remembering) else second
    return first, Stacked(alone, stages.generator_score)


def _made(
    name: GeneratorName | RankerName,
    stage: Literal["generator", "ranker"],
    given: Scorer,
    stages: Stages,
    known: Known,
    seed: int,
) -> Scorer:
    ids, own = known.vocabulary, derive(seed, "start", stage) % 2**32
    tables = known.query_features, known.item_features
    if name == "factorisation":
        return given
    if name == "towers":
        width, dimension = known.sizes.get(stage) or TOWERS[stage]
        return towers.from_features(*tables, ids, width=width, dimension=dimension, seed=own)
    if name in ("features", "popularity"):
        made: Scorer = _linear(known, with_popularity=name == "popularity")
    else:
        made = _heavy(name, stages, known, own)
    return made if known.memory is None else Remembering(made, known.memory)


def _heavy(name: str, stages: Stages, known: Known, seed: int) -> Scorer:
    """A re-ranker over features of the pair too."""
    ids, tables = known.vocabulary, (known.query_features, known.item_features)
    found = pairs.from_table(known.pair_features, ids, stages.missing_pairs)
    if name == "cross":
        width, dimension = known.sizes.get("ranker") or CROSS
        return cross.from_features(*tables, found, ids, width=width, dimension=dimension, seed=seed)
    lightgbm()  # now, and not after the generator is trained
    if all(one is None for one in (*tables, known.pair_features)) and stages.generator_score != "stacked":
        raise ConfigError(
            "trees know a query and an item by their features: give features of queries, items or pairs, or "
            "generator_score = stacked."
        )
    return Trees(*_numbers(known), found)


def _linear(known: Known, *, with_popularity: bool) -> LinearScores:
    ids, x = known.vocabulary, np.zeros((len(known.vocabulary.item_ids), 0), np.float32)
    if known.item_features is not None:
        x = linear.scaled(features.numbers(known.item_features, "item_id", ids.item_ids))
    elif not with_popularity:
        raise ConfigError(
            "a stage of features needs features of the items. Give a table of them, or use another model."
        )
    return LinearScores(len(ids.query_ids), x, np.log1p(known.clicked) if with_popularity else None)


def _numbers(known: Known) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The features of both sides as numbers, none where there is no table.  Shapes: -> [Q, A], [D, B]."""
    ids = known.vocabulary
    sides = (
        (known.query_features, "query_id", ids.query_ids),
        (known.item_features, "item_id", ids.item_ids),
    )
    ours, theirs = (
        np.zeros((len(names), 0)) if source is None else features.numbers(source, column, names)
        for source, column, names in sides
    )
    return ours, theirs


def low_rank(scorer: Scorer, rank: int) -> Scorer:
    """A factorisation of lower rank whose scores are nearest to those of `scorer`, up to a constant of each query, which no
    list depends on; what a memory adds to it stays.

        X (Y - mean)^T = U S V^T  ->  queries U sqrt(S), items V sqrt(S), their first `rank` columns
    """
    if isinstance(scorer, Remembering):
        return Remembering(low_rank(scorer.base, rank), scorer.memory)
    if not isinstance(scorer, MatrixFactorisation):
        raise ConfigError(
            f"generator_rank = {rank} is the dimension of a factorisation, but the generator is {scorer.kind}. Leave it out, "
            "or give generator = factorisation."
        )
    F = scorer.items.shape[1]
    if rank >= F:
        if rank > F:
            raise ConfigError(f"generator_rank = {rank}, but what training starts from has {F} dimensions. Give fewer.")
        return scorer
    with torch.no_grad():
        X, Y = scorer.queries.double(), scorer.items.double()
        (Qx, Rx), (Qy, Ry) = torch.linalg.qr(X), torch.linalg.qr(Y - Y.mean(0))
        U, S, Vt = torch.linalg.svd(Rx @ Ry.T)
        n = min(rank, len(S))
        root = S[:n].sqrt()
        # The sign of a singular pair is arbitrary; the same one everywhere makes a seed mean the same everywhere.
        V = Qy @ Vt[:n].T
        sign = torch.where(V.sum(0) < 0, -1.0, 1.0)
        return MatrixFactorisation((Qx @ U[:, :n] * root * sign).numpy(), (V * root * sign).numpy())
