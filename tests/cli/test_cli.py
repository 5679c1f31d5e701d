"""The command line: output, files, exit codes, and one clear message for every mistake."""

import errno
import json
import os
import re
import subprocess
import sys
from types import FunctionType
from typing import get_args

import numpy as np
import polars as pl
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tandemrank
from tandemrank import policies
from tandemrank._base.files import MARK
from tandemrank.cli import experiments
from tandemrank.cli.main import CHOICES, FEW, GROUPS, app, main
from tandemrank.cli.terminal import rows_table, show
from tandemrank.experiments.config import PRESETS, GridConfig
from tandemrank.policies.outside import policy_from_file
from tandemrank.reports.words import Sheet

SMALL = ["--set", "queries=150", "--set", "items=100", "--set", "rank=8"]


def call(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    """Runs the command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["tandemrank", *arguments])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A small log on disk, drawn by the command itself."""
    folder = tmp_path_factory.mktemp("cli") / "sim"
    arguments = [
        sys.executable,
        "-m",
        "tandemrank",
        "simulate",
        "--out",
        str(folder),
        "--impressions",
        "20000",
        "--json",
        *SMALL,
    ]
    out = subprocess.run(arguments, capture_output=True, text=True, check=True)
    # A slow machine says how far it is.
    assert all(line.startswith("tandemrank: ") for line in out.stderr.splitlines())
    return folder, json.loads(out.stdout)


def test_simulate_writes_the_log_and_the_policy(simulated) -> None:
    folder, summary = simulated
    assert summary["impressions"] == 20000
    assert sorted(p.name for p in folder.iterdir()) == [".tandemrank", "config.json", "log", "production"]
    log = pl.read_parquet(folder / "log")
    assert len(log) == 20000
    assert {"query_id", "items", "clicks"} <= set(log.columns)
    assert json.loads((folder / "config.json").read_text())["rank"] == 8


def test_simulate_learn_evaluate_from_the_shell(simulated, tmp_path, capsys, monkeypatch) -> None:
    folder, _ = simulated
    train = [
        "learn",
        "--logs",
        str(folder / "log"),
        "--logging-policy",
        str(folder / "production"),
        "--candidates",
        "30",
    ]
    code, out, err = call(capsys, monkeypatch, *train, "--out", str(tmp_path / "pair"), "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["log"]["impressions"] == 20000
    assert sorted(p.name for p in (tmp_path / "pair").iterdir()) == [
        ".tandemrank",
        "beliefs",
        "config.json",
        "report.html",
        "summary.json",
    ]
    assert {p.name for p in (tmp_path / "pair" / "beliefs").iterdir()} >= {"policy", "history.json"}
    assert json.loads((tmp_path / "pair" / "summary.json").read_text()) == summary
    policies = ["--policy", summary["methods"][0]["policy"], "--policy", str(folder / "production")]
    code, out, err = call(capsys, monkeypatch, "evaluate", *policies, *SMALL, "--logs", str(folder / "log"), "--json")
    assert code == 0, err
    found = json.loads(out)
    gap = next(d for d in found["differences"] if d["figure"] == "ndcg")
    assert gap["low"] > 0
    assert all(0 < row["ndcg_new"]["mean"] < row["ndcg"]["mean"] for row in found["policies"][:1])
    code, out, err = call(capsys, monkeypatch, "evaluate", *policies, *SMALL, "--logs", str(folder / "log"))
    assert code == 0, err
    assert "NDCG@K" in out
    assert "new items" in out
    some = ["--sample-queries", "40", "--json"]
    code, out, err = call(capsys, monkeypatch, "evaluate", *policies, *SMALL, *some)
    assert code == 0, err
    assert {row["ndcg"]["n"] for row in json.loads(out)["policies"]} == {40}


def test_recommend_leaves_out_what_was_clicked(simulated, tmp_path, capsys, monkeypatch) -> None:
    folder, _ = simulated
    log, pair, out_file = str(folder / "log"), str(folder / "production"), tmp_path / "lists.parquet"
    first = pl.read_parquet(folder / "log")["query_id"][0]
    code, out, err = call(capsys, monkeypatch, "recommend", pair, "--queries", str(first), "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["query_id"], len(row["items"])) == (first, 10)
    code, out, err = call(capsys, monkeypatch, "recommend", pair, "--queries", f"{first},123456789", "--json")
    ours, average = json.loads(out)
    assert (code, ours) == (0, row)
    assert (average["query_id"], len(average["items"])) == (123456789, 10)
    assert (
        "1 of 2 query ids are not known to the policy and are answered as the average query (first: 123456789)" in err
    )
    code, out, err = call(capsys, monkeypatch, "recommend", pair, "--queries", "123456789", "--json")
    assert (code, json.loads(out)) == (0, [average])
    assert "1 of 1 query ids are not known to the policy and are answered as the average query" in err
    for _ in range(2):  # what it wrote it may replace
        code, out, err = call(
            capsys, monkeypatch, "recommend", pair, "--exclude", "clicked", "--logs", log, "--out", str(out_file)
        )
        assert (code, err) == (0, "")
    lists = pl.read_parquet(out_file).explode("items")
    rows = pl.read_parquet(folder / "log").explode("items", "clicks").filter(pl.col("clicks") == 1)
    assert len(lists) == 1500
    assert lists.join(rows, on=["query_id", "items"], how="inner").is_empty()
    code, out, err = call(capsys, monkeypatch, "recommend", pair)
    assert "20 of 150 queries" in out


def test_recommend_writes_a_run_of_trec_that_is_a_policy_again(simulated, tmp_path, capsys, monkeypatch) -> None:
    pair, run = str(simulated[0] / "production"), tmp_path / "lists.trec"
    for _ in range(2):  # what it wrote it may replace
        code, _, err = call(capsys, monkeypatch, "recommend", pair, "--out", str(run))
        assert code == 0, err
    assert re.fullmatch(r"\d+ Q0 \d+ 1 1\.000000 tandemrank", run.read_text().splitlines()[0])
    again, wanted = policy_from_file(run, None, 10).recommend(), tandemrank.load(pair).recommend()
    ours = dict(zip(again["query_id"].cast(pl.Int64), again["items"].to_list(), strict=True))
    assert all([int(x) for x in ours[q]] == items for q, items in wanted.iter_rows())
    for others in ("1 Q0 2 1 0.5 bm25\n", "\nmine\n"):
        run.write_text(others)
        code, _, err = call(capsys, monkeypatch, "recommend", pair, "--out", str(run))
        assert (code, "not a file of lists of ours" in err, run.read_text()) == (2, True, others)


def test_recommend_draws_lists_by_a_seed(simulated, capsys, monkeypatch) -> None:
    """The same ones again by the same seed, and those of `recommend(sample=True)`."""
    pair = str(simulated[0] / "production")

    def drawn(*seed: str) -> list[dict]:
        code, out, err = call(capsys, monkeypatch, "recommend", pair, "--sample", *seed, "--json")
        assert code == 0, err
        return json.loads(out)

    first = drawn("--seed", "7")
    assert first == drawn("--seed", "7") == tandemrank.load(pair).recommend(sample=True, seed=7).to_dicts()
    assert first != drawn("--seed", "8")
    assert drawn() == drawn("--seed", "0")


def test_an_interrupted_training_resumes_from_the_shell(simulated, tmp_path, capsys, monkeypatch) -> None:
    from tandemrank.training import checkpoint

    folder, _ = simulated
    run = [
        "learn",
        "--method",
        "joint",
        "--set",
        "objective=ips",
        "--logs",
        str(folder / "log"),
        "--start",
        str(folder / "production"),
        "--candidates",
        "30",
        "--set",
        "epochs=4",
    ]
    code, *_ = call(capsys, monkeypatch, *run, "--out", str(tmp_path / "whole"))
    assert code == 0
    original = checkpoint.write

    def interrupted(path, identity, found) -> None:
        original(path, identity, found)
        if found.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write", interrupted)
    code, _, err = call(capsys, monkeypatch, *run, "--out", str(tmp_path / "cut"))
    assert code == 1
    assert "--resume goes on" in err
    monkeypatch.setattr(checkpoint, "write", original)
    code, *_ = call(capsys, monkeypatch, *run, "--out", str(tmp_path / "cut"), "--resume")
    assert code == 0
    a, b = (tmp_path / x / "joint" / "policy" / "weights.safetensors" for x in ("whole", "cut"))
    assert a.read_bytes() == b.read_bytes()


def test_learn_from_the_log_alone_with_two_methods(simulated, tmp_path, capsys, monkeypatch) -> None:
    """No start, no propensities, no ratings: a table a person reads, a pair for each method, one report."""
    folder, _ = simulated
    run = ["learn", "--logs", str(folder / "log"), "--method", "beliefs", "--method", "baseline", "--candidates", "30"]
    run += ["--set", "epochs=2", "--out", str(tmp_path / "own")]
    code, out, err = call(capsys, monkeypatch, *run)
    assert code == 0, err
    assert re.search(r"Production\s+\d\.\d+.*\n\s*Beliefs\s+\d\.\d+.*\n\s*Baseline\s+\d\.\d+", out)
    assert "propensities: fitted (the log has none" in out
    assert "training started from the clicks of the log" in out
    assert "Trained: Baseline; not: Beliefs." in " ".join(out.split())
    page = (tmp_path / "own" / "report.html").read_text()
    assert 'tandemrank learn <span class="whole">--logs</span>' in page
    for method in ("beliefs", "baseline"):
        assert (tmp_path / "own" / method / "policy" / "config.json").exists()
    code, _, err = call(capsys, monkeypatch, *run)
    assert code == 2
    assert "exists. Give another --out, or --resume" in err


def test_learn_by_default_trains_nothing_and_says_so(simulated, tmp_path, capsys, monkeypatch) -> None:
    """No "Joint", no learning curves, no switches of training, and K2 = D is called one stage."""
    folder, _ = simulated
    run = ["learn", "--logs", str(folder / "log"), "--logging-policy", str(folder / "production")]
    code, out, err = call(capsys, monkeypatch, *run, "--out", str(tmp_path / "own"))
    assert code == 0, err
    assert "joint" not in out.lower()
    words = " ".join(out.split())
    assert "of one stage, since all 100 items are candidates." in words
    assert "Nothing was trained beyond the beliefs." in words
    assert "cannot be told apart" not in out
    page = (tmp_path / "own" / "report.html").read_text()
    for word in ("Joint", "Learning curves", "epochs", "learning_rate", "both stages learn together"):
        assert word not in page, word
    assert sorted(path.name for path in (tmp_path / "own").iterdir() if path.is_dir()) == ["beliefs"]
    wrong = ["--set", "epochs=3", "--method", "beliefs", "--out", str(tmp_path / "no")]
    code, _, err = call(capsys, monkeypatch, *run, *wrong)
    assert code == 2
    assert "epochs would have no effect: nothing is trained" in err
    assert not (tmp_path / "no").exists()


def test_learn_with_features(simulated, tmp_path, capsys, monkeypatch) -> None:
    folder, _ = simulated
    log = pl.read_parquet(folder / "log")
    items = log["items"].explode().unique().sort()
    pl.DataFrame({"item_id": items, "x": range(len(items))}).write_parquet(tmp_path / "items.parquet")
    run = ["learn", "--logs", str(folder / "log"), "--item-features", str(tmp_path / "items.parquet")]
    run += ["--set", "propensity=frequency", "--json"]
    code, out, err = call(capsys, monkeypatch, *run, "--out", str(tmp_path / "own"))
    assert code == 0, err
    assert json.loads(out)["switches"]["candidates"] == len(items)  # all of them, where they are fewer than 500
    stages = json.loads((tmp_path / "own" / "beliefs" / "policy" / "config.json").read_text())["stages"]
    sizes = stages["ranker"]["sizes"]
    side = sizes["sides"][1] if sizes["features"] is None else sizes["features"]["item"]
    assert [column["name"] for column in side["encoder"]["numeric"]] == ["x"]
    pl.DataFrame({"item_id": items[1:], "x": range(len(items) - 1)}).write_parquet(tmp_path / "items.parquet")
    code, _, err = call(capsys, monkeypatch, *run, "--out", str(tmp_path / "fewer"))
    assert code == 0, err  # what has no row has its features missing
    pl.DataFrame({"item_id": ["a"], "x": [1]}).write_parquet(tmp_path / "items.parquet")
    code, _, err = call(capsys, monkeypatch, *run, "--out", str(tmp_path / "wrong"))
    assert code == 2
    assert "Int64 in the log, String in the features" in err
    code, _, err = call(capsys, monkeypatch, *run[:3], "--candidates", "5000", "--out", str(tmp_path / "other"))
    assert code == 2
    assert f"5000 candidates, but there are only {len(items)} items" in err
    assert not (tmp_path / "other").exists()


def test_the_demo_prints_a_table_and_the_path_of_its_report(tmp_path, capsys, monkeypatch) -> None:
    tiny = {
        "experiment": {"queries": 60, "items": 40, "rank": 5, "learning": {"training": {"epochs": 3}}},
        "candidates": [15],
        "impressions": [3000],
        "runs": 1,
    }
    monkeypatch.setattr(experiments, "DEMO", tiny)
    folder = tmp_path / "demo"
    before = folder / "cells" / "of-another-time.json"  # the demo starts anew each time
    before.parent.mkdir(parents=True)
    before.write_text("a finished cell")
    (folder / MARK).write_text("grid\n")
    config = GridConfig.model_validate({**tiny, "seed": 0})
    (folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
    code, out, err = call(capsys, monkeypatch, "demo", "--jobs", "1", "--out", str(folder))
    assert code == 0, err
    assert not before.exists()
    assert "Joint" in out
    assert "report.html" in "".join(out.splitlines()[-2:])
    assert (tmp_path / "demo" / "report.html").exists()


def test_validate_says_what_a_log_is_and_can_answer(simulated, capsys, monkeypatch) -> None:
    folder, _ = simulated
    code, out, err = call(capsys, monkeypatch, "validate", str(folder / "log"))
    assert code == 0, err
    assert "what this log can answer" in out
    code, out, _ = call(capsys, monkeypatch, "validate", "--logs", str(folder / "log"), "--json")
    assert json.loads(out)["log"]["impressions"] == 20000


def test_validate_lists_the_problems_and_writes_a_cleaned_copy(simulated, tmp_path, capsys, monkeypatch) -> None:
    folder, _ = simulated
    log = pl.read_parquet(folder / "log").head(50)
    broken = log.with_columns(
        clicks=pl.when(pl.int_range(50) == 7).then(pl.lit([2] * 10, pl.List(pl.UInt8))).otherwise("clicks")
    )
    broken.write_parquet(tmp_path / "broken.parquet")
    arguments = ["validate", str(tmp_path / "broken.parquet"), "--fix", str(tmp_path / "mended")]
    code, out, _ = call(capsys, monkeypatch, *arguments, "--json")
    answer = json.loads(out)
    assert code == 1
    assert [(p["column"], p["rows"][0]) for p in answer["problems"]] == [("clicks", 7)]
    assert (answer["fixed"]["impressions"], answer["fixed"]["kept"]) == (50, 49)
    code, out, _ = call(capsys, monkeypatch, "validate", str(tmp_path / "mended"))
    assert code == 0


def test_examine_finds_the_curve_or_refuses(simulated, tmp_path, capsys, monkeypatch) -> None:
    folder, _ = simulated
    code, out, err = call(capsys, monkeypatch, "examine", str(folder / "log"), "--json")
    assert code == 0, err
    theta = json.loads(out)["theta"]
    assert theta[1] == pytest.approx(0.5, abs=0.1)
    pl.read_parquet(folder / "log").head(1).write_parquet(tmp_path / "one.parquet")
    code, _, err = call(capsys, monkeypatch, "examine", str(tmp_path / "one.parquet"))
    assert code == 2
    assert err.startswith("tandemrank: ")


def test_estimate_values_a_pair_and_compare_compares_two(simulated, capsys, monkeypatch) -> None:
    """On policy the value is the clicks per impression of the log itself, and a pair differs from itself by nothing."""
    folder, _ = simulated
    live = ["--policy", str(folder / "production")]
    ask = ["--logs", str(folder / "log"), "--logging-policy", str(folder / "production"), *live]
    code, out, err = call(capsys, monkeypatch, "estimate", *ask, "--estimator", "ips", "--json")
    assert code == 0, err
    found = json.loads(out)
    clicks = pl.read_parquet(folder / "log")["clicks"].list.sum().mean()
    assert abs(found["value"] - clicks) < 5 * found["standard_error"]
    assert found["interval"][0] < found["value"] < found["interval"][1]
    assert (found["propensity"], found["propensity_reason"]) == ("exact", "the policy that drew the log is given")
    code, out, err = call(capsys, monkeypatch, "compare", *ask, "--against", str(folder / "production"))
    assert code == 0, err
    assert re.search(r"difference\s+0\s", out)
    code, out, err = call(capsys, monkeypatch, "compare", *ask, "--json")
    assert code == 0, err
    against = json.loads(out)
    assert against["old"]["value"] == pytest.approx(clicks)
    assert against["old"]["verdict"] == "as the log shows it"
    assert against["difference"] == pytest.approx(0, abs=0.01)  # one and the same pair, up to the noise of the race
    assert against["lower_bound"] < 0
    assert against["bound_over"] == "impressions"
    assert (against["new"]["estimator"], against["new"]["propensity"]) == ("beta_ips", "exact")
    code, out, err = call(capsys, monkeypatch, "compare", *ask, "--json", "--independent", "queries")
    assert json.loads(out)["lower_bound"] < against["lower_bound"]


def test_a_system_by_its_scores_has_the_sizes_of_the_log(simulated, tmp_path, capsys, monkeypatch) -> None:
    folder, _ = simulated
    log = pl.read_parquet(folder / "log")
    rows = log.select("query_id").unique().join(log.select(item_id=pl.col("items").explode()).unique(), how="cross")
    rows = rows.with_columns(candidate_score=0.0, ranker_score=0.0)
    rows.write_parquet(tmp_path / "scores.parquet")
    asked, made = [], policies.outside.policy_from_file
    monkeypatch.setattr(
        policies.outside, "policy_from_file", lambda path, K2, K: asked.append(made(path, K2, K)) or asked[-1]
    )
    ask = ["--logs", str(folder / "log"), "--propensity", "frequency"]
    code, _, err = call(capsys, monkeypatch, "estimate", *ask, "--scores", str(tmp_path / "scores.parquet"))
    assert code == 0, err
    assert (log["items"].list.len().max(), rows["item_id"].n_unique()) == (asked[0].K, asked[0].K2)
    for command in ("estimate", "compare", "decide"):
        code, _, err = call(
            capsys, monkeypatch, command, *ask, "--policy", str(folder / "production"), "--candidates", "9"
        )
        assert code == 2
        assert "--candidates and --list-length are for a system given by its scores" in err


def test_learn_says_what_to_know_of_a_log_before_and_what_is_sure_after(tmp_path, capsys, monkeypatch) -> None:
    """A curve that is no 1/k, and then a log of few clicks."""
    rng = np.random.default_rng(0)
    items, q = np.argsort(rng.random((900, 6)), axis=1)[:, :4], rng.integers(8, size=900)
    clicks = rng.random(items.shape) < 0.4
    log = pl.DataFrame({"query_id": q, "items": items.tolist(), "clicks": clicks.astype(int).tolist()})
    log.write_parquet(tmp_path / "flat.parquet")
    ask = ["--set", "propensity=frequency", "--out"]
    code, out, err = call(
        capsys, monkeypatch, "learn", "--logs", str(tmp_path / "flat.parquet"), *ask, str(tmp_path / "a")
    )
    assert code == 0, err
    assert "the log contradicts the examination curve" in err
    assert "at least" in out
    assert "clicks are few" not in err
    log.head(50).write_parquet(tmp_path / "few.parquet")
    code, _, err = call(
        capsys, monkeypatch, "learn", "--logs", str(tmp_path / "few.parquet"), *ask, str(tmp_path / "b")
    )
    assert code == 0, err
    assert "and at least 100 are needed" in err


def test_decide_exits_with_its_call_and_writes_a_page(simulated, capsys, monkeypatch, tmp_path) -> None:
    folder, _ = simulated
    ask = ["--logs", str(folder / "log"), "--logging-policy", str(folder / "production")]
    page = tmp_path / "meeting.html"
    ask += ["--policy", str(folder / "production"), "--at-least", "0.5", "--report", str(page)]
    code, out, err = call(capsys, monkeypatch, "decide", *ask)
    assert code == 4, err
    assert out.startswith("Do not ship.\n")
    assert "it is no better by +0.5" in out
    assert "<h1>Do not ship</h1>" in page.read_text(encoding="utf-8")
    assert 'tandemrank decide <span class="whole">--logs</span>' in page.read_text(encoding="utf-8")
    code, out, err = call(capsys, monkeypatch, "decide", *ask[:6], "--at-least", "-20", "--json")
    assert code == 0, err
    assert (json.loads(out)["call"], json.loads(out)["chosen"]) == ("ship", str(folder / "production"))
    guessed = [*ask[:2], *ask[4:6], "--propensity", "fitted", "--at-least", "-20"]  # no bound has the error of a fit
    code, out, err = call(capsys, monkeypatch, "decide", *guessed)
    assert code == 3, err
    assert "a canary with" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["demo", "--seed", "-1"], 2, "--seed"),
        (["simulate", "--data", "absent.zip"], 2, "absent.zip"),
        (["simulate", "--set", "rank=0"], 2, "rank: input should be greater than or equal to 1; got 0"),
        (["table", "--preset", "other"], 2, "--preset takes tandem, stages or paper; got 'other'"),
        (["table", "--engine", "other"], 2, "--engine takes local or ray; got 'other'"),
        (["table", "--impressions", "many"], 2, "whole numbers separated by commas; got 'many'"),
        (["table", "--methods", "magic"], 2, "methods"),
        (["table", "--impressions", "0"], 2, "impressions"),
        (["learn", "--logs", "absent.parquet", "--start", "absent"], 2, "absent"),
        (
            ["learn", "--logs", "x.parquet", "--method", "magic"],
            2,
            "baseline, independent, stacking, joint; got 'magic'",
        ),
        (
            ["learn", "--logs", "x.parquet", "--set", "objective=magic"],
            2,
            "objective: input should be 'beliefs' or 'ips'",
        ),
        (["learn", "--logs", "x.parquet", "--set", "propensity=magic"], 2, "propensity: input should be 'auto'"),
        (["learn", "--logs", "absent.parquet"], 2, "absent.parquet"),
        (["learn", "--logs", "x.parquet", "--item-embeddings", "y.parquet"], 2, "got those of one"),
        (["evaluate", "--policy", "absent"], 2, "is not a whole saved policy"),
        (["learn"], 2, "--logs"),
        (["validate", "absent.parquet"], 2, "absent.parquet"),
        (["validate", "--logs", "absent.parquet"], 2, "absent.parquet"),
        (["examine"], 2, "expected a click log; got none. Give it by --logs"),
        (["examine", "absent.parquet"], 2, "absent.parquet"),
        (["examine", "x.parquet", "--engine", "other"], 2, "--engine takes local or ray; got 'other'"),
        (["estimate", "--logs", "x.parquet", "--engine", "other"], 2, "--engine takes local or ray; got 'other'"),
        (["estimate", "--logs", "absent.parquet"], 2, "give a policy by --policy"),
        (
            ["estimate", "--logs", "x", "--estimator", "magic"],
            2,
            "one of auto, completed, doubly_robust, ips, beta_ips",
        ),
        (["compare", "--logs", "x", "--estimator", "doubly_robust"], 2, "doubly_robust needs a reward model"),
        (["compare", "--logs", "x", "--policy", "absent", "--against", "nowhere"], 2, "absent"),
        (["decide", "--logs", "x"], 2, "give at least one policy"),
        (["estimate", "--logs", "x", "--policy", "absent", "--curve-interval"], 2, "--curve-interval needs --curve"),
        (["decide", "--logs", "x", "--policy", "absent", "--policy", "absent"], 2, "got absent twice"),
        (["estimate", "--logs", "absent.parquet", "--scores", "absent.parquet"], 2, "absent.parquet"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_every_mistake_gets_one_clear_message(arguments, code, message, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = call(capsys, monkeypatch, *arguments)
    assert found == code
    assert message in re.sub(r"\s+", " ", err)
    assert "Traceback" not in err + out
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_one_error_and_leaves_nothing(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = call(
        capsys, monkeypatch, "simulate", "--out", str(tmp_path / "file" / "sim"), "--impressions", "100", *SMALL
    )
    assert code == 1
    assert "cannot write" in err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, capsys, monkeypatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = call(capsys, monkeypatch, "simulate", "--out", str(tmp_path / "sim"), "--impressions", "100", *SMALL)
    assert code == 1
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(get_command(app).commands))  # type: ignore[attr-defined]
def test_help_has_groups_and_choices_and_is_whole_at_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = CliRunner().invoke(app, [name, "--help"])
    assert found.exit_code == 0
    assert "…" not in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80
    parameters = get_command(app).commands[name].params  # type: ignore[attr-defined]
    options = [x for x in parameters if x.param_type_name == "option"]
    for option in options:
        assert option.opts[0] in found.stdout
    if len(parameters) > FEW:
        assert {x.rich_help_panel for x in options} <= set(GROUPS)
    else:
        assert not {x.rich_help_panel for x in options} - {None}
    for choice in CHOICES["propensity"] if name in ("estimate", "compare", "decide") else ():
        assert choice in found.stdout


def test_choices_are_those_that_the_library_takes() -> None:
    """The words of --help are those of the types behind them."""
    from tandemrank.logs.importers.run import EVENTS, TABLES
    from tandemrank.offpolicy.estimators import Estimator
    from tandemrank.serving.export import FORMATS
    from tandemrank.training.config import LearningConfig
    from tandemrank.training.schedules import Method

    assert set(CHOICES["kind"]) == {*EVENTS, *TABLES}
    fields = LearningConfig.model_fields
    assert set(CHOICES["propensity"]) == set(get_args(fields["propensity"].annotation))
    assert set(CHOICES["exclude"]) == set(get_args(get_args(fields["exclude"].annotation)[0]))
    assert set(CHOICES["method"]) == {"auto", *get_args(Method)}
    assert set(CHOICES["estimator"]) == {*get_args(Estimator), "self_normalised"}
    assert set(CHOICES["to"]) == set(FORMATS)
    assert set(CHOICES["preset"]) == set(PRESETS)


@pytest.mark.parametrize("width", [40, 80])
def test_no_table_cuts_a_name(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name = "policies/of-the-last-week/learned/beliefs/policy"
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda _: True))
    monkeypatch.setenv("COLUMNS", str(width))
    sheet = Sheet(["name", "value"], [[name, ""]], ["name"]).terminal()
    for made in (rows_table("rows", [{"name": name, "value": ""}]), sheet):
        show(made)
        assert name in re.sub(r"\x1b\[[\d;]*m|[^\w/-]", "", capsys.readouterr().out)


def test_help_is_complete() -> None:
    """Every option of every command says what it is for."""
    import typer

    group = typer.main.get_command(app)
    commands = dict(group.commands)
    verbs = {name for name in tandemrank.__all__ if isinstance(getattr(tandemrank, name), FunctionType)}
    in_python = {"load", "buffer", "estimate_candidates", "read", "train"}
    assert verbs - in_python <= set(commands)  # a command has the name of its verb
    assert set(commands) == {
        "demo", "table", "simulate", "learn", "evaluate", "validate", "examine", "estimate", "compare", "decide",
            "serve", "seal", "replay", "import", "recommend", "export", "judge", "doctor",
    }  # fmt: skip
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name}: {parameter.name}"


def test_the_version_and_what_is_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(capsys, monkeypatch, "--version")[:2] == (0, f"tandemrank {tandemrank.__version__}\n")
    code, out, _ = call(capsys, monkeypatch, "doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["tandemrank"] == tandemrank.__version__
    assert "serve: installed" in found["extras"]
    assert os.path.isdir(found["kernels"])
