"""What became of recent answers, in memory: which clicks count, and what each pair got, impression by impression.

An impression is *settled* some time after it was shown: its clicks so far are its outcome for ever, whatever comes later, so
that a test may look at it. The log has a longer window (`recorder`) and misses nothing.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from tandemrank._base.ids import Id
from tandemrank.serving.records import WINDOW, Event, Fate, Settled, Shown

REMEMBERED = 100_000  # impressions
SETTLE = 60.0  # seconds
KNOWN = 100  # impressions from which the clicks per impression of a pair are taken as usual


@dataclass
class Tally:
    """What a pair got of settled impressions: how many, those with a click, and clicks at each rank."""

    impressions: int = 0
    clicked: int = 0
    clicks: int = 0
    squares: int = 0
    by_rank: list[int] = field(default_factory=list)

    def add(self, ranks: tuple[int, ...], K: int) -> None:
        """One more impression."""
        self.by_rank += [0] * (K - len(self.by_rank))
        self.impressions += 1
        self.clicked += bool(ranks)
        self.clicks += len(ranks)
        self.squares += len(ranks) ** 2
        for rank in ranks:
            self.by_rank[rank] += 1


_NOTHING: frozenset[Id] = frozenset()


class _Pending:
    """An answer, since when it waits, and its clicks; most have none, and a set of their own would be dear."""

    __slots__ = ("clicked", "settled", "shown", "since")

    def __init__(self, shown: Shown) -> None:
        self.shown = shown
        self.since = shown.impression.time
        self.clicked = _NOTHING
        self.settled = False


class Outcomes:
    """Watches a server; safe to use from several threads. `heard` gets every settled impression, in order."""

    def __init__(
        self,
        *,
        window: float = WINDOW,
        settle: float = SETTLE,
        most: int = REMEMBERED,
        heard: Callable[[Settled], None] | None = None,
    ) -> None:
        self.window, self.settle_after, self.most = window, min(settle, window), most
        self.heard = heard
        self.tallies: dict[str, Tally] = {}
        self.fates: dict[Fate, int] = dict.fromkeys(get_args(Fate), 0)
        # By name, in the order of time, and in the same order those of them that are not settled.
        self._pending: dict[str, _Pending] = {}
        self._in_order: deque[_Pending] = deque()
        self._open: deque[_Pending] = deque()
        self._lock = threading.RLock()

    def shown(self, shown: Shown) -> None:
        """An answer went out."""
        with self._lock:
            self._pending[shown.impression.id] = found = _Pending(shown)
            self._not_after(found.since)
            self._in_order.append(found)
            self._open.append(found)
            while len(self._in_order) > self.most:
                self._settle_one(self._forget_oldest())
                while self._open and self._open[0].settled:
                    self._open.popleft()

    def event(self, impression_id: str, event: Event, now: float) -> Fate:
        """An event came, and this became of it."""
        with self._lock:
            fate = self._fate(impression_id, event, now)
            self.fates[fate] += 1
            return fate

    def _fate(self, impression_id: str, event: Event, now: float) -> Fate:
        if event.type != "click":
            return "other"
        found = self._pending.get(impression_id)
        if found is None:
            return "unknown"
        if event.item not in found.shown.impression.items:
            return "unmatched"
        since, heard = (found.since, now) if event.time is None else (found.shown.impression.time, event.time)
        if heard > since + self.window:
            return "late"
        if event.item in found.clicked:
            return "repeated"
        found.clicked |= {event.item}
        return "counted"

    def usual(self, digest: str) -> float:
        """The clicks per impression of a pair, 0 where too little is known."""
        found = self.tallies.get(digest)
        return 0.0 if found is None or found.impressions < KNOWN else found.clicks / found.impressions

    def settle(self, now: float) -> int:
        """Settles what is old enough, and forgets what can get no more clicks; returns how many were settled."""
        count = 0
        with self._lock:
            self._not_after(now)
            while self._open and self._open[0].since + self.settle_after <= now:
                count += self._settle_one(self._open.popleft())
            while self._in_order and self._in_order[0].since + self.window < now:
                self._forget_oldest()
        return count

    def _not_after(self, now: float) -> None:
        """Nothing waits since a time to come: a clock that leapt ahead and back must not keep those behind it waiting."""
        for found in reversed(self._in_order):
            if found.since <= now:
                break
            found.since = now

    def _forget_oldest(self) -> _Pending:
        found = self._in_order.popleft()
        self._pending.pop(found.shown.impression.id, None)
        return found

    def _settle_one(self, found: _Pending) -> bool:
        """Once; returns whether this was the time."""
        if found.settled:
            return False
        shown, found.settled = found.shown, True
        ranks = tuple(rank for rank, item in enumerate(shown.impression.items) if item in found.clicked)
        if shown.teams is None:
            self._tally(shown, shown.arm).add(ranks, shown.impression.places)
        else:
            for arm in range(2):
                own = tuple(rank for rank in ranks if shown.teams[rank] == arm)
                self._tally(shown, arm).add(own, shown.impression.places)
        if self.heard is not None:
            self.heard(Settled(shown.traffic, shown.arm, shown.teams, ranks, shown.unit))
        return True

    def _tally(self, shown: Shown, arm: int) -> Tally:
        return self.tallies.setdefault(shown.traffic.arms[arm].live.digest, Tally())
