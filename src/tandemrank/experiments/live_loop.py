"""The live loop where the truth is known: a server answers, users click, the log trains a policy, the gate lets it go live.

A round is: simulated users (position-based) ask the server over HTTP on the loopback and click; the log that it wrote, with its
propensities, trains a policy; the gate decides on impressions that no training saw; a policy that may go live gets its share
of the traffic, and the server's verdict on live clicks decides whether it stays. What the figure shows is counted by the
users themselves.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.files import Kind, has_keys
from tandemrank._base.random import derive
from tandemrank.decisions import decision
from tandemrank.errors import JobError
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.world import World, build_world, load_task, start_policy
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving.client import Client, started
from tandemrank.training import learning
from tandemrank.training.config import LearningConfig
from tandemrank.training.start import Start

BATCH = 100  # users who ask at once
PATIENCE = 60.0  # seconds in which the log must grow: how fast it does is the machine's matter
HELD_BACK = 0.35  # of a round's log, its end, which training does not see and the gate decides on

LIVE_DEMO = Kind(
    "live demo", r"report\.html|summary\.json|(policies|log)/.*", lambda path: has_keys(path / "summary.json", "rounds")
)

Stage = Literal["log", "canary"]


@dataclass(frozen=True)
class Size:
    """How large the loop is: everything is bounded."""

    queries: int = 300
    items: int = 300
    candidates: int = 60
    rank: int = 20
    rounds: int = 5
    log: int = 6000  # impressions that a round's policy is learned from, about
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
class LiveGate:
    """What the gate says ("ship", "canary" or "do not"), why, and the share of the traffic that it allows."""

    call: str
    why: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Round:
    """One turn: what the gate said, what live traffic said, who stayed, and the clicks per impression before and after.

    `difference`, `low`, `high`: new minus old in clicks per impression by the server's verdict; None without a canary.
    """

    number: int
    call: str
    why: str
    clicks_before: float
    share: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    stayed: str = "old"
    clicks_new: float | None = None


@dataclass(frozen=True, kw_only=True)
class LiveResult:
    """All rounds, the clicks per impression over time, those of the first and of the last policy, and how long it took."""

    rounds: tuple[Round, ...]
    moments: tuple[Moment, ...]
    first: float
    last: float
    impressions: int
    seconds: float

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        return {name: value for name, value in asdict(self).items() if name != "moments"}


class Users:
    """Everybody who asks, over HTTP: a query at random, clicks by P(C = 1) = theta_k R, told at once."""

    def __init__(self, world: World, client: Client, seed: int) -> None:
        self.world, self.client, self.rng = world, client, np.random.default_rng(seed)
        self.queries = world.task.vocabulary.query_ids.to_list()
        self.place = {item: d for d, item in enumerate(world.task.vocabulary.item_ids.to_list())}
        self.count = 0

    def visit(self, n: int) -> tuple[NDArray[np.int64], list[str]]:
        """n impressions: their clicks, and the policy that answered each.  Shapes: -> [n]."""
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
    *,
    size: Size | None = None,
    seed: int = 0,
    exploration: str = "belief",
    say: Callable[[str], None] = lambda words: None,
) -> LiveResult:
    """The live loop in a new folder: `folder/policies` and `folder/log`; `exploration` as `serve` has it."""
    size, begin = size or Size(), time.monotonic()
    config = ExperimentConfig(queries=size.queries, items=size.items, rank=size.rank)
    world = build_world(load_task(config), config, seed)
    first = start_policy(world, config, size.candidates)
    first.save(folder / "policies" / "round-0")
    token = f"{derive(seed, 'token'):032x}"
    log, quick = ["--log", str(folder / "log")], ["--window", "1", "--settle", "0.2", "--seal-seconds", "0.5"]
    options = [*log, *quick, "--exploration", exploration]
    with started(str(folder / "policies" / "round-0"), *options, token=token) as (url, _):
        say(f"the server answers at {url}")
        client = Client(url, token=token)
        loop = _Rounds(folder, Users(world, client, derive(seed, "users") % 2**32), first, size, seed, say)
        rounds = tuple(loop.turn(number) for number in range(1, size.rounds + 1))
        last, _ = loop.stage(size.rounds + 1, "log", size.log // 4)
        client.close()
    return LiveResult(
        rounds=rounds,
        moments=tuple(loop.moments),
        first=float(np.mean([m.clicks_per_impression for m in loop.moments if m.round == 1 and m.stage == "log"])),
        last=last,
        impressions=loop.users.count,
        seconds=time.monotonic() - begin,
    )


def learn_live(log: pl.DataFrame, live: TwoStagePolicy, seed: int) -> TwoStagePolicy:
    """The beliefs of the log alone, with what the live policy knows as their prior."""
    config = LearningConfig(candidates=live.K2, list_length=live.K)
    return learning.learn(log, config, start=Start(live), seed=seed).policy


def decide_live(new: TwoStagePolicy, live: TwoStagePolicy, log: pl.DataFrame, seed: int) -> LiveGate:
    """The gate, on impressions that no training saw."""
    found = decision.decide({"new": new}, log, against=live, seed=seed)
    [one] = found.candidates
    return LiveGate(str(found.call), one.reasons[0], 0.5 if one.canary is None else one.canary.share)


class _Rounds:
    """The rounds; `live` is the policy that answers now."""

    def __init__(
        self, folder: Path, users: Users, live: TwoStagePolicy, size: Size, seed: int, say: Callable[[str], None]
    ) -> None:
        self.folder, self.users, self.client = folder, users, users.client
        self.live, self.size, self.seed, self.say = live, size, seed, say
        self.moments: list[Moment] = []
        self.known = 0

    def turn(self, number: int) -> Round:
        """One round."""
        before, _ = self.stage(number, "log", self.size.log)
        train, held_back = self._log()
        self.say(f"round {number}: {before:.3f} clicks per impression; {train.height} impressions train a policy")
        new = learn_live(train, self.live, self.seed + number)
        gate = decide_live(new, self.live, held_back, self.seed + number)
        self.say(f"round {number}: the gate says {gate.call}: {gate.why}")
        found = Round(number=number, call=gate.call, why=gate.why, clicks_before=before)
        return found if gate.call == "do not" else self._canary(found, new, gate.share)

    def _canary(self, before: Round, policy: TwoStagePolicy, share: float) -> Round:
        """The round with what live traffic says of the new policy."""
        number, name = before.number, f"round-{before.number}"
        policy.save(self.folder / "policies" / name)
        new = self.client.call("POST", "/policies", {"folder": name})["policy"]
        self.client.call("POST", "/split", {"policy": new, "share": share})
        clicks, verdict = self.stage(number, "canary", self.size.canary, new)
        status = self.client.call("GET", "/status")
        found = status["verdict"]
        stays = verdict == "promote"
        if stays:
            self.client.call("POST", "/split", {"policy": new, "share": 1})
            self.live = policy
        elif len(status["traffic"]["arms"]) > 1:
            self.client.call("POST", "/rollback")
        gap = found["difference"]
        by = "too little traffic to compare" if gap is None else f"{gap:+.3f} clicks per impression"
        self.say(f"round {number}: live traffic says {verdict}: {by}")
        return replace(
            before,
            share=share,
            difference=gap,
            low=found["low"],
            high=found["high"],
            verdict=verdict,
            stayed="new" if stays else "old",
            clicks_new=clicks,
        )

    def stage(self, number: int, stage: Stage, n: int, new: str = "") -> tuple[float, str]:
        """Users come until there are n impressions, or the verdict is there; mean clicks (of the new policy, if any)."""
        total, shown, decision = [0, 0], 0, "continue"
        while n > 0 and decision == "continue":
            part = [self.users.visit(min(BATCH, n - done)) for done in range(0, min(n, 10 * BATCH), BATCH)]
            clicks = np.concatenate([found for found, _ in part])
            is_new = np.array([policy == new for _, policies in part for policy in policies])
            counted = is_new if new else np.ones(len(clicks), bool)
            total = [total[0] + int(clicks[counted].sum()), total[1] + int(counted.sum())]
            of_new = float(clicks[is_new].mean()) if is_new.any() else None
            self.moments.append(Moment(number, stage, self.users.count, float(clicks.mean()), of_new))
            shown += len(clicks)
            n -= len(clicks)
            if new:
                decision = self._verdict(shown if n <= 0 else 0)
        return total[0] / max(total[1], 1), decision

    def _verdict(self, shown: int) -> str:
        """What live traffic says, once so many impressions of the test are settled; how soon is the machine's matter."""
        end = time.monotonic() + PATIENCE
        while True:
            found = self.client.call("GET", "/status")["verdict"]
            settled = found["impressions_new"] + found["impressions_old"]
            if found["decision"] != "continue" or settled >= shown or time.monotonic() > end:
                return str(found["decision"])
            time.sleep(0.05)

    def _log(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The log when all of it is in segments: for training, and the end of what is new, for the gate alone."""
        height, end = 0, time.monotonic() + PATIENCE
        while (log := _read(self.folder / "log")).height < self.users.count:
            if log.height > height:
                height, end = log.height, time.monotonic() + PATIENCE
            if time.monotonic() > end:
                raise JobError(
                    f"the log has {height} of {self.users.count} impressions, and got none in {PATIENCE:g} s."
                )
            time.sleep(0.1)
        held = int(HELD_BACK * (log.height - self.known))
        self.known = log.height  # what a gate has looked at may train the next policy, not the other way round
        return log.head(log.height - held), log.tail(held)


def _read(folder: Path) -> pl.DataFrame:
    """The segments so far, in the order of time."""
    files = sorted(folder.glob("segment-*.parquet"))
    found = [pl.read_parquet(f) for f in files] or [pl.DataFrame({"timestamp": []})]
    return pl.concat(found).sort("timestamp")
