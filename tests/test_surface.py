"""The public surface: the examples run with names of `tr` alone, and every result prints, plots and becomes a table."""

import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from tandemrank._base.results import MOST_CHARACTERS, MOST_LINES, Result
from tandemrank.errors import ConfigError

PLAN = Path(__file__).resolve().parents[2] / "shared" / "HOUSE.md"

OWN_LOG = """
import tandemrank as tr

log = tr.read("log/*.parquet")
print(tr.validate(log)); theta = tr.examine(log)
new = tr.learn(log, theta=theta, candidates=500, item_features=items, query_features=queries)
print(new)
new.compare().plot(); new.report("report.html"); new.policy.save("pair")
tr.decide(new.policy, next_week, at_least=0.01)
"""
OWN_MODEL = """
class MyRanker(tr.Ranker):
    def __init__(self, features): super().__init__(); self.x = tr.buffer(features); self.net = nn.Linear(8, 1)
    def score(self, q, items): return self.net(self.x[items]).squeeze(-1)

new = tr.learn(log, ranker=MyRanker(x), method="joint"); new.policy.save("pair"); tr.load("pair", models=[MyRanker])
"""
PAPER = """
world = tr.experiments.paper("ml-1m.zip", K2=500)
for method in ("baseline", "independent", "joint"):
    print(method, tr.evaluate(tr.train(world.start, world.log(100_000), method=method), world.truth))
"""
SMALLER = {"candidates=500": "candidates=20", "K2=500": "K2=20, rank=5, epochs=1", "100_000": "2_000"}
Q, D, N = 60, 40, 6_000
rng = np.random.default_rng(0)


def clicks(seed: int) -> pl.DataFrame:
    """Lists of five drawn by chance; the first eight items are liked."""
    rng = np.random.default_rng(seed)
    items = np.argsort(rng.random((N, D)) - 0.4 * (np.arange(D) < 8), 1)[:, :5]
    chance = np.where(items < 8, 0.6, 0.1) / np.arange(1, 6) ** 0.5
    clicked = rng.random((N, 5)) < chance
    return pl.DataFrame({"query_id": rng.integers(0, Q, N), "items": items, "clicks": clicked.astype(np.int8)})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in two files, and ratings as MovieLens has them."""
    folder: Path = tmp_path_factory.mktemp("surface")
    (folder / "log").mkdir()
    log = clicks(1)
    log[: N // 2].write_parquet(folder / "log" / "a.parquet")
    log[N // 2 :].write_parquet(folder / "log" / "b.parquet")
    ratings = rng.integers(1, 6, (Q, D))
    lines = [f"{q + 1}::{d + 1}::{ratings[q, d]}::0" for q in range(Q) for d in range(D)]
    with zipfile.ZipFile(folder / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def names(place: Path) -> dict[str, Any]:
    """What the examples leave behind."""
    numbers = {f"n{i}": rng.normal(size=D) for i in range(2)}
    found: dict[str, Any] = {
        "items": pl.DataFrame({"item_id": np.arange(D), **numbers}),
        "queries": pl.DataFrame({"query_id": np.arange(Q), "age": rng.normal(size=Q)}),
        "next_week": clicks(2),
        "x": rng.normal(size=(D, 8)).astype(np.float32),
        "nn": __import__("torch").nn,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        content = zipfile.ZipFile("ml-1m.zip").read("ml-1m/ratings.dat")
        patch.setattr(tr.experiments.datasets, "MD5", hashlib.md5(content).hexdigest())
        for example in (OWN_LOG, OWN_MODEL, PAPER):
            for large, small in SMALLER.items():
                example = example.replace(large, small)
            if example.startswith("\nclass"):
                found["learned"] = found["new"]
            exec(compile(example, "surface", "exec"), found)
    return found


@pytest.mark.skipif(not PLAN.exists(), reason="the plan is not beside the checkout")
def test_the_examples_are_those_of_the_plan() -> None:
    block = re.findall(r"```python\n(.*?)```", PLAN.read_text(encoding="utf-8"), re.DOTALL)[0]
    plain = [re.sub(r"\s+#.*", "", line) for line in block.splitlines() if line]
    assert plain == [line for line in f"{OWN_LOG}{OWN_MODEL}{PAPER}".splitlines() if line]


def test_the_examples_run_and_leave_what_they_say(names: dict[str, Any], place: Path) -> None:
    assert (place / "pair" / "config.json").exists()
    card = (names["learned"].policy.save(place / "own") / "README.md").read_text(encoding="utf-8")
    assert "Learned by the method beliefs from" in card
    assert "| generator | retrieval (" in card
    assert tr.load(place / "own").about == names["learned"].policy.about
    assert "<svg" in (place / "report.html").read_text(encoding="utf-8")
    log = names["log"]
    assert (log.impressions, log.queries, log.items, log.list_length) == (N, Q, D, 5)
    assert log.clicks == clicks(1)["clicks"].to_numpy().sum()
    assert 5 <= len(repr(names["learned"]).splitlines()) <= 8
    assert repr(names["learned"].policy).count("\n") == 0


def test_a_log_that_was_read_is_taken_wherever_a_log_is(names: dict[str, Any], place: Path) -> None:
    log, path = names["log"], str(place / "log")
    assert tr.validate(log).log == tr.validate(path).log
    assert np.array_equal(tr.examine(log).theta, tr.examine(path).theta)
    policy = names["learned"].policy
    assert tr.estimate(policy, log).value == tr.estimate(policy, path).value


def test_keywords_of_learn_are_its_switches_and_its_start() -> None:
    found = tr.learn(clicks(3), candidates=12, theta=[1, 0.7, 0.5, 0.4, 0.3], method="beliefs")
    assert found.config.candidates == 12
    assert found.config.examination == (1, 0.7, 0.5, 0.4, 0.3)
    with pytest.raises(ConfigError, match="candidatos: there is no such switch"):
        tr.learn(clicks(3), candidatos=12)
    with pytest.raises(ConfigError, match=r"candidates: .* got 'many'"):
        tr.learn(clicks(3), candidates="many")


def test_one_query_is_asked_as_a_list_of_one(names: dict[str, Any]) -> None:
    policy = names["new"].policy
    assert policy.recommend(17).equals(policy.recommend([17]))


def test_arguments_in_the_wrong_order_are_one_sentence(names: dict[str, Any]) -> None:
    policy, log = names["learned"].policy, names["next_week"]
    for wrong in (
        lambda: tr.estimate(log, policy),
        lambda: tr.compare(policy, log, "production"),
        lambda: tr.decide(log, policy),
        lambda: tr.learn(policy),
        lambda: tr.train(log, policy),
        lambda: tr.evaluate(log, policy),
        lambda: tr.read(policy),
    ):
        with pytest.raises(ConfigError) as error:
            wrong()
        assert "expected" in str(error.value)
        assert len(str(error.value)) < 300


@pytest.fixture(scope="module")
def results(names: dict[str, Any]) -> list[Result]:
    """One of every kind that the public functions return."""
    policy, log, world = names["learned"].policy, names["next_week"], names["world"]
    trained = tr.train(world.start, world.log(500), method="joint")
    value = tr.estimate(policy, log)
    return [
        names["log"], names["theta"], names["learned"], trained, value, names["learned"].production, names["learned"].compare(),
        tr.validate(log), tr.decide({"one": policy, "two": policy}, log), tr.evaluate(trained, world.truth),
        tr.estimate_candidates(policy, log, [10, 20]), tr.beliefs.judgements.judge(log),
        tr.experiments.evaluation.paired("ratings", {"a": tr.evaluate(trained, world.truth)}),
    ]  # fmt: skip


def test_every_result_prints_plots_and_becomes_a_table_and_a_page(results: list[Result], tmp_path: Path) -> None:
    public = {getattr(tr, name) for name in tr.__all__ if isinstance(getattr(tr, name), type)}
    assert {one for one in public if issubclass(one, Result)} <= {type(one) for one in results}
    for one in results:
        text, kind = repr(one), type(one).__name__
        assert len(text.splitlines()) <= MOST_LINES, kind
        assert 10 < len(text) <= MOST_CHARACTERS, kind
        assert text.splitlines()[0][:30] in one._repr_html_().replace("&#x27;", "'"), kind
        assert "<table>" in one._repr_html_(), kind
        assert len(one.to_frame()), kind
        assert all(isinstance(name, str) for name in one.to_dict()), kind
        assert isinstance(one.plot(), matplotlib.figure.Figure), kind
        assert "<svg" in one.plot()._repr_svg_(), kind  # type: ignore[attr-defined]
        page = one.report(tmp_path / f"{kind}.html").read_text(encoding="utf-8")
        assert "<svg" in page, kind


def test_what_a_result_shows_is_escaped_and_short() -> None:
    class Odd(Result):
        def _lines(self) -> list[str]:
            return ["<b>x</b>" * 100] * 30

        def _rows(self) -> list[dict[str, Any]]:
            return [{"<i>": "<script>"}] * 50

    assert len(repr(Odd())) <= MOST_CHARACTERS
    assert len(repr(Odd()).splitlines()) == MOST_LINES
    shown = Odd()._repr_html_()
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert "30 rows more" in shown


def test_every_result_of_the_package_uses_the_printing_of_results() -> None:
    """A dataclass without `repr=False` would print its own way."""
    import tandemrank.reports.results

    kinds = [*Result.__subclasses__()]
    assert len(kinds) > 10
    for kind in kinds:
        if kind.__module__.startswith("tandemrank."):
            assert kind.__repr__ is Result.__repr__, kind
    assert tandemrank.reports.results.plot
