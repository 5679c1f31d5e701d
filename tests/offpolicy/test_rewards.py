"""Values by rewards: exact by enumeration, true by a simulator of its own, bounds that hold, guardrails that stop."""

import json
from itertools import permutations, product

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tandemrank.cli.main import app
from tandemrank.decisions.decision import decide
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading
from tandemrank.logs.details import Shadow, read_details
from tandemrank.offpolicy.comparison import rests_on
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.valuation import compare, estimate, estimate_all
from tandemrank.policies.outside import policy_from_scores

THETA = (0.9, 0.4)
R, WORTH = (
    (0.8, 0.3, 0.6, 0.1),
    ((2.0, 5.0), (0.0, 1.0), (3.0, 3.0), (10.0, 30.0)),
)  # what a click is worth, half the time each
S_0, S_1 = (0.5, 0.0, -0.3, 0.2), (-1.0, 0.4, 0.3, 1.5)


def plackett_luce(scores: tuple[float, ...]) -> dict[tuple[int, int], float]:
    w = np.exp(scores)
    return {(a, b): float(w[a] / w.sum() * w[b] / (w.sum() - w[a])) for a, b in permutations(range(4), 2)}


def policy(scores: tuple[float, ...]):
    rows = pl.DataFrame({"query_id": 1, "item_id": range(4), "candidate_score": scores, "ranker_score": scores})
    return policy_from_scores(rows, 4, 2)


def everything() -> pl.DataFrame:
    """Every list, clicks and values as an impression with its chance as its weight, and the true propensities."""
    chances = plackett_luce(S_0)
    rho = [sum(p * THETA[pair.index(d)] for pair, p in chances.items() if d in pair) for d in range(4)]
    rows = []
    for (pair, chance), *outcomes in product(chances.items(), *[((0, 0), (1, 0), (1, 1))] * 2):
        p = chance
        for k, (c, _) in enumerate(outcomes):
            click = THETA[k] * R[pair[k]]
            p *= click / 2 if c else 1 - click
        values = [WORTH[d][which] if c else 0.0 for d, (c, which) in zip(pair, outcomes, strict=True)]
        rows.append({
            "query_id": 1, "items": list(pair), "clicks": [c for c, _ in outcomes], "worth": values,
            "propensities": [rho[d] for d in pair], "weight": 1000 * p,
        })  # fmt: skip
    return pl.DataFrame(rows)


def test_the_value_by_a_reward_is_what_it_is_over_all_lists_clicks_and_values() -> None:
    def truth(scores: tuple[float, ...]) -> float:
        gain = [R[d] * sum(WORTH[d]) / 2 for d in range(4)]
        return sum(p * sum(THETA[k] * gain[d] for k, d in enumerate(pair)) for pair, p in plackett_luce(scores).items())

    log = everything().with_columns(s=pl.lit([3, 2]))
    question = Question(examination=THETA, reward_column="worth", samples=4000)
    new, live = estimate_all([policy(S_1), "production"], log, question)
    assert live.value == pytest.approx(truth(S_0), rel=1e-9)
    assert new.value == pytest.approx(truth(S_1), rel=2e-3)  # the policy's own races
    [shadow] = estimate_all([Shadow("s", "s")], log, question)
    assert shadow.value == pytest.approx(THETA[0] * R[3] * 20 + THETA[1] * R[2] * 3, rel=1e-9)
    assert (live.summary()["reward"], new.estimator) == ("worth", "ips")


def shop(N: int = 30_000, seed: int = 5) -> tuple[pl.DataFrame, dict[str, np.ndarray], dict[str, dict[str, float]]]:
    """Clicks, revenue of some and minutes; scores of policies, and what each truly gets. Cheap items are clicked more."""
    rng = np.random.default_rng(seed)
    Q, D, K = 80, 15, 3
    theta = 1 / np.arange(1, K + 1)
    click = 0.7 * rng.beta(1, 2, (Q, D))
    price = np.exp(rng.normal(3, 0.5, D)) * np.where(np.arange(D) % 3 == 0, 4, 1)
    click[:, ::3] *= 0.5
    buys = 0.3
    scores = {
        "live": np.zeros((Q, D)),
        "by clicks": 3 * np.log(click + 0.05),
        "by revenue": 2 * np.log(click * price + 1),
    }

    def drawn(s: np.ndarray, q: np.ndarray) -> np.ndarray:
        return np.argsort(-(s[q] + rng.gumbel(size=(len(q), D))), 1)[:, :K]

    q = rng.integers(0, Q, N)
    items = drawn(scores["live"], q)
    clicks = rng.random(items.shape) < theta * click[q[:, None], items]
    bought = clicks & (rng.random(items.shape) < buys)
    revenue = np.where(bought, np.round(price[items] * rng.uniform(0.5, 1.5, items.shape), 2), 0.0)
    columns = {"items": items, "clicks": clicks.astype(np.uint8), "revenue": revenue, "minutes": clicks * 2.0}
    p = float(theta.sum() / D)  # all lists are equally likely
    frame = pl.DataFrame({"query_id": q, **columns, "propensities": np.full(items.shape, p)})
    truth = {}
    for name, s in scores.items():
        many = rng.integers(0, Q, 400_000)
        lists = drawn(s, many)
        seen = theta * click[many[:, None], lists]
        truth[name] = {"clicks": seen.sum(1).mean(), "revenue": (seen * buys * price[lists]).sum(1).mean()}
    return frame.with_columns(pl.col(*columns, "propensities").arr.to_list()), scores, truth


@pytest.fixture(scope="module")
def shopped():
    log, scores, truth = shop()

    def made(s: np.ndarray):
        q, d = np.indices(s.shape)
        both = {"candidate_score": s.ravel(), "ranker_score": s.ravel()}
        return policy_from_scores(pl.DataFrame({"query_id": q.ravel(), "item_id": d.ravel(), **both}), 15, 3)

    return log, {name: made(s) for name, s in scores.items()}, truth


def test_values_are_those_that_the_policies_truly_get(shopped) -> None:
    log, policies, truth = shopped
    found = estimate_all([*policies.values(), "production"], log, Question(reward_column="revenue"))
    for value, name in zip(found, [*policies, "live"], strict=True):
        assert abs(value.value - truth[name]["revenue"]) < 5 * value.standard_error + 0.005 * value.value, name
        assert value.lower_bound < truth[name]["revenue"]
        assert value.lower_bound > 0.7 * value.value
    revenue = float(log["revenue"].list.sum().mean())
    assert found[-1].value == pytest.approx(revenue, rel=1e-12)


def test_intervals_are_over_the_impressions_one_by_one(shopped) -> None:
    log, _, _ = shopped
    live = estimate("production", log, reward_column="revenue")
    each = (
        log.select("query_id", x=pl.col("revenue").list.sum()).group_by("query_id").agg(v=pl.col("x").var(), n=pl.len())
    )
    exact = np.sqrt((each["v"] * each["n"]).sum()) / len(log)
    assert live.standard_error == pytest.approx(exact, rel=0.02)


def test_sums_are_the_same_bits_in_any_order(shopped) -> None:
    log, _, _ = shopped
    other = log.sample(fraction=1.0, shuffle=True, seed=1)
    vocabulary = reading.read(log).vocabulary
    a, b = (read_details(some, reward="revenue", vocabulary=vocabulary) for some in (log, other))
    assert np.array_equal(a.reward, b.reward)
    assert np.array_equal(a.rows.clicks, b.rows.clicks)
    assert (
        estimate("production", log, reward_column="revenue").value
        == estimate("production", other, reward_column="revenue").value
    )


def test_a_constant_reward_is_that_many_clicks(shopped) -> None:
    log, policies, _ = shopped
    question = Question(estimator="ips")
    plain = compare(policies["by clicks"], "production", log, question)
    twice = compare(policies["by clicks"], "production", log, question, reward_column="minutes")
    for name in ("difference", "standard_error"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(plain, name), rel=1e-9)
    assert twice.new.lower_bound == pytest.approx(
        2 * plain.new.lower_bound, rel=0.01
    )  # stakes are planned by powers of ten
    assert twice.lower_bound is None  # nobody knows the most that an impression can get
    bound = rests_on(twice.new, twice.old, most=6.0).lower_bound(0.95)
    assert bound == pytest.approx(2 * plain.lower_bound, rel=0.02)
    over = compare(policies["by clicks"], "production", log, question, reward_column="minutes", independent="queries")
    same = compare(policies["by clicks"], "production", log, question, independent="queries")
    assert rests_on(over.new, over.old, most=6.0).lower_bound(0.95) == pytest.approx(2 * same.lower_bound, rel=0.1)


def test_bounds_of_rare_large_rewards_hold() -> None:
    """Of 200 short logs whose value is mostly one rare purchase, the bound is above the truth in 5% at most."""
    rng, above = np.random.default_rng(0), 0
    for _ in range(200):
        N = 400
        click = rng.random(N) < 0.3
        v = np.where(click & (rng.random(N) < 0.1), 100 * rng.exponential(size=N), 0.0)
        log = pl.DataFrame(
            {
                "query_id": rng.integers(0, 40, N),
                "items": [[1]] * N,
                "clicks": click[:, None].astype(int),
                "v": v[:, None],
            }
        )
        log = log.with_columns(pl.col("clicks", "v").arr.to_list())
        above += estimate("production", log, reward_column="v").lower_bound > 0.3 * 0.1 * 100
    assert above <= 10


def test_a_decision_by_revenue_with_clicks_as_a_guardrail(shopped) -> None:
    log, policies, truth = shopped
    sides = {name: policies[name] for name in ("by clicks", "by revenue")}
    assert truth["by revenue"]["revenue"] > 1.15 * truth["by clicks"]["revenue"]
    most = 3000.0
    found = decide(sides, log, reward_column="revenue", most_clicks=most, guardrails={"clicks": None})
    assert (found.call, found.chosen, found.reward) == ("ship", "by revenue", "revenue")
    assert "revenue per impression" in found.why
    [rail] = found.candidates[1].guardrails
    assert rail.interval[0] < truth["by revenue"]["clicks"] - truth["live"]["clicks"] < rail.interval[1]
    asked = {"clicks": 0.9 * (truth["by clicks"]["clicks"] - truth["live"]["clicks"])}
    found = decide(sides, log, reward_column="revenue", most_clicks=most, guardrails=asked)
    assert [one.call for one in found.candidates] == ["ship", "do not"]
    assert "guardrail: clicks surely falls" in found.candidates[1].reasons[0]
    without = decide(sides["by revenue"], log, reward_column="revenue")
    assert (without.call, without.candidates[0].lower_bound) == ("canary", None)
    by_clicks = decide(sides["by revenue"], log, guardrails={"revenue": None, "minutes": 10.0})
    assert by_clicks.call == "do not"
    with pytest.raises(ConfigError, match="another reward than the one that decides"):
        decide(sides, log, guardrails={"clicks": None})


def test_shadow_lists_by_a_reward(shopped) -> None:
    log, policies, truth = shopped
    lists = policies["by revenue"].recommend()
    log = log.join(lists.rename({"items": "new"}), on="query_id", how="left")
    found = compare(Shadow("new", "new"), "production", log, reward_column="revenue")
    assert found.difference > 0
    assert found.new.value > 0.9 * truth["by revenue"]["revenue"]
    assert found.old.value == pytest.approx(float(log["revenue"].list.sum().mean()), rel=1e-12)


def test_the_commands_count_rewards(shopped, tmp_path) -> None:
    log, policies, _ = shopped
    log.head(5000).write_parquet(tmp_path / "log.parquet")
    policies["by revenue"].save(tmp_path / "policy")
    asked = ["--logs", str(tmp_path / "log.parquet"), "--policy", str(tmp_path / "policy"), "--reward", "revenue"]

    def run(*arguments: str) -> str:
        found = CliRunner().invoke(app, [*arguments])
        assert found.exit_code in (0, 3, 4), found.output
        return found.stdout

    assert json.loads(run("estimate", *asked, "--json"))["reward"] == "revenue"
    assert json.loads(run("compare", *asked, "--json"))["lower_bound"] is None
    said = run(
        "decide", *asked, "--guardrail", "clicks=-0.5", "--guardrail", "minutes", "--report", str(tmp_path / "a.html")
    )
    assert "revenue per impression above production" in said
    assert "guardrail: clicks does not fall below -0.5" in said
    assert "revenue per impression" in (tmp_path / "a.html").read_text()
    lists = [*asked[:2], *asked[4:], "--shadow", "a=items", "--shadow", "b=items"]
    assert "revenue per impression" in run("estimate", *lists)
    assert "revenue per impression above production" in run("compare", *lists)


FRAME = pl.DataFrame({"query_id": [1], "items": [[5, 6]], "clicks": [[1, 0]], "values": [[2.0, 0.0]]})


@pytest.mark.parametrize(
    ("log", "column", "message"),
    [
        (FRAME, "revenue", "expected the column 'revenue'"),
        (FRAME.with_columns(v=pl.lit("a")), "v", "expected numbers, one of each shown item; got String"),
        (FRAME.with_columns(v=1.0), "v", "expected numbers, one of each shown item; got Float64"),
        (FRAME.with_columns(v=pl.Series([[2.0, 1.0]])), "v", "0 where nothing was clicked"),
        (FRAME.with_columns(v=pl.Series([[-2.0, 0.0]])), "v", "values from 0 to 1e12; got -2.0"),
        (FRAME.with_columns(v=pl.Series([[2.0]])), "v", "as many as items"),
        (FRAME.with_columns(v=pl.Series([[0.0, 0.0]])), "v", "expected some v above 0"),
    ],
)
def test_what_is_no_reward_is_refused(log, column, message) -> None:
    with pytest.raises(LogError, match=message):
        estimate("production", log, reward_column=column)


def test_long_logs_json_lines_and_csv_have_rewards(tmp_path) -> None:
    assert estimate("production", FRAME, reward_column="values").value == 2.0
    FRAME.write_ndjson(tmp_path / "a.jsonl")
    assert estimate("production", tmp_path / "a.jsonl", reward_column="values").value == 2.0
    long = pl.DataFrame(
        {"impression_id": 1, "query_id": 1, "item_id": [5, 6], "position": [1, 2], "click": [1, 0], "paid": [2.5, 0]}
    )
    long.write_csv(tmp_path / "a.csv")
    for source in (long, tmp_path / "a.csv"):
        assert estimate("production", source, reward_column="paid").value == 2.5
    with pytest.raises(ConfigError, match="sums of a log have no column"):
        estimate("production", reading.read(FRAME), reward_column="values")
