"""Team-draft interleaving of two policies (Radlinski et al. 2008), and the exposure that it gives.

In each round a coin decides which team chooses first; each puts the first item of its own list that is not shown yet. A
click is credited to the team that put the item there. A team whose list is at its end leaves its turn to the other.

Exposure, with known propensities as everywhere: with every clock but those of item d fixed, and with it known in which of
the two policies d is a candidate, the draft goes the same way until a team puts d. Team A puts it at its first turn at which d
stands in A's list before what A would have put instead. So, with d a candidate of both,

    P(d is not shown up to place k) = exp(-mu_A t(i_A(k))) exp(-mu_B t(i_B(k))),
    P(d is a candidate of A) = 1 - exp(-lambda_A T),

where i_A(k) is what A put, or would have put, at its last turn up to k, t its time in A's second race, mu_A and lambda_A the
rates of d in A, and T the time at which the K2-th of the other items arrives in A's first race; for a policy of which d is no
candidate the factor is 1, and one more of the others is. The clocks of d integrate out, as in `gradients.race`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import Id
from tandemrank._base.random import GOLDEN, mix
from tandemrank.gradients.single import Ranker
from tandemrank.serving.exploration import Exploration

Row = NDArray[np.float32]
Floats = NDArray[np.float64]
FEW = 8  # rounds whose coins are all tried


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


def exposure(
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
