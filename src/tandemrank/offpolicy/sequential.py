"""Bounds that may be looked at after every impression, of two policies that are live.

The wealth of `bounds.betting` is a martingale if all terms have the same expectation given the past (a supermartingale if
none has more than u), so with probability 1 - delta it *never* exceeds 1 / delta: stopping when the numbers look good is
allowed. Two arms: impression t is given to the new policy with chance p, whatever happened before, and gets C_t clicks,

    Z_t = (C_t - m) / p  if it went to the new policy,   -(C_t - m) / (1 - p)  if to the old one,

whose expectation is the difference of the two, for every m fixed beforehand; near the usual clicks per impression it takes
out most of the noise. Clicks are whole numbers up to K, so counts hold everything: an update costs O(1) per impression, and
the interval of any moment is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import ConfigError, InputError
from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.bounds import Stakes, Terms

Counts = Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True)
class ShareCounts:
    """Counts of impressions while the new policy had this share of the traffic.  Shapes: counts [2, K + 1], new first."""

    share: float
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class TwoArms:
    """Live traffic split at random between a new policy and the old: the difference in clicks per impression, at any time.

    `most`: the clicks that an impression can get (K); more are refused. `centre`: m above, fixed beforehand, best the clicks
    per impression that are usual. `stakes` bet on "better", `against` on "worse", both fixed beforehand
    (`stakes_against_a_loss`). The share may change with time, as long as chance decides about each impression. Assumes that the
    difference does not depend on the time; if it does, `low > 0` still rules out "never better".
    """

    most: int
    centre: float = 0.0
    shares: tuple[ShareCounts, ...] = ()
    stakes: Stakes = field(default_factory=bounds.spread_stakes)
    against: Stakes = field(default_factory=bounds.spread_stakes)

    def __post_init__(self) -> None:
        """The centre is a possible number of clicks."""
        if self.most < 1 or not 0 <= self.centre <= self.most:
            raise ConfigError(f"expected most >= 1 and 0 <= centre <= most; got {self.most} and {self.centre}.")

    def update(self, new: Counts, old: Counts, share: float) -> "TwoArms":
        """More impressions, by the clicks that each got; `share`: the chance of the new policy.  Shapes: new [n], old [m]."""
        if not 0 < share < 1:
            raise ConfigError(f"the share of the new policy must be above 0 and below 1; got {share}.")
        counts = np.stack([self._counted(arm) for arm in (new, old)])
        kept = [s for s in self.shares if s.share != share]
        before = [s.counts for s in self.shares if s.share == share]
        return replace(self, shares=(*kept, ShareCounts(share, sum(before, start=counts))))

    @property
    def impressions(self) -> tuple[int, int]:
        """Of the new policy and of the old."""
        new, old = (int(sum(s.counts[arm].sum() for s in self.shares)) for arm in (0, 1))
        return new, old

    def _terms(self) -> list[Terms]:
        """Z of each share and number of clicks, with how often it came."""
        clicks = np.arange(self.most + 1) - self.centre
        parts = []
        for s in self.shares:
            values = np.concatenate([clicks / s.share, -clicks / (1 - s.share)])
            times = s.counts.ravel().astype(np.float64)
            parts.append(Terms(values, np.ones(len(values)), -float(values.min()), float(values.max()), times))
        return [part for part in parts if len(part)]

    def _counted(self, arm: Counts) -> NDArray[np.int64]:
        clicks = np.asarray(arm, np.int64)
        if clicks.min(initial=0) < 0 or clicks.max(initial=0) > self.most:
            raise InputError(f"expected 0 to {self.most} clicks per impression; got {clicks.min()} to {clicks.max()}.")
        return np.bincount(clicks, minlength=self.most + 1).astype(np.int64)

    @property
    def difference(self) -> float:
        """The mean of Z: unbiased."""
        parts = self._terms()
        total = sum(part.total(part.sizes) for part in parts)
        return sum(part.total(part.values) for part in parts) / total if total else float("nan")

    def evidence(self, u: float) -> tuple[float, float]:
        """The logarithms of the wealth against "the difference is at most u" and against "it is at least u".

        One that exceeds log(1 / delta), at any time, speaks: a gate that asks about one u needs no interval.
        """
        parts = self._terms()
        if not parts:
            return 0.0, 0.0
        mirrored = [part.mirrored() for part in parts]
        return _log_wealth(parts, u, self.stakes), _log_wealth(mirrored, -u, self.against)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Holds the difference at every moment of the stream at once, with the given probability."""
        return self.one_sided((1 + level) / 2)

    def one_sided(self, level: float = 0.95) -> tuple[float, float]:
        """A lower and an upper bound, each of which holds at every moment at once with the given probability, by itself.

        The lower one exceeds u exactly where the evidence against "at most u" exceeds log(1 / (1 - level)); as for the upper.
        """
        parts, mean = self._terms(), self.difference
        low = self._lower(parts, mean, level, self.stakes)
        return low, -self._lower([part.mirrored() for part in parts], -mean, level, self.against)

    def _lower(self, parts: list[Terms], mean: float, level: float, stakes: Stakes) -> float:
        least, floor = -float(self.most), min((part.floor for part in parts), default=0.0)
        if not parts or mean + floor <= 0:
            return least
        return max(bounds.root(lambda u: _log_wealth(parts, u, stakes), mean, floor, level), least)


def _log_wealth(parts: list[Terms], u: float, stakes: Stakes) -> float:
    by_share = [bounds.log_wealth(part, u, stakes.fractions) for part in parts]
    return float(stakes.log_mean(np.sum(by_share, axis=0)))


def stakes_against_a_loss(most: int, usual: float, share: float, *, loss: float = 0.5) -> Stakes:
    """Stakes that find soon that the new policy loses this part of the usual clicks, and in the end whatever it loses.

    The best fraction is about floor E[-Z] / E[Z^2], with the variance of counts of rare clicks: their mean.
    """
    if not 0 < usual < most:
        return bounds.spread_stakes()
    floor, mean = max((most - usual) / share, usual / (1 - share)), loss * usual
    variance = (1 - loss) * usual / share + usual / (1 - share)
    return bounds.expected_stakes(floor * mean / (variance + mean**2))
