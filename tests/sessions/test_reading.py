"""A log of sessions in order, and its states."""

import numpy as np
import polars as pl
import pytest

from tandemrank.errors import ConfigError, JobError, LogError
from tandemrank.sessions.reading import read

LOG = pl.DataFrame(
    {
        "query_id": [1, 1, 1, 2, 2],
        "items": [[10, 20], [20, 30], [30, 10], [10, 20], [20, 10]],
        "clicks": [[1, 0], [0, 0], [1, 1], [0, 0], [0, 1]],
        "session_id": ["a", "a", "b", "a", "b"],
        "step": [1, 2, 1, 3, 2],
        "device": ["x", "y", "x", "y", "x"],
    }
)


def states(log: pl.DataFrame, state=None) -> list[list[str]]:
    """The states of each session in the order of its steps."""
    found = read(log, state)
    ids = found.situations["state"].to_list()
    return [[ids[x] for x in found.lists.query[found.session == n]] for n in range(found.sessions)]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_states_are_the_last_click_and_the_steps_since_in_whatever_order_rows_come(order: list[int]) -> None:
    assert sorted(states(LOG[order])) == [["|1", "10|1"], ["|1", "10|1", "10|2"]]


def test_states_by_columns_by_a_function_and_by_the_column_of_that_name() -> None:
    assert states(LOG, "device") == [["x", "y", "y"], ["x", "x"]]
    assert states(LOG, ["query_id", "last_click"]) == [["1|", "1|10", "2|10"], ["1|", "2|10"]]
    assert states(LOG, lambda steps: steps["step"] * 2) == [["0", "2", "4"], ["0", "2"]]
    assert states(LOG.with_columns(state=pl.lit("same"))) == [["same"] * 3, ["same"] * 2]


def test_times_order_steps_where_there_is_no_step() -> None:
    timed = LOG.drop("step").with_columns(timestamp=pl.Series([10, 20, 10, 30, 20]))
    assert states(timed) == states(LOG)


def test_sums_and_tables_have_every_click(tmp_path) -> None:
    LOG.write_parquet(tmp_path / "log.parquet")
    log = read(tmp_path / "log.parquet")
    sums = log.feedback()
    assert (sums.N, sums.clicks.sum()) == (5, 4)
    table = log.table(3, sums, shown=True)
    assert (table.state >= 0).sum(1).tolist() == [3, 2]
    session, step, row = table.clicks
    assert list(zip(session.tolist(), step.tolist(), log.vocabulary.item_ids.gather(sums.item[row]), strict=True)) == [
        (0, 0, 10), (1, 0, 30), (1, 0, 10), (1, 1, 10),
    ]  # fmt: skip
    assert np.array_equal(sums.query[row], table.state[session, step])
    assert sums.item[table.moved[1, 0]] == 0  # item 10, below 30
    assert (table.moved >= 0).tolist() == [[True, False, False], [True, True, False]]
    assert table.shown is not None
    assert len(table.shown[0]) == 10
    assert log.until(1).feedback().N == 2
    assert log.of_sessions(np.array([False, True])).step.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("log", "error", "words"),
    [
        (LOG.drop("session_id"), LogError, "expected a column session_id"),
        (LOG.drop("step"), LogError, "expected an order of the steps"),
        (LOG.with_columns(step=pl.lit(1)), LogError, "3 come together with another"),
        (LOG.with_columns(weight=pl.lit(2.0)), LogError, "expected sessions that each count once"),
        (LOG.clear(), LogError, "it is empty"),
        (LOG.with_columns(clicks=pl.lit([3, 0])), LogError, "expected 0 or 1"),
    ],
)
def test_what_is_no_log_of_sessions_is_refused(log: pl.DataFrame, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(log)


def test_a_state_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 'colour'"):
        read(LOG, ["device", "colour"])
    with pytest.raises(ConfigError, match="a state for each of 5 steps; got 2"):
        read(LOG, lambda steps: pl.Series(["a", "b"]))
    with pytest.raises(JobError, match="the function of the state failed: ColumnNotFoundError"):
        read(LOG, lambda steps: steps["colour"])
    for wrong, words in ((5, "got 5"), ([], "got none"), ([5], "got 5")):
        with pytest.raises(ConfigError, match=words):
            read(LOG, wrong)
