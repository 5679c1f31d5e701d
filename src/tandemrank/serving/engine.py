"""The engine that answers queries with live policies, without any network: rank, and remember what was clicked.

    server = Server(policy, recorder=Recorder("log", Propensities()))
    ranked = server.rank(17)
    server.feedback(ranked.impression_id, [Event("item-3", "click")])

A query that the policy does not know gets the answer for its features, or for the average query, and the answer says so.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tandemrank._base.ids import Id
from tandemrank._base.random import random_keys
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import InputError, OutputError, PolicyError
from tandemrank.policies.features import FeatureValues
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import drawing, records
from tandemrank.serving.drawing import Exploration
from tandemrank.serving.live_policy import LivePolicy, as_kind, features_key, logged_id
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.records import Event, Feedback, Impression, Ranked, ShownList, Traffic, steady_clock
from tandemrank.serving.verdict import Outcomes

KEYS = 6  # the stream of one seed that decides the lists of a server


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
        log_features: bool = False,
        clock: Callable[[], float] | None = None,
        outcomes: Outcomes | None = None,
    ) -> None:
        live = policy if isinstance(policy, LivePolicy) else LivePolicy(policy)
        self.exploration = exploration or Exploration()
        self.recorder = recorder
        self.seed = seed
        self.theta = tuple(float(x) for x in examination_curve(live.K, theta))
        self.clock = clock or (steady_clock() if recorder is None else recorder.clock)
        self.log_features = log_features
        self.outcomes = outcomes
        self.unlogged = 0
        self._secret = b"" if log_features else os.urandom(32)
        self._count = 0
        self._lock = threading.Lock()
        self._traffic = records.single(live)
        if recorder is not None:
            recorder.propensities.know(live)

    @property
    def traffic(self) -> Traffic:
        """Who answers now."""
        return self._traffic

    def swap(self, new: Traffic) -> None:
        """Others answer from now on; requests under way end with those they began with."""
        for arm in new.arms:
            self.check_fits(arm.live)
            if self.recorder is not None:
                self.recorder.propensities.know(arm.live)
        self._traffic = new

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
        unit: str | None = None,
    ) -> Ranked:
        """A list for the query; K of its places, at most the policy's; only of `items`, where those are given."""
        asked = {"query_id": query_id, "K": K, "items": items, "query_features": query_features, "unit": unit}
        return self.rank_all([asked])[0]

    def rank_all(self, requests: Sequence[Mapping[str, Any]]) -> list[Ranked]:
        """Lists for several queries, each by the arguments of `rank`: all of them, or a refusal that leaves no trace."""
        now = self._traffic
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
        unit: str | None = None,
    ) -> ShownList:
        """A list that nobody has seen yet, and that nothing remembers."""
        live, features = now.first, query_features
        K = live.K if K is None else K
        if not 1 <= K <= live.K:
            raise InputError(f"K must be from 1 to {live.K}, the places of the policy; got {K}.")
        query = None if query_id is None else as_kind(query_id, live.query_kind, "query")
        named = features_key(features, self._secret) if features else None
        by_features = bool(features) and any(arm.live.source(query, features) == "features" for arm in now.arms)
        chance = os.urandom(24)
        key = int.from_bytes(chance[:8], "little") if self.seed is None else self._seeded()
        arm = 0 if now.mode == "single" else now.choose(f"impression {key}" if unit is None else f"unit {unit}")
        asked = Impression(
            id=chance[8:].hex(),
            time=self.clock(),
            query_id=logged_id(named, live.query_kind) if query is None else query,
            items=(),
            policy=now.name if now.mode == "interleave" else now.arms[arm].live.digest,
            strategy=self.exploration.name,
            key=key,
            places=K,
            available=None
            if items is None
            else tuple(dict.fromkeys(as_kind(i, live.item_kind, "item") for i in items)),
            mixture=now.mixture,
            theta=self.theta,
            features_key=named if by_features else None,
            features=dict(features) if features and by_features else None,
        )
        shown, teams = answer(now, arm, asked)
        return ShownList(asked._replace(items=shown), arm, teams, unit)

    def _given_out(self, now: Traffic, shown: ShownList, logged: bool) -> Ranked:
        if self.outcomes is not None:
            self.outcomes.shown(shown)
        found = shown.impression
        return Ranked(
            impression_id=found.id,
            items=found.items,
            policy=found.policy,
            source=now.arms[shown.arm].live.source(found.query_id, found.features),
            logged=logged,
            unknown=tuple(i for i in found.available or () if not any(i in a.live.item_at for a in now.arms)),
        )

    def feedback(self, impression_id: str, events: Sequence[Event]) -> Feedback:
        """Records events of an impression; the same event twice counts once."""
        kind, now = self.traffic.first.item_kind, self.clock()
        events = [_of_kind(event, kind) for event in events]
        recorded = self.recorder is not None
        if self.recorder is not None:
            try:
                self.recorder.events(impression_id, events)
            except OutputError:
                recorded = False
        outcomes = self.outcomes
        return Feedback(recorded, [] if outcomes is None else [outcomes.event(impression_id, e, now) for e in events])

    def _record(self, impressions: Sequence[Impression]) -> bool:
        if self.recorder is None:
            return False
        try:
            self.recorder.impressions(impressions, features=self.log_features)
        except OutputError:  # the recorder has said so aloud; the answers go out, and are counted as unlogged
            with self._lock:
                self.unlogged += len(impressions)
            return False
        return True

    def _seeded(self) -> int:
        """The next key of the seed."""
        assert self.seed is not None
        with self._lock:
            self._count += 1
            number = self._count
        return int(random_keys(self.seed, KEYS, np.array([number]))[0])


def answer(now: Traffic, arm: int, asked: Impression) -> tuple[tuple[Id, ...], tuple[int, ...] | None]:
    """The items of an impression, as they are drawn and drawn again, and the team of each place where it is interleaved."""
    if now.mode != "interleave":
        return _list_of(now.arms[arm].live, asked, asked.key), None
    first, second, coins = drawing.keys_of(asked.key)
    lists = _list_of(now.arms[0].live, asked, first), _list_of(now.arms[1].live, asked, second)
    shown, teams = drawing.draft(lists, asked.places, coins)
    return tuple(shown), tuple(teams)


def _list_of(live: LivePolicy, asked: Impression, key: int) -> tuple[Id, ...]:
    """The list of one policy: a function of the policy, what was asked and the key."""
    scores, items, how = (
        live.scores(asked.query_id, asked.features, asked.available),
        live.items,
        drawing.parse(asked.strategy),
    )
    found = how.draw(scores.first, scores.ranker, live.K2, live.K, key, edge=scores.edge)[: asked.places].tolist()
    return tuple([items[d] for d in found if d >= 0])


def _of_kind(event: Event, kind: type[int] | type[str]) -> Event:
    """The event with an item id as the policies have them; one that cannot be an id stays as it is, and matches nothing."""
    try:
        return Event(as_kind(event.item, kind, "item"), event.type, event.value, event.time)
    except InputError:
        return event
