"""What became of recent answers, and new minus old while both are live: an interval that may be looked at at any time.

An impression is *settled* some time after it was shown: its clicks so far are its outcome for ever, whatever comes later, so
that a test may look at it. The log has a longer window (`recorder`) and misses nothing.

Split traffic: the difference in clicks per impression (`offpolicy.sequential.TwoArms`). Interleaved lists: the clicks of the
new policy's items minus those of the old policy's, per impression, Z in [-K, K], by the same bet. Where units are given the
first impression of each counts: later ones of the same unit go to the same policy, so chance does not decide about them.
"""

import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import Id
from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.bounds import Terms
from tandemrank.offpolicy.sequential import TwoArms, stakes_against_a_loss
from tandemrank.serving.records import WINDOW, Event, Fate, Mixture, Mode, ShownList

REMEMBERED = 100_000  # impressions
SETTLE = 60.0  # seconds
KNOWN = 100  # impressions from which the clicks per impression of a policy are taken as usual


@dataclass
class ClickTally:
    """What a policy got of settled impressions: how many, those with a click, and clicks at each rank."""

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
    """An answer and its clicks; most have none, and a set of their own would be dear."""

    __slots__ = ("clicked", "settled", "shown")

    def __init__(self, shown: ShownList) -> None:
        self.shown = shown
        self.clicked = _NOTHING
        self.settled = False


class Outcomes:
    """Watches a server; safe to use from several threads.

    `heard` gets every settled impression, in order, and the ranks (from 0) that were clicked by then. Times never run
    backwards (`records.steady_clock`). `lists`: how many lists went out, by what the log calls whoever answered.
    """

    def __init__(
        self,
        *,
        window: float = WINDOW,
        settle: float = SETTLE,
        most: int = REMEMBERED,
        heard: Callable[[ShownList, tuple[int, ...]], None] | None = None,
    ) -> None:
        self.window, self.settle_after, self.most = window, min(settle, window), most
        self.heard = heard
        self.lists: Counter[str] = Counter()
        self.tallies: dict[str, ClickTally] = {}
        self.fates: dict[Fate, int] = dict.fromkeys(get_args(Fate), 0)
        # By name, in the order of time, and in the same order those of them that are not settled.
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._open: deque[_Pending] = deque()
        self._lock = threading.RLock()

    def shown(self, shown: ShownList) -> None:
        """An answer went out."""
        with self._lock:
            self._pending[shown.impression.id] = found = _Pending(shown)
            self.lists[shown.impression.policy] += 1
            self._open.append(found)
            while len(self._pending) > self.most:
                self._settle_one(self._pending.popitem(last=False)[1])
                while self._open and self._open[0].settled:
                    self._open.popleft()

    def event(self, impression_id: str, event: Event, now: float) -> Fate:
        """What becomes of an event."""
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
        if (now if event.time is None else event.time) > found.shown.impression.time + self.window:
            return "late"
        if event.item in found.clicked:
            return "repeated"
        found.clicked |= {event.item}
        return "counted"

    def usual(self, digest: str) -> float:
        """The clicks per impression of a policy, 0 where too little is known."""
        found = self.tallies.get(digest)
        return 0.0 if found is None or found.impressions < KNOWN else found.clicks / found.impressions

    def settle(self, now: float) -> int:
        """Settles what is old enough, and forgets what can get no more clicks; returns how many were settled."""
        count = 0
        with self._lock:
            while self._open and self._open[0].shown.impression.time + self.settle_after <= now:
                count += self._settle_one(self._open.popleft())
            while self._pending and next(iter(self._pending.values())).shown.impression.time + self.window < now:
                self._pending.popitem(last=False)
        return count

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
            self.heard(shown, ranks)
        return True

    def _tally(self, shown: ShownList, arm: int) -> ClickTally:
        return self.tallies.setdefault(shown.impression.mixture[arm][0], ClickTally())


LEVEL = 0.95
UNITS = 2_000_000  # units that are remembered; those beyond do not count
POINTS = 200  # of the history

Decision = Literal["continue", "roll back", "promote"]


@dataclass(frozen=True)
class LiveVerdict:
    """What is known of new minus old by now.

    `difference`, in clicks per impression, is in [low, high] with probability `level`, at all times at once. What decides are
    the one-sided bounds, each right with probability `level` by itself: `at_most` below 0 rolls back, `at_least` above 0
    proposes the new policy. They are the sharpest so far: what was shown once stays shown. `p_worse` and `p_better` say the
    same as p-values, valid at any time, of "the new policy is worse" and "better"; small means shown.
    """

    new: str
    old: str
    mode: Mode
    impressions_new: int
    impressions_old: int
    difference: float | None
    low: float
    high: float
    at_least: float
    at_most: float
    level: float
    p_worse: float
    p_better: float
    decision: Decision
    words: str


@dataclass(frozen=True)
class VerdictPoint:
    """The interval at one moment."""

    impressions: int
    difference: float
    low: float
    high: float


class Credits:
    """Interleaved lists: how often each Z in [-K, K] was seen, and what it says, as `TwoArms` of split traffic.

    Z is the clicks on items of the new policy minus those on items of the old.
    """

    def __init__(self, K: int) -> None:
        self.K, self.stakes = K, bounds.spread_stakes()
        self.counts: NDArray[np.int64] = np.zeros(2 * K + 1, np.int64)

    def add(self, Z: int) -> None:
        """One more list."""
        self.counts[self.K + Z] += 1

    @property
    def impressions(self) -> tuple[int, int]:
        """Of the new policy and of the old: every list is of both."""
        n = int(self.counts.sum())
        return n, n

    @property
    def difference(self) -> float:
        """The mean of Z."""
        return float(self._terms().mean)

    def evidence(self, u: float) -> tuple[float, float]:
        """The logarithms of the wealth against "Z is at most u" and against "it is at least u"."""
        if not self.counts.any():
            return 0.0, 0.0
        terms, stakes = self._terms(), self.stakes
        better = stakes.log_mean(bounds.log_wealth(terms, u, stakes.fractions))
        worse = stakes.log_mean(bounds.log_wealth(terms.mirrored(), -u, stakes.fractions))
        return float(better), float(worse)

    def one_sided(self, level: float) -> tuple[float, float]:
        """A lower and an upper bound, each at the level."""
        low, high = (bounds.betting(t, level, stakes=self.stakes) for t in (self._terms(), self._terms().mirrored()))
        return low, -high

    def _terms(self) -> Terms:
        values = np.arange(-self.K, self.K + 1, dtype=np.float64)
        return Terms(values, np.ones(len(values)), float(self.K), float(self.K), self.counts.astype(np.float64))


class LiveTest:
    """The test of one policy against another, from the first split to the last; a share may change meanwhile.

    `usual` is what the old policy gets per impression as far as it is known; a wrong one makes the interval wider, not wrong.
    """

    def __init__(self, mixture: Mixture, mode: Mode, K: int, *, level: float = LEVEL, usual: float = 0.0) -> None:
        (self.old, _), (self.new, share) = mixture
        self.mode, self.K, self.level = mode, K, level
        against = stakes_against_a_loss(K, usual, share)
        split = TwoArms(K, centre=min(usual, float(K)), against=against)
        self.seen: TwoArms | Credits = Credits(K) if mode == "interleave" else split
        self.history: list[VerdictPoint] = []
        self._fresh: dict[float, tuple[list[int], list[int]]] = {}
        self._units: set[int] = set()
        self._next = 10
        self._peaks = [0.0, 0.0]
        self._sharpest = -float(K), float(K)

    def fits(self, mixture: Mixture, mode: Mode) -> bool:
        """Whether the traffic is between the same policies in the same way."""
        return mode == self.mode and [digest for digest, _ in mixture] == [self.old, self.new]

    def hear(self, shown: ShownList, ranks: tuple[int, ...]) -> None:
        """One more outcome; those of other policies, and of units that were counted, are left out."""
        mixture, teams = shown.impression.mixture, shown.teams
        if not self.fits(mixture, "split" if teams is None else "interleave") or not self._counts(shown.unit):
            return
        if isinstance(self.seen, Credits):
            assert teams is not None
            self.seen.add(sum(1 if teams[rank] == 1 else -1 for rank in ranks))
        else:
            fresh = self._fresh.setdefault(mixture[1][1], ([], []))
            fresh[0 if shown.arm == 1 else 1].append(len(ranks))

    def _counts(self, unit: str | None) -> bool:
        if unit is None:
            return True
        name = hash(unit)
        if name in self._units or len(self._units) >= UNITS:
            return False
        self._units.add(name)
        return True

    def look(self) -> Decision:
        """Takes in what was heard; the decision at the level, one-sided: a false rollback has at most 1 - level."""
        for share, (new, old) in self._fresh.items():
            assert isinstance(self.seen, TwoArms)
            self.seen = self.seen.update(new, old, share)
        self._fresh = {}
        enough = math.log(1 / (1 - self.level))
        for side, found in enumerate(self.seen.evidence(0.0)):
            if found > enough >= self._peaks[side]:
                self._sharpen()  # the bound that decides is read off where it decides
            self._peaks[side] = max(self._peaks[side], found)
        total = sum(self.seen.impressions)
        if total >= self._next and len(self.history) < POINTS:
            self._next = max(total + 1, int(1.15 * total))
            self.history.append(VerdictPoint(total, self.seen.difference, *self._interval()))
        if self._peaks[1] > enough:
            return "roll back"
        return "promote" if self._peaks[0] > enough else "continue"

    def verdict(self) -> LiveVerdict:
        """All that is known by now."""
        decision = self.look()
        self._sharpen()
        low, high = self._interval()
        new, old = self.seen.impressions
        p_better, p_worse = (min(1.0, math.exp(-peak)) for peak in self._peaks)
        at_level, per = f"at level {self.level:.0%}", "clicks per impression or more"
        words = {
            "continue": "nothing is shown yet: keep the split, or give the new policy a larger share",
            "roll back": f"the new policy is worse, {at_level}: by {-self._sharpest[1]:.3g} {per}",
            "promote": f"the new policy is better, {at_level}: by {self._sharpest[0]:.3g} {per}; promotion is proposed",
        }[decision]
        return LiveVerdict(
            new=self.new,
            old=self.old,
            mode=self.mode,
            impressions_new=new,
            impressions_old=old,
            difference=self.seen.difference if new + old else None,
            low=low,
            high=high,
            at_least=self._sharpest[0],
            at_most=self._sharpest[1],
            level=self.level,
            p_worse=p_worse,
            p_better=p_better,
            decision=decision,
            words=words,
        )

    def _interval(self) -> tuple[float, float]:
        return self._bounds((1 + self.level) / 2)

    def _sharpen(self) -> None:
        """Both one-sided bounds, as sharp as they ever were."""
        low, high = self._bounds(self.level)
        self._sharpest = max(self._sharpest[0], low), min(self._sharpest[1], high)

    def _bounds(self, level: float) -> tuple[float, float]:
        """A lower and an upper bound, each at the level."""
        if not any(self.seen.impressions):
            return -float(self.K), float(self.K)
        return self.seen.one_sided(level)
