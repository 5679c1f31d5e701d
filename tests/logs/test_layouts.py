"""Positions that are cells of a grid, or names: their order, their curve (a simulator in plain NumPy), what is made of it."""

import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

import tandemrank as tr
from tandemrank._base.files import as_json
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs import judgements
from tandemrank.clicks import examination
from tandemrank.clicks.examination import as_read
from tandemrank.clicks.models import CellCurve, read_examination
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import layouts, reading
from tandemrank.logs.pairs import Pairs
from tandemrank.logs.sources import layout_of, placed
from tandemrank.policies.scorers import GivenScores

Q, D = 30, 12
GRID = np.array([[0.7, 0.9, 1.0, 0.6, 0.4], [0.3, 0.5, 0.45, 0.3, 0.2]])
NAMES = ["top left", "carousel 1/2", "carousel 2/2", "foot"]
OF_NAMES = np.array([0.5, 1.0, 0.8, 0.25])
R = np.random.default_rng(3).uniform(0.05, 0.6, (Q, D))


def log_of(theta: np.ndarray, n: int, seed: int, **columns: np.ndarray) -> pl.DataFrame:
    """Random lists, position by position in the order of `theta`, and readers who look at each by its own chance."""
    rng, K = np.random.default_rng(seed), theta.size
    query, items = rng.integers(0, Q, n), np.argsort(rng.random((n, D)), axis=1)[:, :K]
    click = rng.random((n, K)) < theta.ravel() * R[query[:, None], items]
    row, k = np.repeat(np.arange(n), K), np.tile(np.arange(K), n)
    found = {"impression_id": row, "query_id": query[row], "item_id": items.ravel(), "click": click.ravel().astype(int)}
    return pl.DataFrame(found | {name: values[k] for name, values in columns.items()})


def grid(n: int, seed: int) -> pl.DataFrame:
    return log_of(GRID, n, seed, row=np.repeat([1, 2], 5), column=np.tile(np.arange(1, 6), 2))


def named(n: int, seed: int) -> pl.DataFrame:
    return log_of(OF_NAMES, n, seed, position=np.array(NAMES))


def test_the_curve_of_a_grid_is_found_in_the_order_of_examination(tmp_path: Path) -> None:
    log = grid(15_000, 1)
    found = tr.examine(log)
    true = np.array([GRID[int(row) - 1, int(column) - 1] for row, column in (p.split(",") for p in found.positions)])
    assert found.positions[0] == "1,3"
    assert (np.diff(found.theta) <= 0).all()
    error = (found.high - found.low)[1:] / 3.92
    assert (np.abs(found.theta - true)[1:] < 5 * error).all()
    assert error.max() < 0.03
    log.write_csv(tmp_path / "log.csv")
    of_file = tr.examine(tmp_path / "log.csv")
    assert of_file.positions == found.positions
    assert np.array_equal(of_file.theta, found.theta)
    assert found.to_frame()["position"].to_list() == list(found.positions)


def test_the_curve_of_names_and_its_file_by_which_another_log_is_read(tmp_path: Path) -> None:
    log = named(15_000, 2)
    found = tr.examine(log)
    assert found.positions == ("carousel 1/2", "carousel 2/2", "top left", "foot")
    assert found.theta == pytest.approx([1.0, 0.8, 0.5, 0.25], rel=0.08)
    path = tmp_path / "curve.json"
    path.write_text(as_json(found), encoding="utf-8")
    curve = read_examination(path)
    assert curve == found.curve
    path.write_text(json.dumps({"theta": OF_NAMES.tolist(), "positions": NAMES}), encoding="utf-8")
    given = read_examination(path)
    assert isinstance(given, CellCurve)
    assert given.positions == found.positions
    other = named(50, 3)
    sums = reading.read(as_read(other, curve))
    rank = pl.Series([found.positions.index(name) for name in other["position"]])
    expected = other.with_columns(position=rank + 1)
    for name in ("query", "item", "rank", "shown", "clicks"):
        assert np.array_equal(getattr(sums, name), getattr(reading.read(expected), name))


def test_a_layout_is_in_rows_and_columns_or_by_the_mean_place() -> None:
    log = pl.DataFrame({"impression_id": [1, 1, 2, 2], "query_id": 1, "item_id": [1, 2, 1, 2], "click": 0})
    cells = log.with_columns(row=pl.Series([10, 2, 2, 2]), column=pl.Series([1, 10, 9, 10]))
    assert layout_of(cells) == ("2,9", "2,10", "10,1")
    assert layout_of(log.with_columns(position=pl.Series(["b", "a", "b", "c"]))) == ("b", "a", "c")
    assert layout_of(log.with_columns(position=pl.Series([1, 2, 1, 2]))) == ()
    assert layout_of(pl.DataFrame({"query_id": [1], "items": [[1]], "clicks": [[0]]})) == ()


def test_neighbours_of_a_grid_and_the_mean_of_names_by_hand() -> None:
    x = np.array([0.0, 1.0, 3.0, 7.0])
    assert x @ layouts.unlike(("1,1", "1,2", "2,1", "2,2")) @ x == pytest.approx(1 + 16 + 9 + 36)
    assert x @ layouts.unlike(("1,4", "1,2", "3,2", "1,1")) @ x == pytest.approx(
        1 + 36 + 4
    )  # 1,2 is between 1,1 and 1,4
    assert x @ layouts.unlike(("a", "b", "c", "d")) @ x == pytest.approx(((x - x.mean()) ** 2).sum())


def test_the_curve_of_a_layout_is_the_best_of_its_penalised_likelihood() -> None:
    shown = np.array([[3.0, 1, 0], [0, 2, 2], [1, 1, 4]])
    clicks = np.array([[1.0, 1, 0], [0, 1, 0], [0, 1, 1]])
    pairs = Pairs(np.arange(3, dtype=np.int32), csr_matrix(shown), csr_matrix(clicks))
    P = layouts.unlike(("a", "b", "c"))
    x, half = examination._drawn(pairs, P, 0.95, 0)

    def loss(y: np.ndarray) -> float:
        share = shown * np.exp(y) / (shown * np.exp(y)).sum(1, keepdims=True)
        return float(-(clicks * np.log(np.where(shown > 0, share, 1))).sum() + y @ P @ y / 2)

    assert x.max() == 0
    step = 1e-3 * np.eye(3)
    assert all(loss(x + a) > loss(x) for a in (*step, *-step))
    second = [[loss(x + a + b) - loss(x + a - b) - loss(x - a + b) + loss(x - a - b) for b in step] for a in step]
    hessian = np.array(second) / 4e-6
    V = np.linalg.pinv(hessian, rcond=1e-4)
    best = int(np.argmax(x))
    spread = np.sqrt([V[k, k] + V[best, best] - 2 * V[k, best] for k in range(3)])
    assert (half >= 1.9599 * spread - 1e-4).all()


def test_the_most_likely_list_has_its_items_where_they_are_looked_at_most() -> None:
    curve = tr.examine(named(20_000, 5))
    ids = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    policy = tr.TwoStagePolicy(GivenScores(R), GivenScores(R), D, 4, ids)
    true = dict(zip(NAMES, OF_NAMES, strict=True))
    for query in range(3):
        [items] = policy.recommend([query])["items"].to_list()
        got = sum(true[name] * R[query, item] for name, item in zip(curve.positions, items, strict=True))
        best = max(OF_NAMES @ R[query, list(some)] for some in itertools.permutations(range(D), 4))
        assert got == pytest.approx(best)


def test_learn_estimate_and_decide_take_the_layout_of_the_curve() -> None:
    log, later = named(4_000, 6), named(4_000, 7)
    curve = tr.examine(log)
    learned = tr.learn(log, theta=curve, candidates=D)
    [lists] = [learned.policy.recommend()]
    order = np.sort(OF_NAMES)[::-1]
    true = np.mean([order @ R[q, items] for q, items in zip(lists["query_id"], lists["items"], strict=True)])
    value = tr.estimate(learned.policy, later, examination=curve)
    assert value.value * curve.theta[0] == pytest.approx(true, abs=5 * value.standard_error + 0.05)
    decision = tr.decide(learned.policy, later, examination=curve)
    assert decision.call != "do not"
    assert len(judgements.judge(log, examination=curve).rows) == Q * D
    with pytest.raises(LogError, match="expected positions that are numbers, or a curve that has their names"):
        tr.learn(log)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (pl.Series(["top left", None, "foot", "foot"]), "expected one of the 2 positions of the curve"),
        (pl.Series(["top left", "foot", "foot", "foot"]), "expected each position once in an impression"),
        (
            pl.Series(["top left", "foot", "side", "foot"]),
            "expected one of the 2 positions of the curve, .*; got 'side'",
        ),
        (pl.Series([1, 2, 1, 2]), "expected positions by name, such as top left; got numbers"),
    ],
)
def test_positions_that_do_not_fit_are_refused(change: pl.Series, words: str) -> None:
    log = pl.DataFrame({"impression_id": [1, 1, 2, 2], "query_id": 1, "item_id": [1, 2, 1, 2], "click": 0})
    with pytest.raises(LogError, match=words):
        reading.read(placed(log.with_columns(position=change), ("top left", "foot")))


def test_cells_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    log = pl.DataFrame({"impression_id": [1, 1, 2, 2], "query_id": 1, "item_id": [1, 2, 1, 2], "click": 0})
    good = log.with_columns(row=pl.Series([1, 1, 1, 1]), column=pl.Series([1, 2, 1, 2]))
    assert tr.read(good).list_length == 2
    for column, values, words in (
        ("row", [1, None, 1, 1], "column row: expected 0 or more; got null"),
        ("column", [1, -2, 1, 2], "column column: expected 0 or more; got -2"),
        ("column", [1, 1, 1, 2], "expected each position once"),
        ("row", ["a", "b", "a", "b"], "column row: expected integers; got the type String"),
    ):
        with pytest.raises(LogError, match=words):
            tr.read(good.with_columns(pl.Series(column, values)))
    with pytest.raises(LogError, match="expected the columns impression_id, query_id, item_id, position, click"):
        tr.read(good.drop("row"))
    mixed = tmp_path / "log.csv"
    log.with_columns(position=pl.Series(["1", "top", "1", "2"])).write_csv(mixed)
    with pytest.raises(LogError, match="row 1, column position: expected an integer; got 'top'"):
        tr.read(mixed)
    with pytest.raises(ConfigError, match="have names, and each is in the curve"):
        tr.examine(good, 2)
    with pytest.raises(ConfigError, match="expected a name for each of 2 positions"):
        CellCurve(((1.0,), (0.5,)), positions=("a", "a"))
    turned = good.with_columns(
        pl.col("impression_id") + 2, column=pl.Series([2, 1, 2, 1]), click=pl.Series([1, 0, 1, 0])
    )
    with pytest.raises(LogError, match="cannot compare position 1,2 with position 1,1"):
        tr.examine(pl.concat([good, turned], how="vertical_relaxed"))


def test_a_clean_copy_keeps_the_names(tmp_path: Path) -> None:
    log = grid(20, 1)
    tr.logs.validation.fix(log, tmp_path / "copy")
    kept = pl.read_parquet(tmp_path / "copy" / "*.parquet")
    assert kept.select("row", "column").equals(log.select("row", "column"))
