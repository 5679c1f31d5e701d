"""What a start knows, as the prior of a posterior: vectors, or features as numbers; and the pair that comes of both."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from tandemrank._base.ids import Vocabulary
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.reward.posterior import Posterior
from tandemrank.offpolicy.reward.tables import Tables
from tandemrank.policies import features
from tandemrank.policies.prior import vectors_of
from tandemrank.policies.stages import Known, build
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.policies.vectors import Vectors
from tandemrank.training.informed import informed, scorer_of
from tandemrank.training.start import STAGES, Start, from_embeddings, initial_pair


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
    return Tables(*(None if source is None else features.numbers(source, column, ids) for source, column, ids in sides))


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


def staged_pair(
    pair: TwoStagePolicy, start: Start, log: Feedback, posterior: Posterior | None, *, most: int, seed: int
) -> TwoStagePolicy:
    """The pair with the models that are asked for; `pair` is what a factorisation starts from.

    `most`: pairs that a model remembers at most.
    """
    if start.stages.are_one:
        return pair
    clicked = log.clicks > 0
    each = np.unique(log.query[clicked] * np.int64(log.D) + log.item[clicked])
    sizes = {
        stage: (getattr(start.sizes, f"{stage}_width"), getattr(start.sizes, f"{stage}_dimension")) for stage in STAGES
    }
    known = Known(
        log.vocabulary, np.bincount(each % log.D, minlength=log.D).astype(np.float64),
        query_features=start.query_features, item_features=start.item_features, pair_features=start.pair_features,
        memory=None if posterior is None else posterior.memory.limited(most),
        sizes={stage: size if size[0] is not None else None for stage, size in sizes.items()},
    )  # fmt: skip
    generator, ranker = build(start.stages, pair.generator, pair.ranker, known, seed=seed)
    return replace(pair, generator=generator, ranker=ranker)
