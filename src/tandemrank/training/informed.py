"""Pairs that start from what the log says: the posterior with memory as the scores of both stages.

    score(q, d) = SHARPNESS (offset_d + beta_q + x_q . y_d + l[q, d]) f_d / mean(f)     (`offpolicy.reward.posterior`)

with f_d = 1 / sqrt(1 + pi v_d / 8), the order of the expected relevance: what is not known of a query's vector, v_d of the
log-odds of item d, takes from what is likely more than from what is not. The spread of the mean query stands for that of each,
so that it is a factorisation with one column for the offsets, and the memory (`policies.remembering`). Stages of another kind
(two models that differ) keep their own scores and get the memory, two towers stay as they are: the race on the posterior's
reward trains them.
"""

from dataclasses import replace

import numpy as np

from tandemrank.offpolicy.reward.posterior import Posterior
from tandemrank.offpolicy.reward.space import FLAT
from tandemrank.policies.memory import Memory
from tandemrank.policies.prior import base_of
from tandemrank.policies.remembering import Remembering
from tandemrank.policies.scorers import MatrixFactorisation, Scorer
from tandemrank.policies.towers import TwoTowers
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.schedules import are_same

# The best lists do not depend on it, drawn ones come near them: docs/learning.md. Drawn by the log-odds alone, an item would be
# shown as often as it is relevant.
SHARPNESS = 4.0


def scorer_of(posterior: Posterior) -> Remembering:
    """The posterior as a scorer: its log-odds, flattened and sharpened.  Shapes: queries [Q, F + 2], items [D, F + 2]."""
    flat = (1 / np.sqrt(1 + FLAT * posterior.item_spread)).astype(np.float32)
    # The mean item keeps its scale: what is not known of items in general is no reason to draw at random.
    flat /= flat.mean()
    queries = SHARPNESS * np.column_stack([posterior.queries, np.ones(len(posterior.queries), np.float32)])
    items = np.column_stack([posterior.items, posterior.offset]) * flat[:, None]
    memory = posterior.memory
    memory = replace(memory, value=np.float32(SHARPNESS) * memory.value * flat[memory.item])
    return Remembering(MatrixFactorisation(queries, items), memory)


def is_factorisation(pair: TwoStagePolicy) -> bool:
    """Whether both stages are one factorisation, with a memory or without: what a posterior can stand for."""
    return isinstance(base_of(pair.ranker), MatrixFactorisation) and are_same(pair.generator, pair.ranker)


def informed(pair: TwoStagePolicy, posterior: Posterior) -> TwoStagePolicy:
    """The pair that training starts from, with what the log says; what the pair remembers of earlier logs stays.

    One factorisation for both stages becomes the posterior itself, other stages get its memory.
    """
    if not is_factorisation(pair):
        generator, ranker = (_remembering(stage, posterior.memory) for stage in (pair.generator, pair.ranker))
        return replace(pair, generator=generator, ranker=ranker)
    scorer = scorer_of(posterior)
    if isinstance(pair.ranker, Remembering):
        scorer = Remembering(scorer.base, pair.ranker.memory.plus(scorer.memory))
    return replace(pair, generator=scorer, ranker=scorer)


def _remembering(stage: Scorer, memory: Memory) -> Scorer:
    if isinstance(stage, TwoTowers):
        return stage  # it is extended by ids that no memory knows, and learns its own pairs by `own`
    if isinstance(stage, Remembering):
        return Remembering(stage.base, stage.memory.plus(memory))
    return Remembering(stage, memory)


def forgetting(pair: TwoStagePolicy, pairs: int) -> TwoStagePolicy:
    """The pair with at most so many pairs in the memory of each stage, those that say most (`Memory.limited`)."""
    stages = [
        Remembering(stage.base, stage.memory.limited(pairs)) if isinstance(stage, Remembering) else stage
        for stage in (pair.generator, pair.ranker)
    ]
    if pair.generator is pair.ranker:
        stages[1] = stages[0]  # one scorer for both stays one
    return replace(pair, generator=stages[0], ranker=stages[1])
