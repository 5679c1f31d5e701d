"""What happens while a pair is live, as values: questions, answers, impressions, events, outcomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tandemrank.serving.live import Features, Id, LivePair, Source
from tandemrank.serving.traffic import Traffic

WINDOW = 1800.0  # seconds after an impression in which a click counts


@dataclass(frozen=True)
class Question:
    """What decides a list, beside the pairs and the strategy."""

    query_id: Id | None
    features: Features | None
    available: tuple[Id, ...] | None
    K: int
    key: int


@dataclass(frozen=True)
class Impression:
    """One answer, with what is needed to draw it again.

    `policy` is the digest of the pair that answered, or of both where their lists were interleaved; `mixture` has the share of
    every pair. `features` stay in memory only, unless they are asked for.
    """

    id: str
    time: float
    query_id: Id | None
    items: tuple[Id, ...]
    policy: str
    strategy: str
    key: int
    places: int
    available: tuple[Id, ...] | None
    mixture: tuple[tuple[str, float], ...]
    uses_features: bool = False
    features: Mapping[str, float | str | None] | None = None


@dataclass(frozen=True)
class Event:
    """What a user did with an item of an impression."""

    item: Id
    type: str = "click"
    value: float | None = None
    time: float | None = None


@dataclass(frozen=True)
class Ranked:
    """An answer: its impression, the items from the top, the digest of the pair, and whose answer it is.

    `source` is "pair" for a query that it knows, "features" or "popular" for one that it does not. `logged` is False where
    the log could not take the impression; `unknown` are items that were said to be available and that no pair knows.
    """

    impression_id: str
    items: tuple[Id, ...]
    policy: str
    source: Source
    logged: bool
    unknown: tuple[Id, ...] = ()


@dataclass(frozen=True)
class Shown:
    """An answer as those hear of it who watch: the time, the arm, and in an interleaved list the team of each place."""

    impression: Impression
    traffic: Traffic
    arm: int
    teams: tuple[int, ...] | None
    unit: str | None


Fate = Literal["counted", "repeated", "late", "unmatched", "unknown", "other"]


class Watcher(Protocol):
    """Hears of every answer and every event, on the thread that gave it."""

    def shown(self, shown: Shown) -> None:
        """An answer went out."""

    def event(self, impression_id: str, event: Event, now: float) -> Fate:
        """An event came, and this became of it."""


@dataclass(frozen=True)
class Settled:
    """The outcome of an impression: who answered, and the ranks (from 0) that were clicked by then."""

    traffic: Traffic
    arm: int
    teams: tuple[int, ...] | None
    ranks: tuple[int, ...]
    unit: str | None


class Log(Protocol):
    """Takes impressions and events down; `recorder.Recorder` is one. What it cannot take is an `OutputError`."""

    clock: Callable[[], float]

    def know(self, live: LivePair) -> None:
        """A pair whose impressions will come."""

    def impression(self, found: Impression, *, features: bool = False) -> None:
        """An answer went out."""

    def events(self, impression_id: str, events: Sequence[Event]) -> None:
        """Events of an impression came."""
