"""Shadow lists: unbiased by enumeration and by a simulator of its own, exact in detail, and what cannot be asked is refused."""

import json
from itertools import permutations, product

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tandemrank.cli.main import app
from tandemrank.decisions.decision import decide
from tandemrank.errors import ConfigError, DataError, LogError
from tandemrank.logs import reading
from tandemrank.logs.details import Shadow, read_details
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.valuation import compare, estimate, estimate_all
from tandemrank.offpolicy.verdicts import Verdict

# --- a tiny world, all lists and all clicks -----------------------------------------------------------------------------

THETA = (0.9, 0.4)
R = (0.8, 0.3, 0.6, 0.1)
CHANCE = {
    pair: (1 + pair[0]) * (2 + pair[1]) for pair in permutations(range(4), 2)
}  # of the logger's lists, up to a factor


def everything(shadows: dict[str, dict[tuple[int, ...], float]]) -> pl.DataFrame:
    """Every list, clicks and shadow lists as an impression with its chance as its weight, and the true propensities."""
    total = sum(CHANCE.values())
    rho = [sum(w * THETA[pair.index(d)] for pair, w in CHANCE.items() if d in pair) / total for d in range(4)]
    rows = []
    for (pair, w), clicks in product(CHANCE.items(), product((0, 1), repeat=2)):
        chance = w / total
        for k, c in enumerate(clicks):
            p = THETA[k] * R[pair[k]]
            chance *= p if c else 1 - p
        for choice in product(*(lists.items() for lists in shadows.values())):
            both = float(np.prod([p for _, p in choice]))
            own = dict(zip(shadows, (list(one) for one, _ in choice), strict=True))
            rows.append({
                "query_id": 1, "items": list(pair), "clicks": list(clicks), "propensities": [rho[d] for d in pair],
                "weight": 1000 * chance * both, **own,
            })  # fmt: skip
    return pl.DataFrame(rows)


def test_the_value_of_shadow_lists_is_their_expected_clicks_over_all_lists_and_clicks() -> None:
    lists = {"fixed": {(2, 0): 1.0}, "varied": {(0, 1): 0.25, (3, 2): 0.75}, "short": {(1,): 1.0}}
    found = estimate_all([*map(Shadow, lists, lists), "production"], everything(lists), Question(examination=THETA))
    for value, options in zip(found, lists.values(), strict=False):
        truth = sum(p * sum(THETA[k] * R[d] for k, d in enumerate(one)) for one, p in options.items())
        assert value.value == pytest.approx(truth, rel=1e-9)
        assert value.diagnostics.balance == pytest.approx(1.0, rel=1e-9)
        assert value.diagnostics.unsupported == pytest.approx(0.0, abs=1e-12)
    live = sum(w * sum(THETA[k] * R[d] for k, d in enumerate(pair)) for pair, w in CHANCE.items()) / sum(
        CHANCE.values()
    )
    assert found[-1].value == pytest.approx(live, rel=1e-9)


def test_another_order_of_what_was_shown_is_its_expected_clicks_over_all_lists_and_clicks() -> None:
    log = everything({"fixed": {(2, 0): 1.0}}).with_columns(turned=pl.col("items").list.reverse())
    total = sum(CHANCE.values())
    truth = sum(w * (THETA[0] * R[pair[1]] + THETA[1] * R[pair[0]]) for pair, w in CHANCE.items()) / total
    for asked in (log, log.drop("propensities")):
        turned, fixed = estimate_all(
            [Shadow("turned", "turned"), Shadow("fixed", "fixed")], asked, Question(examination=THETA)
        )
        assert turned.value == pytest.approx(truth, rel=1e-9)
        assert turned.diagnostics.balance == pytest.approx(1.0, rel=1e-9)
        assert (turned.propensity, fixed.propensity) == ("exact", "logged" if asked is log else "frequency")


def test_on_policy_every_weight_is_one_where_lists_never_vary() -> None:
    log = pl.DataFrame({"query_id": [1, 1, 2], "items": [[5, 6], [5, 6], [7, 8]], "clicks": [[1, 0], [0, 1], [1, 1]]})
    log = log.with_columns(shadow_items="items", turned=pl.col("items").list.reverse())
    same, turned = estimate_all([Shadow("a"), Shadow("b", "turned")], log, Question(examination=THETA))
    assert same.value == pytest.approx(4 / 3)
    up, down = THETA[0] / THETA[1], THETA[1] / THETA[0]
    assert turned.value == pytest.approx((2 * up + 2 * down) / 3)
    assert [one.in_the_list for one in same.support] == [1.0, 1.0]


def test_what_was_never_shown_is_worth_nothing_and_is_said_by_rank() -> None:
    n = 2000
    log = pl.DataFrame({"query_id": [1] * n, "items": [[5, 6]] * n, "clicks": [[1, 0]] * n, "s": [[5, 9, 4]] * n})
    value = estimate(Shadow("s", "s"), log, examination=THETA)
    assert value.value == pytest.approx(1.0)
    assert value.diagnostics.unsupported == pytest.approx(THETA[1] / sum(THETA))
    assert [(one.rank, one.in_the_list, one.ever_shown) for one in value.support] == [(1, 1.0, 1.0), (2, 0.0, 0.0)]
    assert value.identified.best == pytest.approx(1.0 + THETA[1])
    assert value.verdict == Verdict.REFUSE
    assert "stage" not in str(value.reasons)
    assert "generator" not in str(value.reasons)


@pytest.mark.parametrize(("missing", "propensity", "verdict"), [
    (0.03, "frequency", Verdict.CARE), (0.002, "frequency", Verdict.TRUST), (0.03, "logged", Verdict.TRUST),
])  # fmt: skip
def test_what_chance_never_showed_is_missing_from_counted_propensities_alone(missing, propensity, verdict) -> None:
    queries, times = 1000, 20
    q, turn = np.repeat(np.arange(queries), times), np.tile(np.arange(times), queries)
    shown = np.where(q < missing * queries, 1, turn % 2)  # the system would show item 0
    rows = {"items": shown, "clicks": (turn // 2) % 2, "s": 0 * q, "propensities": 0.5 + 0 * q}
    log = pl.DataFrame({"query_id": q} | {name: column[:, None] for name, column in rows.items()})
    value = estimate(
        Shadow("s", "s"), log.with_columns(pl.col(*rows).arr.to_list()), examination=(1.0,), propensity=propensity
    )
    assert value.diagnostics.unsupported == pytest.approx(missing)
    assert value.value == pytest.approx(0.5 * (1 - missing))
    assert value.verdict == verdict
    assert ("never shown: the value is about that much too low" in value.reasons[0]) == (verdict == Verdict.CARE)


# --- a simulator of its own ---------------------------------------------------------------------------------------------

Q, D, K = 60, 25, 4


def shop(seed: int, N: int) -> tuple[pl.DataFrame, dict[str, float]]:
    """A live system that draws by chance, and two others whose lists depend on the visitor; and what these get when live."""
    rng = np.random.default_rng(seed)
    theta = 1 / np.arange(1, K + 1)
    relevance = 0.8 * rng.beta(0.8, 2.5, (2, Q, D))  # of two kinds of visitors
    q, kind = rng.integers(0, Q, N), rng.integers(0, 2, N)

    def drawn(scores: np.ndarray) -> np.ndarray:
        return np.argsort(-(scores + rng.gumbel(size=scores.shape)), 1)[:, :K]

    def clicks(lists: np.ndarray) -> np.ndarray:
        return rng.random(lists.shape) < theta * relevance[kind[:, None], q[:, None], lists]

    s_0 = 0.4 * np.log(relevance.mean(0) + 0.05)
    exposed = np.zeros((Q, D))
    for _ in range(3000):
        lists = drawn(s_0)
        np.add.at(exposed, (np.arange(Q)[:, None], lists), theta)
    items = drawn(s_0[q])
    others = {"knows": drawn(2 * np.log(relevance[kind, q] + 0.05)), "mean": drawn(3 * s_0[q])}
    truth = {name: float(clicks(lists).sum(1).mean()) for name, lists in others.items()}
    columns = {
        "items": items,
        "clicks": clicks(items).astype(np.uint8),
        "propensities": exposed[q[:, None], items] / 3000,
    }
    log = pl.DataFrame({"query_id": q, "impression_id": np.arange(N), **columns, **others})
    return log.with_columns(pl.col(*columns, *others).arr.to_list()), truth


@pytest.fixture(scope="module")
def shopped() -> tuple[pl.DataFrame, dict[str, float]]:
    return shop(seed=3, N=40_000)


@pytest.mark.parametrize("propensity", ["logged", "frequency"])
def test_values_are_those_of_the_systems_when_they_are_live(shopped, propensity) -> None:
    log, truth = shopped
    found = estimate_all([Shadow(name, name) for name in truth], log, Question(propensity=propensity))
    for value, (name, live) in zip(found, truth.items(), strict=True):
        noise = np.hypot(value.standard_error, np.sqrt(live / len(log)))
        assert abs(value.value - live) < 5 * noise, name
        assert value.lower_bound < live
        assert value.verdict == Verdict.TRUST


def test_every_number_is_that_of_the_impressions_one_by_one(shopped) -> None:
    log, _ = shopped
    log = log.head(5000)
    theta, rows = 1 / np.arange(1, K + 1), log.to_dicts()

    def clicks_of(row: dict, name: str) -> float:
        shown = zip(row["items"], row["clicks"], row["propensities"], strict=True)
        return sum(c * theta[row[name].index(d)] / p for d, c, p in shown if d in row[name])

    own = np.array([[clicks_of(row, name) for name in ("knows", "mean")] for row in rows])
    found = compare(Shadow("knows", "knows"), Shadow("mean", "mean"), log)
    assert found.new.value == pytest.approx(own[:, 0].mean(), rel=1e-9)
    assert found.difference == pytest.approx((own[:, 0] - own[:, 1]).mean(), rel=1e-9)
    by_query = log.select("query_id").with_columns(x=own[:, 0]).group_by("query_id").agg(pl.col("x").sum(), n=pl.len())
    residual = by_query["x"].to_numpy() - own[:, 0].mean() * by_query["n"].to_numpy()
    assert found.new.estimate.standard_error == pytest.approx(np.sqrt((residual**2).sum()) / len(log), rel=1e-9)
    # Of lists with one click at most the noise over impressions is exact; with more it is near.
    within = log.select("query_id").with_columns(x=own[:, 0]).group_by("query_id").agg(v=pl.col("x").var(), n=pl.len())
    exact = np.sqrt((within["v"] * within["n"]).sum()) / len(log)
    assert found.new.standard_error == pytest.approx(exact, rel=0.05)


def test_a_table_by_impression_is_the_column(shopped, tmp_path) -> None:
    log, _ = shopped
    log = log.head(2000)
    table = log.select("impression_id", items="knows").sample(fraction=1, shuffle=True, seed=1)
    table.write_parquet(tmp_path / "a.parquet")
    column, frame, file = (
        estimate(Shadow("knows", source), log) for source in ("knows", table, tmp_path / "a.parquet")
    )
    assert column.summary() == frame.summary() == file.summary()
    some = estimate(Shadow("knows", table.filter(pl.col("impression_id") < 500)), log)
    assert some.summary() | {"reasons": ()} == estimate(Shadow("knows", "knows"), log.head(500)).summary() | {
        "reasons": ()
    }
    assert "1,500 impressions have no list of some system, and are left out" in some.reasons


def test_a_log_in_detail_has_the_sums_of_the_log(shopped) -> None:
    log, _ = shopped
    log = log.head(3000)
    found, plain = read_details(log, shadows=[Shadow("knows", "knows")]), reading.read(log)
    assert len(found.rows.query) > len(found.whole.query) == len(plain.query)
    for name in ("shown", "clicks", "logged", "others"):
        sums = np.bincount(found.of, getattr(found.rows, name))
        assert sums == pytest.approx(getattr(found.whole, name))
        assert sums.sum() == pytest.approx(getattr(plain, name).sum())
    assert found.lists[0].shown.sum() == 3000 * K


def test_a_decision_among_shadow_lists(shopped) -> None:
    log, _ = shopped
    found = decide({name: Shadow(name, name) for name in ("knows", "mean")}, log)
    assert (found.call, found.chosen) == ("ship", "knows")
    worse = decide(Shadow("mean", "mean"), log, against=Shadow("knows", "knows"))
    assert worse.call == "do not"


def test_the_commands_take_several_at_once(shopped, tmp_path) -> None:
    log, truth = shopped
    log.head(10_000).write_parquet(tmp_path / "log.parquet")
    asked = ["--logs", str(tmp_path / "log.parquet"), "--shadow", "knows=knows", "--shadow", "mean"]

    def run(*arguments: str) -> str:
        found = CliRunner().invoke(app, [*arguments])
        assert found.exit_code in (0, 4), found.output
        return found.stdout

    table = run("estimate", *asked)
    assert "knows" in table
    assert "support" in table
    values = json.loads(run("estimate", *asked, "--json"))
    assert values["knows"]["value"] == pytest.approx(truth["knows"], rel=0.2)
    assert len(values["mean"]["support_by_rank"]) == K
    alone = json.loads(run("compare", *asked[:4], "--json"))["systems"]["knows"]
    both = json.loads(run("compare", *asked, "--json"))["systems"]
    assert both["knows"]["difference"] == pytest.approx(alone["difference"])
    assert both["knows"]["interval"][0] < alone["interval"][0]  # corrected for two
    assert both["knows"]["lower_bound"] < alone["lower_bound"]
    assert set(json.loads(run("compare", *asked, "--against", "mean", "--json"))["systems"]) == {"knows"}
    assert "above production" in run("compare", *asked)
    assert "Ship it: knows" in run("decide", *asked)
    assert "Do not ship" in run("decide", *asked, "--against", "knows")


# --- what cannot be asked -----------------------------------------------------------------------------------------------

FRAME = pl.DataFrame({"query_id": [1], "items": [[5, 6]], "clicks": [[1, 0]], "s": [[5, 6]], "impression_id": [1]})


@pytest.mark.parametrize(
    ("side", "log", "switches", "error", "message"),
    [
        (Shadow("s", "t"), FRAME, {}, LogError, "expected the column 't'"),
        (Shadow("s", "s"), FRAME.with_columns(s=1), {}, LogError, "expected lists of ids; got Int"),
        (Shadow("s", "s"), FRAME.with_columns(s=pl.Series([[[5]]])), {}, LogError, "expected lists of ids; got List"),
        (Shadow("s", "s"), FRAME.with_columns(s=pl.Series([[5, 5]])), {}, LogError, "expected each item once"),
        (Shadow("s", "s"), FRAME.with_columns(s=pl.Series([["5"]])), {}, LogError, "of the type that `items` has"),
        (Shadow("s", "s"), FRAME.with_columns(s=pl.lit(None, pl.List(pl.Int64))), {}, LogError, "every list that is asked"),
        (Shadow("s", "s"), FRAME, {"propensity": "fitted"}, ConfigError, "need no model"),
        (Shadow("s", "s"), FRAME, {"estimator": "beta_ips"}, ConfigError, "by ips alone"),
        (Shadow("s", "s"), FRAME, {"examination": (1.0,)}, ConfigError, "curve of 2 ranks or more"),
        (Shadow("s", pl.DataFrame({"id": [1]})), FRAME, {}, DataError, "impression_id is not there"),
        (Shadow("s", FRAME.select("impression_id", "items")), FRAME.drop("impression_id"), {}, LogError, "by which 's'"),
        (Shadow("s", pl.concat([FRAME, FRAME])), FRAME, {}, DataError, "expected one row for each; got impression"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(side, log, switches, error, message) -> None:
    with pytest.raises(error, match=message):
        estimate(side, log, **switches)


def test_sums_and_long_logs_have_no_shadow_lists(tmp_path) -> None:
    with pytest.raises(ConfigError, match="sums of a log have no shadow lists"):
        estimate(Shadow("s", "s"), reading.read(FRAME))
    long = pl.DataFrame({"impression_id": 1, "query_id": 1, "item_id": [5, 6], "position": [1, 2], "click": 0, "s": 1})
    with pytest.raises(LogError, match="asked of a wide log"):
        estimate(Shadow("s", "s"), long)
    FRAME.write_ndjson(tmp_path / "a.jsonl")
    assert estimate(Shadow("s", "s"), tmp_path / "a.jsonl").value == pytest.approx(1.0)
