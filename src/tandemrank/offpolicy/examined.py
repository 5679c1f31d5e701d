"""How the ranks of a policy are examined, where that depends on more than the rank.

Rows of a log have their examination by rank and state (`logs.feedback.examination`). A policy that was not live has none: its
ranks are examined as the same readers would. By a column of the log, a query's curve is the mixture of those of its states.
By the last click above, it is that of readers who go on as those of the log do (`clicks.stopping`), over the lists that the
policy draws.

Exposure is linear in the curve, so curves of all queries are mixtures of a few, and the race is asked once for each of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.ids import positions_of
from tandemrank.beliefs.model import RewardModel
from tandemrank.clicks.stopping import down_the_list, going_on, here_and_there
from tandemrank.logs.feedback import Feedback, by_rank
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
LISTS = 20  # of each query
MIXED = 2  # curves whose mixtures stand for those of all queries


@dataclass(frozen=True)
class Curves:
    """The curve of each query as a mixture of a few.  Shapes: few [n, K]; share [Q, n]."""

    few: Floats
    share: Floats

    @classmethod
    def same(cls, theta: Floats, Q: int) -> "Curves":
        """One for all.  Shapes: theta [K]."""
        return cls(theta[None], np.ones((Q, 1)))

    def mixed(self, query: NDArray[np.integer], of_each: Sequence[Floats]) -> Floats:
        """What is linear in the curve, from what each of the few gives.  Shapes: query [m]; n of [m] -> [m]."""
        found: Floats = np.einsum("mn,nm->m", self.share[query], np.stack(of_each))
        return found

    def at(self, query: NDArray[np.integer], rank: NDArray[np.integer]) -> Floats:
        """The examination of ranks.  Shapes: query, rank [m] -> [m]."""
        return self.mixed(query, [one[rank] for one in self.few])


def curves_of(
    policy: TwoStagePolicy,
    log: Feedback,
    theta: Floats,
    relevance: RewardModel | None = None,
    *,
    better: float = 1.0,
    fixed: bool = False,
    seed: int = 0,
) -> Curves:
    """The curves of a policy for the queries of a log; `fixed`: it always shows its most likely list.

    Without a model of `relevance` the last clicks are taken to be those of the log. `better`: how many times as relevant as the
    model says is what the policy shows.  Shapes: theta [K] or [K, states].
    """
    if theta.ndim == 1:
        return Curves.same(theta, log.Q)
    assert log.by is not None
    assert log.state is not None
    if not log.by.is_clicks:
        share = np.zeros((log.Q, theta.shape[1]))
        np.add.at(share, (log.query, log.state), log.shown)
        return Curves(theta.T, share / np.maximum(share.sum(1, keepdims=True), 1.0))
    if relevance is None:
        return Curves.same(by_rank(log, theta), log.Q)
    logged = np.flatnonzero(log.impressions)
    lists = 1 if fixed else LISTS
    q = np.repeat(logged, lists)[:, None]
    own = policy.vocabulary.queries(log.vocabulary.query_ids.gather(q[:, 0]), "the policy")
    shown = (
        policy.most_likely(own)
        if fixed
        else policy.sample(own, random.random_keys(seed, random.Stream.LISTS, np.arange(len(own))))
    )
    known = positions_of(log.vocabulary.item_ids, policy.vocabulary.item_ids, "item", missing="mark")
    d = np.where(shown >= 0, known[np.maximum(shown, 0)], -1)
    R = np.zeros((len(q), len(theta)))
    at = np.nonzero(d[:, : len(theta)] >= 0)
    R[at] = np.clip(better * relevance.at(q[at[0], 0], d[at]).mean, 0.0, 1.0)
    read = down_the_list(theta[0, 0], *going_on(log, theta), R) if log.by.down else here_and_there(theta, R)
    return _mixtures(read.reshape(len(logged), lists, -1).mean(1), logged, log)


def _mixtures(curves: Floats, queries: NDArray[np.int64], log: Feedback) -> Curves:
    """Curves of some queries as mixtures of the mean curves of those who read far and of the others.  Shapes: curves [n, K]."""
    far = curves.sum(1)
    order = np.array_split(np.argsort(far, kind="stable"), min(MIXED, len(far)))
    few = np.stack([curves[part].mean(0) for part in order])
    share = np.zeros((log.Q, len(few)))
    share[queries] = np.linalg.lstsq(few.T, curves.T, rcond=1e-9)[0].T
    return Curves(few, share)
