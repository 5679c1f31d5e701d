"""Sessions of a log: last clicks by hand, and what validation says."""

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from tandemrank.logs.impressions import FlatImpressions
from tandemrank.logs.sessions import MOST_SINCE, last_clicks, moving_clicks, places

LOG = pl.DataFrame(
    {
        "query_id": [1, 1, 1, 2, 2],
        "items": [[1, 2], [2, 3], [3, 1], [1, 2], [2, 1]],
        "clicks": [[1, 0], [0, 0], [1, 1], [0, 0], [0, 1]],
        "session_id": ["a", "a", "b", "a", "b"],
        "step": [1, 2, 1, 3, 2],
    }
)


def test_last_clicks_against_plain_python() -> None:
    rng = np.random.default_rng(0)
    session = np.sort(rng.integers(0, 30, 200))
    session = np.cumsum(np.diff(session, prepend=-1) != 0) - 1
    click = np.where(rng.random(200) < 0.4, rng.integers(0, 9, 200), -1)
    last, since = last_clicks(session, click)
    begins, step = places(session)
    for i in range(200):
        first = i - step[i]
        assert begins[i] == first
        assert first == 0 or session[first - 1] != session[i]
        before = [j for j in range(first, i) if click[j] >= 0]
        assert last[i] == (click[before[-1]] if before else -1)
        assert since[i] == min(i - before[-1] if before else step[i] + 1, MOST_SINCE)


def test_the_click_furthest_down_moves_the_state_whatever_the_order_of_rows() -> None:
    lists = FlatImpressions(
        query=np.zeros(3, int), length=np.array([3, 2, 0]), weight=None, item=np.array([7, 8, 9, 5, 6]),
        rank=np.array([2, 0, 1, 0, 1]), click=np.array([1, 1, 0, 0, 0], np.uint8), propensity=None,
    )  # fmt: skip
    assert moving_clicks(lists).tolist() == [0, -1, -1]


def test_validation_counts_sessions() -> None:
    found = tr.validate(LOG).sessions
    assert found is not None
    assert (found.sessions, found.steps, found.longest, found.order) == (2, 5, 3, "step")
    assert found.several_clicks == pytest.approx(0.2)
    # Of a: nothing yet, item 1 clicked one and two steps ago; of b: nothing yet, item 1 (below 3) one step ago.
    assert (found.states, found.frequent_states) == (3, 0.0)
    assert found.words == "2 of 2.5 steps in the mean, the longest of 3"
    assert tr.validate(LOG.drop("session_id")).sessions is None


@pytest.mark.parametrize(
    ("change", "why", "possible"),
    [
        ({"drop": "step"}, "nothing orders the steps", False),
        ({"step": [1, 1, 1, 3, 2]}, "1 steps come at the same step as another of their session", False),
        (
            {},
            "20.0% of the steps have several clicks, of which the one furthest down is taken to move the state",
            False,
        ),
    ],
)
def test_whether_a_log_says_what_a_policy_is_worth_over_sessions(change: dict, why: str, possible: bool) -> None:
    log = (
        LOG.drop(change["drop"])
        if "drop" in change
        else LOG.with_columns(**{n: pl.Series(x) for n, x in change.items()})
    )
    answer = tr.validate(log).answers[-1]
    assert answer.question == "value over sessions"
    assert why in answer.why
    assert answer.possible == possible


def test_states_that_come_often_are_enough() -> None:
    log = pl.concat([LOG.with_columns(session_id=pl.lit(f"s{n}")).slice(0, 1) for n in range(12)])
    answer = tr.validate(log).answers[-1]
    assert answer.possible
    assert answer.why.startswith("100% of the steps are in states")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"session_id": [None, "a", "b", "a", "b"]}, "expected a value; got null"),
        ({"step": [0.5, 1, 2, 3, 4]}, "expected integers; got the type Float64"),
    ],
)
def test_wrong_columns_are_problems(column: dict, message: str) -> None:
    found = tr.validate(LOG.with_columns(**{name: pl.Series(x) for name, x in column.items()}))
    assert not found.fit
    assert message in found.problems[0].message


def test_an_impression_of_the_long_form_is_of_one_session(tmp_path) -> None:
    rows = pl.DataFrame(
        {
            "impression_id": [1, 1],
            "query_id": [1, 1],
            "item_id": [1, 2],
            "position": [1, 2],
            "click": [0, 1],
            "session_id": ["a", "b"],
            "step": [1, 1],
        }
    )
    rows.write_csv(tmp_path / "log.csv")
    found = tr.validate(tmp_path / "log.csv")
    assert "one session in an impression" in found.problems[0].message
