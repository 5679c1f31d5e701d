"""The engine that answers queries with live pairs, without any network: rank, and remember what was clicked.

    server = Server(pair, recorder=Recorder("log"))
    ranked = server.rank(17)
    server.feedback(ranked.impression_id, [Event("item-3", "click")])

A query that the pair does not know gets the answer for its features, or for the average query, and the answer says so.
"""

import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tandemrank._base.ids import Id
from tandemrank._base.random import random_keys
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import InputError, OutputError, PolicyError
from tandemrank.policies.features import FeatureValues
from tandemrank.serving import interleaving, records
from tandemrank.serving.exploration import Exploration
from tandemrank.serving.live_policy import LivePolicy, ServablePolicy, as_kind, features_key, logged_id
from tandemrank.serving.records import (
    Event,
    Fate,
    Impression,
    LogWriter,
    Ranked,
    RankQuestion,
    ShownList,
    Traffic,
    Watcher,
    steady_clock,
)

KEYS = 6  # the stream of one seed that decides the lists of a server
BLOCK = 128  # pieces of chance that are fetched from the system at once
PIECE = struct.Struct("<Q16s")  # a key, and the name of an impression


class Chance:
    """Keys and names out of random bytes of the system, a block at a time: to ask for a few bytes is dear.

    Safe from several threads: what one has taken from the list nobody else gets.
    """

    def __init__(self) -> None:
        self._ready: list[tuple[int, str]] = []

    def take(self) -> tuple[int, str]:
        """A key of 64 bits, and a name of 128."""
        try:
            return self._ready.pop()
        except IndexError:
            found = [(key, name.hex()) for key, name in PIECE.iter_unpack(os.urandom(BLOCK * PIECE.size))]
            self._ready += found[1:]
            return found[0]


class _Drawn(NamedTuple):
    """A list before it goes out."""

    impression: Impression
    source: str
    shown: ShownList


class Server:
    """Answers queries with the pairs that are live, draws lists by a strategy, and has impressions and events recorded.

    Without a recorder nothing is remembered. With a seed the lists are the same in every run; without one they are not.
    Safe to call from several threads: `traffic` is one value, and a request sees one from its start to its end.
    """

    def __init__(
        self,
        pair: ServablePolicy | LivePolicy,
        *,
        exploration: Exploration | None = None,
        recorder: LogWriter[LivePolicy] | None = None,
        seed: int | None = None,
        theta: str | Sequence[float] = "reciprocal",
        log_features: bool = False,
        clock: Callable[[], float] | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        live = pair if isinstance(pair, LivePolicy) else LivePolicy(pair)
        self.exploration = exploration or Exploration()
        self.recorder = recorder
        self.seed = seed
        self.theta = tuple(float(x) for x in examination_curve(live.K, theta))
        self.clock = clock or (steady_clock() if recorder is None else recorder.clock)
        self.log_features = log_features
        self.watcher = watcher
        self.unlogged = 0
        self._secret = b"" if log_features else os.urandom(32)
        self._count = 0
        self._lock = threading.Lock()
        self._chance = Chance()
        self._traffic = records.single(live)
        if recorder is not None:
            recorder.know(live)

    @property
    def live(self) -> LivePolicy:
        """The pair that was there first, or the only one."""
        return self._traffic.arms[0].live

    @property
    def traffic(self) -> Traffic[LivePolicy]:
        """Who answers now."""
        return self._traffic

    def swap(self, new: Traffic[LivePolicy]) -> None:
        """Others answer from now on; requests under way end with those they began with."""
        for arm in new.arms:
            self.check_fits(arm.live)
            if self.recorder is not None:
                self.recorder.know(arm.live)
        self._traffic = new

    def check_fits(self, live: LivePolicy) -> None:
        """Refuses a pair that does not answer the same questions: another length of lists, or another kind of ids."""
        now = self.live
        if live.K != now.K:
            raise PolicyError(
                f"the pair shows {live.K} places, and the one that is live {now.K}. Train it for the same."
            )
        for what, one, other in (
            ("query", live.query_kind, now.query_kind),
            ("item", live.item_kind, now.item_kind),
        ):
            if one is not other:
                raise PolicyError(
                    f"the {what} ids of the pair are {one.__name__}, of the one that is live {other.__name__}."
                )

    def rank(
        self,
        query_id: Id | None = None,
        *,
        K: int | None = None,
        items: Sequence[Id] | None = None,
        features: FeatureValues | None = None,
        unit: str | None = None,
    ) -> Ranked:
        """A list for the query; K of its places, at most the pair's; only of `items`, where those are given."""
        return self._given_out(self._traffic, [self._drawn(self._traffic, query_id, K, items, features, unit)])[0]

    def rank_all(self, requests: Sequence[Mapping[str, Any]]) -> list[Ranked]:
        """Lists for several queries, each by the arguments of `rank`: all of them, or a refusal that leaves no trace."""
        now, names = self._traffic, ("query_id", "K", "items", "features", "unit")
        return self._given_out(now, [self._drawn(now, *(asked.get(name) for name in names)) for asked in requests])

    def _drawn(
        self,
        now: Traffic[LivePolicy],
        query_id: Id | None,
        K: int | None,
        items: Sequence[Id] | None,
        features: FeatureValues | None,
        unit: str | None,
    ) -> "_Drawn":
        """A list that nobody has seen yet, and that nothing remembers."""
        live = now.first
        K = live.K if K is None else K
        if not 1 <= K <= live.K:
            raise InputError(f"K must be from 1 to {live.K}, the places of the pair; got {K}.")
        query = None if query_id is None else as_kind(query_id, live.query_kind, "query")
        available = None if items is None else tuple(dict.fromkeys(as_kind(i, live.item_kind, "item") for i in items))
        key, name = self._chance.take() if self.seed is None else self._seeded()
        arm = 0 if now.mode == "single" else now.choose(f"impression {key}" if unit is None else f"unit {unit}")
        shown, teams = answer(now, arm, RankQuestion(query, features or None, available, K, key), self.exploration)
        sources = [a.live.source(query, features) for a in now.arms]
        named = features_key(features, self._secret) if features else None
        by_features = "features" in sources
        found = Impression(
            id=name,
            time=self.clock(),
            query_id=logged_id(named, live.query_kind) if query is None else query,
            items=shown,
            policy=now.arms[arm].live.digest if teams is None else now.name,
            strategy=self.exploration.name,
            key=key,
            places=K,
            available=available,
            mixture=now.mixture,
            theta=self.theta,
            features_key=named if by_features else None,
            features=dict(features) if features and by_features else None,
        )
        return _Drawn(found, sources[arm], ShownList(found, now.by_name, arm, teams, unit))

    def _given_out(self, now: Traffic[LivePolicy], drawn: Sequence["_Drawn"]) -> list[Ranked]:
        """Has lists recorded, and gives them out."""
        logged = self._record([one.impression for one in drawn])
        answers = []
        for found, source, shown in drawn:
            if self.watcher is not None:
                self.watcher.shown(shown)
            known = found.available or ()
            unknown = tuple(i for i in known if not any(i in a.live.item_at for a in now.arms))
            answers.append(Ranked(found.id, found.items, found.policy, source, logged, unknown))
        return answers

    def feedback(self, impression_id: str, events: Sequence[Event]) -> bool:
        """Records events of an impression; the same event twice counts once. Returns whether they were recorded."""
        return self.feedback_in_detail(impression_id, events)[0]

    def feedback_in_detail(self, impression_id: str, events: Sequence[Event]) -> tuple[bool, list[Fate]]:
        """The same, and what became of each event as far as this process remembers."""
        kind, now = self.live.item_kind, self.clock()
        events = [_of_kind(event, kind) for event in events]
        recorded = self.recorder is not None
        if self.recorder is not None:
            try:
                self.recorder.events(impression_id, events)
            except OutputError:
                recorded = False
        watcher = self.watcher
        return recorded, [] if watcher is None else [watcher.event(impression_id, e, now) for e in events]

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

    def _seeded(self) -> tuple[int, str]:
        """The next key of the seed, and a name."""
        assert self.seed is not None
        with self._lock:
            self._count += 1
            number = self._count
        return int(random_keys(self.seed, KEYS, np.array([number]))[0]), self._chance.take()[1]


def answer(
    now: Traffic[LivePolicy], arm: int, asked: RankQuestion, how: Exploration
) -> tuple[tuple[Id, ...], tuple[int, ...] | None]:
    """The list that goes out, and the team of each place where it is interleaved."""
    if now.mode != "interleave":
        return drawn(now.arms[arm].live, asked, how, asked.key), None
    first, second, coins = interleaving.keys_of(asked.key)
    lists = drawn(now.arms[0].live, asked, how, first), drawn(now.arms[1].live, asked, how, second)
    shown, teams = interleaving.draft(lists, asked.K, coins)
    return tuple(shown), tuple(teams)


def drawn(live: LivePolicy, asked: RankQuestion, how: Exploration, key: int) -> tuple[Id, ...]:
    """The list of one pair: a function of the pair, the question and the key."""
    scores, items = live.scores(asked.query_id, asked.features, asked.available), live.items
    found = how.draw_one(scores.first, scores.ranker, live.K2, live.K, key, edge=scores.edge)[: asked.K].tolist()
    return tuple([items[d] for d in found if d >= 0])


def _of_kind(event: Event, kind: type[int] | type[str]) -> Event:
    """The event with an item id as the pairs have them; one that cannot be an id stays as it is, and matches nothing."""
    try:
        return Event(as_kind(event.item, kind, "item"), event.type, event.value, event.time)
    except InputError:
        return event
