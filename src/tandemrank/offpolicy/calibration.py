"""A fitted logging policy against the log that it was fitted to: its propensities, corrected where it is surely wrong.

    rho_0(d) <- rho_0(d) (E_g + c) / (F_g + c)

E_g is the exposure that the log gave to the pairs of a group g, F_g what the fitted policy would have given them: summed over
all pairs of the same queries, or, where items are many, over lists that are drawn from it. A group has pairs of similar fitted
propensity that the policy to be valued exposes alike. So what the model of the logger gets wrong (a two-stage production is
seen as one-stage: what its generator hardly ever finds seems likelier than it was) cannot add up where this policy has its
weights. Clicks are not looked at.

A click tells more than that a pair was shown. Where the live system knew what a query likes and the fit does not, clicked pairs
were exposed more than others of their group, and divide by too little. How often *other* impressions of the query showed a pair
is a sample of its exposure that owes nothing to the click: `excess`.

Frequencies of other impressions are fitted propensities, too: an item that these were shown once seems more frequent than it
is, one that they were not shown is missing. They are corrected in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.ids import positions_of
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.examined import Curves
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]

PAIRS = 2_000_000  # of query and item that are looked at, all of some queries: 100 MB
# Where lists are drawn:
QUERIES = 3_000  # that are enough
LISTS = 20  # of each
DRAWN = 40_000  # in all, of which few queries have more each
GROUPS = 20  # of the fitted propensity, and of the exposure by the policy, where the log is long enough
EACH = 400  # shown items per group, or groups are fewer
PRIOR = 5.0  # examinations for which a group is as the fit has it
TINY = 1e-9
MOST_EXCESS = 2.0  # of clicked pairs, or 1 over it: beyond this a log is too short to say


@dataclass(frozen=True)
class Expected:
    """What a fitted logger would have shown to some queries of a log, as pairs in the log's vocabulary.

    `rho_0`: the fitted propensity of a pair; `exposure`: what it would have got in all, in the impressions of the log.
    Shapes: rho_0, exposure [rows of the pairs]; queries [Q], which of them.
    """

    pairs: Feedback
    rho_0: Floats
    exposure: Floats
    queries: NDArray[np.bool_]


def expected_of(
    log: Feedback, logger: TwoStagePolicy, curves: Curves, fitted: Callable[[Feedback], Floats], *, seed: int = 0
) -> Expected:
    """By a fitted policy: of all pairs of the log's queries, or of some queries at random where pairs are many; by drawn lists
    where the policy is not asked about all items. `curves`: by which its ranks are examined; `fitted`: its propensities of some
    rows."""
    if logger.exposes_sparsely:
        drawn, scale = draw_lists(log, logger, seed=seed)
        seen = drawn.shown * curves.at(drawn.query, drawn.rank)
        return Expected(drawn, fitted(drawn), seen * scale[drawn.query], scale > 0)
    pairs = _all_pairs(log, _some(log, max(PAIRS // max(log.D, 1), 1), seed))
    rho_0 = fitted(pairs)
    return Expected(pairs, rho_0, rho_0 * log.impressions[pairs.query], pairs.impressions > 0)


def expected_by(others: Feedback, log: Feedback, theta: Floats, frequency: Floats) -> Expected:
    """By the frequencies of other impressions of the same logger.  Shapes: frequency [rows of the others]."""
    scale = np.divide(log.impressions, others.impressions, out=np.zeros(log.Q), where=others.impressions > 0)
    return Expected(others, frequency, exposure(others, theta) * scale[others.query], scale > 0)


def _some(log: Feedback, most: int, seed: int) -> NDArray[np.int64]:
    """The logged queries, or some of them at random where there are more than `most`, in order."""
    logged = np.flatnonzero(log.impressions)
    return np.sort(np.random.default_rng(seed).choice(logged, most, replace=False)) if len(logged) > most else logged


def _all_pairs(log: Feedback, queries: NDArray[np.int64]) -> Feedback:
    """Every item of the vocabulary once for each of some queries, at the first rank."""
    rows = len(queries) * log.D
    query = np.repeat(queries, log.D).astype(np.int32)
    item = np.tile(np.arange(log.D, dtype=np.int32), len(queries))
    impressions = np.zeros(log.Q)
    impressions[queries] = 1.0
    return Feedback(
        vocabulary=log.vocabulary,
        query=query,
        item=item,
        rank=np.zeros(rows, np.int16),
        shown=np.ones(rows),
        clicks=np.zeros(rows),
        logged=None,
        impressions=impressions,
    )


def draw_lists(log: Feedback, logger: TwoStagePolicy, *, seed: int = 0) -> tuple[Feedback, Floats]:
    """Lists of the logger for the queries of a log, or for some of them at random where there are many, and for each query its
    impressions in the log over its lists here, 0 if it has none.  Shapes: -> [Q]."""
    chosen = _some(log, QUERIES, seed)
    each = max(LISTS, DRAWN // max(len(chosen), 1))
    query = np.repeat(chosen, each)
    own = np.repeat(logger.vocabulary.queries(log.vocabulary.query_ids.gather(chosen), "the fitted policy"), each)
    items = logger.sample(own, random.random_keys(seed, random.Stream.LISTS, np.arange(len(own))))
    known = positions_of(log.vocabulary.item_ids, logger.vocabulary.item_ids, "item", missing="mark")
    places = np.where(items >= 0, known[np.maximum(items, 0)], -1).astype(np.int32)
    lists = Impressions(query.astype(np.int32), places, np.zeros(places.shape, np.uint8))
    scale = np.zeros(log.Q)
    scale[chosen] = log.impressions[chosen] / each
    return from_impressions([lists], log.vocabulary), scale


def calibrated(
    rho_0: Floats,
    rho: Floats,
    log: Feedback,
    theta: Floats,
    expected: Expected,
    expected_rho: Floats,
    *,
    coarser: int = 1,
) -> Floats:
    """The propensities of the rows of a log, corrected by group.

    Groups are quantiles of rho_0 times quantiles of rho, among what was shown; `coarser` times fewer of each.
    Shapes: rho_0, rho [P], by the fitted logger and by the policy to be valued; expected_rho [rows of the expected pairs];
    theta [K] -> [P].
    """
    used = expected.queries[log.query]
    side = max(int(np.clip(np.sqrt(log.shown[used].sum() / (EACH * log.heaviest)), 1, GROUPS)) // coarser, 1)
    group = np.zeros(len(log.query), np.int64)
    of_expected = np.zeros(len(expected.rho_0), np.int64)
    for own, others in ((rho_0, expected.rho_0), (rho, expected_rho)):
        edges = np.quantile(own, np.arange(1, side) / side) if len(own) else np.zeros(0)
        group = group * side + np.searchsorted(edges, own)
        of_expected = of_expected * side + np.searchsorted(edges, others)
    seen = np.bincount(group[used], exposure(log, theta)[used], side**2)
    prior = PRIOR * log.heaviest
    ratio = (seen + prior) / (np.bincount(of_expected, expected.exposure, side**2) + prior)
    found: Floats = np.clip(rho_0 * ratio[group], TINY, float(theta.max()))
    return found


def excess(weights: Floats, rho_0: Floats, log: Feedback, others: Feedback, theta: Floats) -> float:
    """How much more than their propensity clicked pairs were exposed:  1 + T(w c) - T(w e),   T(a) = sum a k / sum a n rho_0.

    k and n: the exposure of a row's pair and the impressions of its query among `others`; c and e: clicks and examinations.
    Let rho_0 z be the exposure in truth, E[z] = 1, and relevance go with z^g. Then T(w e) = E[z^2] / E[z], which is more than
    1 since what was exposed more was met more often, T(w c) = E[z^(g + 2)] / E[z^(g + 1)], and clicks would have to be divided
    by E[z^(g + 1)] / E[z^g]. Of a gamma distribution of scale s these are 1 + s, 1 + (g + 1) s and 1 + g s. 1 where nothing is
    known.  Shapes: weights, rho_0 [P]; theta [K].
    """
    pairs, of_others = (one.query * np.int64(log.D) + one.item for one in (log, others))
    known, place = np.unique(of_others, return_inverse=True)
    if not len(known):
        return 1.0
    exposed = np.bincount(place, exposure(others, theta))
    at = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
    k = np.where(known[at] == pairs, exposed[at], 0.0)
    hoped = others.impressions[log.query] * rho_0
    clicked, shown = (weights * x for x in (log.clicks, exposure(log, theta)))
    if min(float(clicked @ hoped), float(shown @ hoped)) <= 0:
        return 1.0
    found = 1 + float(clicked @ k / (clicked @ hoped) - shown @ k / (shown @ hoped))
    return float(np.clip(found, 1 / MOST_EXCESS, MOST_EXCESS))
