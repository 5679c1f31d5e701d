"""How lists are drawn from live policies, and the exposure that follows from it: exploration with known propensities.

    belief c         the belief raised by c standard deviations (`beliefs.exploring`): what is not known is tried; by default as
                     many as cost little (`LivePolicy.affordable`); a policy without a belief as it was trained
    trained          the policy as it was trained: Plackett-Luce on its scores
    temperature T    its scores divided by T: above 1 it varies more, below 1 less
    uniform e        with chance e a list of the policy with equal scores, else one of the policy itself
    deterministic    always the most likely list: nothing is learned beyond it

A list is a function of the policy, the query, the available items and a 64-bit key, so that it can be drawn again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.random import mix, uniforms
from tandemrank.errors import ConfigError
from tandemrank.gradients import race, single, sparse_race
from tandemrank.gradients.single import Bounded, Edge, Ranker

Strategy = Literal["belief", "trained", "temperature", "uniform", "deterministic"]
Floats = NDArray[np.float64]
Row = NDArray[np.float32]
WITH_AMOUNT = ("belief", "temperature", "uniform")
AFFORDABLE = np.inf  # standard deviations of a belief: as many as cost little, chosen when it goes live


@dataclass(frozen=True)
class Exploration:
    """A strategy and its amount: standard deviations, the temperature, or the share of uniform lists."""

    strategy: Strategy = "trained"
    amount: float = 1.0

    def __post_init__(self) -> None:
        """Refuses an amount that the strategy does not take."""
        if self.strategy == "belief" and not self.amount >= 0:
            raise ConfigError(f"a belief is raised by 0 or more standard deviations; got {self.amount}.")
        if self.strategy == "temperature" and not 0 < self.amount < np.inf:
            raise ConfigError(f"a temperature is above 0; got {self.amount}.")
        if self.strategy == "uniform" and not 0 <= self.amount <= 1:
            raise ConfigError(f"the share of uniform lists is from 0 to 1; got {self.amount}.")

    @cached_property
    def name(self) -> str:
        """The strategy in one word, as logs have it; `parse` reads it."""
        return f"{self.strategy}:{self.amount!r}" if self.strategy in WITH_AMOUNT else self.strategy

    @property
    def raised(self) -> float:
        """By how many standard deviations the belief is raised."""
        return self.amount if self.strategy == "belief" else 0.0

    def draw(
        self, s_c: Row | Bounded, s_r: Row | Ranker, K2: int, K: int, key: int, *, edge: Edge | None = None
    ) -> NDArray[np.int32]:
        """The list of one key, on the calling thread; -1 where too few items are available.

        `s_c`: the generator's scores, or bounds of them; `s_r`: the re-ranker's, or who gives some; `edge`: of earlier lists.
        Shapes: s_c, s_r [D] -> [K].
        """
        if self.strategy == "temperature":
            [(_, a, b)] = self.parts(_exact(s_c), s_r)
            return single.draw(a, b, K2, K, key, edge=edge)
        if self.is_uniform(key):
            return single.draw(_flat(_exact(s_c)), _changed(s_r, _flat), K2, K, key)
        return single.draw(s_c, s_r, K2, K, key, edge=edge, is_drawn=self.strategy != "deterministic")

    def is_uniform(self, key: int) -> bool:
        """Whether this key's list is drawn from equal scores."""
        # The key's own hash decides, so that its other bits still decide the list.
        return self.strategy == "uniform" and bool(uniforms(mix(mix(np.array([key], np.uint64))))[0] < self.amount)

    def exposure(
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
        """rho of some items under this strategy, and its Monte-Carlo standard error.

        rho = E[theta_{k(d)}], for a mixture (1 - e) rho_policy + e rho_uniform. Where all the re-ranker's scores are given, by
        one race of all items; else by one that asks the re-ranker about candidates and these items alone, in the order of
        their numbers.  Shapes: s_c, s_r [D]; documents [n] -> [n], [n].
        """
        if self.strategy == "deterministic":
            shown = self.draw(s_c, s_r, K2, len(theta), 0)
            curve = theta.double().numpy()[: len(shown), None]
            return np.sum(curve * (shown[:, None] == documents), axis=0), np.zeros(len(documents))
        generator = torch.Generator().manual_seed(seed)
        rho, variance = np.zeros(len(documents)), np.zeros(len(documents))
        for share, a, b in self.parts(s_c, s_r):
            of = _of_all if isinstance(b, np.ndarray) else _of_some
            mean, error = of(a, b, documents, theta, K2, samples, generator)  # type: ignore[arg-type]
            rho, variance = rho + share * mean, variance + np.square(share * error)
        return rho, np.sqrt(variance)

    def parts(self, s_c: Row, s_r: Row | Ranker) -> list[tuple[float, Row, Row | Ranker]]:
        """The scores that lists are drawn from by chance, each with its share of the lists."""
        if self.strategy == "temperature":
            T = np.float32(self.amount)
            return [(1.0, s_c / T, _changed(s_r, lambda found: found / T))]
        if self.strategy == "uniform":
            return [(1 - self.amount, s_c, s_r), (self.amount, _flat(s_c), _changed(s_r, _flat))]
        return [(1.0, s_c, s_r)]


def _of_all(
    s_c: Row, s_r: Row, documents: NDArray[np.int64], theta: Tensor, K2: int, samples: int, generator: torch.Generator
) -> tuple[Floats, Floats]:
    first, second = torch.from_numpy(s_c)[None], torch.from_numpy(s_r)[None]
    rho, error = race.exposure(first, second, theta, K2, samples=samples, generator=generator)
    return rho[0].double().numpy()[documents], error[0].double().numpy()[documents]


def _of_some(
    s_c: Row,
    s_r: Ranker,
    documents: NDArray[np.int64],
    theta: Tensor,
    K2: int,
    samples: int,
    generator: torch.Generator,
) -> tuple[Floats, Floats]:
    n = len(documents)
    wanted = csr_matrix((np.ones(n), documents, [0, n]), (1, len(s_c)))
    plan = sparse_race.plan(
        torch.from_numpy(s_c)[None], wanted, K2, samples=samples, moves_generator=False, generator=generator
    )
    found = torch.from_numpy(s_r(plan.ranker_documents[0].numpy()))[None]
    rho, error = sparse_race.exposure(found, plan, theta)
    return rho.double().numpy(), error.double().numpy()


def _exact(s_c: Row | Bounded) -> Row:
    return s_c.exact() if isinstance(s_c, Bounded) else s_c


def _flat(scores: Row) -> Row:
    """Equal scores for whatever is available."""
    return np.where(scores == -np.inf, scores, np.float32(0))


def _changed(s_r: Row | Ranker, change: Callable[[Row], Row]) -> Row | Ranker:
    """Other scores of the re-ranker, or who gives them."""
    return change(s_r) if isinstance(s_r, np.ndarray) else lambda items: change(s_r(items))


@lru_cache(maxsize=64)
def parse(name: str) -> Exploration:
    """The strategy of a name: "belief", "belief:2", "trained", "temperature:2", "uniform:0.1", "deterministic"."""
    if name == "belief":
        return Exploration("belief", AFFORDABLE)
    strategy, colon, amount = name.partition(":")
    try:
        if strategy in get_args(Strategy) and bool(colon) == (strategy in WITH_AMOUNT) and amount != "inf":
            return Exploration(cast(Strategy, strategy), float(amount) if colon else 1.0)
    except ConfigError:
        raise
    except ValueError:
        pass  # an amount that is no number
    raise ConfigError(
        f"exploration is belief, belief:C, trained, temperature:T, uniform:SHARE or deterministic; got {name!r}."
    )
