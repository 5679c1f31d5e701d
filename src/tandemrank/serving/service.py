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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tandemrank.errors import OutputError, PolicyError, TandemRankError
from tandemrank.policies.two_stage import load
from tandemrank.serving import journal, propensities, records, verdict
from tandemrank.serving.drawing import Exploration
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.messages import ArmAnswer, PolicyAnswer, TrafficAnswer
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Bucket, Copied, Recorder
from tandemrank.serving.records import WINDOW, Mode, ShownList, Traffic
from tandemrank.serving.sealing import Sealed
from tandemrank.serving.verdict import LEVEL, LiveTest, LiveVerdict, Outcomes

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
    """The policies below a folder; a path that leads out of it, by dots or by a link, is refused."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = resolved(Path(folder))

    def name_of(self, policy: Path) -> str:
        """The name here of a policy's folder; refuses one that is elsewhere."""
        real = resolved(policy)
        if not real.is_relative_to(self.folder):
            raise PolicyError(f"{policy} is not in the folder of policies {self.folder}.")
        return str(real.relative_to(self.folder))

    def load(self, name: str) -> LivePolicy:
        """The policy in the folder of that name, warm."""
        live = LivePolicy(load(self._inside(name)), name=_text(name))
        live.warm()
        return live

    def names(self) -> list[str]:
        """The folders that hold a saved policy, at most two levels down."""
        found = [p.parent for depth in ("*", "*/*", "*/*/*") for p in self.folder.glob(f"{depth}/config.json")]
        names = sorted(str(p.relative_to(self.folder)) for p in found if self._stays_inside(p))
        return [name for name in names if name == _text(name)]  # another could not be asked for

    def find(self, digests: set[str]) -> list[LivePolicy]:
        """The policies with these digests, as far as they are there."""
        found: list[LivePolicy] = []
        wanted = set(digests)
        for name in self.names():
            if not wanted:
                break
            try:
                live = LivePolicy(load(self._inside(name)), name=_text(name))
            except PolicyError:
                continue
            if live.digest in wanted:
                wanted.remove(live.digest)
                found.append(live)
        return found

    def _inside(self, name: str) -> Path:
        if "\0" in name:
            raise PolicyError("a path has no null bytes.")
        try:
            path = (self.folder / name).resolve()
            if not path.is_relative_to(self.folder) or path == self.folder:
                raise PolicyError(f"{name[:60]!r} is not below the folder of policies.")
            if not path.is_dir():
                raise PolicyError(f"there is no saved policy {name[:60]!r} in the folder of policies.")
            if not self._stays_inside(path):
                raise PolicyError(
                    f"a file of {name[:60]!r} is a link that leads out of the folder of policies. Copy it."
                )
        except (OSError, RuntimeError, ValueError) as error:  # a name too long, a circle of links
            if isinstance(error, PolicyError):
                raise
            raise PolicyError(f"{name[:60]!r} is not a path.") from error
        return path

    def _stays_inside(self, path: Path) -> bool:
        """Whether a folder and all that is in it are in the folder of policies, wherever links lead."""
        return all(p.resolve().is_relative_to(self.folder) for p in (path, *path.rglob("*")))


def _text(path: object) -> str:
    """A path as text that every encoding of Unicode takes, whatever bytes it has."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")


class Busy(PolicyError):  # noqa: N818  # a state, not a failure
    """Another change is under way."""


@dataclass(frozen=True)
class Settings:
    """How a policy is served. `policies` is the folder that policies may be loaded from; by default the one that holds the
    first. `bucket` is a URL that segments are copied to."""

    policy: Path
    log: Path | None = None
    bucket: str | None = None
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
    log_features: bool = False

    @property
    def folder(self) -> PolicyFolder:
        """That policies may be loaded from."""
        return PolicyFolder(self.policies or resolved(self.policy).parent)


@dataclass(frozen=True)
class TrafficChange:
    """Something that happened to the traffic, for people to read."""

    time: float
    words: str


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
        self.previous: LivePolicy | None = None
        self._answered = {live.digest}
        self.bucket = None if settings.bucket is None else Bucket(settings.bucket)
        self.recorder = None if settings.log is None else self._recorder(settings.log)
        self.outcomes = Outcomes(window=settings.window, settle=settings.settle, heard=self._hear)
        self.server = Server(
            live,
            exploration=settings.exploration,
            recorder=self.recorder,
            theta=settings.theta,
            log_features=settings.log_features,
            clock=self.clock,
            outcomes=self.outcomes,
        )
        self.test: LiveTest | None = None
        self.last: LiveVerdict | None = None
        self.changes: list[TrafficChange] = []
        self._changing = threading.Lock()
        self._say(f"{live.name} ({live.digest}) answers everything")
        self._recover()

    def _recorder(self, folder: Path) -> Recorder:
        settings = self.settings
        return Recorder(
            folder,
            Propensities(settings.samples),
            replica=settings.replica,
            window=settings.window,
            sync_seconds=settings.sync_seconds,
            clock=self.clock,
            first=0 if self.bucket is None else self.bucket.next_number(settings.replica),
        )

    def _recover(self) -> None:
        """Knows the policies of journals that a process before left, as far as their folders are there."""
        if self.recorder is not None and (missing := self.recorder.sealer.missing()):
            for live in self.folder.find(missing):
                self.recorder.propensities.know(live)

    # --- who answers --------------------------------------------------------------------------------------------------

    @contextmanager
    def _one_change(self) -> Iterator[None]:
        if not self._changing.acquire(blocking=False):
            raise Busy("another change is under way. Ask again when it is done.")
        try:
            yield
        finally:
            self._changing.release()

    def load(self, folder: str) -> PolicyAnswer:
        """Loads a policy, checks that it fits, warms it; nothing changes for those who ask."""
        with self._one_change():
            live = self.folder.load(folder)
            self.server.check_fits(live)
            live = self.loaded.setdefault(live.digest, live)
            return self.described(live)

    def described(self, live: LivePolicy) -> PolicyAnswer:
        """A loaded policy."""
        return PolicyAnswer(
            policy=live.digest,
            folder=live.name,
            queries=len(live.query_at),
            items=len(live.items),
            K2=live.K2,
            K=live.K,
            live=any(arm.live is live for arm in self.server.traffic.arms),
        )

    def split(self, policy: str, share: float, mode: Mode = "split") -> TrafficAnswer:
        """Gives a loaded policy a share of the traffic, all of it, or half of every list."""
        with self._one_change():
            if policy not in self.loaded:
                raise PolicyError(f"there is no loaded policy {policy[:60]!r}. Load it first.")
            new, old = self.loaded[policy], self.server.traffic.first
            if share == 1 and mode == "split":
                return self._promote(new, "asked to")
            if new is old:
                raise PolicyError("the policy has all the traffic, or is the old one of the split. Name another.")
            now = self.server.traffic
            same = len(now.arms) == 2 and now.arms[1].live is new
            share = 0.5 if mode == "interleave" else share
            made = records.split(
                old, new, share, salt=now.salt if same and now.salt else secrets.token_hex(8), mode=mode
            )
            if self.test is None or not self.test.fits(made.mixture, mode):
                usual = self.outcomes.usual(old.digest)
                self.test = LiveTest(made.mixture, mode, old.K, level=self.settings.level, usual=usual)
            self._swap(made)
            part = f"{share:.0%} to" if mode == "split" else "every list has items of"
            self._say(f"{part} {new.name} ({policy})")
            return self.traffic()

    def rollback(self, why: str = "asked to", by: Literal["hand", "verdict"] = "hand") -> TrafficAnswer:
        """Back to the old policy of the split, or to the one before a promotion."""
        with self._one_change():
            now = self.server.traffic
            target = now.arms[0].live if len(now.arms) > 1 else self.previous
            if target is None:
                raise PolicyError("there is nothing to roll back: one policy answers, and none did before it.")
            self._finish()
            self.previous = None
            self._swap(records.single(target))
            self.rollbacks[by] += 1
            self._say(f"rolled back to {target.name} ({target.digest}): {why}")
            return self.traffic()

    def _promote(self, new: LivePolicy, why: str) -> TrafficAnswer:
        old = self.server.traffic.first
        self._finish()
        self.previous = old if new is not old else self.previous
        self._swap(records.single(new))
        self._say(f"{new.name} ({new.digest}) answers everything: {why}")
        return self.traffic()

    def _swap(self, new: Traffic) -> None:
        """Others answer; those that answered before are let go, but for the one that a rollback would need."""
        self.server.swap(new)
        self.counts["swaps"] += 1
        answering = {arm.live.digest for arm in new.arms}
        kept = answering | ({self.previous.digest} if self.previous is not None else set())
        for digest in self._answered - answering:
            if digest in self.loaded:
                self.loaded[digest].forget_scores()
        self.loaded = {d: live for d, live in self.loaded.items() if d in kept or d not in self._answered}
        self._answered = kept

    def _finish(self) -> None:
        """The test ends; its verdict stays for people to read."""
        if self.test is not None:
            self.last, self.test = self.test.verdict(), None

    def traffic(self) -> TrafficAnswer:
        """Who answers now."""
        now = self.server.traffic
        arms = [ArmAnswer(policy=a.live.digest, folder=a.live.name, share=a.share) for a in now.arms]
        return TrafficAnswer(mode=now.mode, arms=arms)

    def _say(self, words: str) -> None:
        self.changes = [*self.changes[-99:], TrafficChange(self.clock(), words)]

    # --- what became of it --------------------------------------------------------------------------------------------

    def _hear(self, shown: ShownList, ranks: tuple[int, ...]) -> None:
        if self.test is not None:
            self.test.hear(shown, ranks)

    def tick(self) -> None:
        """To be called often: settles outcomes, looks at the test, and rolls back where it says so."""
        if not self.outcomes.settle(self.clock()) or self.test is None:
            return
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
        return self.last if self.test is None else self.test.verdict()

    def write_segments(self) -> None:
        """Seals and copies, for a thread of its own; what fails is said, counted, and tried again the next time."""
        try:
            self.seal()
        except Exception as error:
            self.counts["seal_failures"] += 1
            expected = isinstance(error, TandemRankError | OSError)
            LOG.error("no segment was made: %s", error, exc_info=not expected)
        self.copy()

    def seal(self, *, everything: bool = False) -> list[Sealed]:
        """Makes segments of what is complete."""
        if self.recorder is None:
            return []
        if hasattr(os, "setpriority") and threading.current_thread() is not threading.main_thread():
            with suppress(OSError):  # answers go first: on Linux this is the priority of the thread alone
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            sealed = self.recorder.seal(everything=everything)
        except OutputError:
            self._recover()  # a policy may have come since
            sealed = self.recorder.seal(everything=everything)
        for one in sealed:
            self.counts.update(
                sealed_impressions=one.impressions,
                set_aside=one.set_aside,
                late_clicks=one.late,
                damaged_records=one.damaged,
            )
        self.recorder.sealer.forget({*self.loaded, *(arm.live.digest for arm in self.server.traffic.arms)})
        return sealed

    def copy(self) -> None:
        """Copies finished segments to the bucket, if there is one; what fails is said, counted, and tried again."""
        if self.bucket is None or self.recorder is None:
            return
        try:
            copied = self.bucket.copy(self.recorder.folder)
        except Exception as error:
            copied = Copied(0, (f"segments were not copied: {type(error).__name__}, {error}",))
        self.counts.update(copied_segments=copied.segments, copy_failures=len(copied.problems))
        for problem in copied.problems:
            LOG.error("%s", problem)

    @property
    def log_state(self) -> str:
        """ "ok", "none" where nothing is logged, or why the log takes no records."""
        return "none" if self.recorder is None else self.recorder.failing or "ok"

    def close(self) -> None:
        """Everything on disk."""
        if self.recorder is not None:
            self.recorder.close()

    def policies(self) -> list[PolicyAnswer]:
        """The loaded policies."""
        return [self.described(live) for live in self.loaded.values()]

    def tallies(self) -> dict[str, dict[str, object]]:
        """What each policy got so far."""
        return {digest: asdict(tally) for digest, tally in self.outcomes.tallies.items()}
