"""What a log says of a difference at least, how much longer it would have to be for a yes, and what a canary would need.

A canary has two arms (`offpolicy.sequential`): an impression goes to the new policy with chance p, and with C clicks

    Z = (C - m) / p  if it went to the new policy,  -(C - m) / (1 - p)  if to the old one,     m = the old one's value

has the difference as its expectation, floor max(m / p, (K - m) / (1 - p)) and variance about Var(C) (1 / p + 1 / (1 - p)).
The wealth of a bet on Z may be looked at after every impression.
"""

from dataclasses import dataclass

import numpy as np

from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.comparison import surely
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.values import Sample, Value

LONGER = 2.0 ** np.arange(0, 31, 0.25)  # logs that are tried, as multiples of this one


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is asked: the threshold, the level of all policies together, how many they are, and against whom.

    `varies`: the log shows different lists to a query. `most_clicks` of an impression, if it is known; `unit`: what is counted.
    `no_segment_below`: the limit of the difference in every segment.
    """

    at_least: float
    level: float
    policies: int
    most_clicks: float | None
    risk: float
    against: str
    varies: bool
    unit: str = "clicks"
    no_segment_below: float | None = None

    @property
    def each(self) -> float:
        """The level of each policy's bound: all of them then hold together."""
        return 1 - (1 - self.level) / self.policies


@dataclass(frozen=True)
class AtLeast:
    """The bound of a difference, None where there is none, and about how many impressions would lift it over the threshold."""

    bound: float | None
    log_needed: float


def at_least(new: Value, old: Value, rules: Rules) -> AtLeast:
    """The bound by what the two sides take as independent; never above the estimate, which need not be that of the bound."""
    found = surely(new, old, rules.most_clicks)
    if found is None:
        return AtLeast(None, float("inf"))
    bound = min(found.lower_bound(rules.each), new.value - old.value)
    if isinstance(found, bounds.Terms):
        return AtLeast(bound, log_needed(found, rules.at_least, rules.each))
    longer = LONGER if found.mean > rules.at_least else ()
    enough = (more * found.N for more in longer if found.times(more).lower_bound(rules.each) > rules.at_least)
    return AtLeast(bound, next(enough, float("inf")))


def log_needed(terms: bounds.Terms, threshold: float, level: float) -> float:
    """About how many impressions, of as many more queries, until the bound exceeds the threshold, if the terms stay like this.

    By terms (X_q - a n_q) / max n, which is what betting multiplies.
    """
    if not len(terms) or not np.isfinite(terms.floor):
        return float("inf")
    own = (terms.values - threshold * terms.sizes) / terms.sizes.max()
    mean, sd = threshold + float(own.mean()), float(own.std())
    found = bounds.terms_needed(mean, sd, null=threshold, floor=terms.floor, level=level)
    return found / len(terms) * float(terms.sizes.sum())


SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of the traffic: what people set


@dataclass(frozen=True)
class Canary:
    """The share of the traffic for the new policy, and about how many impressions of both arms a verdict takes.

    `impressions` is infinite where none can be expected. `loss_at_worst`: the share of all clicks that are lost meanwhile if
    the new policy is as bad as its bound allows.
    """

    share: float
    impressions: float
    loss_at_worst: float

    @property
    def words(self) -> str:
        """As a sentence."""
        at_worst = f"at worst {self.loss_at_worst:.2%} of all clicks are lost meanwhile"
        if not np.isfinite(self.impressions):
            return f"a canary with {self.share:.0%} of the traffic has no verdict in sight; {at_worst}"
        return (
            f"a canary with {self.share:.0%} of the traffic can be expected to have a verdict after about "
            f"{_round(self.impressions)} impressions; {at_worst}"
        )


def plan_canary(
    difference: float, worst: float, live: Estimate, *, at_least: float, most: float, level: float, risk: float
) -> Canary:
    """The canary of a policy that is expected to be better by `difference`, and is surely not worse than by `worst`.

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


def needed_words(needed: float, sample: Sample) -> str:
    if not np.isfinite(needed):
        return "no log of this kind would make it a yes"
    queries = ", with as many more queries," if sample.independent == "queries" else ""
    return f"a log of about {_round(needed)} impressions{queries} would make it a yes; this one has {sample.impressions:,.0f}"


def _round(n: float) -> str:
    """Two digits are all that a plan has."""
    digits = max(len(f"{n:.0f}") - 2, 0)
    return f"{round(n, -digits):,.0f}"
