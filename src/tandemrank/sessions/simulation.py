"""Sessions of the world with a policy: logs of production, and what a policy is truly worth, by simulation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.config import switch_values
from tandemrank._base.files import Kind, claimed, replacing, write_json
from tandemrank._base.ids import plain_ids, positions_of
from tandemrank.errors import ConfigError
from tandemrank.logs.sessions import MOST_SINCE
from tandemrank.logs.writing import CLICK_LOG, write_part
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions.world import SessionWorld, SessionWorldConfig

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
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
