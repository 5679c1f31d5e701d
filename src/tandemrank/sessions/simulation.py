"""A world of sessions in plain NumPy, in which the truth is known: boredom, influence, leaving; logs of it, and the truth.

A user belongs to a query (a segment of users) and is in a state (query, topic of the last click, how tired of it):

    R(x, d) = most quality_d ((1 - pull_z) taste[q, topic_d] + pull_z [topic_d = z]) (1 - boredom [topic_d = z])^tired

`influence`: a click on an item of every other topic pulls the taste there. `boredom`: each click in a row on one topic makes
its items pay less, and a step without a click makes up for one. `leaving`: after a step without a click a user may leave.
Clicks are position-based, at most one in a step; with `several_clicks` every item is clicked by itself, and the one furthest
down moves the state. Switched off, each effect is gone; without all three every step is the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandemrank._base import random
from tandemrank._base.config import switch_values
from tandemrank._base.files import Kind, claimed, replacing, write_json
from tandemrank._base.ids import Vocabulary, plain_ids, positions_of
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import ConfigError
from tandemrank.logs.sessions import MOST_SINCE
from tandemrank.logs.writing import CLICK_LOG, write_part
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
MOST_TIRED = 3


class SessionWorldConfig(BaseModel):
    """The switches of the world."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    queries: int = Field(default=4, ge=1, le=10_000, description="segments of users")
    items: int = Field(default=200, ge=2, le=100_000, description="items")
    topics: int = Field(default=8, ge=1, le=1000, description="topics of items")
    list_length: int = Field(default=5, ge=1, le=100, description="places of a list, K")
    candidates: int = Field(default=20, ge=1, description="candidates of production's generator, K2")
    steps: int = Field(default=10, ge=1, le=1000, description="steps of a session at most")
    boredom: float = Field(default=0.8, ge=0, le=1, description="what a click takes from its topic")
    influence: float = Field(default=0.8, ge=0, le=1, description="how far a click pulls the taste to its topic")
    leaving: float = Field(default=0.3, ge=0, le=1, description="chance to leave after a step without a click")
    several_clicks: bool = Field(default=False, description="whether a step may have several clicks")
    sharpness: float = Field(default=3.0, ge=0, le=100, description="how well production's scores tell relevance")

    @model_validator(mode="after")
    def _fits(self) -> "SessionWorldConfig":
        if not self.list_length <= self.candidates <= self.items or self.topics > self.items:
            raise ValueError("expected list_length <= candidates <= items, and at most as many topics as items")
        return self


@dataclass(frozen=True)
class SessionWorld:
    """The world of a seed. States are numbered query by query: nothing clicked yet, then (topic, tired).

    Shapes: topic, quality [D]; taste [queries, topics].
    """

    config: SessionWorldConfig
    topic: Whole
    quality: Floats
    taste: Floats

    @staticmethod
    def of(config: SessionWorldConfig, seed: int = 0) -> "SessionWorld":
        rng = np.random.default_rng(seed)
        topic = np.arange(config.items) % config.topics
        quality = rng.beta(4, 2, config.items)
        taste = rng.dirichlet(np.full(config.topics, 5.0), config.queries)
        return SessionWorld(config, topic, quality, taste / taste.max(1, keepdims=True))

    @cached_property
    def theta(self) -> Floats:
        """The examination curve.  Shapes: -> [K]."""
        return examination_curve(self.config.list_length)

    @property
    def each(self) -> int:
        """States of a query."""
        return 1 + self.config.topics * MOST_TIRED

    @cached_property
    def state_ids(self) -> pl.Series:
        """As logs have them: query|topic|tired."""
        inner = ["|", *(f"{z}|{k}" for z in range(self.config.topics) for k in range(1, MOST_TIRED + 1))]
        return pl.Series("state", [f"{q}|{one}" for q in range(self.config.queries) for one in inner])

    @cached_property
    def item_ids(self) -> pl.Series:
        """Whole numbers."""
        return pl.Series("item_id", np.arange(self.config.items))

    def parts_of(self, state: Whole) -> tuple[Whole, Whole, Whole]:
        """Query, topic of the last click (-1: none) and how tired.  Shapes: [n] -> [n] each."""
        query, inner = state // self.each, state % self.each - 1
        return query, np.where(inner < 0, -1, inner // MOST_TIRED), np.where(inner < 0, 0, inner % MOST_TIRED + 1)

    def relevance(self, state: Whole, item: Whole) -> Floats:
        """R of items in states, whose shapes go together."""
        c = self.config
        query, last, tired = self.parts_of(state)
        z = self.topic[item]
        pull = np.where((last >= 0) & (last % 2 == 1), c.influence, 0.0)
        same = z == last
        most = 1.0 if c.several_clicks else 0.95 / self.theta.sum()
        taste = (1 - pull) * self.taste[query, z] + pull * same
        found: Floats = most * self.quality[item] * taste * np.where(same, (1 - c.boredom) ** tired, 1.0)
        return found

    def after(self, state: Whole, item: Whole) -> Whole:
        """The next state, after a click on an item or on none (-1).  Shapes: [n], [n] -> [n]."""
        if not self.config.boredom and not self.config.influence:
            return state
        query, last, tired = self.parts_of(state)
        z = np.where(item >= 0, self.topic[item], last)
        tired = np.where(item < 0, tired - 1, np.where(z == last, np.minimum(tired + 1, MOST_TIRED), 1))
        return query * self.each + np.where(tired <= 0, 0, 1 + z * MOST_TIRED + tired - 1)

    def production(self, seed: int = 0) -> TwoStagePolicy:
        """Two stages that know the query and not the state, each with an error of its own."""
        c, rng = self.config, np.random.default_rng([seed, 1])
        start = np.arange(c.queries) * self.each
        R = self.relevance(start[:, None], np.arange(c.items)[None, :])
        known = c.sharpness * (R / R.max(1, keepdims=True) - 0.5)
        stages = [GivenScores(known + rng.normal(0, 0.5, R.shape)) for _ in range(2)]
        ids = Vocabulary(pl.Series("query_id", np.arange(c.queries)), self.item_ids)
        return TwoStagePolicy(stages[0], stages[1], c.candidates, c.list_length, ids)


# --- sessions with a policy -------------------------------------------------------------------------------------------

SAMPLES = 2000  # of the race, for the propensities of a query
PART = 20_000  # sessions at once
SIMULATION = Kind("simulation of sessions")


@dataclass(frozen=True)
class Steps:
    """Steps of sessions as they come: one step of each that is still there.

    Shapes: session, state, last, since [n]; items, clicks [n, K]; `last` the item clicked last, -1 for none.
    """

    step: int
    session: Whole
    state: Whole
    last: Whole
    since: Whole
    items: NDArray[np.int32]
    clicks: NDArray[np.uint8]


class Asking:
    """A policy as the world asks it: by the world's own state, by the query, or by the last click and the steps since, of all
    queries or of each: whatever the policy's queries are."""

    def __init__(self, policy: TwoStagePolicy, world: SessionWorld) -> None:
        c, ids = world.config, plain_ids(policy.vocabulary.query_ids)
        last = [f"{d}|{s}" for d in [*range(c.items), ""] for s in range(1, MOST_SINCE + 1)]
        every = {
            "state": world.state_ids,
            "query": pl.Series(np.arange(c.queries)),
            "last click": pl.Series(last),
            "query and last click": pl.Series([f"{q}|{one}" for q in range(c.queries) for one in last]),
        }
        known = {by: int(ids.is_in(some.implode()).sum()) for by, some in every.items() if some.dtype == ids.dtype}
        self.by = max(known, key=lambda by: known[by])
        if not known[self.by]:
            raise ConfigError(f"the policy knows no state and no query of this world (its first: {ids[0]!r}).")
        if not plain_ids(policy.vocabulary.item_ids).is_in(world.item_ids.implode()).all():
            raise ConfigError("the policy has items that this world does not have. Give the world it was learned in.")
        asked = every[self.by]
        unknown = asked.filter(~asked.is_in(ids.implode()))
        self.policy = policy.with_queries(unknown) if len(unknown) else policy
        self.position = positions_of(self.policy.vocabulary.query_ids, asked, "query")
        self.item, self.world = policy.vocabulary.item_ids.to_numpy(), world

    def lists(self, state: Whole, last: Whole, since: Whole, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """A list for each.  Shapes: [n] each -> [n, K]."""
        items, query = self.world.config.items, state // self.world.each
        click = np.where(last < 0, items, last) * MOST_SINCE + since - 1
        code = {
            "state": state,
            "query": query,
            "last click": click,
            "query and last click": query * (items + 1) * MOST_SINCE + click,
        }[self.by]
        found = self.policy.sample(self.position[code], keys)
        return np.where(found >= 0, self.item[found], -1).astype(np.int32)


def play(policy: TwoStagePolicy, world: SessionWorld, sessions: int, *, seed: int = 0) -> Iterator[Steps]:
    """Sessions with a policy, step by step, part by part; whatever is random depends on the session and the step alone."""
    asking, c = Asking(policy, world), world.config
    for first in range(0, sessions, PART):
        session = np.arange(first, min(first + PART, sessions))
        chance = random.uniforms(random.random_keys(seed, random.Stream.USERS, session))
        state = (chance * c.queries).astype(np.int64) * world.each
        last, since = np.full(len(session), -1), np.ones(len(session), np.int64)
        for t in range(c.steps):
            shown, read = (
                random.random_keys(seed, stream, session * c.steps + t)
                for stream in (random.Stream.LISTS, random.Stream.CLICKS)
            )
            items = asking.lists(state, last, since, shown)
            clicks, moved, stays = clicked(world, state, items, read)
            yield Steps(step=t, session=session, state=state, last=last, since=since, items=items, clicks=clicks)
            since = np.where(moved >= 0, 1, np.minimum(since + 1, MOST_SINCE))
            last = np.where(moved >= 0, moved, last)
            state = world.after(state, moved)
            session, state, last, since = session[stays], state[stays], last[stays], since[stays]


def clicked(
    world: SessionWorld, state: Whole, items: NDArray[np.int32], keys: NDArray[np.uint64]
) -> tuple[NDArray[np.uint8], Whole, NDArray[np.bool_]]:
    """Clicks, the item that moves the state (-1: none), and who stays.  Shapes: -> [n, K], [n], [n]."""
    K = items.shape[1]
    R = np.where(items >= 0, world.relevance(state[:, None], np.maximum(items, 0)), 0.0)
    p = R * world.theta[:K]
    further = (keys[:, None] + random.GOLDEN * np.arange(1, K + 2, dtype=np.uint64)).astype(np.uint64)
    u = random.uniforms(random.mix(further))
    if world.config.several_clicks:
        clicks = u[:, :K] < p
    else:
        upto = np.cumsum(p, 1)
        clicks = (u[:, :1] < upto) & (u[:, :1] >= upto - p)
    furthest = K - 1 - np.argmax(clicks[:, ::-1], axis=1)
    moved = np.where(clicks.any(1), items[np.arange(len(items)), furthest], -1).astype(np.int64)
    stays = (moved >= 0) | (u[:, K] >= world.config.leaving)
    return clicks.astype(np.uint8), moved, stays


def clicks_of(
    policy: TwoStagePolicy, world: SessionWorld, sessions: int, *, discount: float = 1.0, seed: int = 0
) -> Floats:
    """The truth, by simulation: the clicks of every session, a step later counting `discount` times.  Shapes: -> [sessions]."""
    total = np.zeros(sessions)
    for part in play(policy, world, sessions, seed=seed):
        total[part.session] += discount**part.step * part.clicks.sum(1)
    return total


@dataclass(frozen=True, kw_only=True)
class SessionTruth:
    """What a policy is truly worth: clicks per session with their standard error, and less those of the first policy."""

    policy: str
    clicks: float
    standard_error: float
    difference: float
    difference_error: float


def evaluate(
    policies: Mapping[str, TwoStagePolicy], world: SessionWorld, sessions: int, *, seed: int = 0
) -> tuple[SessionTruth, ...]:
    """Policies by name, on the same users with the same random numbers."""
    found = {name: clicks_of(one, world, sessions, seed=seed) for name, one in policies.items()}
    first = next(iter(found.values()))
    return tuple(
        SessionTruth(
            policy=name,
            clicks=float(clicks.mean()),
            standard_error=_error(clicks),
            difference=float((clicks - first).mean()),
            difference_error=_error(clicks - first),
        )
        for name, clicks in found.items()
    )


def _error(x: Floats) -> float:
    return float(x.std() / np.sqrt(len(x)))


# --- logs -------------------------------------------------------------------------------------------------------------


def log_frame(parts: Sequence[Steps], world: SessionWorld, rho_0: Floats | None = None) -> pl.DataFrame:
    """Steps as rows of a log.  Shapes: rho_0 [queries, items]."""
    query = np.concatenate([part.state for part in parts]) // world.each
    items = np.concatenate([part.items for part in parts])
    lists = {"items": items.astype(np.int64), "clicks": np.concatenate([part.clicks for part in parts])}
    if rho_0 is not None:
        lists["propensities"] = rho_0[query[:, None], items]
    return pl.DataFrame(
        {
            "session_id": np.concatenate([part.session for part in parts]),
            "step": np.concatenate([np.full(len(part.session), part.step + 1) for part in parts]),
            "query_id": query,
            "state": world.state_ids.gather(np.concatenate([part.state for part in parts])),
            **{name: pl.Series(values).arr.to_list() for name, values in lists.items()},
        }
    )


def propensities(policy: TwoStagePolicy, world: SessionWorld, *, seed: int = 0) -> Floats:
    """Of a policy that is asked by the query.  Shapes: -> [queries, items]."""
    Q, D = world.config.queries, world.config.items
    q, d = np.divmod(np.arange(Q * D), D)
    return policy.exposure(q, d, world.theta, samples=SAMPLES, seed=seed)[0].reshape(Q, D)


@dataclass(frozen=True)
class SimulatedSessions:
    """A log that was drawn, and where it is."""

    sessions: int
    steps: int
    clicks_per_session: float
    log: str
    production: str


def write_log(
    config: SessionWorldConfig,
    out: str | Path,
    sessions: int,
    *,
    seed: int = 0,
    logged: bool = False,
    progress: Callable[[int], None] | None = None,
) -> SimulatedSessions:
    """Draws sessions of production: writes `out/log`, with propensities where they are `logged`, and `out/production`."""
    out, world = Path(out), SessionWorld.of(config, seed)
    production = world.production(seed)
    rho_0 = propensities(production, world, seed=seed) if logged else None
    steps = clicks = 0
    if (out / "log").exists():
        raise ConfigError(f"{out / 'log'} exists. Give another --out, or delete it first.")
    with claimed(out, SIMULATION, inputs=[]):
        with replacing(out / "log", CLICK_LOG) as folder:
            folder.mkdir()
            for number, parts in enumerate(_by_part(production, world, sessions, seed)):
                write_part(log_frame(parts, world, rho_0), folder, number)
                steps += sum(len(part.session) for part in parts)
                clicks += sum(int(part.clicks.sum()) for part in parts)
                if progress:
                    progress(min((number + 1) * PART, sessions))
        production.save(out / "production")
        write_json(out / "config.json", {"seed": seed, **switch_values(config)})
    return SimulatedSessions(sessions, steps, clicks / sessions, str(out / "log"), str(out / "production"))


def _by_part(policy: TwoStagePolicy, world: SessionWorld, sessions: int, seed: int) -> Iterator[list[Steps]]:
    """All steps of the same sessions together."""
    parts: list[Steps] = []
    for one in play(policy, world, sessions, seed=seed):
        if parts and one.step == 0:
            yield parts
            parts = []
        parts.append(one)
    yield parts
