"""Judgements: nearer to the truth than clicks over expected clicks, intervals that hold, files that come back as they were."""

import json

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs import judgements
from tandemrank.beliefs.judgements import Judgements, interval, judge, read_judgements, write
from tandemrank.errors import ConfigError, DataError
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions

Q, D, K = 120, 60, 8


def log_of_a_live_system(N: int, seed: int) -> tuple[np.ndarray, Feedback]:
    """Graded relevance, and the log of a live system that knows much of it, by its own simulator: examination is 1/k."""
    rng = np.random.default_rng(seed)
    R = 0.7 * rng.beta(0.8, 3, (Q, D))
    q = rng.integers(0, Q, N)
    score = np.log(R + 0.02) + rng.normal(0, 0.7, (Q, D))
    items = np.argsort(-(score[q] + rng.gumbel(size=(N, D))), 1)[:, :K]
    clicks = rng.random((N, K)) < R[q[:, None], items] / np.arange(1, K + 1)
    ids = Vocabulary(pl.Series([f"q{n}" for n in range(Q)]), pl.Series(np.arange(D)))
    return R, from_impressions([Impressions(q.astype(np.int32), items.astype(np.int32), clicks.astype(np.uint8))], ids)


def test_beliefs_are_nearer_to_the_truth_than_clicks_over_expected_clicks() -> None:
    R, log = log_of_a_live_system(20_000, seed=1)
    found = judge(log)
    rows = found.rows
    true = R[rows["query_id"].str.slice(1).cast(pl.Int64).to_numpy(), rows["item_id"].to_numpy()]
    rate = np.bincount(log.rank, log.clicks) / np.bincount(log.rank, log.shown)
    pair = np.unique(log.query.astype(np.int64) * D + log.item, return_inverse=True)[1]
    over_expected = np.bincount(pair, log.clicks) / np.bincount(pair, rate[log.rank] * log.shown)
    believed, coec = (np.corrcoef(x, true)[0, 1] for x in (rows["relevance"].to_numpy(), over_expected))
    assert believed > coec + 0.1
    holds = (rows["low"].to_numpy() <= true) & (true <= rows["high"].to_numpy())
    assert holds.mean() > 0.85
    assert rows["shown"].sum() == log.shown.sum()
    assert rows["clicks"].sum() == log.clicks.sum()
    assert rows["rating"].max() == 3.0
    assert sum(found.summary()["pairs_by_grade"]) == len(rows)


def test_an_interval_has_the_quantiles_of_the_beta_distribution_with_its_moments() -> None:
    a, b = 2.0, 6.0
    drawn = np.random.default_rng(0).beta(a, b, 400_000)
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    low, high = interval(np.array([mean]), np.array([variance]), 0.9)
    assert [low[0], high[0]] == pytest.approx(np.quantile(drawn, [0.05, 0.95]), abs=0.003)
    low, high = interval(np.array([0.0, 1.0, 0.3]), np.array([0.0, 0.0, 0.0]), 0.95)
    assert low == pytest.approx([0, 1, 0.3], abs=1e-5)
    assert high == pytest.approx([0, 1, 0.3], abs=1e-5)


JUDGED = Judgements(
    pl.DataFrame({
        "query_id": ["red shoes", "red shoes", "100%", "100%"], "item_id": ["a b", "c", "c", "d,e"],
        "relevance": [0.4, 0.1, 0.2, 0.0], "low": 0.0, "high": 1.0, "shown": 1.0, "clicks": 0.0,
        "rating": [3.0, 0.75, 1.5001, 0.0],
    }),
    0.4, 4, 0.95,
)  # fmt: skip


@pytest.mark.parametrize("ending", judgements.WRITERS)
def test_a_file_of_every_format_comes_back_as_it_was(ending, tmp_path) -> None:
    path = tmp_path / f"a{ending}"
    write(JUDGED, path)
    write(JUDGED, path)  # over one of ours
    exact = ending in (".json", ".parquet")
    ratings = [3.0, 0.75, 1.5, 0.0] if exact else [3.0, 1.0, 2.0, 0.0]
    found = read_judgements(path)
    assert found.select("query_id", "item_id").rows() == JUDGED.rows.select("query_id", "item_id").rows()
    assert found["rating"].to_list() == pytest.approx(ratings, abs=1e-3)
    with pytest.raises(ConfigError, match="ends in"):
        write(JUDGED, tmp_path / "a.xml")
    (tmp_path / f"b{ending}").write_text("mine")
    with pytest.raises(ConfigError, match="not a file of judgements of ours"):
        write(JUDGED, tmp_path / f"b{ending}")


def test_the_files_are_as_the_tools_want_them(tmp_path) -> None:
    for ending in (".qrels", ".json", ".csv"):
        write(JUDGED, tmp_path / f"a{ending}")
    assert (tmp_path / "a.qrels").read_text().splitlines()[:3] == [
        "red%20shoes 0 a%20b 3", "red%20shoes 0 c 1", "100%25 0 c 2",
    ]  # fmt: skip
    assert (tmp_path / "a.csv").read_text().splitlines()[:2] == ["query,docid,rating", "red shoes,a b,3"]
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["type"] == "IMPORT_JUDGMENT"
    ratings = [{"docId": "a b", "rating": 3.0}, {"docId": "c", "rating": 0.75}]
    assert document["judgmentRatings"][0] == {"query": "red shoes", "ratings": ratings}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.qrels", "1 0 2\n", "line 1 has 3 words"),
        ("a.qrels", "1 0 2 much\n", "could not convert"),
        ("a.qrels", "1 0 2 -1\n", "ratings of 0 or more"),
        ("a.qrels", "", "ratings of 0 or more"),
        ("a.json", "{}", "judgmentRatings"),
        ("a.json", "[", "cannot be read as judgements"),
        ("a.csv", "query,docid\n1,2\n", "rating"),
        ("a.parquet", "no", "cannot be read as judgements"),
        ("missing.qrels", None, "No such file"),
    ],
)
def test_what_are_no_judgements_is_refused(name, text, message, tmp_path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_judgements(tmp_path / name)


def test_switches_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="grades"):
        judge(pl.DataFrame(), grades=1)
    with pytest.raises(ConfigError, match="level"):
        judge(pl.DataFrame(), level=1.0)
