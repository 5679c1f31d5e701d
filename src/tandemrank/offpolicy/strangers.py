"""Queries and items of a log that a policy does not know: valued as it would answer them, and told apart.

A query is answered by its features where the policy was given them (`two_stage.extended`), else as the average query, as
`serve` does. A policy without such an answer, as one given by its scores, leaves it with production's list: every click counts
1 there. An item that a policy does not know it never shows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary, plain_ids, positions_of, same_ids
from tandemrank._base.sparse import sums_by
from tandemrank.errors import PolicyError
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy.estimators import Exposure, by_query, of_queries
from tandemrank.offpolicy.exposure import MostLikely
from tandemrank.offpolicy.values import Unknown
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shown = TwoStagePolicy | MostLikely
MOST_KEPT = 0.5  # of the impressions, with production's list: beyond it ids are likely to be those of something else


@dataclass(frozen=True)
class Answering:
    """A side with an answer for queries of a log that it does not know. `new`: which; `kept`: those with production's list.

    Shapes: new, kept [Q].
    """

    side: Shown
    new: Bools
    kept: Bools

    @property
    def policy(self) -> TwoStagePolicy:
        """The policy of the side."""
        return policy_of(self.side)

    def answered(self, log: Feedback) -> Feedback:
        """The sums of the queries that it answers."""
        return of_queries(log, ~self.kept) if self.kept.any() else log

    def unknown(self, log: Feedback, value: Floats) -> Unknown | None:
        """What is worth what of a log; None where all is known.  Shapes: value [Q], clicks of each query."""
        known = positions_of(self.policy.vocabulary.item_ids, log.vocabulary.item_ids, "item", missing="mark") >= 0
        strange = ~known[log.item]
        n, clicks = log.impressions, by_query(log.clicks, log)
        if not (self.new & (n > 0)).any() and not (log.shown[strange] > 0).any():
            return None
        of_new, of_old = float(n[self.new].sum()), float(n[~self.new].sum())
        return Unknown(
            queries=of_new / log.N,
            value=float(value[self.new].sum()) / of_new if of_new else None,
            production=float(clicks[self.new].sum()) / of_new if of_new else None,
            known_value=float(value[~self.new].sum()) / of_old if of_old else None,
            as_production=bool(self.kept.any()),
            items=float(log.shown[strange].sum() / max(log.shown.sum(), 1.0)),
            clicks=float(log.clicks[strange].sum() / max(log.clicks.sum(), 1.0)),
        )


def policy_of(side: Shown) -> TwoStagePolicy:
    """The policy of a side."""
    return side.policy if isinstance(side, MostLikely) else side


def answering(side: Shown, log: Feedback) -> Answering:
    """The side with an answer for every query of a log."""
    policy, contexts = policy_of(side), Contexts.within(log.vocabulary)
    nobody = np.zeros(log.Q, np.bool_)
    if same_ids(policy.vocabulary, log.vocabulary):
        return Answering(side, nobody, nobody)
    ids, times = log.vocabulary.query_ids, log.impressions
    if contexts is not None:
        ids = contexts.vocabulary.query_ids
        times = sums_by(contexts.base, times, len(ids))
    new = (times > 0) & (positions_of(policy.vocabulary.query_ids, ids, "query", missing="mark") < 0)
    kept = np.zeros(len(ids), np.bool_)
    if new.any():
        try:
            policy = policy.with_queries(plain_ids(ids).filter(new))
        except PolicyError:
            kept = new
            if times[new].sum() > MOST_KEPT * log.N:
                policy.vocabulary.queries(ids.gather(np.flatnonzero(times)), "the policy to value")  # refuses them
    if contexts is not None:
        policy, new, kept = inside(policy, contexts, log.vocabulary), new[contexts.base], kept[contexts.base]
    return Answering(MostLikely(policy) if isinstance(side, MostLikely) else policy, new, kept)


def inside(policy: TwoStagePolicy, contexts: Contexts, ids: Vocabulary) -> TwoStagePolicy:
    """A policy for the queries in context of a log whose query it knows; as it is if it is one for them already."""
    if same_ids(policy.vocabulary, ids):
        return policy
    place = positions_of(policy.vocabulary.query_ids, contexts.vocabulary.query_ids, "query", missing="mark")
    base = place[contexts.base]
    known = base >= 0
    return policy.in_contexts(base[known], contexts.table.filter(known), ids.query_ids.filter(known))


def with_production(found: Exposure, log: Feedback, theta: Floats, kept: Bools) -> Exposure:
    """The exposures of all queries of a log, from those of the answered ones: production's lists for the others, in whose rows
    `rho` is whatever makes a weight 1 and is not given here.  Shapes: kept [Q]; theta [K] or [K, states]."""
    if not kept.any():
        return found
    answered = ~kept[log.query]

    def rows(x: Floats) -> Floats:
        every = np.zeros(len(log.query))
        every[answered] = x
        return every

    n = np.maximum(log.impressions, 1.0)
    own = np.where(kept, by_query(exposure(log, theta), log) / n, 0.0)
    return Exposure(
        rho=rows(found.rho),
        total=np.where(kept, own, found.total),
        supported=np.where(kept, own, found.supported),
        random=None if found.random is None else np.where(kept, 1.0, found.random),
        direct=found.direct,
        error=None if found.error is None else rows(found.error),
    )
