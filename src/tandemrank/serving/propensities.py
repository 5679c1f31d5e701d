"""The propensities of a served log: rho_0 of every shown item under the mixture of live policies, with its Monte-Carlo error.

    rho_0(d) = sum over policies of share * rho_policy(d),        or that of the draft, where lists were interleaved

One race per (policy, query, strategy, places, available items, features), from a seed that depends on these alone: a propensity
does not depend on who else was asked.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank._base.ids import Id
from tandemrank._base.random import derive
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import InputError, OutputError
from tandemrank.serving import drawing
from tandemrank.serving.drawing import DraftTeam
from tandemrank.serving.live_policy import LivePolicy, as_kind, features_text
from tandemrank.serving.records import Impression

Floats = NDArray[np.float64]
LEAST = 1e-12  # the smallest propensity that a log takes
SAMPLES = 100  # of the race
KEPT = 64 * 2**20  # bytes of exposures of recent queries
DIGEST = 16  # characters of a policy's digest

Place = tuple[Any, ...]


class _Exposed(NamedTuple):
    """The exposure of some items of a query, in the order of their numbers, and its standard error.  Shapes: [n]."""

    documents: NDArray[np.int64]
    rho: Floats
    error: Floats


def _place(i: Impression) -> Place:
    """What the exposure depends on beside the policy and the examination curve."""
    asked = i.query_id, i.strategy, i.places, i.available
    return asked if i.features is None else (*asked, features_text(i.features))


@lru_cache(maxsize=1024)
def _check_curve(theta: tuple[float, ...], places: int) -> None:
    examination_curve(places, theta)


class Propensities:
    """Computes them for policies that it knows."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self._kept: dict[Place, tuple[Floats, Floats]] = {}
        self._known: dict[str, LivePolicy] = {}

    @property
    def known(self) -> set[str]:
        """Their digests."""
        return set(self._known)

    def know(self, live: LivePolicy) -> None:
        """Another policy; one that it knows stays as it is."""
        self._known.setdefault(live.digest, live)

    def forget(self, digests: set[str]) -> None:
        """Policies whose impressions are all sealed."""
        self._known = {digest: live for digest, live in self._known.items() if digest not in digests}
        self._kept = {}

    def check(self, impression: Impression) -> None:
        """Refuses an impression that its policies cannot have given: other ids, more items than places, items of nobody."""
        i = impression
        if any(len(digest) != DIGEST for digest, _ in i.mixture):
            raise InputError(f"expected digests of {DIGEST} digits, got {i.mixture}.")
        arms = i.traffic({digest: self._live(digest) for digest, _ in i.mixture})[0].arms
        first = arms[0].live
        drawing.parse(i.strategy)
        _check_curve(i.theta, i.places)
        if as_kind(i.query_id, first.query_kind, "query", least=-(2**63)) != i.query_id:
            raise InputError("expected a query id of the policy's kind.")
        if len(i.items) > i.places or len(set(i.items)) < len(i.items):
            raise InputError(f"expected up to {i.places} items, each once, got {len(i.items)}.")
        there = None if i.available is None else set(i.available)
        for item in i.items:
            if not any(item in arm.live.item_at for arm in arms) or not (there is None or item in there):
                raise InputError(f"expected an item that a policy knows and that was available, got {item!r}.")

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
        if not live.ranks_candidates:
            rho, error = self._of_all(live, i)
            return _Exposed(shown, rho[shown], error[shown])
        # An item at a time, each with a seed of its own: what else was shown must not change its propensity.
        found = [self._race(live, i, np.array([d]), live.items[d]) for d in shown.tolist()]
        rho, error = (np.concatenate([one[n] for one in found]) for n in range(2))
        return _Exposed(shown, rho, error)

    def _of_all(self, live: LivePolicy, i: Impression) -> tuple[Floats, Floats]:
        """Of all items by one race; those of the last queries are kept, as the next journal has many of them again."""
        place = (i.theta, live.digest, *_place(i))
        if (found := self._kept.get(place)) is not None:
            return found
        self._kept[place] = found = self._race(live, i, np.arange(len(live.items)))
        if len(self._kept) * found[0].nbytes * 2 > KEPT:
            self._kept.pop(next(iter(self._kept)))
        return found

    def _race(self, live: LivePolicy, i: Impression, documents: NDArray[np.int64], *name: Id) -> tuple[Floats, Floats]:
        scores, theta = live.scores(i.query_id, i.features, i.available), torch.tensor(i.theta[: i.places])
        options = {"samples": self.samples, "seed": derive(0, "served propensities", *name, live.digest, *_place(i))}
        return drawing.parse(i.strategy).exposure(scores.s_c, scores.ranker, documents, theta, live.K2, **options)

    def _drafted(self, i: Impression, found: dict[Place, tuple[float, float]]) -> tuple[Floats, Floats]:
        digests = tuple(digest for digest, _ in i.mixture)
        curve, how = np.array(i.theta[: i.places]), drawing.parse(i.strategy)
        known = (i.theta, *digests, *_place(i))
        if wanted := [item for item in i.items if (item, *known) not in found]:
            one, other = (_team(self._live(digest), i) for digest in digests)
            for item in wanted:  # each with a seed of its own, as above
                options = {
                    "samples": self.samples,
                    "seed": derive(0, "drafted propensities", *digests, item, *_place(i)),
                }
                rho, error = drawing.drafted_exposure((one, other), [item], curve, how, **options)
                found[(item, *known)] = float(rho[0]), float(error[0])
        values = np.array([found[(item, *known)] for item in i.items]).reshape(-1, 2)
        return values[:, 0], values[:, 1]

    def _live(self, digest: str) -> LivePolicy:
        if digest not in self._known:
            raise OutputError(
                f"the log has impressions of the policy {digest}, which is not loaded: its propensities cannot be "
                f"computed. Load that policy once more (its journal is kept)."
            )
        return self._known[digest]


def _team(live: LivePolicy, i: Impression) -> DraftTeam:
    scores = live.scores(i.query_id, i.features, i.available)
    return DraftTeam(scores.s_c, scores.remembering(), live.item_at, live.items, live.K2)
