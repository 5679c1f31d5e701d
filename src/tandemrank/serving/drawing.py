"""How lists are drawn from live policies, and the exposure that follows from it: exploration with known propensities.

    belief c         the belief raised by c standard deviations (`beliefs.exploring`): what is not known is tried; a policy
                     without a belief as it was trained
    trained          the policy as it was trained: Plackett-Luce on its scores
    temperature T    its scores divided by T: above 1 it varies more, below 1 less
    uniform e        with chance e a list of the policy with equal scores, else one of the policy itself
    deterministic    always the most likely list: nothing is learned beyond it

A list is a function of the policy, the query, the available items and a 64-bit key, so that it can be drawn again.

Two policies in one list are interleaved by a team draft (Radlinski et al. 2008). In each round a coin decides which team
chooses first; each puts the first item of its own list that is not shown yet. A click is credited to the team that put the item
there. A team whose list is at its end leaves its turn to the other.

Its exposure: with every clock but those of item d fixed, and with it known in which of
the two policies d is a candidate, the draft goes the same way until a team puts d. Team A puts it at its first turn at which d
stands in A's list before what A would have put instead. So, with d a candidate of both,

    P(d is not shown up to place k) = exp(-mu_A t(i_A(k))) exp(-mu_B t(i_B(k))),
    P(d is a candidate of A) = 1 - exp(-lambda_A T),

where i_A(k) is what A put, or would have put, at its last turn up to k, t its time in A's second race, mu_A and lambda_A the
rates of d in A, and T the time at which the K2-th of the other items arrives in A's first race; for a policy of which d is no
candidate the factor is 1, and one more of the others is. The clocks of d integrate out, as in `gradients.race`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.ids import Id
from tandemrank._base.random import GOLDEN, mix, uniforms
from tandemrank.errors import ConfigError
from tandemrank.gradients import race, single, sparse_race
from tandemrank.gradients.single import Bounded, Edge, Ranker

Strategy = Literal["belief", "trained", "temperature", "uniform", "deterministic"]
Floats = NDArray[np.float64]
Row = NDArray[np.float32]
WITH_AMOUNT = ("belief", "temperature", "uniform")
RAISED = 3.0  # standard deviations, where nobody says how many (docs/serving.md)
FEW = 8  # rounds whose coins are all tried


@dataclass(frozen=True)
class Exploration:
    """A strategy and its amount: standard deviations, the temperature, or the share of uniform lists."""

    strategy: Strategy = "trained"
    amount: float = 1.0

    def __post_init__(self) -> None:
        """Refuses an amount that the strategy does not take."""
        if self.strategy == "belief" and not 0 <= self.amount < np.inf:
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
        return Exploration("belief", RAISED)
    strategy, colon, amount = name.partition(":")
    try:
        if strategy in get_args(Strategy) and bool(colon) == (strategy in WITH_AMOUNT):
            return Exploration(cast(Strategy, strategy), float(amount) if colon else 1.0)
    except ConfigError:
        raise
    except ValueError:
        pass  # an amount that is no number
    raise ConfigError(
        f"exploration is belief, belief:C, trained, temperature:T, uniform:SHARE or deterministic; got {name!r}."
    )


# --- two policies in one list -------------------------------------------------------------------------------------------


def keys_of(key: int) -> tuple[int, int, int]:
    """The keys of the two lists and of the coins, from that of the impression."""
    second, coins = mix(np.array([key], np.uint64) + GOLDEN * np.array([1, 2], np.uint64))
    return key, int(second), int(coins)


def draft(lists: tuple[Sequence[Id], Sequence[Id]], K: int, coins: int) -> tuple[list[Id], list[int]]:
    """The interleaved list and the team (0 or 1) of each of its places; bit j of `coins` is who begins round j."""
    puts = [asked[-1] for asked in _turns(lists, K, coins)]
    puts = [(team, at) for team, at in puts if at < len(lists[team])]
    return [lists[team][at] for team, at in puts], [team for team, _ in puts]


def _turns(lists: tuple[Sequence[Id], Sequence[Id]], K: int, coins: int) -> list[list[tuple[int, int]]]:
    """For each place who had its turn there, and the number of what it put or would have put; the last of them puts an item.

    Goes on to place K where both lists are at their end: the item that is left out may still be put there.
    """
    at, seen = [0, 0], set()
    found: list[list[tuple[int, int]]] = []
    for turn in range(K):
        begins = coins >> (turn // 2 % 64) & 1
        wanted = begins ^ (turn % 2)
        asked: list[tuple[int, int]] = []
        for team in (wanted, 1 - wanted):
            while at[team] < len(lists[team]) and lists[team][at[team]] in seen:
                at[team] += 1
            asked.append((team, at[team]))
            if at[team] < len(lists[team]):
                seen.add(lists[team][at[team]])
                break
        found.append(asked)
    return found


@dataclass(frozen=True)
class DraftTeam:
    """One side of a draft: its scores, or who gives some of the re-ranker's; their items; how many candidates it has.

    Shapes: s_c, s_r [D].
    """

    s_c: Row
    s_r: Row | Ranker
    item_at: dict[Id, int]
    items: Sequence[Id]
    K2: int

    def rates(self, docs: NDArray[np.int64]) -> Floats:
        """Of some items in the second race.  Shapes: [n] -> [n]."""
        s_r = self.s_r[docs] if isinstance(self.s_r, np.ndarray) else self.s_r(docs.astype(np.int32))
        found: Floats = np.exp(s_r.astype(np.float64))
        return found


def drafted_exposure(
    teams: tuple[DraftTeam, DraftTeam], items: Sequence[Id], theta: Floats, how: Exploration, *, samples: int, seed: int
) -> tuple[Floats, Floats]:
    """rho of some items under the draft of two policies that explore, and its Monte-Carlo standard error.

    Shapes: items [n], theta [K] -> [n], [n].
    """
    if how.strategy == "deterministic":
        one, other = (
            [t.items[d] for d in how.draw(t.s_c, t.s_r, t.K2, min(len(theta), t.K2), 0) if d >= 0] for t in teams
        )
        return _exposure_of_lists((one, other), items, theta, samples=samples, seed=seed)
    rng = np.random.default_rng(seed)
    parts = [[(share, replace(t, s_c=a, s_r=b)) for share, a, b in how.parts(t.s_c, t.s_r)] for t in teams]
    values = np.zeros((samples, len(items)))
    for j in range(samples):
        coins = int(rng.integers(2**63))
        races = _race(_chosen(parts[0], rng), rng), _race(_chosen(parts[1], rng), rng)
        values[j] = [_conditional(races, item, theta, coins) for item in items]
    return _mean(values)


def _chosen(parts: Sequence[tuple[float, DraftTeam]], rng: np.random.Generator) -> DraftTeam:
    """One of two teams, by their shares, or the only one."""
    return parts[-1][1] if rng.random() < parts[-1][0] else parts[0][1]


def _mean(values: Floats) -> tuple[Floats, Floats]:
    n = len(values)
    error = values.std(0, ddof=1) / np.sqrt(n) if n > 1 else np.full(values.shape[1], np.nan)
    return values.mean(0), error


def _exposure_of_lists(
    lists: tuple[Sequence[Id], Sequence[Id]], items: Sequence[Id], theta: Floats, *, samples: int, seed: int
) -> tuple[Floats, Floats]:
    """The same for two fixed lists: only the coins are random, and all of them are tried where they are few."""
    K, rng = len(theta), np.random.default_rng(seed)
    rounds = (K + 1) // 2
    tried = range(2**rounds) if rounds <= FEW else [int(x) for x in rng.integers(2**63, size=max(samples, 2**FEW))]
    values = np.zeros((len(tried), len(items)))
    for j, coins in enumerate(tried):
        shown, _ = draft(lists, K, coins)
        at = {item: k for k, item in enumerate(shown)}
        values[j] = [theta[at[item]] if item in at else 0.0 for item in items]
    mean, error = _mean(values)
    return mean, np.zeros_like(mean) if rounds <= FEW else error


@dataclass(frozen=True)
class _Race:
    """One sample of a team: who arrives first, at least K2 + 1 of them, with their times in both races.

    Shapes: docs, T, t [n], in the order of arrival; lambda_ [D], the rates of the first race.
    """

    team: DraftTeam
    docs: NDArray[np.int64]
    T: Floats
    t: Floats
    lambda_: Floats

    def mu(self, d: int) -> float:
        """The rate of d in the second race."""
        return float(self.team.rates(np.array([d]))[0])

    def without(self, d: int | None, places: int, *, candidate: bool) -> tuple[list[Id], Floats]:
        """The list of the others and its times, of K2 candidates, or of K2 - 1 where d is the last one."""
        keep = np.flatnonzero(self.docs != (-1 if d is None else d))[: self.team.K2 - candidate]
        order = keep[np.argsort(self.t[keep], kind="stable")][:places]
        order = order[self.t[order] < np.inf]
        return [self.team.items[x] for x in self.docs[order]], self.t[order]

    def chance(self, d: int | None) -> float:
        """That d is a candidate: it arrives before the K2-th of the others."""
        if d is None:
            return 0.0
        others = self.T[self.docs != d]
        T = float(others[self.team.K2 - 1]) if len(others) >= self.team.K2 else np.inf
        return float(-np.expm1(-self.lambda_[d] * T)) if self.lambda_[d] > 0 else 0.0


def _race(team: DraftTeam, rng: np.random.Generator) -> _Race:
    lambda_ = np.exp(team.s_c.astype(np.float64))
    with np.errstate(divide="ignore"):
        T, late = rng.exponential(size=len(lambda_)) / lambda_, rng.exponential(size=len(lambda_))
    n = min(team.K2 + 1, len(T))
    first = np.argpartition(T, n - 1)[:n]
    first = first[np.argsort(T[first], kind="stable")]
    first = first[T[first] < np.inf]
    with np.errstate(divide="ignore"):
        t = late[first] / team.rates(first)
    return _Race(team, first, T[first], t, lambda_)


def _conditional(races: tuple[_Race, _Race], item: Id, theta: Floats, coins: int) -> float:
    """E[theta at the place of the item] with all clocks fixed but its own."""
    places = [race.team.item_at.get(item) for race in races]
    chances = [race.chance(d) for race, d in zip(races, places, strict=True)]
    value = 0.0
    for is_in in ((True, True), (True, False), (False, True)):
        weight = float(np.prod([c if there else 1 - c for c, there in zip(chances, is_in, strict=True)]))
        if weight > 0:
            value += weight * _as_candidate(races, places, is_in, theta, coins)
    return value


def _as_candidate(
    races: tuple[_Race, _Race], places: list[int | None], is_in: tuple[bool, bool], theta: Floats, coins: int
) -> float:
    """The same, given of which policies the item is a candidate."""
    K = len(theta)
    others = [r.without(d, K, candidate=c) for r, d, c in zip(races, places, is_in, strict=True)]
    rates = [r.mu(d) if c and d is not None else 0.0 for r, d, c in zip(races, places, is_in, strict=True)]
    passed, left, value = [1.0, 1.0], 1.0, 0.0
    for k, turns in enumerate(_turns((others[0][0], others[1][0]), K, coins)):
        for team, index in turns:
            times = others[team][1]
            if rates[team] > 0:
                passed[team] = float(np.exp(-rates[team] * times[index])) if index < len(times) else 0.0
        now = passed[0] * passed[1]
        value += float(theta[k]) * (left - now)
        left = now
    return value
