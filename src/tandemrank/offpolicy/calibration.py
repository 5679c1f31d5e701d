"""A fitted logging policy against the log that it was fitted to: its propensities, corrected where it is surely wrong.

    rho_0(d) <- rho_0(d) (E_g + c) / (F_g + c)

E_g is the exposure that the log gave to the pairs of a group g, F_g what the fitted policy would have given them: lists are
drawn from it for the same queries. A group has pairs of similar fitted propensity that the pair to be valued exposes alike. So
what the model of the logger gets wrong (a two-stage production is seen as one-stage: what its generator hardly ever finds seems
likelier than it was) cannot add up where this pair has its weights. Clicks are not looked at.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.ids import positions_of
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.logs.impressions import Impressions
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]

QUERIES, LISTS, DRAWN = 3_000, 20, 40_000  # queries that are enough; lists of each, more where queries are few
GROUPS = 20  # of the fitted propensity, and of the exposure by the pair, where the log is long enough
EACH = 400  # shown items per group, or groups are fewer
PRIOR = 5.0  # examinations for which a group is as the fit has it
TINY = 1e-9


@dataclass(frozen=True)
class Drawn:
    """Lists that a fitted logger shows to some queries of a log, as sums in the log's vocabulary.

    `scale`: impressions of a query in the log over its lists here; 0 for a query that has none.  Shapes: scale [Q].
    """

    lists: Feedback
    scale: Floats


def draw_lists(log: Feedback, logger: TwoStagePolicy, *, seed: int = 0) -> Drawn:
    """Lists of the logger for the queries of a log, or for some of them at random where there are many."""
    rng, logged = np.random.default_rng(seed), np.flatnonzero(log.impressions)
    chosen = np.sort(rng.choice(logged, QUERIES, replace=False)) if len(logged) > QUERIES else logged
    each = max(LISTS, DRAWN // max(len(chosen), 1))
    query = np.repeat(chosen, each)
    own = np.repeat(logger.vocabulary.queries(log.vocabulary.query_ids.gather(chosen), "the fitted policy"), each)
    items = logger.sample(own, random.random_keys(seed, random.Stream.LISTS, np.arange(len(own))))
    known = positions_of(log.vocabulary.item_ids, logger.vocabulary.item_ids, "item", missing="mark")
    places = np.where(items >= 0, known[np.maximum(items, 0)], -1).astype(np.int32)
    lists = Impressions(query.astype(np.int32), places, np.zeros(places.shape, np.uint8))
    scale = np.zeros(log.Q)
    scale[chosen] = log.impressions[chosen] / each
    return Drawn(from_impressions([lists], log.vocabulary), scale)


def calibrated(
    rho_0: Floats, rho: Floats, log: Feedback, theta: Floats, drawn: Drawn, drawn_rho_0: Floats, drawn_rho: Floats
) -> Floats:
    """The propensities of the rows of a log, corrected by group.

    Groups are quantiles of rho_0 times quantiles of rho, among what was shown.
    Shapes: rho_0, rho [P], by the fitted logger and by the pair to be valued; drawn_rho_0, drawn_rho [rows of the drawn lists];
    theta [K] -> [P].
    """
    used = (drawn.scale > 0)[log.query]
    side = int(np.clip(np.sqrt(log.shown[used].sum() / EACH), 1, GROUPS))
    group = np.zeros(len(log.query), np.int64)
    of_drawn = np.zeros(len(drawn.lists.query), np.int64)
    for own, others in ((rho_0, drawn_rho_0), (rho, drawn_rho)):
        edges = np.quantile(own, np.arange(1, side) / side) if len(own) else np.zeros(0)
        group = group * side + np.searchsorted(edges, own)
        of_drawn = of_drawn * side + np.searchsorted(edges, others)
    seen = np.bincount(group[used], exposure(log, theta)[used], side**2)
    expected = exposure(drawn.lists, theta) * drawn.scale[drawn.lists.query]
    ratio = (seen + PRIOR) / (np.bincount(of_drawn, expected, side**2) + PRIOR)
    found: Floats = np.clip(rho_0 * ratio[group], TINY, float(theta.max()))
    return found
