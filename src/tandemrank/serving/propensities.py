"""The propensities of a served log: rho_0 of every shown item under the mixture of live pairs, with its Monte-Carlo error.

    rho_0(d) = sum over pairs of share * rho_pair(d),        or that of the draft, where lists were interleaved

One race per (pair, query, strategy, places, available items), from a seed that depends on these alone: a propensity does not
depend on who else was asked.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank._base.ids import Id
from tandemrank._base.random import derive
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import OutputError
from tandemrank.serving import exploration, interleaving
from tandemrank.serving.exploration import Exploration
from tandemrank.serving.interleaving import Team
from tandemrank.serving.live import LivePair
from tandemrank.serving.records import Impression

Floats = NDArray[np.float64]
LEAST = 1e-12  # the smallest propensity that a log takes
SAMPLES = 100  # of the race


def _place(i: Impression) -> tuple[Any, ...]:
    """What the exposure depends on beside the pair."""
    return i.query_id, i.strategy, i.places, i.available


class Propensities:
    """Computes them for pairs that it knows."""

    def __init__(self, theta: Sequence[float] | None = None, samples: int = SAMPLES) -> None:
        self._theta, self.samples = theta, samples
        self._pairs: dict[str, LivePair] = {}

    @property
    def known(self) -> set[str]:
        """The digests of the pairs that it knows."""
        return set(self._pairs)

    def know(self, live: LivePair) -> None:
        """Another pair; one that it knows stays as it is."""
        self._pairs.setdefault(live.digest, live)

    def theta(self, places: int) -> list[float]:
        """The examination curve of a list of so many places."""
        curve = examination_curve(places) if self._theta is None else np.asarray(self._theta[:places])
        return [float(x) for x in curve]

    def of(self, impressions: Sequence[Impression]) -> list[tuple[list[float], list[float]]]:
        """rho_0 of every shown item of each impression, and its standard error."""
        found: dict[tuple[Any, ...], tuple[Floats, Floats]] = {}
        drafted: dict[tuple[Any, ...], tuple[float, float]] = {}
        rows = []
        for i in impressions:
            rho, error = self._drafted(i, drafted) if i.interleaved else self._mixed(i, found)
            rows.append((rho.clip(LEAST, 1.0).tolist(), error.tolist()))
        return rows

    def _mixed(self, i: Impression, found: dict[tuple[Any, ...], tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        rho, variance = np.zeros(len(i.items)), np.zeros(len(i.items))
        for digest, share in i.mixture:
            live = self._live(digest)
            place = (digest, *_place(i))
            if place not in found:
                theta = torch.tensor(self.theta(i.places), dtype=torch.float32)
                found[place] = exploration.parse(i.strategy).exposure(
                    *live.scores(i.query_id, i.available, i.features), theta, live.K2, samples=self.samples,
                    seed=derive(0, "served propensities", *place) % 2**63,
                )  # fmt: skip
            at = np.array([live.item_at.get(item, -1) for item in i.items], np.int64)
            there = at >= 0
            rho[there] += share * found[place][0][at[there]]
            variance[there] += np.square(share * found[place][1][at[there]])
        return rho, np.sqrt(variance)

    def _drafted(self, i: Impression, found: dict[tuple[Any, ...], tuple[float, float]]) -> tuple[Floats, Floats]:
        digests = tuple(digest for digest, _ in i.mixture)
        wanted = [item for item in i.items if (*digests, item, *_place(i)) not in found]
        if wanted:
            teams = [self._team(self._live(digest), i) for digest in digests]
            # An item at a time, each with a seed of its own: what else was shown must not change its propensity.
            for item in wanted:
                place = (*digests, item, *_place(i))
                rho, error = drafted_exposure(
                    (teams[0], teams[1]), [item], np.array(self.theta(i.places)), exploration.parse(i.strategy),
                    samples=self.samples, seed=derive(0, "drafted propensities", *place),
                )  # fmt: skip
                found[place] = float(rho[0]), float(error[0])
        values = np.array([found[(*digests, item, *_place(i))] for item in i.items]).reshape(-1, 2)
        return values[:, 0], values[:, 1]

    def _team(self, live: LivePair, i: Impression) -> Team:
        s_c, s_r = live.masked(live.rows(i.query_id, i.features), i.available)
        return Team(s_c, s_r, live.item_at, live.items, live.K2)

    def _live(self, digest: str) -> LivePair:
        if digest not in self._pairs:
            raise OutputError(
                f"the log has impressions of the pair {digest}, which is not loaded: its propensities cannot be "
                f"computed. Load that pair once more (its journal is kept)."
            )
        return self._pairs[digest]


def drafted_exposure(
    teams: tuple[Team, Team], items: Sequence[Id], theta: Floats, how: Exploration, *, samples: int, seed: int
) -> tuple[Floats, Floats]:
    """rho of some items under the draft of two pairs that explore, and its error.  Shapes: items [n], theta [K] -> [n], [n]."""
    if how.strategy == "deterministic":
        one, other = (
            [t.items[d] for d in how.draw_one(t.s_c, t.s_r, t.K2, min(len(theta), t.K2), 0) if d >= 0] for t in teams
        )
        return interleaving.exposure_of_lists((one, other), items, theta, samples=samples, seed=seed)
    if how.strategy == "temperature":
        teams = tuple(replace(t, s_c=t.s_c / how.amount, s_r=t.s_r / how.amount) for t in teams)  # type: ignore[assignment]
    uniform = how.amount if how.strategy == "uniform" else 0.0
    return interleaving.exposure(teams, items, theta, uniform=uniform, samples=samples, seed=seed)
