"""The propensities of a served log: rho_0 of every shown item under the mixture of live policies, with its Monte-Carlo error.

    rho_0(d) = sum over policies of share * rho_policy(d)

One race per (policy, curve, query, strategy, places, available items, features, context), from a seed that depends on these
alone: a propensity does not depend on who else was asked.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank._base.random import derive
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import InputError, OutputError
from tandemrank.serving import drawing
from tandemrank.serving.live_policy import LivePolicy, as_kind, features_text
from tandemrank.serving.records import Impression

Floats = NDArray[np.float64]
LEAST = 1e-12  # the smallest propensity that a log takes
SAMPLES = 100  # of the race
KEPT, NAME = 64 * 2**20, 1000  # bytes of exposures of recent queries; of the name of one, about
DIGEST = 16  # characters of a policy's digest

Place = tuple[Any, ...]
Exposure = tuple[Floats, Floats]  # rho and its standard error.  Shapes: [n], [n]
Race = Callable[[int], Exposure]  # of a seed


def _place(i: Impression) -> Place:
    """What the exposure depends on beside the policy."""
    asked = i.theta, i.query_id, i.strategy, i.places, i.available
    more = [features_text(x) for x in (i.features, i.context) if x is not None]
    return (*asked, *more)


@lru_cache(maxsize=1024)
def _check_curve(theta: tuple[float, ...], places: int) -> None:
    examination_curve(places, theta)


class Propensities:
    """Computes them for policies that it knows; one that a log names and it does not know it asks `find` for, by its digest."""

    def __init__(
        self, samples: int = SAMPLES, *, find: Callable[[set[str]], Sequence[LivePolicy]] = lambda digests: ()
    ) -> None:
        self.samples = samples
        self._find = find
        self._kept: dict[Place, Exposure] = {}
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
        rows: dict[int, tuple[list[float], list[float]]] = {}
        # Those of one place one after the other: what is kept is computed once, however long the journal is.
        for n in sorted(range(len(impressions)), key=lambda n: hash(_place(impressions[n]))):
            i = impressions[n]
            rho, error = self._mixed(i)
            rows[n] = rho.clip(LEAST, 1.0).tolist(), error.tolist()
        return [rows[n] for n in range(len(impressions))]

    def _mixed(self, i: Impression) -> Exposure:
        rho, variance = np.zeros(len(i.items)), np.zeros(len(i.items))
        for digest, share in i.mixture:
            live = self._live(digest)
            there = np.array([item in live.item_at for item in i.items], np.bool_)
            mean, error = self._exposed(live, i, [live.item_at[item] for item in i.items if item in live.item_at])
            rho[there] += share * mean
            variance[there] += np.square(share * error)
        return rho, np.sqrt(variance)

    def _exposed(self, live: LivePolicy, i: Impression, documents: list[int]) -> Exposure:
        """Of what was shown: by one race of all, or where the re-ranker is asked about candidates alone by one for each."""
        place = (live.digest, *_place(i))
        if not live.ranks_candidates:
            rho, error = self._once(place, self._race(live, i, np.arange(len(live.items))))
            return rho[documents], error[documents]
        return self._each({(live.items[d], *place): self._race(live, i, np.array([d])) for d in documents})

    def _race(self, live: LivePolicy, i: Impression, documents: NDArray[np.int64]) -> Race:
        def race(seed: int) -> Exposure:
            how, theta = drawing.parse(i.strategy), torch.tensor(i.theta[: i.places])
            scores = live.raised(how.raised).scores(i.query_id, i.features, i.available, i.context)
            options = {"samples": self.samples, "seed": seed}
            return how.exposure(scores.s_c, scores.ranker, documents, theta, live.K2, **options)

        return race

    def _each(self, races: Mapping[Place, Race]) -> Exposure:
        """An item each, with a seed of its own: what else was shown must not change its propensity."""
        rho, error = np.reshape([self._once(name, race) for name, race in races.items()], (-1, 2)).T
        return rho, error

    def _once(self, name: Place, race: Race) -> Exposure:
        """What a race gives; the last ones are kept, as the next impression or journal has many of them again."""
        if (found := self._kept.get(name)) is None:
            self._kept[name] = found = race(derive(0, "served propensities", *name))
            if len(self._kept) * (2 * found[0].nbytes + NAME) > KEPT:
                self._kept.pop(next(iter(self._kept)))
        return found

    def _live(self, digest: str) -> LivePolicy:
        if digest not in self._known:
            for live in self._find({digest}):
                self.know(live)
        if digest not in self._known:
            raise OutputError(
                f"the log has impressions of the policy {digest}, which is not loaded and not in the folder of "
                f"policies: its propensities cannot be computed. Put it there once more (its journal is kept)."
            )
        return self._known[digest]
