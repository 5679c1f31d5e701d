"""Whether the lists of a query vary, against every two lists of it one by one."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest

from tandemrank.logs import description, reading, sums
from tandemrank.offpolicy import values


def log(lists: dict[str, list[list[int]]]) -> pl.DataFrame:
    rows = [(q, items) for q, some in lists.items() for items in some]
    return pl.DataFrame(
        {"query_id": [q for q, _ in rows], "items": [i for _, i in rows], "clicks": [[0] * len(i) for _, i in rows]}
    )


def noisy(exchanged: float, seed: int = 0) -> pl.DataFrame:
    """Lists of 5 out of 60 items, always the same but for a share of the places."""
    rng = np.random.default_rng(seed)
    lists = {}
    for q in range(30):
        best = rng.permutation(60)
        some = np.tile(best[:5], (8, 1))
        change = rng.random(some.shape) < exchanged
        some[change] = best[5 + rng.integers(55, size=int(change.sum()))]
        lists[str(q)] = [list(dict.fromkeys(row.tolist())) for row in some]
    return log(lists)


def test_items_in_common_by_every_two_lists() -> None:
    lists = {"a": [[1, 2, 3], [2, 3, 4], [3, 9, 8]], "b": [[1, 2, 3], [3, 2, 1]], "c": [[5, 6, 7]]}
    shared = {
        q: np.mean([len({*x} & {*y}) / 3 for x, y in combinations(some, 2)]) for q, some in lists.items() if q != "c"
    }
    found = description.items_in_common(reading.read(log(lists)))
    assert found == pytest.approx((3 * shared["a"] + 2 * shared["b"]) / 5)


def test_one_place_in_twenty_is_no_exploration_and_one_in_three_is() -> None:
    assert "of their items in common" in (description.hardly_varies(reading.read(noisy(0.05))) or "")
    assert description.hardly_varies(reading.read(noisy(0.0))) == "100% of the queries always saw the same list"
    assert description.hardly_varies(reading.read(noisy(0.35))) is None


def test_lists_that_now_and_then_leave_their_items_say_something_of_others() -> None:
    assert description.shows_nothing_else(reading.read(noisy(0.05))) is None
    assert description.shows_nothing_else(reading.read(noisy(0.0))) == "100% of the queries always saw the same list"
    swapped = log({str(q): [[1, 2, 3], [2, 1, 3], [1, 3, 2]] if q % 2 else [[4, 5, 6], [5, 4, 6]] for q in range(9)})
    assert "100% of their items in common" in (description.shows_nothing_else(reading.read(swapped)) or "")


def test_what_chance_has_in_common_does_not_count() -> None:
    rng = np.random.default_rng(0)
    random = {str(q): [rng.permutation(6)[:5].tolist() for _ in range(9)] for q in range(9)}
    feedback = reading.read(log(random))
    assert description.items_in_common(feedback) == pytest.approx(5 / 6, abs=0.03)
    assert description.hardly_varies(feedback) is None


def test_queries_that_come_once_say_nothing() -> None:
    feedback = reading.read(log({"a": [[1, 2]], "b": [[1, 2]]}))
    assert (
        description.items_in_common(feedback)
        is description.fixed_queries(feedback)
        is description.hardly_varies(feedback)
        is None
    )


@pytest.mark.parametrize("keys", ["own", "one", "none", "texts", "gone"])
def test_lists_of_a_sharp_policy_are_known_by_their_keys_to_be_drawn_anew(keys) -> None:
    rng = np.random.default_rng(0)
    n, K = 400, 5
    lists = np.tile(np.arange(K), (n, 1))
    lists[:, -1] = np.where(rng.random(n) < 0.5, K - 1, rng.integers(K, 200, n))  # one place of five is drawn
    rows = {
        "query_id": rng.integers(8, size=n), "items": lists.tolist(), "clicks": np.zeros((n, K), int).tolist(),
        "propensities": np.full((n, K), 0.5).tolist(),
    }  # fmt: skip
    column = {
        "own": pl.Series("key", np.arange(n, dtype=np.uint64)), "one": pl.Series("key", np.full(n, 7, np.uint64)),
        "texts": pl.Series("key", [f"k{i}" for i in range(n)]), "gone": pl.Series("key", [None] * n, dtype=pl.UInt64),
    }  # fmt: skip
    frame = pl.DataFrame(rows).with_columns(*([column[keys]] if keys in column else []))
    log = reading.read(frame)
    assert "in common" in description.hardly_varies(log)
    assert log.anew == description.drawn_anew(log) == (keys == "own")
    assert sums.merge([log, reading.read(frame)]).anew == (keys == "own")
    assert not sums.merge([log, reading.read(frame.drop("key", strict=False))]).anew
    assert values.unit_of(log, "logged") == ("impressions" if keys == "own" else "queries")
    fixed = reading.read(frame.with_columns(items=pl.lit(list(range(K)))))
    assert not description.drawn_anew(fixed)  # always one list: keys or not, nothing was drawn


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_file_whose_keys_are_not_its_own_is_enough(tmp_path, order) -> None:
    rows = {"query_id": [1, 2, 1], "items": [[1, 2], [2, 1], [3, 1]], "clicks": [[0, 1], [0, 0], [1, 0]]}
    files = [tmp_path / f"{place}.parquet" for place in order]
    for file, keys in zip(files, ([7, 8, 9], [5, 5, 5]), strict=True):
        pl.DataFrame(rows).with_columns(pl.Series("key", keys, pl.UInt64)).write_parquet(file)
    assert reading.read(files[0]).anew
    assert not reading.read(files[1]).anew
    assert not reading.read(sorted(files)).anew
