"""Everything that a live server does, without a network: answers, policies that come and go, the verdict, the log.

`app` puts it on HTTP. Changes of who answers come one at a time: a policy is loaded, checked and warmed beside those that are
live, and then one value is replaced.
"""

import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from tandemrank._base.ids import Id
from tandemrank.errors import PolicyError, TandemRankError
from tandemrank.logs.titles import Titles
from tandemrank.policies.two_stage import load
from tandemrank.serving import journal, propensities, records, verdict
from tandemrank.serving.drawing import Exploration
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.records import WINDOW, Mode, Traffic
from tandemrank.serving.sealing import Sealed
from tandemrank.serving.verdict import LEVEL, ClickTally, LiveTest, LiveVerdict, Outcomes

LOG = logging.getLogger("tandemrank.serving")


def resolved(path: Path) -> Path:
    """The real path, links followed; refuses links that lead back to themselves."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise PolicyError(
            f"{path}: expected a folder; got links that lead nowhere ({error}). Give the folder itself."
        ) from error


class PolicyFolder:
    """The policies below a folder. Only what is listed there is loaded, so that no name leads out, by dots or by a link."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = resolved(Path(folder))

    def name_of(self, policy: Path) -> str:
        """The name here of a policy's folder; refuses one that is elsewhere."""
        real = resolved(policy)
        if not real.is_relative_to(self.folder):
            raise PolicyError(f"{policy} is not in the folder of policies {self.folder}.")
        return str(real.relative_to(self.folder))

    def names(self) -> list[str]:
        """The folders that hold a saved policy, at most two levels down, whose names are text."""
        found = [p.parent for depth in ("*", "*/*", "*/*/*") for p in self.folder.glob(f"{depth}/config.json")]
        names = sorted(str(p.relative_to(self.folder)) for p in found if self._stays_inside(p))
        return [name for name in names if name.isprintable()]

    def load(self, name: str) -> LivePolicy:
        """The policy of that name, warm."""
        if name not in self.names():
            raise PolicyError(
                f"expected a saved policy in the folder of policies, got {name[:60]!r}: it is not there, or a file of it "
                f"leads out of the folder. Copy it there, at most two levels down."
            )
        live = LivePolicy(load(self.folder / name), name=name)
        live.warm()
        return live

    def find(self, digests: set[str]) -> list[LivePolicy]:
        """The policies with these digests, as far as they are there."""
        found: dict[str, LivePolicy] = {}
        for name in self.names():
            if digests <= found.keys():
                break
            with suppress(PolicyError):
                live = LivePolicy(load(self.folder / name), name=name)
                if live.digest in digests:
                    found[live.digest] = live
        return list(found.values())

    def _stays_inside(self, path: Path) -> bool:
        """Whether a folder and all that is in it are in the folder of policies, wherever links lead."""
        try:
            return all(p.resolve().is_relative_to(self.folder) for p in (path, *path.rglob("*")))
        except (OSError, RuntimeError):  # a circle of links
            return False


class Busy(PolicyError):  # noqa: N818  # a state, not a failure
    """Another change is under way."""


@dataclass(frozen=True)
class Settings:
    """How a policy is served. `policies` is the folder that policies may be loaded from; by default the one that holds the
    first."""

    policy: Path
    log: Path | None = None
    policies: Path | None = None
    exploration: Exploration = field(default_factory=Exploration)
    replica: str = "0"
    theta: str | tuple[float, ...] = "reciprocal"
    window: float = WINDOW
    settle: float = verdict.SETTLE
    samples: int = propensities.SAMPLES
    sync_seconds: float = journal.SYNC_SECONDS
    level: float = LEVEL
    rollback: bool = True
    promote: bool = False
    titles: Titles = field(default_factory=Titles)

    @property
    def folder(self) -> PolicyFolder:
        """That policies may be loaded from."""
        return PolicyFolder(self.policies or resolved(self.policy).parent)


@dataclass(frozen=True)
class TrafficChange:
    """Something that happened to the traffic, for people to read."""

    time: float
    words: str


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy that is loaded, warm, and ready to get traffic; `share` is what it has of it."""

    policy: str
    folder: str
    queries: int
    items: int
    K2: int
    K: int
    share: float


@dataclass(frozen=True)
class LiveTraffic:
    """Who answers now, the old policy first."""

    mode: Mode
    arms: list[LoadedPolicy]


@dataclass(frozen=True)
class FoundQuery:
    """A query that a search has found."""

    query_id: Id
    title: str


@dataclass(frozen=True, kw_only=True)
class PolicyClicks:
    """What a policy got of settled impressions; `part`: "all" since the server began, or "test"."""

    part: Literal["all", "test"]
    policy: str
    folder: str
    impressions: int
    clicks: int
    clicks_per_impression: float
    clicks_by_rank: list[int]


class Service:
    """One process that answers."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] | None = None) -> None:
        self.settings = settings
        self.clock = clock or records.steady_clock()
        self.started = self.clock()
        self.counts: Counter[str] = Counter()  # for monitoring, by the names of the metrics
        self.rollbacks = {"hand": 0, "verdict": 0}
        self.folder = settings.folder
        live = self.folder.load(self.folder.name_of(settings.policy))
        self.loaded: dict[str, LivePolicy] = {live.digest: live}
        self.names = {live.digest: live.name}  # of all that ever were loaded
        self.previous: LivePolicy | None = None
        self.recorder = None if settings.log is None else self._recorder(settings.log)
        self.outcomes = Outcomes(window=settings.window, settle=settings.settle)
        self.server = Server(
            live,
            exploration=settings.exploration,
            recorder=self.recorder,
            theta=settings.theta,
            clock=self.clock,
            outcomes=self.outcomes,
        )
        self.test: LiveTest | None = None  # the one that runs, or the last one
        self.changes: list[TrafficChange] = []
        self._changing = threading.Lock()
        self._say(f"{live.name} ({live.digest}) answers everything")

    def _recorder(self, folder: Path) -> Recorder:
        settings = self.settings
        return Recorder(
            folder,
            Propensities(settings.samples, find=self.folder.find),
            replica=settings.replica,
            window=settings.window,
            sync_seconds=settings.sync_seconds,
            clock=self.clock,
        )

    # --- who answers --------------------------------------------------------------------------------------------------

    @contextmanager
    def _one_change(self) -> Iterator[None]:
        if not self._changing.acquire(blocking=False):
            raise Busy("another change is under way. Ask again when it is done.")
        try:
            yield
        finally:
            self._changing.release()

    def load(self, folder: str) -> LoadedPolicy:
        """Loads a policy, checks that it fits, warms it; nothing changes for those who ask."""
        with self._one_change():
            live = self.folder.load(folder)
            self.server.check_fits(live)
            live = self.loaded.setdefault(live.digest, live)
            self.names[live.digest] = live.name
            return self.described(live)

    def described(self, live: LivePolicy) -> LoadedPolicy:
        """A loaded policy."""
        return LoadedPolicy(
            policy=live.digest,
            folder=live.name,
            queries=len(live.query_at),
            items=len(live.items),
            K2=live.K2,
            K=live.K,
            share=sum(arm.share for arm in self.server.traffic.arms if arm.live is live),
        )

    def split(self, policy: str, share: float) -> LiveTraffic:
        """Gives a loaded policy a share of the traffic, or all of it."""
        with self._one_change():
            if policy not in self.loaded:
                raise PolicyError(f"there is no loaded policy {policy[:60]!r}. Load it first.")
            new, now = self.loaded[policy], self.server.traffic
            if share == 1:
                return self._promote(new, "asked to")
            if new is now.first:
                raise PolicyError("the policy has all the traffic, or is the old one of the split. Name another.")
            same = len(now.arms) == 2 and now.arms[1].live is new
            made = records.split(now.first, new, share, salt=now.salt if same else secrets.token_hex(8))
            if self.test is None or not (self.running and self.test.fits(made.mixture)):
                usual = self.outcomes.usual(now.first.digest)
                self.test = LiveTest(made.mixture, now.first.K, level=self.settings.level, usual=usual)
            return self._swap(made, f"{share:.0%} to {new.name} ({policy})")

    def rollback(self, why: str = "asked to", by: Literal["hand", "verdict"] = "hand") -> LiveTraffic:
        """Back to the old policy of the split, or to the one before a promotion."""
        with self._one_change():
            now = self.server.traffic
            target = now.arms[0].live if len(now.arms) > 1 else self.previous
            if target is None:
                raise PolicyError("there is nothing to roll back: one policy answers, and none did before it.")
            self.previous = None
            self.rollbacks[by] += 1
            return self._swap(records.single(target), f"rolled back to {target.name} ({target.digest}): {why}")

    def _promote(self, new: LivePolicy, why: str) -> LiveTraffic:
        old = self.server.traffic.first
        self.previous = old if new is not old else self.previous
        return self._swap(records.single(new), f"{new.name} ({new.digest}) answers everything: {why}")

    def _swap(self, new: Traffic, words: str) -> LiveTraffic:
        """Others answer; every other loaded policy is let go, but for the one that a rollback would need."""
        self.server.swap(new)
        kept = {arm.live.digest for arm in new.arms} | ({self.previous.digest} if self.previous is not None else set())
        self.loaded = {digest: live for digest, live in self.loaded.items() if digest in kept}
        self._say(words)
        return self.traffic()

    def traffic(self) -> LiveTraffic:
        """Who answers now."""
        now = self.server.traffic
        return LiveTraffic(now.mode, [self.described(arm.live) for arm in now.arms])

    def _say(self, words: str) -> None:
        self.changes = [*self.changes[-99:], TrafficChange(self.clock(), words)]

    # --- what became of it --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called often: settles outcomes, looks at the test, and rolls back where it says so."""
        heard = self.outcomes.settle(self.clock())
        if self.test is None or not self.running or not heard:
            return
        for shown, ranks in heard:
            self.test.hear(shown, ranks)
        decision = self.test.look()
        try:
            if decision == "roll back" and self.settings.rollback:
                self.rollback(f"worse at level {self.settings.level:.0%}", by="verdict")
            elif decision == "promote" and self.settings.promote:
                with self._one_change():
                    self._promote(self.server.traffic.arms[-1].live, f"better at level {self.settings.level:.0%}")
        except Busy:
            return  # the next tick asks again

    def verdict(self) -> LiveVerdict | None:
        """Of the test that runs, or of the last one."""
        return None if self.test is None else self.test.verdict()

    @property
    def running(self) -> bool:
        """Whether two policies are tested against each other."""
        return len(self.server.traffic.arms) > 1

    def summary(self) -> list[PolicyClicks]:
        """What each policy got of settled impressions: since the server began, and in the test alone."""
        parts: dict[Literal["all", "test"], dict[str, ClickTally]] = {
            "all": self.outcomes.tallies,
            "test": {} if self.test is None else self.test.tallies,
        }
        return [
            PolicyClicks(
                part=part,
                policy=policy,
                folder=self.names[policy],
                impressions=tally.impressions,
                clicks=tally.clicks,
                clicks_per_impression=tally.clicks / tally.impressions,
                clicks_by_rank=list(tally.by_rank),
            )
            for part, tallies in parts.items()
            for policy, tally in tallies.items()
        ]

    def search(self, words: str, most: int) -> list[FoundQuery]:
        """Queries whose id begins with these words, the one that is equal first, then those whose title has them in it."""
        ids = self.server.traffic.first.query_at
        begins = islice((q for q in ids if str(q).startswith(words)), most)
        equal = islice((q for q in ids if str(q) == words), 1)
        by_title = [name for name, _ in self.titles.queries.search(words, most)] if words else []
        found = dict.fromkeys([*equal, *begins, *by_title])
        return [FoundQuery(q, self.titles.queries.of(q).title) for q in islice(found, most)]

    @property
    def titles(self) -> Titles:
        """What items and queries are called, for people."""
        return self.settings.titles

    def write_segments(self) -> None:
        """Seals, for a thread of its own; what fails is said, counted, and tried again the next time."""
        try:
            self.seal()
        except Exception as error:
            self.counts["seal_failures"] += 1
            expected = isinstance(error, TandemRankError | OSError)
            LOG.error("no segment was made: %s", error, exc_info=not expected)

    def seal(self, *, everything: bool = False) -> list[Sealed]:
        """Makes segments of what is complete."""
        if self.recorder is None:
            return []
        if hasattr(os, "setpriority") and threading.current_thread() is not threading.main_thread():
            with suppress(OSError):  # answers go first: on Linux this is the priority of the thread alone
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        sealed = self.recorder.seal(everything=everything)
        for one in sealed:
            self.counts.update(
                sealed_impressions=one.impressions,
                late_clicks=one.late,
                damaged_records=one.damaged,
            )
        self.recorder.sealer.forget({*self.loaded, *(arm.live.digest for arm in self.server.traffic.arms)})
        return sealed

    @property
    def log_state(self) -> str:
        """ "ok", "none" where nothing is logged, or why the log takes no records."""
        return "none" if self.recorder is None else self.recorder.failing or "ok"

    def close(self) -> None:
        """Everything on disk."""
        if self.recorder is not None:
            self.recorder.close()

    def policies(self) -> list[LoadedPolicy]:
        """The loaded policies."""
        return [self.described(live) for live in self.loaded.values()]
