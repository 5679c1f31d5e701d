"""What happens while a pair is live, as values: who answers, questions, answers, impressions, events, outcomes.

Who answers is one pair, two pairs with a share each, or two pairs in one list: a value that is replaced as a whole. A unit (a
user, a session) always gets the same pair while a split lasts: a salted hash of it decides. Where no unit is given chance
decides about each impression. What an impression carries is the propensity of the *mixture*, over the salt,

    rho_0(d) = sum over pairs of share * rho_pair(d),

so that it counts for the estimate of every pair.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Generic, Literal, NamedTuple, Protocol, TypeVar

from pydantic import Field

from tandemrank._base.ids import Id
from tandemrank.errors import ConfigError
from tandemrank.policies.features import FeatureValues

Mode = Literal["single", "split", "interleave"]
WINDOW = 1800.0  # seconds after an impression in which a click counts
LATEST = 1e11  # seconds since 1970
StoredId = Annotated[int, Field(ge=-(2**63), lt=2**63)] | str  # as a log has it


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


class NamedPolicy(Protocol):
    """A pair as far as records know it; `live.LivePolicy` is one."""

    @property
    def digest(self) -> str:
        """A hash of all its numbers and ids."""

    @property
    def name(self) -> str:
        """The folder that it came from."""


class Name(NamedTuple):
    """A pair by name, without its numbers."""

    digest: str
    name: str


N = TypeVar("N", bound=NamedPolicy)
P = TypeVar("P", bound=NamedPolicy, covariant=True)
L = TypeVar("L", contravariant=True)


@dataclass(frozen=True)
class Arm(Generic[P]):
    """A pair and the share of impressions that it answers."""

    live: P
    share: float


@dataclass(frozen=True)
class Traffic(Generic[P]):
    """The pairs that are live, the old one first, and how they share the traffic."""

    arms: tuple[Arm[P], ...]
    mode: Mode = "single"
    salt: str = ""

    def __post_init__(self) -> None:
        """One pair, or two with shares above 0 that sum to 1."""
        if len(self.arms) != (1 if self.mode == "single" else 2):
            raise ConfigError(f"{self.mode} traffic has one pair, or two that share it; {len(self.arms)} came.")
        if not all(0 < arm.share <= 1 for arm in self.arms) or abs(sum(arm.share for arm in self.arms) - 1) > 1e-9:
            raise ConfigError(f"shares are above 0 and sum to 1; got {[arm.share for arm in self.arms]}.")

    @cached_property
    def first(self) -> P:
        """The old pair, or the only one."""
        return self.arms[0].live

    @cached_property
    def mixture(self) -> tuple[tuple[str, float], ...]:
        """Digest and share of every pair."""
        return tuple((arm.live.digest, arm.share) for arm in self.arms)

    @cached_property
    def by_name(self) -> "Traffic[NamedPolicy]":
        """The same for those who remember it for long, and must not keep the pairs in memory."""
        return Traffic(tuple(Arm(Name(a.live.digest, a.live.name), a.share) for a in self.arms), self.mode, self.salt)

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


def single(live: N) -> Traffic[N]:
    """All traffic to one pair."""
    return Traffic((Arm(live, 1.0),))


def split(old: N, new: N, share: float, *, salt: str, mode: Mode = "split") -> Traffic[N]:
    """Part of the traffic to a new pair, or both in one list."""
    if not 0 < share < 1:
        raise ConfigError(f"the share of the new pair is above 0 and below 1; got {share}.")
    return Traffic((Arm(old, 1 - share), Arm(new, share)), mode, salt)


class RankQuestion(NamedTuple):
    """What decides a list, beside the pairs and the strategy."""

    query_id: Id | None
    features: FeatureValues | None
    available: tuple[Id, ...] | None
    K: int
    key: int


class Impression(NamedTuple):
    """One answer, with what is needed to draw it again, and to compute the propensities of what it shows.

    `policy` is the digest of the pair that answered, or of both where their lists were interleaved; `mixture` has the share of
    every pair. `theta` is the examination curve of the server. `features_key` names the features that decided, None where none
    did; `features` themselves stay in memory only, unless they are asked for.
    """

    id: str
    time: Annotated[float, Field(ge=0, le=LATEST)]
    query_id: StoredId
    items: tuple[StoredId, ...]
    policy: str
    strategy: str
    key: Annotated[int, Field(ge=0, lt=2**64)]
    places: Annotated[int, Field(ge=1)]
    available: tuple[StoredId, ...] | None
    mixture: Annotated[tuple[tuple[str, float], ...], Field(min_length=1, max_length=2)]
    theta: tuple[float, ...]
    features_key: str | None = None
    features: dict[str, float | str | None] | None = None

    @property
    def interleaved(self) -> bool:
        """Whether both pairs are in the list."""
        return "+" in self.policy

    def record(self, *, features: bool) -> dict[str, object]:
        """By the names of its fields, as the journal has it; its features only if asked."""
        found = self._asdict()
        if not features:
            found["features"] = None
        return found


@dataclass(frozen=True)
class Event:
    """What a user did with an item of an impression."""

    item: Id
    type: str = "click"
    value: float | None = None
    time: float | None = None


class Ranked(NamedTuple):
    """An answer: its impression, the items from the top, the digest of the pair, and whose answer it is.

    `source` is "pair" for a query that it knows, "features" or "popular" for one that it does not. `logged` is False where
    the log could not take the impression; `unknown` are items that were said to be available and that no pair knows.
    """

    impression_id: str
    items: tuple[Id, ...]
    policy: str
    source: str
    logged: bool
    unknown: tuple[Id, ...] = ()

    def message(self) -> dict[str, object]:
        """As it goes over the wire."""
        return self._asdict()


class ShownList(NamedTuple):
    """An answer as those hear of it who watch: the time, the arm, and in an interleaved list the team of each place."""

    impression: Impression
    traffic: Traffic[NamedPolicy]
    arm: int
    teams: tuple[int, ...] | None
    unit: str | None


Fate = Literal["counted", "repeated", "late", "unmatched", "unknown", "other"]


class Watcher(Protocol):
    """Hears of every answer and every event, on the thread that gave it."""

    def shown(self, shown: ShownList) -> None:
        """An answer went out."""

    def event(self, impression_id: str, event: Event, now: float) -> Fate:
        """An event came, and this became of it."""


@dataclass(frozen=True)
class Settled:
    """The outcome of an impression: who answered, and the ranks (from 0) that were clicked by then."""

    traffic: Traffic[NamedPolicy]
    arm: int
    teams: tuple[int, ...] | None
    ranks: tuple[int, ...]
    unit: str | None


class LogWriter(Protocol[L]):
    """Takes impressions and events down; `recorder.Recorder` is one. What it cannot take is an `OutputError`."""

    clock: Callable[[], float]

    def know(self, live: L) -> None:
        """A pair whose impressions will come."""

    def impressions(self, found: Sequence[Impression], *, features: bool = False) -> None:
        """Answers go out."""

    def events(self, impression_id: str, events: Sequence[Event]) -> None:
        """Events of an impression came."""
