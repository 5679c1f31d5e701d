"""Validation: everything wrong at once, a true description, honest answers, and never a silent drop."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from typer.testing import CliRunner

from malformed import long_columns, wide_columns
from random_logs import long_logs, wide_logs
from tandemrank._base.ids import Vocabulary
from tandemrank.cli.main import app
from tandemrank.clicks import models, simulation
from tandemrank.errors import ConfigError, LogError, TandemRankError
from tandemrank.logs import pairs, reading, validation, writing
from tandemrank.logs.checks import TOGETHER
from tandemrank.logs.description import Description, PolicyCount


def frame(**columns):
    return pl.DataFrame(wide_columns() | columns, strict=False)


def simulated(scores, N=2000, seed=0):
    Q, D = scores.shape
    relevance = csr_matrix(np.random.default_rng(1).random((Q, D)))
    draw = simulation.one_stage(lambda q: scores[q], 3)
    model = models.position_based(models.examination_curve(3))
    words = Vocabulary(pl.Series(np.arange(Q)), pl.Series(np.arange(D)))
    parts = simulation.simulate(draw, relevance, np.arange(Q), N, model, seed=seed)
    return pl.concat([writing._frame(part, words, None, None) for part in parts])


def possible(found):
    return {answer.question: answer.possible for answer in found.answers}


# --- problems ---------------------------------------------------------------------------------------------------------


def test_all_problems_of_all_files_are_told_at_once(tmp_path):
    n = 50
    bad = pl.concat([frame(clicks=[[0, 1], [0, 7, 1], [1], [0]], weight=[1.0, 1.0, -1.0, 1.0])] * n)
    bad.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    frame().write_parquet(tmp_path / "c.parquet")
    for batch in (7, 100_000):
        found = validation.validate(tmp_path, batch=batch)
        assert not found.fit
        told = {(p.file[-9:], p.column, p.message.partition(";")[0][:16]): (p.rows, p.count) for p in found.problems}
        assert told == {
            ("a.parquet", "clicks", "expected as many"): ((3, 7, 11), n),
            ("a.parquet", "clicks", "expected 0 or 1"): ((1, 5, 9), n),
            ("a.parquet", "weight", "expected weights"): ((2, 6, 10), n),
            ("b.parquet", "", "cannot be read a"): ((), 0),
        }
        assert (found.files, found.rows, found.impressions, found.usable) == (3, 4 * n + 4, 4 * n + 4, n + 4)
        assert found.log.impressions == found.usable


def test_a_file_of_rows_that_go_is_no_file_without_propensities(tmp_path):
    frame().write_parquet(tmp_path / "a.parquet")
    frame()[:0].write_parquet(tmp_path / "b.parquet")
    assert validation.validate(tmp_path).fit
    frame().drop("propensities").write_parquet(tmp_path / "c.parquet")
    assert [(p.file[-9:], p.column) for p in validation.validate(tmp_path).problems] == [("c.parquet", "propensities")]


def test_a_log_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(LogError, match="nothing is at"):
        validation.validate(tmp_path / "nothing")


# --- description ------------------------------------------------------------------------------------------------------


def test_the_description_by_hand():
    log = pl.DataFrame(
        {
            "query_id": ["a", "a", "b", "b", "c"],
            "items": [[1, 2], [2, 1], [1], [1], [3]],
            "clicks": [[1, 0], [1, 1], [0], [1], [0]],
            "weight": [1.0, 5.0, 1.0, 1.0, 0.5],
        }
    )
    found = validation.validate(log)
    assert found.fit
    assert found.log == Description(
        impressions=5,
        queries=3,
        items=3,
        clicks=4,
        shown_by_rank=(5, 2),
        click_rate_by_rank=(3 / 5, 1 / 2),
        pairs=4,  # (a, 1), (a, 2), (b, 1), (c, 3)
        pairs_shown_once=1 / 4,
        repeated_queries=2,
        queries_with_a_single_list=1 / 2,
        items_in_common=1,
        deterministic=True,  # a list never left its items
        propensity_range=None,
        weight_range=(0.5, 5.0),
        policies=(),
    )


def test_policies_are_counted_by_impression(tmp_path):
    (tmp_path / "log").mkdir()
    frame(policy=["new", "old", "old", "old"]).write_parquet(tmp_path / "log" / "a.parquet")
    rows = pl.DataFrame(long_columns()).with_columns(policy=pl.Series(["new", "new", "old", "old"]))
    rows = rows.with_columns(propensity=0.5, query_id=pl.Series([1, 1, 2, 2]), item_id=pl.Series([7, 8, 8, 7]))
    rows.write_csv(tmp_path / "log" / "b.csv")
    frame()[:1].write_parquet(tmp_path / "log" / "c.parquet")
    found = validation.validate(tmp_path / "log")
    assert found.fit
    assert found.log.policies == (PolicyCount("old", 4), PolicyCount("new", 2), PolicyCount("", 1))
    assert validation.validate(frame()).log.policies == ()
    bad = validation.validate(frame(policy=["new", None, "old", "old"]))
    assert [(p.column, p.rows) for p in bad.problems] == [("policy", (1,))]
    assert bad.log.policies == (PolicyCount("old", 2), PolicyCount("new", 1))
    mixed = validation.validate(rows.with_columns(policy=pl.Series(["new", "old", "old", "old"])))
    assert [(p.column, p.rows, p.message) for p in mixed.problems] == [
        ("policy", (1,), "expected one policy in an impression; got 'old'.")
    ]


def test_the_outcome_is_json(tmp_path):
    for log in (frame(), frame()[:0], frame(weight=[-1.0] * 4)):
        outcome = dataclasses.asdict(validation.validate(log))
        assert json.loads(json.dumps(outcome))["impressions"] == len(log)


def test_the_long_form_is_described_alike():
    wide = simulated(np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32), 300)
    long = (
        wide.with_row_index("impression_id")
        .with_columns(position=pl.int_ranges(1, 4))
        .explode("items", "clicks", "position")
        .rename({"items": "item_id", "clicks": "click"})
    )
    a, b = validation.validate(wide), validation.validate(long, batch=100)
    assert a.log == b.log
    assert (a.impressions, a.rows, b.impressions, b.rows) == (300, 300, 300, 900)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_deterministic_logger_answers_little():
    scores = np.tile(100 * np.arange(6, dtype=np.float32), (5, 1))
    found = validation.validate(simulated(scores))
    assert found.log.deterministic
    assert found.log.queries_with_a_single_list == 1
    assert [a.possible for a in found.answers] == [True, False, True, False, False, False]
    assert "same list" in found.answers[-1].why


def test_rare_exploration_with_known_propensities_answers_for_other_items_too():
    """One list in twenty is random: `estimate` finds the value of other pairs there, so the answer is not no."""
    rng = np.random.default_rng(0)
    best = {q: rng.permutation(20)[:3].tolist() for q in range(30)}
    lists = [rng.permutation(20)[:3].tolist() if rng.random() < 0.05 else best[n % 30] for n in range(3_000)]
    log = pl.DataFrame({"query_id": [n % 30 for n in range(3_000)], "items": lists, "clicks": [[1, 0, 0]] * 3_000})
    logged, fitted = "value of another policy, logged propensities", "value of another policy, fitted propensities"
    found = validation.validate(log.with_columns(propensities=pl.lit([0.5, 0.5, 0.5])))
    assert found.log.deterministic
    assert possible(found)[logged]
    assert not possible(found)[fitted]
    assert not possible(validation.validate(log))[logged]
    [why] = [a.why for a in found.answers if a.question == logged]
    assert why.endswith("of their items in common: little is known of other items")


def test_a_logger_that_varies_answers_all_but_what_needs_propensities():
    scores = np.zeros((5, 6), dtype=np.float32)
    found = validation.validate(simulated(scores))
    assert not found.log.deterministic
    assert [a.question for a in found.answers if not a.possible] == ["value of another policy, logged propensities"]
    with_them = simulated(scores).with_columns(propensities=pl.col("items").cast(pl.List(pl.Float64)) * 0 + 0.5)
    assert all(possible(validation.validate(with_them)).values())


def test_ranks_that_nothing_connects_are_named():
    swaps = pl.DataFrame({"items": [[1, 2, 3, 4], [2, 1, 4, 3]] * 20, "clicks": [[1, 1, 1, 1]] * 40})
    answer = validation.validate(swaps.with_columns(query_id=pl.lit(1))).answers[1]
    assert not answer.possible
    assert answer.why == "4 pairs were shown at two ranks or more; they do not connect rank 1 with 3, 4"


def plain_contradiction(rows, theta):
    """Clicks and what a curve expects of them by rank, and the distance in standard errors, in plain Python.

    rows: (query, item, rank from 0, shown, clicks)."""
    shown = {}
    for q, d, k, n, c in rows:
        shown.setdefault((q, d), []).append((k, n, c))
    sums = {k: [0.0, 0.0, 0.0] for k in range(len(theta))}
    for some in shown.values():
        if len(some) > 1:
            seen, total = sum(n * theta[k] for k, n, _ in some), sum(c for _, _, c in some)
            for k, n, c in some:
                share = n * theta[k] / seen
                for place, value in enumerate((c, total * share, total * share * (1 - share))):
                    sums[k][place] += value
    return {k: (c, e, abs(c - e) / v**0.5) for k, (c, e, v) in sums.items() if v}


@pytest.mark.parametrize("power", [1.0, 0.3])
def test_clicks_that_contradict_a_curve_are_found_by_items_at_several_ranks(power):
    rng, K = np.random.default_rng(0), 4
    items = np.argsort(rng.random((4000, 8)), axis=1)[:, :K]
    q, R = rng.integers(10, size=4000), rng.random((10, 8))
    clicks = rng.random(items.shape) < np.arange(1, K + 1) ** -power * R[q[:, None], items]
    log = pl.DataFrame({"query_id": q, "items": items.tolist(), "clicks": clicks.astype(int).tolist()})
    feedback, theta = reading.read(log, K=K), 1 / np.arange(1.0, K + 1)
    rows = zip(*(getattr(feedback, x).tolist() for x in ("query", "item", "rank", "shown", "clicks")), strict=True)
    expected = plain_contradiction(list(rows), theta)
    found = pairs.contradiction(feedback, theta)
    why = validation.validate(log).answers[1].why
    if power == 1:
        assert found is None
        assert max(z for *_, z in expected.values()) < 5
        assert "contradict" not in why
    else:
        rank = max(expected, key=lambda k: expected[k][2])
        assert (found.rank, found.clicks) == (rank + 1, expected[rank][0])
        assert found.expected == pytest.approx(expected[rank][1])
        assert f"They contradict 1/k, the default: at rank {rank + 1} there are" in why
    assert pairs.contradiction(feedback, np.arange(1, K + 1) ** -power) is None


def test_so_few_lists_that_no_policy_can_be_fitted_to_them():
    varied = simulated(np.zeros((5, 6), dtype=np.float32))
    for n, is_possible, words in (
        (40, False, "8 lists per query, at least 10 are needed"),
        (100, True, "20 lists per query: with care, below 50"),
    ):
        answer = validation.validate(varied.with_columns(query_id=pl.int_range(2000) % 5).head(n)).answers[-1]
        assert answer.possible == is_possible
        assert words in answer.why


def test_queries_that_come_once_say_nothing_about_the_logger():
    found = validation.validate(simulated(np.zeros((5, 6), dtype=np.float32)).with_columns(query_id=pl.int_range(2000)))
    assert found.log.deterministic is None
    assert sum(a.possible for a in found.answers) == 1  # training


# --- a clean copy -----------------------------------------------------------------------------------------------------


def test_a_clean_copy_keeps_every_column_and_counts_each_impression_once(tmp_path):
    log = frame(clicks=[[0, 3], [0, 0, 1, 1], [1], [0, 0]], weight=[-1.0, 1.0, 1.0, 1.0]).with_columns(
        country=pl.lit("x")
    )
    fixed = validation.fix(log, tmp_path / "clean")
    assert (fixed.impressions, fixed.kept) == (4, 2)
    assert [(d.column, d.impressions) for d in fixed.dropped] == [("clicks", 1), ("clicks", 1)]
    assert pl.read_parquet(fixed.path / "*.parquet").equals(log[2:])


def test_other_columns_of_json_lines_are_kept_as_they_are_or_as_text(tmp_path):
    row = {"query_id": 1, "items": [7], "clicks": [0], "site": "a", "seen": 3, "tags": ["x"], "odd": 1}
    rows = [row, row | {"clicks": [9]}, row | {"odd": "two", "tags": None, "site": "\ud800"}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fixed = validation.fix(tmp_path / "log.jsonl", tmp_path / "clean")
    kept = pl.read_parquet(fixed.path / "*.parquet").select("site", "seen", "tags", "odd").rows()
    assert kept == [("a", 3, '["x"]', "1"), ("?", 3, None, "two")]


def test_in_a_long_log_whole_impressions_go(tmp_path):
    columns = long_columns() | {"click": [0, 1, 0, 9]}
    fixed = validation.fix(pl.DataFrame(columns), tmp_path / "clean")
    assert [(d.column, d.impressions) for d in fixed.dropped] == [("click", 1)]
    assert pl.read_parquet(fixed.path / "*.parquet")["impression_id"].to_list() == [1, 1]


def test_what_cannot_be_mended_is_refused_and_leaves_nothing(tmp_path):
    frame(weight=[-1.0] * 4).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(LogError, match="nothing to write"):
        validation.fix(tmp_path / "log.parquet", tmp_path / "clean")
    with pytest.raises(ConfigError, match="log itself"):
        validation.fix(tmp_path / "log.parquet", tmp_path / "log.parquet")
    (tmp_path / "other.parquet").write_bytes(b"nothing")
    with pytest.raises(LogError, match="Leaving out impressions cannot fix this"):
        validation.fix([tmp_path / "log.parquet", tmp_path / "other.parquet"], tmp_path / "clean")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.parquet", "other.parquet"]


# --- any log ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.one_of(wide_logs(), long_logs()), st.sampled_from([None, 2, 3]), st.sampled_from([1, 3, 1000]))
def test_any_log_is_counted_whole(tmp_path_factory, log, K, batch):
    """Never a traceback, never a silent drop: what is given is counted, and is usable or has a problem."""
    found = validation.validate(log, K=K, batch=batch)
    assert found.rows == len(log)
    assert found.impressions == (len(log) if "items" in log.columns else log["impression_id"].rle_id().n_unique())
    assert found.usable <= found.impressions
    assert found.fit == (not found.problems)
    assert all(
        p.rows == tuple(sorted(set(p.rows))) and max(p.rows, default=0) < max(len(log), 1) for p in found.problems
    )
    if found.fit:
        assert found.usable == found.impressions
        assert reading.read(log, K=K, batch=batch).clicks.sum() == pytest.approx(reading.read(log, K=K).clicks.sum())
    else:
        assert found.usable < max(found.impressions, 1)
        with pytest.raises(TandemRankError):
            reading.read(log, K=K, batch=batch)
    path = tmp_path_factory.mktemp("fix") / "clean"
    apart = any(p.message == TOGETHER for p in found.problems)
    if found.usable and not apart:
        fixed = validation.fix(log, path, K=K, batch=batch)
        assert (fixed.impressions, fixed.kept) == (found.impressions, found.usable)
        assert fixed.kept + sum(d.impressions for d in fixed.dropped) == fixed.impressions
        assert validation.validate(path, K=K).fit
    else:
        with pytest.raises(LogError):
            validation.fix(log, path, K=K, batch=batch)
        assert not path.exists()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes_are_a_log_or_a_problem(tmp_path_factory, data):
    """Files with some bytes changed, or cut off: never an error that is not ours."""
    name = data.draw(st.sampled_from(["log.jsonl", "log.csv", "log.parquet"]))
    path = tmp_path_factory.mktemp("bytes") / name
    if name == "log.csv":
        pl.DataFrame(long_columns()).write_csv(path)
    elif name == "log.jsonl":
        frame().drop("timestamp").write_ndjson(path)
    else:
        frame().write_parquet(path)
    whole = bytearray(path.read_bytes())
    places = st.integers(0, len(whole) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=4)):
        whole[place] = byte
    path.write_bytes(bytes(whole[: data.draw(st.one_of(st.just(len(whole)), places))]))
    found = validation.validate(path)
    assert found.usable <= found.impressions
    if found.fit:
        assert reading.read(path).clicks.sum() >= 0
    else:
        with pytest.raises(LogError):
            reading.read(path)


def test_a_table_with_other_names_is_told_the_import_that_fits(tmp_path: Path) -> None:
    table = {"request_id": [1, 1], "user": [7, 7], "sku": [3, 4], "rank": [1, 2], "Clicked": [0, 1]}
    pl.DataFrame(table).write_csv(tmp_path / "a.csv")
    message = validation.validate(tmp_path / "a.csv").problems[0].message
    [command] = re.findall(r"tandemrank (import .*)\.$", message)
    words = command.replace("FILE", str(tmp_path / "a.csv")).replace("LOG", str(tmp_path / "log")).split()
    assert CliRunner().invoke(app, words).exit_code == 0
    found = validation.validate(tmp_path / "log")
    assert found.fit
    assert found.log is not None
    assert (found.log.clicks, found.log.items) == (1, 2)
    one = {"request_id": [1], "who": [7], "product": [3], "pos": [1], "clicked": [0], "time": [3]}
    pl.DataFrame(one).write_csv(tmp_path / "c.csv")
    told = validation.validate(tmp_path / "c.csv").problems[0].message
    assert "--column query_id=... --column item_id=product" in told
    assert "--column timestamp=time" in told
    pl.DataFrame({"a": [1]}).write_csv(tmp_path / "b.csv")
    assert "import" not in validation.validate(tmp_path / "b.csv").problems[0].message
