"""The engine that answers queries with live policies, without any network: rank, remember what was clicked, explain.

    server = Server(policy, recorder=Recorder("log", Propensities()))
    ranked = server.rank(17)
    server.feedback(ranked.impression_id, [Event("item-3", "click")])

A query that the policy does not know gets the answer for its features, or for the average query, and the answer says so.
An explained query has the generator's candidates, the re-ranker's order, and the exposure, by each live policy.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch

from tandemrank._base.frames import Value, text_of
from tandemrank._base.ids import Id
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import ConfigError, InputError, OutputError, PolicyError
from tandemrank.logs.contexts import check_columns
from tandemrank.policies.features import FeatureValues
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import drawing, records
from tandemrank.serving.drawing import Exploration
from tandemrank.serving.live_policy import LivePolicy, Source, as_kind, logged_id
from tandemrank.serving.live_sessions import LiveSessions, SessionState
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.records import (
    Event,
    FeedbackAnswer,
    Impression,
    Ranked,
    ShownList,
    StoredEvent,
    Traffic,
    steady_clock,
)
from tandemrank.serving.verdict import Outcomes


class Server:
    """Answers queries with the policies that are live, draws lists by a strategy, and has impressions and events recorded.

    Without a recorder nothing is remembered. With a seed the lists are the same in every run; without one they are not.
    Safe to call from several threads: `traffic` is one value, and a request sees one from its start to its end.
    """

    def __init__(
        self,
        policy: TwoStagePolicy | LivePolicy,
        *,
        exploration: Exploration | None = None,
        recorder: Recorder | None = None,
        seed: int | None = None,
        theta: str | Sequence[float] = "reciprocal",
        clock: Callable[[], float] | None = None,
        outcomes: Outcomes | None = None,
    ) -> None:
        live = policy if isinstance(policy, LivePolicy) else LivePolicy(policy)
        self._exploration = exploration or Exploration()
        self.recorder = recorder
        self._random = None if seed is None else Random(int(seed))
        self.theta = tuple(float(x) for x in examination_curve(live.K, theta))
        self.clock = clock or (steady_clock() if recorder is None else recorder.clock)
        self.outcomes = outcomes
        self.unlogged = 0
        self._lock = threading.Lock()
        self._traffic = self._exploring(records.single(live))
        self.sessions = LiveSessions()
        if recorder is not None:
            recorder.propensities.know(live)
            self.sessions.recover(*recorder.recent())

    @property
    def traffic(self) -> Traffic:
        """Who answers now."""
        return self._traffic

    @property
    def exploration(self) -> Exploration:
        """How lists are drawn now."""
        return drawing.parse(self._traffic.strategy)

    def _exploring(self, new: Traffic) -> Traffic:
        """The strategy of new traffic: that of the server, by as many standard deviations as either belief can afford."""
        how = self._exploration
        if how == Exploration("belief", drawing.AFFORDABLE):
            c = min(arm.live.affordable(self.theta) for arm in new.arms)
            how = Exploration("trained") if c == np.inf else Exploration("belief", c)
        if how.raised:
            for arm in new.arms:
                arm.live.raised(how.raised).warm()
        return replace(new, strategy=how.name)

    def swap(self, new: Traffic) -> None:
        """Others answer from now on; requests under way end with those they began with."""
        for arm in new.arms:
            self.check_fits(arm.live)
            if self.recorder is not None:
                self.recorder.propensities.know(arm.live)
        self._traffic = self._exploring(new)

    def check_fits(self, live: LivePolicy) -> None:
        """Refuses a policy that does not answer the same questions: another length of lists, or another kind of ids."""
        now = self.traffic.first
        if live.K != now.K:
            raise PolicyError(
                f"the policy shows {live.K} places, and the one that is live {now.K}. Train it for the same."
            )
        for what, one, other in (
            ("query", live.query_kind, now.query_kind),
            ("item", live.item_kind, now.item_kind),
        ):
            if one is not other:
                raise PolicyError(
                    f"the {what} ids of the policy are {one.__name__}, of the one that is live {other.__name__}."
                )

    def rank(
        self,
        query_id: Id | None = None,
        *,
        K: int | None = None,
        items: Sequence[Id] | None = None,
        query_features: FeatureValues | None = None,
        context: Mapping[str, Value] | None = None,
        unit: str | None = None,
        session: str | None = None,
    ) -> Ranked:
        """A list for the query; K of its places, at most the policy's; only of `items`, where those are given; in a context.

        With a `session` a policy whose queries are states is asked by that of the session.
        """
        asked = {"query_id": query_id, "K": K, "items": items, "query_features": query_features, "unit": unit}
        return self.rank_all([{**asked, "context": context, "session": session}])[0]

    def rank_all(self, requests: Sequence[Mapping[str, Any]]) -> list[Ranked]:
        """Lists for several queries, each by the arguments of `rank`: all of them, or a refusal that leaves no trace."""
        now = self._traffic
        named = [session for asked in requests if (session := asked.get("session")) is not None]
        if len(set(named)) < len(named):
            raise InputError(
                "expected each session once in a batch: its second list depends on what is clicked of the first."
            )
        drawn = [self._drawn(now, **asked) for asked in requests]
        logged = self._record([one.impression for one in drawn])
        return [self._given_out(now, one, logged) for one in drawn]

    def _drawn(
        self,
        now: Traffic,
        query_id: Id | None = None,
        K: int | None = None,
        items: Sequence[Id] | None = None,
        query_features: FeatureValues | None = None,
        context: Mapping[str, Value] | None = None,
        unit: str | None = None,
        session: str | None = None,
    ) -> ShownList:
        """A list that nobody has seen yet, and that nothing remembers."""
        live, features = now.first, as_logged(query_features) if query_features else {}
        K = live.K if K is None else K
        if not 1 <= K <= live.K:
            raise InputError(f"K must be from 1 to {live.K}, the places of the policy; got {K}.")
        state = None if session is None else self.sessions.state(session)
        query = _state_known(now, query_id, state) if state is not None else None
        if query is None and query_id is not None:
            query = as_kind(query_id, live.query_kind, "query")
        by_features = bool(features) and any(arm.live.source(query, features) == "features" for arm in now.arms)
        chance = os.urandom(24)
        key = int.from_bytes(chance[:8], "little") if self._random is None else self._random.getrandbits(64)
        arm = 0 if now.mode == "single" else now.choose(f"impression {key}" if unit is None else f"unit {unit}")
        asked = Impression(
            id=chance[8:].hex(),
            time=self.clock(),
            query_id=logged_id(features, live.query_kind) if query is None else query,
            items=(),
            policy=now.arms[arm].live.digest,
            strategy=now.strategy,
            key=key,
            places=K,
            available=None
            if items is None
            else tuple(dict.fromkeys(as_kind(i, live.item_kind, "item") for i in items)),
            mixture=now.mixture,
            theta=self.theta,
            features=features if by_features else None,
            context=as_texts(context) if context else None,
            session=session,
            state=None if state is None else state.id,
        )
        return ShownList(asked._replace(items=list_of(now.arms[arm].live, asked)), arm, unit)

    def _given_out(self, now: Traffic, shown: ShownList, logged: bool) -> Ranked:
        if self.outcomes is not None:
            self.outcomes.shown(shown)
        found = shown.impression
        self.sessions.shown(found)
        return Ranked(
            impression_id=found.id,
            items=found.items,
            policy=found.policy,
            source=now.arms[shown.arm].live.source(found.query_id, found.features),
            logged=logged,
            unknown=tuple(i for i in found.available or () if not any(i in a.live.item_at for a in now.arms)),
        )

    def feedback(self, impression_id: str, events: Sequence[Event]) -> FeedbackAnswer:
        """Records events of an impression; the same event twice counts once."""
        kind, now = self.traffic.first.item_kind, self.clock()
        stored = [
            StoredEvent(impression_id, _of_kind(e.item, kind), e.type, e.value, now if e.time is None else e.time)
            for e in events
        ]
        self.sessions.clicked(stored)
        recorded = self.recorder is not None
        if self.recorder is not None:
            try:
                self.recorder.events(stored)
            except OutputError:
                recorded = False
        fates: Counter[str] = Counter()
        if self.outcomes is not None:
            fates.update(self.outcomes.event(one) for one in stored)
        return FeedbackAnswer(recorded, **fates)

    def explain(
        self,
        query_id: Id | None = None,
        query_features: FeatureValues | None = None,
        context: Mapping[str, Value] | None = None,
    ) -> "list[Explained]":
        """What each live policy makes of a query; nothing is logged, as nobody saw a list."""
        now = self._traffic
        query = None if query_id is None else as_kind(query_id, now.first.query_kind, "query")
        asked = query, query_features, as_texts(context) if context else None
        return [explained(arm.live, *asked, self.exploration, self.theta) for arm in now.arms]

    def _record(self, impressions: Sequence[Impression]) -> bool:
        if self.recorder is None:
            return False
        try:
            self.recorder.impressions(impressions)
        except OutputError:  # the recorder has said so aloud; the answers go out, and are counted as unlogged
            with self._lock:
                self.unlogged += len(impressions)
            return False
        return True


def list_of(live: LivePolicy, asked: Impression) -> tuple[Id, ...]:
    """The items of an impression, as they are drawn and drawn again: a function of the policy, what was asked and the key."""
    how, items = drawing.parse(asked.strategy), live.items
    scores = live.raised(how.raised).scores(asked.query_id, asked.features, asked.available, asked.context)
    found = how.draw(scores.first, scores.ranker, live.K2, live.K, asked.key, edge=scores.edge)
    return tuple([items[d] for d in found[: asked.places].tolist() if d >= 0])


def as_logged(features: FeatureValues) -> dict[str, float | str | None]:
    """Features as the log has them: text, plain numbers, None where a number is missing."""
    found: dict[str, float | str | None] = {}
    for name, value in features.items():
        try:
            found[name] = value if value is None or isinstance(value, str) else float(value)
        except (TypeError, ValueError) as error:
            raise InputError(f"feature {name!r}: expected a number or text, got {str(value)[:60]}.") from error
        if found[name] != found[name]:  # NaN, for which JSON has no word
            found[name] = None
    return found


SEGMENT = {
    "impression_key", "propensity_errors", "policy", "strategy", "places", "mixture", "theta", "available", "features",
    "context", "state",
}  # fmt: skip


def as_texts(context: Mapping[str, Value]) -> dict[str, str | None]:
    """A context as the log has it; refuses names that a log uses itself."""
    if own := [name for name in context if name in SEGMENT]:
        raise InputError(f"context: expected names that a served log does not use itself; got {own[0]!r}.")
    try:
        return {name: text_of(context[name]) for name in check_columns(list(context))}
    except (ConfigError, TypeError) as error:
        raise InputError(str(error)) from error


def _state_known(now: Traffic, query_id: Id | None, state: SessionState) -> Id | None:
    """The state of a session as a query, with the query of its own or without, if a live policy knows it."""
    names = (f"{query_id}|{state.id}", state.id) if query_id is not None else (state.id,)
    return next((name for name in names if any(name in arm.live.query_at for arm in now.arms)), None)


def _of_kind(item: Id, kind: type[int] | type[str]) -> Id:
    """An item id as the policies have them; one that cannot be an id stays as it is, and matches nothing."""
    try:
        return as_kind(item, kind, "item")
    except InputError:
        return item


# --- a query, for people ------------------------------------------------------------------------------------------------

BEST = Exploration("deterministic")
SHOWN = 20  # items of an explained query
SAMPLES, FEW = 50, 10  # of the race; where each asks a heavy re-ranker about K2 items


@dataclass(frozen=True)
class ExplainedItem:
    """An item: its scores, its rank by the generator, its place in the most likely list, and its exposure."""

    item: Id
    generator: float
    generator_rank: int
    ranker: float
    place: int | None
    exposure: float


@dataclass(frozen=True)
class Explained:
    """A policy's view of a query: of its most likely candidates those with the most exposure, and its most likely list.

    `others_exposure`: of all items that are not listed; where lists are drawn by chance others are candidates at times.
    """

    policy: str
    folder: str
    source: Source
    candidates_total: int
    K2: int
    candidates: tuple[ExplainedItem, ...]
    others_exposure: float


def explained(
    live: LivePolicy,
    query: Id | None,
    features: FeatureValues | None,
    context: dict[str, str | None] | None,
    how: Exploration,
    theta: Sequence[float],
) -> Explained:
    """What a policy makes of a query."""
    live = live.raised(how.raised)
    scores = live.scores(query, features, context=context)
    s_c, s_r = scores.s_c, scores.ranker
    place = {int(d): k + 1 for k, d in enumerate(BEST.draw(s_c, s_r, live.K2, live.K, 0)) if d >= 0}
    order = np.argsort(-s_c, kind="stable")[: live.K2]
    generator_rank = {int(d): n + 1 for n, d in enumerate(order)}
    # Where the re-ranker sees candidates alone, those of the generator's first ones that people look at.
    looked = np.union1d(order[:SHOWN], list(place)) if live.ranks_candidates else order
    documents = np.sort(looked).astype(np.int64)
    curve, samples = torch.tensor(list(theta), dtype=torch.float32), FEW if live.ranks_candidates else SAMPLES
    rho, _ = how.exposure(s_c, s_r, documents, curve, live.K2, samples=samples, seed=0)
    second = s_r[documents] if isinstance(s_r, np.ndarray) else s_r(documents.astype(np.int32))
    row = {int(d): n for n, d in enumerate(documents)}
    most = documents[np.argsort(-rho, kind="stable")[:SHOWN]]
    found = tuple(
        ExplainedItem(
            item=live.items[d],
            generator=float(s_c[d]),
            generator_rank=generator_rank[d],
            ranker=float(second[row[d]]),
            place=place.get(d),
            exposure=float(rho[row[d]]),
        )
        for d in dict.fromkeys([*place, *map(int, most)])
    )
    return Explained(
        policy=live.digest,
        folder=live.name,
        source=live.source(query, features),
        candidates_total=len(live.items),
        K2=live.K2,
        candidates=found,
        others_exposure=max(0.0, float(curve[: len(place)].sum()) - sum(one.exposure for one in found)),
    )
