"""One list at a time: bit by bit those of the race, from several threads too."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tandemrank.gradients import race, single


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
