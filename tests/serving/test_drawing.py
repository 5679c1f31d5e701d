"""Team-draft interleaving: its exposure against complete enumeration of both policies' lists and of the coins."""

from itertools import permutations

import numpy as np
import pytest

import enumeration
from tandemrank.serving import drawing
from tandemrank.serving.drawing import DraftTeam, Exploration, draft, drafted_exposure

D, K = 5, 3
THETA = np.array([1.0, 0.6, 0.3])


def team(seed: int, K2: int, items: str = "abcde") -> DraftTeam:
    rng = np.random.default_rng(seed)
    s_c, s_r = (rng.normal(size=len(items)).astype(np.float32) for _ in range(2))
    return DraftTeam(s_c, s_r, {x: n for n, x in enumerate(items)}, items, K2)


def plackett_luce(scores: dict[str, float], length: int) -> dict[tuple[str, ...], float]:
    """Every list of that length with its probability."""
    found = {}
    for order in permutations(scores, min(length, len(scores))):
        left, chance = dict(scores), 1.0
        for x in order:
            chance *= np.exp(left[x]) / sum(np.exp(s) for s in left.values())
            del left[x]
        found[order] = found.get(order, 0.0) + chance
    return found


def lists(t: DraftTeam, places: int, T: float = 1.0, flat: bool = False) -> dict[tuple[str, ...], float]:
    """Every shown list of a policy with its probability, by enumeration of candidates in their order and of lists."""
    s_c, s_r = ({x: 0.0 if flat else float(s[n]) / T for x, n in t.item_at.items()} for s in (t.s_c, t.s_r))
    found: dict[tuple[str, ...], float] = {}
    for candidates, p in plackett_luce(s_c, t.K2).items():
        for shown, q in plackett_luce({x: s_r[x] for x in candidates}, places).items():
            found[shown] = found.get(shown, 0.0) + p * q
    return found


def exact(a: dict, b: dict, places: int) -> dict[str, float]:
    rounds = (places + 1) // 2
    rho = dict.fromkeys("abcdefg", 0.0)
    for one, p in a.items():
        for other, q in b.items():
            for coins in range(2**rounds):
                for k, x in enumerate(draft((one, other), places, coins)[0]):
                    rho[x] += p * q / 2**rounds * THETA[k]
    return rho


@pytest.mark.parametrize(("K2", "K2_other"), [(3, 3), (4, 3), (5, 4), (4, 5)])
def test_exposure_of_the_draft_by_enumeration(K2, K2_other) -> None:
    a, b = team(0, K2), team(1, K2_other, "cdefg")
    wanted = exact(lists(a, K), lists(b, K), K)
    rho, error = drafted_exposure((a, b), "abcdefg", THETA, Exploration(), samples=400, seed=0)
    assert sum(wanted.values()) == pytest.approx(THETA.sum())
    assert np.all(np.abs(rho - list(wanted.values())) <= 5 * error + 1e-9)
    assert error.max() < 0.03


@pytest.mark.parametrize(
    "how", [Exploration("temperature", 2.0), Exploration("uniform", 0.4)], ids=lambda how: how.name
)
def test_exposure_with_exploration(how) -> None:
    a, b = team(2, 3), team(3, 3)
    if how.strategy == "temperature":
        of = [lists(t, K, T=2.0) for t in (a, b)]
    else:
        of = []
        for t in (a, b):
            plain, flat = lists(t, K), lists(t, K, flat=True)
            of.append({x: 0.6 * plain.get(x, 0.0) + 0.4 * flat.get(x, 0.0) for x in {**plain, **flat}})
    wanted = exact(*of, K)
    rho, error = drafted_exposure((a, b), "abcde", THETA, how, samples=400, seed=0)
    assert np.all(np.abs(rho - [wanted[x] for x in "abcde"]) <= 5 * error + 1e-9)


def test_fixed_lists_are_exact() -> None:
    a, b = team(4, 4), team(5, 3)
    best = [
        tuple(t.items[d] for d in Exploration("deterministic").draw(t.s_c, t.s_r.__getitem__, t.K2, K, 0))
        for t in (a, b)
    ]
    wanted = exact({best[0]: 1.0}, {best[1]: 1.0}, K)
    rho, error = drafted_exposure((a, b), "abcde", THETA, Exploration("deterministic"), samples=2, seed=0)
    assert rho == pytest.approx([wanted[x] for x in "abcde"])
    assert not error.any()


def test_one_race_of_the_policy_with_itself_is_the_enumerated_policy() -> None:
    """The reference itself: lists by enumeration have the exposure of `enumeration.utility`."""
    a = team(0, 4)
    found = dict.fromkeys("abcde", 0.0)
    for shown, p in lists(a, K).items():
        for k, x in enumerate(shown):
            found[x] += p * THETA[k]
    for n, x in enumerate("abcde"):
        w = [float(m == n) for m in range(D)]
        assert enumeration.utility(a.s_c.tolist(), a.s_r.tolist(), w, THETA.tolist(), 4)[0] == pytest.approx(found[x])


def test_a_draft_by_hand() -> None:
    assert draft(("abc", "bcd"), 3, 0b00) == (["a", "b", "c"], [0, 1, 0])
    assert draft(("abc", "bcd"), 3, 0b01) == (["b", "a", "c"], [1, 0, 0])
    assert draft(("abc", "bcd"), 3, 0b10) == (["a", "b", "c"], [0, 1, 1])
    assert draft(("a", "abcd"), 4, 0b00) == (["a", "b", "c", "d"], [0, 1, 1, 1])
    assert draft(("", ""), 4, 0b00) == ([], [])
    assert len(set(drawing.keys_of(5))) == 3
