"""What became of recent answers, and new minus old while both are live: an interval that may be looked at at any time.

An impression is *settled* some time after it was shown: its clicks so far are its outcome for ever, whatever comes later, so
that a test may look at it. The log has a longer window (`recorder`) and misses nothing.

The test is of the difference in clicks per impression (`offpolicy.sequential.TwoArms`). Where units are given the first
impression of each counts: later ones of the same unit go to the same policy, so chance does not decide about them.
"""

import math
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Literal, get_args

from tandemrank._base.ids import Id
from tandemrank.offpolicy.sequential import TwoArms, stakes_against_a_loss
from tandemrank.serving.records import WINDOW, Fate, Mixture, ShownList, StoredEvent

REMEMBERED = 100_000  # impressions
SETTLE = 60.0  # seconds
STEP, STEPS, GIVEN = 10.0, 8640, 240  # seconds of a step of time, steps that are kept, and about how many are given out
KNOWN = 100  # impressions from which the clicks per impression of a policy are taken as usual


@dataclass
class ClickTally:
    """What a policy got of settled impressions: how many, clicks, the sum of their squares, and clicks at each rank."""

    impressions: int = 0
    clicks: int = 0
    squares: int = 0
    by_rank: list[int] = field(default_factory=list)

    def add(self, ranks: tuple[int, ...], K: int) -> None:
        """One more impression."""
        one = [0] * K
        for rank in ranks:
            one[rank] = 1
        self.plus(ClickTally(1, len(ranks), len(ranks) ** 2, one))

    def plus(self, other: "ClickTally") -> None:
        """What another tally has, as well."""
        self.impressions += other.impressions
        self.clicks += other.clicks
        self.squares += other.squares
        self.by_rank += [0] * (len(other.by_rank) - len(self.by_rank))
        for rank, clicks in enumerate(other.by_rank):
            self.by_rank[rank] += clicks


@dataclass
class TimeStep:
    """What went out in a step of time, and what became of it, by policy; `time` is where it begins."""

    time: float
    lists: int = 0
    tallies: dict[str, ClickTally] = field(default_factory=dict)

    def plus(self, other: "TimeStep") -> None:
        """What another step has, as well."""
        self.lists += other.lists
        for policy, tally in other.tallies.items():
            self.tallies.setdefault(policy, ClickTally()).plus(tally)


class Timeline:
    """The last day, in steps; one in which nothing went out is not there."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, TimeStep] = OrderedDict()

    def shown(self, time: float) -> None:
        """A list went out."""
        number = int(time // STEP)
        self._steps.setdefault(number, TimeStep(number * STEP)).lists += 1
        if len(self._steps) > STEPS:
            self._steps.popitem(last=False)

    def settled(self, shown: ShownList, ranks: tuple[int, ...]) -> None:
        """The clicks of a list are final."""
        if (found := self._steps.get(int(shown.impression.time // STEP))) is not None:
            found.tallies.setdefault(shown.impression.policy, ClickTally()).add(ranks, shown.impression.places)

    def since(self, begin: float, now: float) -> tuple[float, list[TimeStep]]:
        """The seconds of a step, and steps from a time on: about `GIVEN` at most, as wide as that takes."""
        width = STEP * max(1, math.ceil((now - begin) / (STEP * GIVEN)))
        found: dict[float, TimeStep] = {}
        for step in self._steps.values():
            if step.time >= begin:
                at = step.time // width * width
                found.setdefault(at, TimeStep(at)).plus(step)
        return width, list(found.values())


Outcome = tuple[ShownList, tuple[int, ...]]  # a settled answer, and the ranks (from 0) that were clicked by then
_NOTHING: frozenset[Id] = frozenset()


class _Pending:
    """An answer and its clicks; most have none, and a set of their own would be dear."""

    __slots__ = ("clicked", "shown")

    def __init__(self, shown: ShownList) -> None:
        self.shown = shown
        self.clicked = _NOTHING


class Outcomes:
    """Watches a server; safe to use from several threads.

    Times never run backwards (`records.steady_clock`). `lists`: how many lists went out, by the policy of the log.
    """

    def __init__(self, *, window: float = WINDOW, settle: float = SETTLE, most: int = REMEMBERED) -> None:
        self.window, self.settle_after, self.most = window, min(settle, window), most
        self.lists: Counter[str] = Counter()
        self.tallies: dict[str, ClickTally] = {}
        self.timeline = Timeline()
        self.fates: dict[str, int] = dict.fromkeys(get_args(Fate), 0)
        # By name, in the order of time: those that are settled are older than those that are not.
        self._settled: OrderedDict[str, _Pending] = OrderedDict()
        self._open: OrderedDict[str, _Pending] = OrderedDict()
        self._heard: list[Outcome] = []
        self._lock = threading.Lock()

    def shown(self, shown: ShownList) -> None:
        """An answer went out."""
        with self._lock:
            self._open[shown.impression.id] = _Pending(shown)
            self.lists[shown.impression.policy] += 1
            self.timeline.shown(shown.impression.time)
            if len(self._open) + len(self._settled) > self.most:
                if not self._settled:
                    self._settle_oldest()
                self._settled.popitem(last=False)

    def event(self, event: StoredEvent) -> Fate:
        """What becomes of an event."""
        with self._lock:
            fate = self._fate(event)
            self.fates[fate] += 1
            return fate

    def _fate(self, event: StoredEvent) -> Fate:
        if not event.counts:
            return "other"
        found = self._open.get(event.impression) or self._settled.get(event.impression)
        if found is None:
            return "unknown"
        if event.item not in found.shown.impression.items:
            return "unmatched"
        if event.time > found.shown.impression.time + self.window:
            return "late"
        if event.item in found.clicked:
            return "repeated" if event.type == "click" else "other"
        found.clicked |= {event.item}
        return "counted"

    def usual(self, digest: str) -> float:
        """The clicks per impression of a policy, 0 where too little is known."""
        found = self.tallies.get(digest)
        return 0.0 if found is None or found.impressions < KNOWN else found.clicks / found.impressions

    def history(self, seconds: float, now: float) -> tuple[float, list[TimeStep]]:
        """The seconds of a step, and the steps of the last so many seconds."""
        with self._lock:
            return self.timeline.since(now - seconds, now)

    def settle(self, now: float) -> list[Outcome]:
        """Settles what is old enough, and forgets what can get no more clicks; all that was settled since the last time."""
        with self._lock:
            while self._open and _time_of_first(self._open) + self.settle_after <= now:
                self._settle_oldest()
            while self._settled and _time_of_first(self._settled) + self.window < now:
                self._settled.popitem(last=False)
            heard, self._heard = self._heard, []
        return heard

    def _settle_oldest(self) -> None:
        name, found = self._open.popitem(last=False)
        self._settled[name] = found
        shown = found.shown
        ranks = tuple(rank for rank, item in enumerate(shown.impression.items) if item in found.clicked)
        self.tallies.setdefault(shown.impression.policy, ClickTally()).add(ranks, shown.impression.places)
        self.timeline.settled(shown, ranks)
        self._heard.append((shown, ranks))


def _time_of_first(pending: OrderedDict[str, _Pending]) -> float:
    return next(iter(pending.values())).shown.impression.time


LEVEL = 0.95
UNITS = 2_000_000  # units that are remembered; those beyond do not count
POINTS = 200  # of the history

Decision = Literal["continue", "roll back", "promote"]


@dataclass(frozen=True)
class LiveVerdict:
    """What is known of new minus old by now.

    `difference`, in clicks per impression, is in [low, high] with probability `level`, at all times at once. What decides are
    the one-sided bounds, each right with probability `level` by itself: `at_most` below 0 rolls back, `at_least` above 0
    proposes the new policy. They are the sharpest so far: what was shown once stays shown.
    """

    new: str
    old: str
    impressions_new: int
    impressions_old: int
    difference: float | None
    low: float
    high: float
    at_least: float
    at_most: float
    level: float
    decision: Decision
    words: str


@dataclass(frozen=True)
class VerdictPoint:
    """The interval at one moment."""

    impressions: int
    difference: float
    low: float
    high: float


class LiveTest:
    """The test of one policy against another, from the first split to the last; a share may change meanwhile.

    `usual` is what the old policy gets per impression as far as it is known; a wrong one makes the interval wider, not wrong.
    """

    def __init__(self, mixture: Mixture, K: int, *, level: float = LEVEL, usual: float = 0.0) -> None:
        (self.old, _), (self.new, share) = mixture
        self.level = level
        self.seen = TwoArms(K, centre=min(usual, float(K)), against=stakes_against_a_loss(K, usual, share))
        self.history: list[VerdictPoint] = []
        self.tallies: dict[str, ClickTally] = {}  # of what counts, by policy
        self._fresh: dict[float, tuple[list[int], list[int]]] = {}  # clicks of new and old, by the share of the new
        self._units: set[int] = set()
        self._next = 10
        self._sharpest = -float(K), float(K)

    def fits(self, mixture: Mixture) -> bool:
        """Whether the traffic is between the same policies."""
        return [digest for digest, _ in mixture] == [self.old, self.new]

    def hear(self, shown: ShownList, ranks: tuple[int, ...]) -> None:
        """One more outcome; those of other policies, and of units that were counted, are left out."""
        mixture = shown.impression.mixture
        if self.fits(mixture) and self._counts(shown.unit):
            fresh = self._fresh.setdefault(mixture[1][1], ([], []))
            fresh[0 if shown.arm == 1 else 1].append(len(ranks))
            self.tallies.setdefault(shown.impression.policy, ClickTally()).add(ranks, shown.impression.places)

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
            self.seen = self.seen.update(new, old, share)
        self._fresh = {}
        # A bound is beyond 0 exactly where the evidence, which is cheaper to compute, is enough.
        is_better, is_worse = (found > math.log(1 / (1 - self.level)) for found in self.seen.evidence(0.0))
        at_least, at_most = self._sharpest
        if (is_better and at_least <= 0) or (is_worse and at_most >= 0):
            self._sharpen()
        total = sum(self.seen.impressions)
        if total >= self._next and len(self.history) < POINTS:
            self._next = max(total + 1, int(1.15 * total))
            self.history.append(VerdictPoint(total, self.seen.difference, *self.seen.interval(self.level)))
        return self.decision

    @property
    def decision(self) -> Decision:
        """What the bounds, at their sharpest, have shown."""
        at_least, at_most = self._sharpest
        return "roll back" if at_most < 0 else "promote" if at_least > 0 else "continue"

    def verdict(self) -> LiveVerdict:
        """All that is known by now."""
        self.look()
        self._sharpen()
        decision = self.decision
        low, high = self.seen.interval(self.level)
        new, old = self.seen.impressions
        at_level, per = f"at level {self.level:.0%}", "clicks per impression or more"
        words = {
            "continue": "nothing is shown yet: keep the split, or give the new policy a larger share",
            "roll back": f"the new policy is worse, {at_level}: by {-self._sharpest[1]:.3g} {per}",
            "promote": f"the new policy is better, {at_level}: by {self._sharpest[0]:.3g} {per}; promotion is proposed",
        }[decision]
        return LiveVerdict(
            new=self.new,
            old=self.old,
            impressions_new=new,
            impressions_old=old,
            difference=self.seen.difference if new + old else None,
            low=low,
            high=high,
            at_least=self._sharpest[0],
            at_most=self._sharpest[1],
            level=self.level,
            decision=decision,
            words=words,
        )

    def _sharpen(self) -> None:
        """Both one-sided bounds, as sharp as they ever were."""
        low, high = self.seen.one_sided(self.level)
        self._sharpest = max(self._sharpest[0], low), min(self._sharpest[1], high)
