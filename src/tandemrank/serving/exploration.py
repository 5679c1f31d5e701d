"""How lists are drawn while a pair is live, and the exposure that follows from it: exploration with known propensities.

    trained          the pair as it was trained: Plackett-Luce on its scores
    temperature T    its scores divided by T: above 1 it varies more, below 1 less
    uniform e        with chance e a list of the pair with equal scores, else one of the pair itself
    deterministic    always the most likely list: nothing is learned beyond it

A list is a function of the pair, the query, the available items and a 64-bit key, so that it can be drawn again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.random import mix, uniforms
from tandemrank.errors import ConfigError
from tandemrank.gradients import race, single, sparse_race
from tandemrank.gradients.coarse import Bounded
from tandemrank.gradients.single import Edge, Ranker

Strategy = Literal["trained", "temperature", "uniform", "deterministic"]
Floats = NDArray[np.float64]
Row = NDArray[np.float32]


@dataclass(frozen=True)
class Exploration:
    """A strategy and its amount: the temperature, or the share of uniform lists."""

    strategy: Strategy = "trained"
    amount: float = 1.0

    def __post_init__(self) -> None:
        """Refuses an amount that the strategy does not take."""
        if self.strategy == "temperature" and not 0 < self.amount < np.inf:
            raise ConfigError(f"a temperature is above 0; got {self.amount}.")
        if self.strategy == "uniform" and not 0 <= self.amount <= 1:
            raise ConfigError(f"the share of uniform lists is from 0 to 1; got {self.amount}.")

    @cached_property
    def name(self) -> str:
        """The strategy in one word, as logs have it; `parse` reads it."""
        return self.strategy if self.strategy in ("trained", "deterministic") else f"{self.strategy}:{self.amount!r}"

    def draw(self, s_c: Tensor, s_r: Tensor, K2: int, K: int, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """A list for each key.  Shapes: s_c, s_r [1, D]; keys [n] -> [n, K], -1 where too few items are available."""
        if self.strategy == "deterministic":
            return np.repeat(race.most_likely(s_c, s_r, K2, K), len(keys), 0)
        rows = np.zeros(len(keys), np.int64)
        if self.strategy != "uniform":
            return race.draw(*self._scaled(s_c, s_r), K2, K, rows=rows, keys=keys)
        both = [torch.cat(pair) for pair in zip((s_c, s_r), _flat(s_c, s_r), strict=True)]
        chosen = uniforms(mix(mix(keys))) < self.amount
        return race.draw(both[0], both[1], K2, K, rows=rows + chosen, keys=keys)

    def draw_one(
        self, s_c: Row | Bounded, s_r: Row | Ranker, K2: int, K: int, key: int, *, edge: Edge | None = None
    ) -> NDArray[np.int32]:
        """The list of one key, the same as `draw` gives, on the calling thread.

        `s_c`: the generator's scores, or bounds of them; `s_r`: the re-ranker's, or who gives some; `edge`: of earlier lists.
        Shapes: s_c, s_r [D] -> [K].
        """
        if self.strategy == "trained":
            return single.draw(s_c, s_r, K2, K, key, edge=edge)
        if self.strategy == "temperature":
            T = np.float32(self.amount)
            return single.draw(_row(s_c) / T, changed(s_r, lambda found: found / T), K2, K, key, edge=edge)
        if self.is_uniform(key):
            return single.draw(_flat_of(_row(s_c)), changed(s_r, _flat_of), K2, K, key)
        return single.draw(s_c, s_r, K2, K, key, edge=edge, is_drawn=self.strategy != "deterministic")

    def is_uniform(self, key: int) -> bool:
        """Whether this key's list is drawn from equal scores."""
        # The key's own hash decides, so that its other bits still decide the list.
        return self.strategy == "uniform" and bool(uniforms(mix(mix(np.array([key], np.uint64))))[0] < self.amount)

    def exposure(
        self, s_c: Tensor, s_r: Tensor, theta: Tensor, K2: int, *, samples: int, seed: int
    ) -> tuple[Floats, Floats]:
        """rho of every item under this strategy, and its Monte-Carlo standard error.

        rho = E[theta_{k(d)}], for a mixture (1 - e) rho_pair + e rho_uniform.  Shapes: s_c, s_r [1, D] -> [D], [D].
        """
        if self.strategy == "deterministic":
            rho = np.zeros(s_c.shape[1])
            shown = race.most_likely(s_c, s_r, K2, len(theta))[0]
            rho[shown[shown >= 0]] = theta.double().numpy()[: int((shown >= 0).sum())]
            return rho, np.zeros_like(rho)
        parts = [(1.0, *self._scaled(s_c, s_r))]
        if self.strategy == "uniform":
            parts = [(1 - self.amount, s_c, s_r), (self.amount, *_flat(s_c, s_r))]
        generator = torch.Generator().manual_seed(seed)
        found = [
            (
                share,
                *(x.double().numpy()[0] for x in race.exposure(a, b, theta, K2, samples=samples, generator=generator)),
            )
            for share, a, b in parts
        ]
        rho = np.sum([share * mean for share, mean, _ in found], axis=0)
        error = np.sqrt(np.sum([np.square(share * own) for share, _, own in found], axis=0))
        return rho, error

    def exposure_of(
        self,
        s_c: Row,
        s_r: Row | Ranker,
        documents: NDArray[np.int64],
        theta: Tensor,
        K2: int,
        *,
        samples: int,
        seed: int,
    ) -> tuple[Floats, Floats]:
        """`exposure` of some items, in the order of their numbers; the re-ranker is asked about these and candidates alone.

        Shapes: s_c [D]; documents [n] -> [n], [n].
        """
        if self.strategy == "deterministic":
            shown = self.draw_one(s_c, s_r, K2, len(theta), 0)
            curve = theta.double().numpy()[: len(shown), None]
            return np.sum(curve * (shown[:, None] == documents), axis=0), np.zeros(len(documents))
        T = np.float32(self.amount if self.strategy == "temperature" else 1.0)
        parts = [(1.0, s_c / T, changed(s_r, lambda found: found / T))]
        if self.strategy == "uniform":
            parts = [(1 - self.amount, s_c, s_r), (self.amount, _flat_of(s_c), changed(s_r, _flat_of))]
        generator = torch.Generator().manual_seed(seed)
        n = len(documents)
        rho, variance = np.zeros(n), np.zeros(n)
        for share, a, b in parts:
            wanted = csr_matrix((np.ones(n), documents, [0, n]), (1, len(s_c)))
            scores = torch.from_numpy(a)[None]
            plan = sparse_race.plan(scores, wanted, K2, samples=samples, pattern=None, generator=generator)
            asked = plan.ranker_documents[0].numpy()
            found = torch.from_numpy(b[asked] if isinstance(b, np.ndarray) else b(asked))[None]
            mean, error = (x.double().numpy() for x in sparse_race.exposure(found, plan, theta))
            rho, variance = rho + share * mean, variance + np.square(share * error)
        return rho, np.sqrt(variance)

    def _scaled(self, s_c: Tensor, s_r: Tensor) -> tuple[Tensor, Tensor]:
        T = self.amount if self.strategy == "temperature" else 1.0
        return s_c / T, s_r / T


def _row(s_c: Row | Bounded) -> Row:
    return s_c.exact() if isinstance(s_c, Bounded) else s_c


def _flat_of(scores: Row) -> Row:
    return np.where(scores == -np.inf, scores, np.float32(0))


def changed(s_r: Row | Ranker, change: Callable[[Row], Row]) -> Row | Ranker:
    """Other scores of the re-ranker, or who gives them."""
    return change(s_r) if isinstance(s_r, np.ndarray) else lambda items: change(s_r(items))


def _flat(s_c: Tensor, s_r: Tensor) -> tuple[Tensor, Tensor]:
    """Equal scores for whatever is available."""
    return tuple(torch.where(s == -torch.inf, s, 0.0) for s in (s_c, s_r))  # type: ignore[return-value]


def parse(name: str) -> Exploration:
    """The strategy of a name: "trained", "temperature:2", "uniform:0.1", "deterministic"."""
    strategy, _, amount = name.partition(":")
    takes_amount: dict[str, Callable[[float], Exploration]] = {
        "temperature": lambda x: Exploration("temperature", x),
        "uniform": lambda x: Exploration("uniform", x),
    }
    if strategy in takes_amount and amount:
        try:
            return takes_amount[strategy](float(amount))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
    elif name == "trained":
        return Exploration("trained")
    elif name == "deterministic":
        return Exploration("deterministic")
    raise ConfigError(f"exploration is trained, temperature:T, uniform:SHARE or deterministic; got {name!r}.")
