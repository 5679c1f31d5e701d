"""How much live traffic a pair that is not sure yet may have, and when a verdict can be expected of it.

Two arms (`offpolicy.sequential`): an impression goes to the new pair with chance p, and with C clicks

    Z = (C - m) / p  if it went to the new pair,  -(C - m) / (1 - p)  if to the old one,     m = the old one's value

has the difference as its expectation, floor max(m / p, (K - m) / (1 - p)) and variance about Var(C) (1 / p + 1 / (1 - p)).
The wealth of a bet on Z may be looked at after every impression.
"""

from dataclasses import dataclass

import numpy as np

from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.estimators import Estimate

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of the traffic: what people set


@dataclass(frozen=True)
class Canary:
    """The share of the traffic for the new pair, and about how many impressions of both arms a verdict takes.

    `impressions` is infinite where none can be expected. `loss_at_worst`: the share of all clicks that are lost meanwhile if
    the new pair is as bad as its bound allows.
    """

    share: float
    impressions: float
    loss_at_worst: float


def plan(
    difference: float, worst: float, live: Estimate, *, at_least: float, most: float, level: float, risk: float
) -> Canary:
    """The canary of a pair that is expected to be better by `difference`, and is surely not worse than by `worst`.

    `live`: production's clicks, query by query; `most`: the clicks that an impression can get; `risk`: the share of
    production's clicks that may be lost at worst while it runs. The largest share of `SHARES` within it, else the smallest.
    """
    value = live.value
    lost = float(np.clip(-worst, 0.0, value)) / value if value > 0 else 0.0
    share = max((p for p in SHARES if p * lost <= risk), default=SHARES[0])
    sd = np.sqrt(click_variance(live, most) * (1 / share + 1 / (1 - share)))
    floor = max(value / share, (most - value) / (1 - share))
    stakes = bounds.spread_stakes()
    needed = bounds.terms_needed(difference, sd, null=at_least, floor=floor, level=level, stakes=stakes)
    return Canary(share, float(np.ceil(needed)), share * lost)


def click_variance(live: Estimate, most: float) -> float:
    """About the variance of an impression's clicks, by sums: U_q (1 - U_q / K) within a query, and that of U_q between them.

    Clicks of one list are taken as independent of each other.
    """
    n, N = live.denominator, float(live.denominator.sum())
    mean = np.divide(live.numerator, n, out=np.zeros_like(n), where=n > 0)
    within = n * mean * (1 - mean / most)
    return float((within + n * np.square(mean - live.value)).sum()) / N if N > 0 else 0.0
