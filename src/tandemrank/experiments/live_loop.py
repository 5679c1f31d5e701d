"""The circle where the truth is known: a server answers, users click, the log trains a pair, the gate lets it go live.

A round is: simulated users (position-based) ask the server over HTTP on the loopback and click; the log that it wrote, with its
propensities, trains a pair; the gate decides on impressions that no training saw; a pair that may go live gets its share
of the traffic, and the server's verdict on live clicks decides whether it stays. What the figure shows is counted by the
users themselves.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.files import Kind, has_keys
from tandemrank._base.random import derive
from tandemrank.errors import JobError
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.world import World, build_world, load_task, start_policy
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving.client import Client, started

BATCH = 100  # users who ask at once
PATIENCE = 60.0  # seconds in which the log must grow: how fast it does is the machine's matter
HELD_BACK = 0.35  # of a round's log, its end, which training does not see and the gate decides on

CIRCLE = Kind(
    "live demo", r"report\.html|summary\.json|(pairs|log)/.*", lambda path: has_keys(path / "summary.json", "rounds")
)

Stage = Literal["log", "canary"]
Learn = Callable[[pl.DataFrame, TwoStagePolicy, int], TwoStagePolicy]


class GateAnswer(Protocol):
    """What the gate says: `call` is "ship", "canary" or "do not"."""

    @property
    def call(self) -> str:
        """What to do."""

    @property
    def why(self) -> str:
        """The reason."""

    @property
    def share(self) -> float:
        """Of the traffic, for the new pair."""


Decide = Callable[[TwoStagePolicy, TwoStagePolicy, pl.DataFrame, int], GateAnswer]


@dataclass(frozen=True)
class Size:
    """How large the circle is: everything is bounded."""

    queries: int = 300
    items: int = 300
    candidates: int = 60
    rank: int = 20
    rounds: int = 3
    log: int = 6000  # impressions that a round's pair is learned from, about
    canary: int = 4000  # impressions of a canary at most


@dataclass(frozen=True)
class Moment:
    """What users did in a part of a stage, up to an impression of all."""

    round: int
    stage: Stage
    impressions: int
    clicks_per_impression: float
    new: float | None


@dataclass(frozen=True)
class Round:
    """One turn: what the gate said, what live traffic said, who stayed, and the clicks per impression before and after.

    `difference`, `low`, `high`: new minus old in clicks per impression by the server's verdict; None without a canary.
    """

    number: int
    call: str
    why: str
    share: float | None
    difference: float | None
    low: float | None
    high: float | None
    verdict: str
    stayed: str
    clicks_before: float
    clicks_new: float | None


@dataclass(frozen=True)
class Circle:
    """All rounds, the clicks per impression over time, and how long it took; `truth` of the first and the last pair."""

    rounds: tuple[Round, ...]
    moments: tuple[Moment, ...]
    first: float
    last: float
    impressions: int
    seconds: float

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        return {
            "rounds": [asdict(one) for one in self.rounds], "first": self.first, "last": self.last,
            "impressions": self.impressions, "seconds": self.seconds,
        }  # fmt: skip


class Users:
    """Everybody who asks, over HTTP: a query at random, clicks by P(C = 1) = theta_k R, told at once."""

    def __init__(self, world: World, client: Client, seed: int) -> None:
        self.world, self.client, self.rng = world, client, np.random.default_rng(seed)
        self.queries = world.task.vocabulary.query_ids.to_list()
        self.place = {item: d for d, item in enumerate(world.task.vocabulary.item_ids.to_list())}
        self.count = 0

    def visit(self, n: int) -> tuple[NDArray[np.int64], list[str]]:
        """n impressions: their clicks, and the pair that answered each.  Shapes: -> [n]."""
        q = self.rng.choice(self.world.q, n)
        answers = self.client.rank_all([{"query_id": self.queries[x]} for x in q])
        shown = [[self.place[item] for item in answer["items"]] for answer in answers]
        row = np.repeat(np.arange(n), [len(items) for items in shown])
        rank = np.concatenate([np.arange(len(items)) for items in shown])
        R = np.asarray(self.world.task.relevance[q[row], np.concatenate(shown)]).ravel()
        model = self.world.click_model
        clicked = self.rng.random(len(row)) < model.alpha[rank] * R + model.beta[rank]
        for number in np.unique(row[clicked]):
            items = [answers[number]["items"][k] for k in rank[clicked & (row == number)]]
            self.client.click(answers[number]["impression_id"], *items)
        self.count += n
        return np.bincount(row[clicked], minlength=n), [answer["policy"] for answer in answers]


def run(
    folder: Path,
    learn: Learn,
    decide: Decide,
    *,
    size: Size | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda words: None,
) -> Circle:
    """The circle in a new folder: `folder/pairs` and `folder/log`."""
    size, begin = size or Size(), time.monotonic()
    config = ExperimentConfig(queries=size.queries, items=size.items, rank=size.rank)
    world = build_world(load_task(config), config, seed)
    first = start_policy(world, config, size.candidates)
    first.save(folder / "pairs" / "round-0")
    token = f"{derive(seed, 'token'):032x}"
    options = (
        "--log", str(folder / "log"), "--window", "1", "--settle", "0.2", "--seal-seconds", "0.5",
    )  # fmt: skip
    with started(str(folder / "pairs" / "round-0"), *options, token=token) as (url, _):
        say(f"the server answers at {url}")
        client = Client(url, token=token)
        circle = _Rounds(folder, world, client, learn, decide, size, seed, say)
        rounds = [circle.turn(number, first if number == 1 else None) for number in range(1, size.rounds + 1)]
        log = [m for m in circle.moments if m.stage == "log"]
        last, _ = circle.stage(size.rounds + 1, "log", size.log // 4)
        client.close()
    clicks = float(np.mean([m.clicks_per_impression for m in log if m.round == 1]))
    return Circle(tuple(rounds), tuple(circle.moments), clicks, last, circle.users.count, time.monotonic() - begin)


class _Rounds:
    def __init__(
        self, folder: Path, world: World, client: Client, learn: Learn, decide: Decide, size: Size, seed: int,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.client, self.learn, self.decide, self.size = folder, client, learn, decide, size
        self.seed, self.say = seed, say
        self.users = Users(world, client, derive(seed, "users") % 2**32)
        self.moments: list[Moment] = []
        self.live: TwoStagePolicy | None = None
        self.known = 0

    def turn(self, number: int, first: TwoStagePolicy | None) -> Round:
        """One round."""
        live = self.live = first or self.live
        assert live is not None
        before, _ = self.stage(number, "log", self.size.log)
        train, held_back = self._log()
        self.say(f"round {number}: {before:.3f} clicks per impression; {train.height} impressions train a pair")
        pair = self.learn(train, live, self.seed + number)
        gate = self.decide(pair, live, held_back, self.seed + number)
        self.say(f"round {number}: the gate says {gate.call}: {gate.why}")
        if gate.call == "do not":
            return Round(number, gate.call, gate.why, None, None, None, None, "", "old", before, None)
        return self._canary(number, pair, gate, before)

    def _canary(self, number: int, pair: TwoStagePolicy, gate: GateAnswer, before: float) -> Round:
        name = f"round-{number}"
        pair.save(self.folder / "pairs" / name)
        new = self.client.call("POST", "/policies", {"folder": name})["policy"]
        self.client.call("POST", "/split", {"policy": new, "share": gate.share})
        got, verdict = self.stage(number, "canary", self.size.canary, new)
        status = self.client.call("GET", "/status")
        found = status["verdict"]
        stays = verdict == "promote"
        if stays:
            self.client.call("POST", "/split", {"policy": new, "share": 1})
            self.live = pair
        elif len(status["traffic"]["arms"]) > 1:
            self.client.call("POST", "/rollback")
        self.say(f"round {number}: live traffic says {verdict}: {found['difference']:+.3f} clicks per impression")
        return Round(
            number, gate.call, gate.why, gate.share, found["difference"], found["low"], found["high"], verdict,
            "new" if stays else "old", before, got,
        )  # fmt: skip

    def stage(self, number: int, stage: Stage, n: int, new: str = "") -> tuple[float, str]:
        """Users come until there are n impressions, or the verdict is there; mean clicks (of the new pair, if there is one)."""
        total, decision = [0, 0], "continue"
        while n > 0 and decision == "continue":
            part = [self.users.visit(min(BATCH, n - done)) for done in range(0, min(n, 10 * BATCH), BATCH)]
            clicks = np.concatenate([found for found, _ in part])
            is_new = np.array([policy == new for _, policies in part for policy in policies])
            counted = is_new if new else np.ones(len(clicks), bool)
            total = [total[0] + int(clicks[counted].sum()), total[1] + int(counted.sum())]
            of_new = float(clicks[is_new].mean()) if is_new.any() else None
            self.moments.append(Moment(number, stage, self.users.count, float(clicks.mean()), of_new))
            n -= len(clicks)
            if new:
                decision = self.client.call("GET", "/status")["verdict"]["decision"]
        return total[0] / max(total[1], 1), decision

    def _log(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The log when all of it is in segments: for training, and the end of what is new, for the gate alone."""
        height, end = 0, time.monotonic() + PATIENCE
        while (log := _read(self.folder / "log")).height < self.users.count:
            if log.height > height:
                height, end = log.height, time.monotonic() + PATIENCE
            if time.monotonic() > end:
                raise JobError(
                    f"the log has {height} of {self.users.count} impressions, and none came in {PATIENCE:g} s."
                )
            time.sleep(0.1)
        held = int(HELD_BACK * (log.height - self.known))
        self.known = log.height  # what a gate has looked at may train the next pair, not the other way round
        return log.head(log.height - held), log.tail(held)


def _read(folder: Path) -> pl.DataFrame:
    """The segments so far, in the order of time."""
    files = sorted(folder.glob("segment-*.parquet"))
    found = [pl.read_parquet(f) for f in files] or [pl.DataFrame({"timestamp": []})]
    return pl.concat(found).sort("timestamp")
