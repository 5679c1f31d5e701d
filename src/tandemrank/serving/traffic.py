"""Who answers: one pair, two pairs with a share each, or two pairs in one list; a value that is replaced as a whole.

A unit (a user, a session) always gets the same pair while a split lasts: a salted hash of it decides. Where no unit is given
chance decides about each impression. What an impression carries is the propensity of the *mixture*, over the salt,

    rho_0(d) = sum over pairs of share * rho_pair(d),

so that it counts for the estimate of every pair.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

from tandemrank.errors import ConfigError
from tandemrank.serving.live import LivePair

Mode = Literal["single", "split", "interleave"]


@dataclass(frozen=True)
class Arm:
    """A pair and the share of impressions that it answers."""

    live: LivePair
    share: float


@dataclass(frozen=True)
class Traffic:
    """The pairs that are live, the old one first, and how they share the traffic."""

    arms: tuple[Arm, ...]
    mode: Mode = "single"
    salt: str = ""

    def __post_init__(self) -> None:
        """One pair, or two with shares above 0 that sum to 1."""
        if len(self.arms) != (1 if self.mode == "single" else 2):
            raise ConfigError(f"{self.mode} traffic has one pair, or two that share it; {len(self.arms)} came.")
        if not all(0 < arm.share <= 1 for arm in self.arms) or abs(sum(arm.share for arm in self.arms) - 1) > 1e-9:
            raise ConfigError(f"shares are above 0 and sum to 1; got {[arm.share for arm in self.arms]}.")

    @property
    def mixture(self) -> tuple[tuple[str, float], ...]:
        """Digest and share of every pair."""
        return tuple((arm.live.digest, arm.share) for arm in self.arms)

    @property
    def name(self) -> str:
        """What the log calls whoever answered, where that is both pairs at once."""
        return "+".join(arm.live.digest for arm in self.arms)

    def choose(self, unit: str) -> int:
        """The number of the arm of a unit; the same every time, as likely as its share over salts."""
        if len(self.arms) == 1:
            return 0
        found = hashlib.blake2b(
            unit.encode(errors="surrogatepass"), digest_size=8, key=self.salt.encode()[:64]
        ).digest()
        # The new pair, the second, has the low end: a share that grows keeps the units that it had.
        return int(int.from_bytes(found, "little") * 2.0**-64 < self.arms[1].share)


def single(live: LivePair) -> Traffic:
    """All traffic to one pair."""
    return Traffic((Arm(live, 1.0),))


def split(old: LivePair, new: LivePair, share: float, *, salt: str, mode: Mode = "split") -> Traffic:
    """Part of the traffic to a new pair, or both in one list."""
    if not 0 < share < 1:
        raise ConfigError(f"the share of the new pair is above 0 and below 1; got {share}.")
    return Traffic((Arm(old, 1 - share), Arm(new, share)), mode, salt)
