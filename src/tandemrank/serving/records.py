"""What happens while a policy is live, as values: who answers, answers, impressions, events, outcomes.

Who answers is one policy, or two policies with a share each: a value that is replaced as a whole. A unit (a user, a session)
always gets the same policy while a split lasts: a salted hash of it decides. Where no unit is given chance decides about each
impression. What an impression carries is the propensity of the *mixture*, over the salt,

    rho_0(d) = sum over policies of share * rho_policy(d),

so that it counts for the estimate of every policy.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from tandemrank._base.ids import Id
from tandemrank.errors import ConfigError, InputError
from tandemrank.logs.checks import LARGEST_VALUE
from tandemrank.serving.live_policy import LivePolicy, Source

Mode = Literal["single", "split"]
WINDOW = 1800.0  # seconds after an impression in which a click counts
LATEST = 1e11  # seconds since 1970
StoredId = Annotated[int, Field(ge=-(2**63), lt=2**63)] | str  # as a log has it
Time = Annotated[float, Field(ge=0, le=LATEST)]
Mixture = Annotated[
    tuple[tuple[str, float], ...], Field(min_length=1, max_length=2)
]  # digest and share of every policy


def steady_clock(
    wall: Callable[[], float] = time.time, passing: Callable[[], float] | None = None
) -> Callable[[], float]:
    """The time, seconds since 1970, that never leaps: the wall clock's when this is called, and what has passed since.

    `passing` counts seconds; by default it is the system's own count, where it can through times of sleep. A window that a
    leaping clock closes, or never closes, would cost clicks.
    """
    passed = passing or _passed
    begun = wall() - passed()
    return lambda: begun + passed()


def _passed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True)
class Arm:
    """A policy and the share of impressions that it answers."""

    live: LivePolicy
    share: float


@dataclass(frozen=True)
class Traffic:
    """The policies that are live, one or two, the old one first; `salt` decides which units each of two gets.

    `strategy`: the name of how both draw their lists.
    """

    arms: tuple[Arm, ...]
    salt: str = ""
    strategy: str = "trained"

    def __post_init__(self) -> None:
        """Shares are above 0 and sum to 1."""
        if not all(0 < arm.share <= 1 for arm in self.arms) or abs(sum(arm.share for arm in self.arms) - 1) > 1e-9:
            raise ConfigError(f"shares are above 0 and sum to 1; got {[arm.share for arm in self.arms]}.")

    @property
    def mode(self) -> Mode:
        """Whether there are two policies."""
        return "single" if len(self.arms) == 1 else "split"

    @cached_property
    def first(self) -> LivePolicy:
        """The old policy, or the only one."""
        return self.arms[0].live

    @cached_property
    def mixture(self) -> Mixture:
        """Digest and share of every policy."""
        return tuple((arm.live.digest, arm.share) for arm in self.arms)

    def choose(self, unit: str) -> int:
        """Of two arms the number of a unit's; the same every time, as likely as its share over salts."""
        found = hashlib.blake2b(
            unit.encode(errors="surrogatepass"), digest_size=8, key=self.salt.encode()[:64]
        ).digest()
        # The new policy, the second, has the low end: a share that grows keeps the units that it had.
        return int(int.from_bytes(found, "little") * 2.0**-64 < self.arms[1].share)


def single(live: LivePolicy) -> Traffic:
    """All traffic to one policy."""
    return Traffic((Arm(live, 1.0),))


def split(old: LivePolicy, new: LivePolicy, share: float, *, salt: str) -> Traffic:
    """Part of the traffic to a new policy."""
    return Traffic((Arm(old, 1 - share), Arm(new, share)), salt)


class Impression(NamedTuple):
    """One answer, with what is needed to draw it again, and to compute the propensities of what it shows.

    `policy` is the digest of the policy that answered; `mixture` has the share of every policy. `theta` is the examination
    curve of the server. `features` are those that decided, None where none did. `context`: of the request, as texts.
    `session` and its `state` before this list, where there is one; `query_id` is what the policy was asked: the state, if it
    knows that.
    """

    id: str
    time: Time
    query_id: StoredId
    items: tuple[StoredId, ...]
    policy: str
    strategy: str
    key: Annotated[int, Field(ge=0, lt=2**64)]
    places: Annotated[int, Field(ge=1)]
    available: tuple[StoredId, ...] | None
    mixture: Mixture
    theta: tuple[float, ...]
    features: dict[str, float | str | None] | None = None
    context: dict[str, str | None] | None = None
    session: str | None = None
    state: str | None = None

    def traffic(self, known: Mapping[str, LivePolicy]) -> tuple[Traffic, LivePolicy]:
        """Who was live, of policies by digest, and who answered; refuses what cannot have been."""
        found = Traffic(tuple(Arm(known[digest], share) for digest, share in self.mixture))
        if self.policy not in (names := [digest for digest, _ in self.mixture]):
            raise InputError(f"expected the policy {' or '.join(names)}, got {self.policy[:60]!r}.")
        if self.places > found.first.K:
            raise InputError(f"expected up to {found.first.K} places, as the policy has, got {self.places}.")
        return found, known[self.policy]


@dataclass(frozen=True)
class Event:
    """What a user did with an item of an impression."""

    item: Id
    type: str = "click"
    value: float | None = None
    time: float | None = None


REWARDS = ("purchase", "value")  # events that say what an item was worth; who bought it has clicked it, too


class StoredEvent(NamedTuple):
    """An event as the log has it."""

    impression: str
    item: StoredId
    type: str
    value: float | None
    time: Time

    @property
    def counts(self) -> bool:
        """Whether it is a click, or says what the item was worth."""
        return self.type == "click" or self.type in REWARDS

    @property
    def worth(self) -> float:
        """What it says that the item was worth: its value, a purchase without one 1; a click alone says nothing."""
        if self.type not in REWARDS:
            return 0.0
        said = 1.0 if self.value is None else self.value
        return said if 0 <= said <= LARGEST_VALUE else 0.0


@dataclass(frozen=True)
class Ranked:
    """An answer: its impression, the items from the top, the digest of the policy, and whose answer it is.

    `source` is "policy" for a query that it knows, "features" or "popular" for one that it does not. `logged` is False where
    the log could not take the impression; `unknown` are items that were said to be available and that no policy knows.
    """

    impression_id: str
    items: tuple[Id, ...]
    policy: str
    source: Source
    logged: bool
    unknown: tuple[Id, ...]


class ShownList(NamedTuple):
    """An answer as it goes out, and the arm that gave it."""

    impression: Impression
    arm: int
    unit: str | None


Fate = Literal["counted", "repeated", "late", "unmatched", "unknown", "other"]


@dataclass(frozen=True)
class FeedbackAnswer:
    """Whether events were recorded, and what became of how many of them, as far as this process remembers.

    `counted`: clicks that count and had not come before. `unmatched`: on items that the impression did not show. `unknown`: of
    an impression that this process does not remember; the log joins them. `other`: events that are no clicks, and what an item
    that was clicked before was worth.
    """

    recorded: bool
    counted: int = 0
    repeated: int = 0
    late: int = 0
    unmatched: int = 0
    unknown: int = 0
    other: int = 0
