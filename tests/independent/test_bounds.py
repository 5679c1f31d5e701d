"""What a bound is about, in a simulation that shares no code with the package: these impressions, or others like them."""

import numpy as np

from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.bounds import ImpressionSums, Terms

QUERIES, TIMES, LOGS = 30, 50, 300


def test_moods_that_a_query_keeps_are_in_the_bound_over_impressions_and_those_of_others_in_that_over_queries() -> None:
    """Production shows one of two items, each with chance 1/2; the new policy always shows the first. A query is of one of two
    moods, which like the first or the second: with it the new policy is .4 ahead or .3 behind, in the mean over moods .05."""
    rng = np.random.default_rng(0)
    above_own, above_all, by_query = 0, 0, 0
    for _ in range(LOGS):
        first_liked = rng.random(QUERIES) < 0.5
        R = np.stack([np.where(first_liked, 0.8, 0.0), np.where(first_liked, 0.0, 0.6)], axis=1)
        shown = rng.integers(2, size=(QUERIES, TIMES))
        clicks = rng.random(shown.shape) < np.take_along_axis(R, shown, 1)
        X = np.where(shown == 0, 1.0, -1.0) * clicks  # (1 / .5 - 1) c of the first, -c of the second
        own = float((R[:, 0] / 2 - R[:, 1] / 2).mean())
        low = ImpressionSums(X.sum(), np.square(X).sum(), X.size, 1.0).lower_bound()
        above_own += low > own
        above_all += low > 0.05
        by_query += bounds.betting(Terms(X.sum(1), np.full(QUERIES, float(TIMES)), 1.0)) > 0.05
    assert above_own <= 0.05 * LOGS
    assert by_query <= 0.05 * LOGS
    assert above_all > 0.1 * LOGS  # other queries would have other moods: that is not what it is about
