"""The propensities of a served log: rho_0 of every shown item under the mixture of live pairs, with its Monte-Carlo error.

    rho_0(d) = sum over pairs of share * rho_pair(d),        or that of the draft, where lists were interleaved

One race per (pair, query, strategy, places, available items, features), from a seed that depends on these alone: a propensity
does not depend on who else was asked.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.ids import Id
from tandemrank._base.random import derive
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import InputError, OutputError
from tandemrank.serving import exploration, interleaving
from tandemrank.serving.exploration import Exploration
from tandemrank.serving.interleaving import DraftTeam
from tandemrank.serving.live_policy import LivePolicy, as_kind, features_text
from tandemrank.serving.records import Arm, Impression, Mode, Traffic

Floats = NDArray[np.float64]
LEAST = 1e-12  # the smallest propensity that a log takes
SAMPLES = 100  # of the race
KEPT = 64 * 2**20  # bytes of exposures of recent queries
DIGEST = 16  # characters of a pair's digest

Place = tuple[Any, ...]


class _Exposed(NamedTuple):
    """The exposure of some items of a query, in the order of their numbers, and its standard error.  Shapes: [n]."""

    documents: NDArray[np.int64]
    rho: Floats
    error: Floats


def _place(i: Impression) -> Place:
    """What the exposure depends on beside the pair and the examination curve."""
    asked = i.query_id, i.strategy, i.places, i.available
    return asked if i.features is None else (*asked, features_text(i.features))


@lru_cache(maxsize=1024)
def _is_curve(theta: tuple[float, ...], places: int) -> bool:
    examination_curve(places, theta)  # refuses what is none
    return True


class Propensities:
    """Computes them for pairs that it knows."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self._kept: dict[Place, tuple[Floats, Floats]] = {}
        self._pairs: dict[str, LivePolicy] = {}

    @property
    def known(self) -> set[str]:
        """The digests of the pairs that it knows."""
        return set(self._pairs)

    def know(self, live: LivePolicy) -> None:
        """Another pair; one that it knows stays as it is."""
        self._pairs.setdefault(live.digest, live)

    def forget(self, digests: set[str]) -> None:
        """Pairs whose impressions are all sealed."""
        self._pairs = {digest: live for digest, live in self._pairs.items() if digest not in digests}
        self._kept = {}

    def check(self, impression: Impression) -> None:
        """Refuses an impression that its pairs cannot have given: other ids, more items than places, items of nobody."""
        i = impression
        if any(len(digest) != DIGEST for digest, _ in i.mixture):
            raise InputError(f"expected digests of {DIGEST} digits, got {i.mixture}.")
        live = [self._live(digest) for digest, _ in i.mixture]
        mode: Mode = "single" if len(live) == 1 else "interleave" if i.interleaved else "split"
        traffic = Traffic(tuple(Arm(one, share) for one, (_, share) in zip(live, i.mixture, strict=True)), mode)
        named = [traffic.name] if mode == "interleave" else [one.digest for one in live]
        if i.policy not in named:
            raise InputError(f"expected the policy {' or '.join(named)}, got {i.policy[:60]!r}.")
        exploration.parse(i.strategy)
        _is_curve(i.theta, i.places)
        if as_kind(i.query_id, live[0].query_kind, "query", least=-(2**63)) != i.query_id:
            raise InputError("expected a query id of the pair's kind.")
        if i.places > live[0].K or len(i.items) > i.places or len(set(i.items)) < len(i.items):
            raise InputError(f"expected up to {live[0].K} items, each once, got {len(i.items)} at {i.places} places.")
        there = None if i.available is None else set(i.available)
        for item in i.items:
            if not any(item in one.item_at for one in live) or not (there is None or item in there):
                raise InputError(f"expected an item that a pair knows and that was available, got {item!r}.")

    def of(self, impressions: Sequence[Impression]) -> list[tuple[list[float], list[float]]]:
        """rho_0 of every shown item of each impression, and its standard error."""
        found: dict[Place, _Exposed] = {}
        shown: dict[Place, set[int]] = {}
        drafted: dict[Place, tuple[float, float]] = {}
        for i in impressions:
            for digest, _ in i.mixture if not i.interleaved else ():
                place = (digest, i.theta, *_place(i))
                shown.setdefault(place, set()).update(self._positions(self._live(digest), i))
        rows = []
        for i in impressions:
            rho, error = self._drafted(i, drafted) if i.interleaved else self._mixed(i, found, shown)
            rows.append((rho.clip(LEAST, 1.0).tolist(), error.tolist()))
        return rows

    def _positions(self, live: LivePolicy, i: Impression) -> list[int]:
        return [live.item_at[item] for item in i.items if item in live.item_at]

    def _mixed(
        self, i: Impression, found: dict[Place, _Exposed], shown: dict[Place, set[int]]
    ) -> tuple[Floats, Floats]:
        rho, variance = np.zeros(len(i.items)), np.zeros(len(i.items))
        for digest, share in i.mixture:
            live = self._live(digest)
            place = (digest, i.theta, *_place(i))
            if place not in found:
                found[place] = self._exposed(live, i, np.array(sorted(shown[place]), np.int64))
            there = np.array([item in live.item_at for item in i.items], np.bool_)
            at = np.searchsorted(found[place].documents, self._positions(live, i))
            rho[there] += share * found[place].rho[at]
            variance[there] += np.square(share * found[place].error[at])
        return rho, np.sqrt(variance)

    def _exposed(self, live: LivePolicy, i: Impression, shown: NDArray[np.int64]) -> _Exposed:
        """Of what was shown: by one race, or where the re-ranker is asked about candidates alone by one for each."""
        theta = torch.tensor(i.theta[: i.places], dtype=torch.float32)
        how = exploration.parse(i.strategy)
        place = (live.digest, *_place(i))
        if not live.ranks_candidates:
            rho, error = self._of_all(live, i, theta)
            return _Exposed(shown, rho[shown], error[shown])
        scores, values = live.scores(i.query_id, i.features, i.available), np.zeros((len(shown), 2))
        s_c = scores.s_c
        for n, d in enumerate(shown.tolist()):
            seed = derive(0, "served propensities", live.items[d], *place) % 2**63
            rho, error = how.exposure_of(
                s_c, scores.ranker, np.array([d]), theta, live.K2, samples=self.samples, seed=seed
            )
            values[n] = rho[0], error[0]
        return _Exposed(shown, values[:, 0], values[:, 1])

    def _of_all(self, live: LivePolicy, i: Impression, theta: Tensor) -> tuple[Floats, Floats]:
        """Of all items by one race; those of the last queries are kept, as the next journal has many of them again."""
        place = (live.digest, *_place(i))
        if (found := self._kept.get((i.theta, *place))) is not None:
            return found
        s_c, s_r = (torch.from_numpy(s)[None] for s in live.rows(i.query_id, i.available, i.features))
        seed = derive(0, "served propensities", *place) % 2**63
        how = exploration.parse(i.strategy)
        found = how.exposure(s_c, s_r, theta, live.K2, samples=self.samples, seed=seed)
        self._kept[(i.theta, *place)] = found
        if len(self._kept) * found[0].nbytes * 2 > KEPT:
            self._kept.pop(next(iter(self._kept)))
        return found

    def _drafted(self, i: Impression, found: dict[Place, tuple[float, float]]) -> tuple[Floats, Floats]:
        digests = tuple(digest for digest, _ in i.mixture)
        curve = np.array(i.theta[: i.places])
        known = (i.theta, *digests, *_place(i))
        wanted = [item for item in i.items if (item, *known) not in found]
        if wanted:
            one, other = (self._team(self._live(digest), i) for digest in digests)
            # An item at a time, each with a seed of its own: what else was shown must not change its propensity.
            for item in wanted:
                seed = derive(0, "drafted propensities", *digests, item, *_place(i))
                rho, error = drafted_exposure(
                    (one, other), [item], curve, exploration.parse(i.strategy), samples=self.samples, seed=seed
                )
                found[(item, *known)] = float(rho[0]), float(error[0])
        values = np.array([found[(item, *known)] for item in i.items]).reshape(-1, 2)
        return values[:, 0], values[:, 1]

    def _team(self, live: LivePolicy, i: Impression) -> DraftTeam:
        if not live.ranks_candidates:
            return DraftTeam(*live.rows(i.query_id, i.available, i.features), live.item_at, live.items, live.K2)
        scores = live.scores(i.query_id, i.features, i.available)
        return DraftTeam(scores.s_c, scores.remembering(), live.item_at, live.items, live.K2)

    def _live(self, digest: str) -> LivePolicy:
        if digest not in self._pairs:
            raise OutputError(
                f"the log has impressions of the pair {digest}, which is not loaded: its propensities cannot be "
                f"computed. Load that pair once more (its journal is kept)."
            )
        return self._pairs[digest]


def drafted_exposure(
    teams: tuple[DraftTeam, DraftTeam], items: Sequence[Id], theta: Floats, how: Exploration, *, samples: int, seed: int
) -> tuple[Floats, Floats]:
    """rho of some items under the draft of two pairs that explore, and its error.  Shapes: items [n], theta [K] -> [n], [n]."""
    if how.strategy == "deterministic":
        one, other = (
            [t.items[d] for d in how.draw_one(t.s_c, t.s_r, t.K2, min(len(theta), t.K2), 0) if d >= 0] for t in teams
        )
        return interleaving.exposure_of_lists((one, other), items, theta, samples=samples, seed=seed)
    if how.strategy == "temperature":
        teams = _cooler(teams[0], how.amount), _cooler(teams[1], how.amount)
    uniform = how.amount if how.strategy == "uniform" else 0.0
    return interleaving.exposure(teams, items, theta, uniform=uniform, samples=samples, seed=seed)


def _cooler(team: DraftTeam, T: float) -> DraftTeam:
    """The same scores at the temperature T."""
    return replace(team, s_c=team.s_c / T, s_r=exploration.changed(team.s_r, lambda found: found / T))
