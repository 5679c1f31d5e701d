"""Values by what clicked items were worth, an order or minutes, in place of clicks.

    U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d) v_i(d)                  (paper: cltr-obj-2s, with v_i(d) = 1)

v_i(d) is the value of a click on d in impression i. Weights do not know what is counted, so support, balance and verdict are
those of clicks; rows of the log are split by value (`logs.details`), each with its weight times its value. A lower bound of a
value needs no limit of v; that of a difference needs the most that an impression can get.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.details import Details, read_details
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.sources import Source
from tandemrank.logs.sums import pack
from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.estimators import Estimate, Floats, by_query, of_queries
from tandemrank.offpolicy.values import Reward, Value
from tandemrank.offpolicy.verdicts import Verdict


def by_reward(values: Sequence[Value], log: Source | Feedback, name: str) -> tuple[Value, ...]:
    """The same values by a reward, a column of the log, which is read once more."""
    if isinstance(log, Feedback):
        raise ConfigError(f"sums of a log have no column {name!r}: give the log itself.")
    return in_detail(values, read_details(log, reward=name, vocabulary=values[0].log.vocabulary), name)


def in_detail(values: Sequence[Value], details: Details, name: str) -> tuple[Value, ...]:
    """The same values by a reward, of a log that was read in detail, in the same vocabulary."""
    assert details.reward is not None
    asked = values[0].log.impressions > 0  # queries that no policy knows are left out
    rows, v = of_queries(details.rows, asked), details.reward[asked[details.rows.query]]
    found = []
    for value in values:
        sums, own = (pack(x.query, x.item, x.rank) for x in (value.log, rows))
        at = np.searchsorted(sums, own)
        weights, old_weights = (_by_own(w[:, at], value.log, rows, at) for w in (value.weights, value.old_weights))
        found.append(worth(replace(value, weights=weights, old_weights=old_weights), rows, v, name))
    return tuple(found)


def _by_own(weights: Floats, log: Feedback, rows: Feedback, at: NDArray[np.int64]) -> Floats:
    """The weights of split rows, by the propensities of their own showings where these are logged.  Shapes: [2, P]."""
    if log.propensity is None or rows.propensity is None:
        return weights
    return np.stack([weights[0] * log.propensity[at] / rows.propensity, weights[1]])


def worth(value: Value, rows: Feedback, v: Floats, name: str) -> Value:
    """A value whose weights are of these rows, by what a click on each of them was worth.  Shapes: v [P]."""
    gained, weights, old_weights = v * rows.clicks, value.weights.sum(0), value.old_weights.sum(0)
    if not gained.sum() > 0:
        raise LogError(f"expected some {name} above 0 in the log; got none. Is it the right column?")
    clicks, old = by_query(weights * rows.clicks, rows), by_query(old_weights * gained, rows)
    estimate = Estimate(by_query(weights * gained, rows), rows.impressions.astype(np.float64))
    per_click = float(estimate.numerator.sum()) / max(float(clicks.sum()), np.finfo(float).tiny)
    mean = float(gained.sum()) / float(rows.clicks[v > 0].sum())
    live = value.verdict == Verdict.OBSERVED
    return replace(
        value,
        log=rows,
        estimate=estimate,
        terms=bounds.value_terms(estimate),
        ceiling_terms=None if value.ceiling_terms is None else bounds.Terms(old, estimate.denominator),
        weights=value.weights * v,
        old_weights=value.old_weights * v,
        estimator=None if live else "ips",
        identified=None,
        exposure_variance=value.exposure_variance * per_click**2,
        misfit=(value.misfit[0] * per_click, value.misfit[1] * per_click),
        # A power of ten, so that stakes hardly look at the values that they are for.
        reward=Reward(name, 10.0 ** round(float(np.log10(mean))), float(old_weights.max(initial=0.0))),
    )
