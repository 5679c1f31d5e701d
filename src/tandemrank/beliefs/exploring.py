"""Exploration by what the belief does not know: an item is scored by the upper end of what it may be.

    re-ranker    sharpness log-odds of (E[R] + c sd[R]): sd[R] is large of new items and wide spreads, small of what was shown
    generator    the same; over more items than a re-ranker is asked about, <x_q, y_d> + c sharpness scale_q sqrt(v_q v_d), one
                 more dimension of the product

The scores are fixed numbers given the belief. So lists are Plackett-Luce on them, and their propensities are exact by the race,
as of any policy.
"""

import copy
from dataclasses import replace

import torch

from tandemrank.beliefs.scorer import Believed
from tandemrank.policies.candidates import is_large
from tandemrank.policies.memory import Remembering, Retrieval, base_of
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy


def exploring(policy: TwoStagePolicy, c: float) -> TwoStagePolicy:
    """The policy that explores by c standard deviations; as it is where the re-ranker is no belief."""
    belief = base_of(policy.ranker)
    if not isinstance(belief, Believed) or not c:
        return policy
    upper = copy.copy(belief)
    upper.upper = float(c)
    ranker = _with_base(policy.ranker, upper)
    generator = base_of(policy.generator)
    if not is_large(policy.generator, policy.ranker):
        return replace(policy, generator=ranker, ranker=ranker)
    if isinstance(generator, Retrieval):
        generator = _wider(generator, belief, c)
    return replace(policy, generator=_with_base(policy.generator, generator), ranker=ranker)


def _with_base(scorer: Scorer, base: Scorer) -> Scorer:
    """What a scorer remembers, on top of another base."""
    return Remembering(base, scorer.memory) if isinstance(scorer, Remembering) else base


@torch.no_grad()
def _wider(generator: Retrieval, belief: Believed, c: float) -> Retrieval:
    """The product with one more dimension, of what is not known."""
    of_queries = belief.scale(torch.arange(len(generator.queries))) * belief.query_spread.sqrt()
    queries = torch.cat([generator.queries, c * belief.sharpness * of_queries[:, None]], 1)
    items = torch.cat([generator.items, belief.item_spread.sqrt()[:, None]], 1)
    return Retrieval(queries, items, generator.memory, generator.contexts)
