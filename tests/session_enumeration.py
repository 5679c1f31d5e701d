"""Sessions by dynamic programming and complete enumeration in plain Python: the oracle of the tests of this room.

A state is the last clicked item, or START. A step shows a list; at most one of its items is clicked, that of rank k with the
chance theta_k R[x][d], and is the next state; without a click the state stays. A policy has both stages' scores by state.
"""

import cmath
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from enumeration import exposure, two_stage

D, K2, THETA = 5, 3, (1.0, 0.5)
START, NONE = D, -1
STATES = range(D + 1)
Scores = Sequence[Sequence[float]]
Step = tuple[int, tuple[int, ...], int]


@dataclass(frozen=True)
class Policy:
    """Both stages' scores by state."""

    s: Scores
    r: Scores
    K2: int = K2

    @cache  # noqa: B019
    def exposure(self, x: int) -> list[float]:
        return exposure(self.s[x], self.r[x], THETA, self.K2)

    @cache  # noqa: B019
    def lists(self, x: int) -> dict[tuple[int, ...], float]:
        """The chance of every list."""
        found: dict[tuple[int, ...], float] = {}
        for y, p, _, _ in two_stage(self.s[x], self.r[x], THETA, self.K2):
            found[y] = found.get(y, 0.0) + p
        return found


def policy(seed: int, K2: int = K2, spread: float = 1.0) -> Policy:
    chance = random.Random(seed)
    s, r = (tuple(tuple(chance.gauss(0, spread) for _ in range(D)) for _ in STATES) for _ in range(2))
    return Policy(s, r, K2)


def relevance(seed: int) -> list[list[float]]:
    """R[x][d], such that no list is clicked with a chance above 1."""
    chance = random.Random(seed)
    return [[chance.uniform(0.05, 0.6) for _ in range(D)] for _ in STATES]


def after(x: int, event: int) -> int:
    return x if event == NONE else event


def events(rho: Sequence[float], R: Sequence[float]) -> dict[int, float]:
    """The chance of a click on each item, and of none."""
    clicks = {d: rho[d] * R[d] for d in range(D)}
    return {**clicks, NONE: 1 - sum(clicks.values())}


def value(rho: Sequence[Sequence[complex]], R: Scores, T: int, g: float) -> list[complex]:
    """What T steps from each state on are worth, by exposures of the states."""
    V = [0.0] * (D + 1)
    for _ in range(T):
        V = [
            sum(rho[x][d] * R[x][d] * (1 + g * V[d]) for d in range(D))
            + (1 - sum(rho[x][d] * R[x][d] for d in range(D))) * g * V[x]
            for x in STATES
        ]
    return V


def gradient(new: Policy, R: Scores, T: int, g: float) -> tuple[list[list[float]], list[list[float]]]:
    """Of the value from START by both stages' scores: complex steps, exact to the last digits."""
    h, found = 1e-40, []
    plain = [new.exposure(x) for x in STATES]
    for stage in ("s", "r"):
        own = []
        for x, d in itertools.product(STATES, range(D)):
            moved = {name: list(getattr(new, name)[x]) for name in ("s", "r")}
            moved[stage][d] += 1j * h
            rho = [_complex_exposure(moved["s"], moved["r"], new.K2) if y == x else plain[y] for y in STATES]
            own.append(value(rho, R, T, g)[START].imag / h)
        found.append([own[x * D : (x + 1) * D] for x in STATES])
    return found[0], found[1]


def _complex_exposure(s: Sequence[complex], r: Sequence[complex], K2: int) -> list[complex]:
    rho = [0j] * D
    for y_c, p_c in _lists(s, range(D), K2):
        for y_r, p_r in _lists(r, y_c, len(THETA)):
            for k, d in enumerate(y_r):
                rho[d] += p_c * p_r * THETA[k]
    return rho


def _lists(scores: Sequence[complex], docs: Sequence[int], n: int) -> Iterator[tuple[tuple[int, ...], complex]]:
    for y in itertools.permutations(docs, n):
        p, left = 1 + 0j, list(docs)
        for d in y:
            p *= cmath.exp(scores[d]) / sum(cmath.exp(scores[e]) for e in left)
            left.remove(d)
        yield y, p


# --- moments of estimators --------------------------------------------------------------------------------------------


def moments(new: Policy, old: Policy, R: Scores, T: int, g: float, *, by_lists: bool = False) -> tuple[float, float]:
    """Mean and variance of what one session adds to U_hat, by the ratios of exposures, or by those of lists.

    Z_t = X_t + g w_t Z_{t+1}, so that both moments go backward over the steps.
    """
    m1, m2 = [0.0] * (D + 1), [0.0] * (D + 1)
    pairs = [_step(new, old, R, x, by_lists) for x in STATES]
    for _ in range(T):
        first = [sum(p * (X + g * w * m1[y]) for p, X, w, y in pairs[x]) for x in STATES]
        second = [
            sum(p * (X * X + 2 * g * X * w * m1[y] + (g * w) ** 2 * m2[y]) for p, X, w, y in pairs[x]) for x in STATES
        ]
        m1, m2 = first, second
    return m1[START], m2[START] - m1[START] ** 2


def _step(new: Policy, old: Policy, R: Scores, x: int, by_lists: bool) -> list[tuple[float, float, float, int]]:
    """What may happen in a step of the log: its chance, weighted clicks, the ratio of its past for later, the next state."""
    if by_lists:
        ours, found = new.lists(x), []
        for y, p in old.lists(x).items():
            w, click = ours[y] / p, [THETA[k] * R[x][d] for k, d in enumerate(y)]
            found += [(p * c, w, w, d) for d, c in zip(y, click, strict=True)]
            found.append((p * (1 - sum(click)), 0.0, w, x))
        return found
    w = ratios(new, old, R, x)
    return [(p, w[e] if e != NONE else 0.0, w[e], after(x, e)) for e, p in events(old.exposure(x), R[x]).items()]


def ratios(new: Policy, old: Policy, R: Scores, x: int) -> dict[int, float]:
    """w of every event: rho_cr / rho_0 of the clicked item, or that of no click."""
    ours, theirs = new.exposure(x), old.exposure(x)
    none = events(ours, R[x])[NONE] / events(theirs, R[x])[NONE]
    return {**{d: ours[d] / theirs[d] for d in range(D)}, NONE: none}


def sessions(old: Policy, R: Scores, T: int) -> Iterator[tuple[float, list[tuple[int, tuple[int, ...], int]]]]:
    """Every session of the log: its chance, and its steps (state, list, event)."""
    lists = {x: old.lists(x) for x in STATES}

    def longer(p: float, steps: list[tuple[int, tuple[int, ...], int]], x: int) -> Iterator:
        if len(steps) == T:
            yield p, steps
            return
        for y, share in lists[x].items():
            clicks = {d: THETA[k] * R[x][d] for k, d in enumerate(y)}
            for e, c in {**clicks, NONE: 1 - sum(clicks.values())}.items():
                yield from longer(p * share * c, [*steps, (x, y, e)], after(x, e))

    return longer(1.0, [], START)
