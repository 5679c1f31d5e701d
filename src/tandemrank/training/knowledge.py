"""What a start knows, as the prior of a posterior: vectors, or features as numbers; and the pair that comes of both."""

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from tandemrank._base.ids import Vocabulary
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.reward.posterior import Posterior
from tandemrank.offpolicy.reward.tables import Tables
from tandemrank.policies import features
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.prior import vectors_of
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.policies.vectors import Vectors
from tandemrank.training.informed import informed, scorer_of
from tandemrank.training.start import Start, from_embeddings, initial_pair

CATEGORIES = 50  # of one column of features, in the prior of a posterior


def start_vectors(start: Start, vocabulary: Vocabulary) -> Vectors | None:
    """The vectors of a start, for the prior of a posterior; None where it has none.  Shapes: -> [Q, F], [D, F]."""
    if start.query_embeddings is not None and start.item_embeddings is not None:
        given = from_embeddings(start.query_embeddings, start.item_embeddings, vocabulary)
        return Vectors(given.queries.detach().numpy(), given.items.detach().numpy())
    return vectors_of(start.policy, vocabulary)


def start_tables(start: Start, vocabulary: Vocabulary) -> Tables | None:
    """The features of a start as numbers, for the prior of a posterior; None where it has none."""
    if not start.is_features:
        return None
    sides = (
        (start.query_features, "query_id", vocabulary.query_ids),
        (start.item_features, "item_id", vocabulary.item_ids),
    )
    return Tables(*(None if source is None else _numbers(source, column, ids) for source, column, ids in sides))


def _numbers(source: FeatureSource, id_column: str, ids: pl.Series) -> NDArray[np.float64]:
    """Numeric features, and a column of 0 and 1 for each of the commonest categories.  Shapes: ids [n] -> [n, J]."""
    frame = features.read(source, id_column)
    found = features.encode(features.fit(frame, id_column), frame, ids)
    columns = [found.numeric.astype(np.float64)]
    for codes in found.categorical.T:
        number = np.bincount(codes)
        number[0] = 0  # missing, or never seen: says nothing
        common = np.argsort(-number, kind="stable")[:CATEGORIES]
        columns.append((codes[:, None] == common[number[common] > 0]).astype(np.float64))
    return np.column_stack(columns)


def informed_pair(
    start: Start, log: Feedback, theta: ArrayLike, posterior: Posterior, *, K2: int, K: int, seed: int
) -> TwoStagePolicy:
    """The pair before training with what a posterior of `log` says (`informed`), and nothing else if nothing is given.

    Shapes: theta [K].
    """
    given = (start.policy, start.query_embeddings, start.query_features, start.item_features)
    if all(one is None for one in given):
        scorer = scorer_of(posterior)
        return TwoStagePolicy(scorer, scorer, K2, K, log.vocabulary)
    return informed(initial_pair(start, log, theta, K2=K2, K=K, seed=seed), posterior)
