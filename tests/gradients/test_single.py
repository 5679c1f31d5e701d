"""One list at a time: bit by bit those of the race, from several threads too, and from bounds of the scores."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemrank.gradients import race, single
from tandemrank.gradients._kernels import draws, products


@pytest.mark.parametrize(("D", "K2", "K"), [(40, 12, 5), (7, 7, 3), (3, 2, 2), (2000, 100, 10)])
def test_lists_are_those_of_the_race(D, K2, K) -> None:
    rng = np.random.default_rng(D)
    s_c, s_r = (rng.normal(size=D).astype(np.float32) for _ in range(2))
    s_c[rng.random(D) < 0.2] = -np.inf
    keys = rng.integers(2**64, size=50, dtype=np.uint64)
    wanted = race.draw(
        torch.from_numpy(s_c)[None], torch.from_numpy(s_r)[None], K2, K, rows=np.zeros(50, np.int64), keys=keys
    )
    asked: list[int] = []

    def ranker(items: np.ndarray) -> np.ndarray:
        asked.append(len(items))
        return s_r[items]

    found = [single.draw(s_c, ranker, K2, K, int(key)) for key in keys]
    assert np.array_equal(found, wanted)
    assert max(asked) <= K2
    edge = single.Edge()  # where the last draw was cut, far too soon and far too late: the same lists
    for limit in (None, -10.0, 10.0):
        for key, one in zip(keys, wanted, strict=True):
            edge.missed = edge.missed if limit is None else limit
            assert np.array_equal(single.draw(s_c, ranker, K2, K, int(key), edge=edge), one)
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda key: single.draw(s_c, ranker, K2, K, int(key), edge=edge), keys))
    assert np.array_equal(again, wanted)
    s_c[:] = np.round(s_c)  # ties
    best = race.most_likely(torch.from_numpy(s_c)[None], torch.from_numpy(s_r)[None], K2, K)[0]
    for _ in range(2):
        assert np.array_equal(single.draw(s_c, ranker, K2, K, 0, edge=edge, is_drawn=False), best)


def test_a_cut_just_before_the_last_candidate_changes_nothing() -> None:
    """Where the last candidate and who just missed both come within the slack of the limit, neither is before it."""
    rng, D, K2 = np.random.default_rng(0), 60, 20
    s_c = rng.normal(size=D).astype(np.float32)

    def candidates(key: int, K2: int, missed: float = np.inf) -> tuple[list[int], float]:
        """Whom the re-ranker is asked about, and the time of who just missed."""
        edge, asked = single.Edge(), []
        edge.missed = missed
        single.draw(s_c, lambda items: asked.append(items.tolist()) or s_c[items], K2, 3, key, edge=edge)
        return asked[0], float(edge.missed)

    close = 0
    for key in range(2000):
        wanted, missed = candidates(key, K2)
        _, last = candidates(key, K2 - 1)
        if missed - last < 8e-4:
            close += 1
            assert candidates(key, K2, last - 1e-4 - 5 / np.sqrt(K2)) == (wanted, missed)
    assert close > 10


def test_products_are_the_products() -> None:
    rng = np.random.default_rng(0)
    x, Y = rng.normal(size=50).astype(np.float32), rng.normal(size=(33, 50)).astype(np.float32)
    assert single.products(x, Y) == pytest.approx(Y.astype(float) @ x.astype(float), abs=1e-4)


# Bounds, out of a byte per number


KEYS = (0, 1, 2**63 + 5, 123456789)


def factors(kind: str, D: int, F: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Items and a query: of even size, of every size, with one that is huge, with ties and zeros, at the ends of float32."""
    rng = np.random.default_rng(seed)
    Y, x = rng.normal(size=(D, F)), rng.normal(size=F)
    if kind == "sizes":
        Y *= np.exp(rng.normal(scale=4, size=(D, 1)))
    elif kind == "huge":
        Y[D // 3] *= 1e4
    elif kind == "ties":
        Y = np.round(Y[rng.integers(0, min(3, D), D)])
        Y[::4] = 0
    elif kind == "single":  # all of an item in one number: its steps are of no use for the others
        Y[np.arange(D), rng.integers(F, size=D)] *= 1e3
    elif kind == "tiny":
        Y *= 1e-33
    elif kind == "long":
        Y, x = Y * 1e12, x * 1e12
    elif kind == "near":  # scores that differ by less than a step
        Y = rng.normal(size=F) + 1e-4 * Y
    return Y.astype(np.float32), x.astype(np.float32)


KINDS = ("even", "sizes", "huge", "ties", "single", "tiny", "long", "near")


def check(Y: np.ndarray, x: np.ndarray, K2: int, K: int, keys: tuple[int, ...] = KEYS) -> None:
    """The same lists, the same time of who missed, from bounds as from scores; with limits of an earlier race and without."""
    bounded, s_c = single.Coarse.of(Y).bounded(x), single.products(x, Y)
    assert bounded is not None
    assert np.array_equal(bounded.exact(), s_c)
    lower = bounded.upper - np.float32(2.02) * (bounded.length * bounded.coarse.reach) - np.float32(3) * products.TINY
    assert (s_c <= bounded.upper).all()
    assert (s_c >= lower).all()
    s_r = np.random.default_rng(1).normal(size=len(Y)).astype(np.float32)
    for is_drawn in (True, False):
        edges = single.Edge(), single.Edge()
        for key in keys:
            lists = [
                single.draw(first, s_r.__getitem__, K2, K, key, edge=edge, is_drawn=is_drawn)
                for first, edge in zip((bounded, s_c), edges, strict=True)
            ]
            assert np.array_equal(*lists)
            assert edges[0].missed == edges[1].missed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("D", "F", "K2"), [(3000, 64, 40), (400, 7, 399), (50, 1, 3), (5000, 33, 1)])
def test_lists_are_those_of_all_scores(kind, D, F, K2) -> None:
    check(*factors(kind, D, F), K2, min(K2, 10))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS), D=st.integers(2, 300), F=st.integers(1, 70), seed=st.integers(0, 2**32),
    share=st.floats(0, 1), key=st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_of_any_size(kind, D, F, seed, share, key) -> None:
    K2 = 1 + int(share * (D - 2))
    check(*factors(kind, D, F, seed), K2, min(K2, 5), (key, key ^ 1, key ^ 2))


def test_few_are_scored_where_scores_are_even() -> None:
    Y, x = factors("even", 50_000, 64)
    bounded = single.Coarse.of(Y).bounded(x / 4)
    floats, docs = np.empty((2, len(Y) + 1), np.float32), np.empty(len(Y) + 1, np.int32)
    n = draws.possible(bounded.upper, bounded.coarse.reach, bounded.length, np.uint64(3), True, 100, floats, docs)
    assert 100 < n < 200


def test_where_float32_has_no_room_there_are_no_bounds() -> None:
    Y, x = factors("even", 20, 4)
    assert single.Coarse.of(Y).bounded(np.zeros(4, np.float32)) is None
    assert single.Coarse.of(Y).bounded(x * np.float32(1e-30)) is None
    assert single.Coarse.of(Y * np.float32(1e30)).bounded(x * np.float32(10)) is None
    for wrong in (np.nan, np.inf):
        Y[3, 2] = wrong
        assert single.Coarse.of(Y) is None
