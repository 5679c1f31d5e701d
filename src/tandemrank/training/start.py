"""What `learn` may start from besides the clicks, a policy, embeddings, features of queries and items; and both stages before
training."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.belief import Beliefs
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.scorer import generator_of, ranker_of
from tandemrank.beliefs.space import Vectors
from tandemrank.beliefs.vectors import vectors_of
from tandemrank.beliefs.worth import by_worth
from tandemrank.errors import ConfigError, DataError
from tandemrank.policies import features
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import LARGEST as WEIGHT
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

GENERATOR_RANK = 32  # dimensions of the generator's product


def from_embeddings(
    query_embeddings: FeatureSource, item_embeddings: FeatureSource, vocabulary: Vocabulary
) -> MatrixFactorisation:
    """Given embeddings, as they are: tables with `query_id` or `item_id`, and `embedding`, a list of numbers.

    The scores are the products, and the policy is Plackett-Luce on them: they should differ by a few units, not hundreds.
    """
    queries = _embeddings(query_embeddings, "query_id", vocabulary.query_ids)
    items = _embeddings(item_embeddings, "item_id", vocabulary.item_ids)
    if queries.shape[1] != items.shape[1]:
        raise DataError(
            f"column embedding: those of queries have {queries.shape[1]} numbers and those of items {items.shape[1]}. "
            f"Both sides must come from one model."
        )
    return MatrixFactorisation(queries, items)


def _embeddings(source: FeatureSource, id_column: str, ids: pl.Series) -> NDArray[np.float32]:
    """The embeddings of `ids`, every row of the table checked.  Shapes: ids [n] -> [n, F]."""
    frame, name = features.table(source, id_column)
    if "embedding" not in frame.columns:
        raise DataError(f"{name}: expected a column embedding; the columns are {', '.join(frame.columns)}.")
    column = frame["embedding"]
    dtype = column.dtype
    if not (isinstance(dtype, pl.List | pl.Array) and dtype.inner is not None and dtype.inner.is_numeric()):
        raise DataError(f"{name}, column embedding: expected lists of numbers; got {dtype}.")
    lists = column.cast(pl.List(pl.Float32))
    length = lists.list.len().fill_null(0)
    wrong = (length != length[0]) | (length == 0)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(
            f"{name}, row {row}, column embedding: expected {length[0] or 'some'} numbers, as in row 0; got {length[row]}."
        )
    values = lists.list.explode().fill_null(np.nan).to_numpy().reshape(len(frame), -1)
    finite = (np.abs(values) <= WEIGHT).all(1)
    if not finite.all():
        row = int(finite.argmin())
        raise DataError(
            f"{name}, row {row}, column embedding: expected finite numbers, at most {WEIGHT:g} in size; "
            f"got {str(column[row].to_list())[:100]}. {(~finite).sum()} rows have the problem."
        )
    return values[features.rows(frame, id_column, ids, name)]


@dataclass(frozen=True)
class Start:
    """A policy or embeddings, whose vectors the beliefs lean on and which methods that train may start from; and features.

    Embeddings and features are Parquet files or frames, each with its `query_id` or `item_id`.
    """

    policy: TwoStagePolicy | None = None
    query_embeddings: FeatureSource | None = None
    item_embeddings: FeatureSource | None = None
    query_features: FeatureSource | None = None
    item_features: FeatureSource | None = None
    pair_features: FeatureSource | None = None

    def __post_init__(self) -> None:
        """Refuses two starting points at once, and embeddings of one side only."""
        if (self.query_embeddings is None) != (self.item_embeddings is None):
            raise ConfigError("expected embeddings of both sides, queries and items; got those of one.")
        if self.policy is not None and self.query_embeddings is not None:
            raise ConfigError("expected a policy or embeddings to start from; got both. Leave one out.")

    @property
    def has_stages(self) -> bool:
        """Whether a method that trains starts from what is given."""
        return self.policy is not None or self.query_embeddings is not None

    @property
    def has_features(self) -> bool:
        """Whether queries, items or pairs have features."""
        return any(table is not None for table in (self.query_features, self.item_features, self.pair_features))

    def with_tables(self) -> "Start":
        """With its tables of features as frames: read, and checked, once."""
        tables = {
            f"{side}_features": features.read(source, f"{side}_id")
            for side, source in (("query", self.query_features), ("item", self.item_features))
            if source is not None
        }
        if self.pair_features is not None:
            tables["pair_features"] = features.read_pairs(self.pair_features)
        return replace(self, **tables)  # type: ignore[arg-type]

    def features(self, vocabulary: Vocabulary) -> Features | None:
        """Its features, for the beliefs."""
        if not self.has_features:
            return None
        return Features.of(vocabulary, query=self.query_features, item=self.item_features, pair=self.pair_features)

    def vectors(self, vocabulary: Vocabulary) -> Vectors | None:
        """Its vectors, the prior of the beliefs; None where it has none.  Shapes: -> [Q, F], [D, F]."""
        if self.query_embeddings is not None and self.item_embeddings is not None:
            given = from_embeddings(self.query_embeddings, self.item_embeddings, vocabulary)
            return Vectors(given.queries.detach().numpy(), given.items.detach().numpy())
        return vectors_of(self.policy, vocabulary)

    @property
    def besides(self) -> list[str]:
        """What is given besides the clicks, for a reader."""
        given = [self.words] if self.has_stages else []
        return [*given, "features"] if self.has_features else given

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        if self.policy is not None:
            return "a saved policy"
        if self.query_embeddings is not None:
            return "the given embeddings"
        return "the clicks of the log"


def initial_policy(start: Start, vocabulary: Vocabulary, *, K2: int, K: int) -> TwoStagePolicy:
    """Both stages of what is given, before training."""
    if start.policy is not None:
        return replace(start.policy, K2=K2, K=K)
    if start.query_embeddings is None or start.item_embeddings is None:
        raise ConfigError("expected a policy or embeddings to start from; got neither.")
    scorer = from_embeddings(start.query_embeddings, start.item_embeddings, vocabulary)
    return TwoStagePolicy(scorer, scorer, K2, K, vocabulary)


def believed_policy(
    beliefs: Beliefs,
    vocabulary: Vocabulary,
    *,
    K2: int,
    K: int,
    product: bool = False,
    worth: NDArray[np.float64] | None = None,
) -> TwoStagePolicy:
    """The belief as the re-ranker, and the generator nearest to it; where all items are candidates one stage is enough, unless
    a `product` is asked for. `worth`: of a click on each item, where values are learned.  Shapes: worth [D]."""
    ranker = ranker_of(beliefs)
    ranker = ranker if worth is None else by_worth(ranker, worth)
    if len(vocabulary.item_ids) <= K2 and not product:
        return TwoStagePolicy(ranker, ranker, K2, K, vocabulary)
    return TwoStagePolicy(generator_of(ranker, GENERATOR_RANK), ranker, K2, K, vocabulary)
