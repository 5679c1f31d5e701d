"""From a log alone to valued pairs, where the truth is known: values that hold, starts of every kind, one error for each
mistake. The world is small, its log a frame; no ratings enter."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

import tandemrank as tr
from tandemrank.errors import ConfigError, DataError, InputError, LogError
from tandemrank.experiments.world import build_world, impressions, load_task
from tandemrank.logs import reading, sums, writing
from tandemrank.offpolicy import valuation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import learning
from tandemrank.training.learning import learn
from tandemrank.training.start import Start

CONFIG = {"candidates": 20, "training": {"epochs": 6, "minibatch": 64, "learning_rate": 0.03}}


def configured(**more: object) -> tr.LearningConfig:
    return tr.LearningConfig.model_validate({**CONFIG, **more})


@dataclass(frozen=True)
class World:
    frame: pl.DataFrame
    task: tr.Task
    production: TwoStagePolicy
    theta: np.ndarray

    def value(self, policy: TwoStagePolicy, queries: pl.Series) -> float:
        """The true clicks an impression, each query as often as it comes."""
        ids, known = policy.vocabulary, self.task.vocabulary
        R = csr_matrix(
            self.task.relevance[known.queries(ids.query_ids)][:, known.items(ids.item_ids)], dtype=np.float32
        )
        U = policy.utility(R, self.theta, samples=60, seed=5)
        return float(U[ids.queries(queries)].mean())


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    config = tr.ExperimentConfig(queries=120, items=60, rank=6, learning=tr.LearningConfig(shown=5))
    task = load_task(config)
    built = build_world(task, config, seed=0)
    path = writing.write(impressions(built, 8_000, 0), tmp_path_factory.mktemp("own") / "log", task.vocabulary)
    return World(pl.read_parquet(path), task, built.production, built.theta)


@pytest.fixture(scope="module")
def learned(world) -> learning.Learned:
    return learn(world.frame, configured(), methods=["joint", "baseline"])


def test_learn_from_a_frame_alone_beats_production_and_knows_by_how_much(world, learned) -> None:
    """No policy, no propensities, no ratings: the fitted propensities give values within their errors of the truth."""
    assert (learned.propensity, learned.config.shown, learned.config.candidates) == ("fitted", 5, 20)
    clicks = world.frame["clicks"].list.sum()
    assert abs(learned.production.value - clicks.mean()) < 5 * learned.production.standard_error
    assert learned.log["impressions"] == 8_000
    assert learned.log["used"] + learned.log["held_out"] + learned.log["judged"] == 8_000
    for method, answer in learned.values.items():
        truth = world.value(learned.trained[method].policy, world.frame["query_id"])
        assert abs(answer.value - truth) < 4 * answer.standard_error
        assert answer.verdict == "trust it"
        assert truth > 1.3 * clicks.mean()
    assert learned.policy is learned.trained["joint"].policy
    assert learned.policy.recommend(world.frame["query_id"][:2].to_list())["items"].list.len().to_list() == [5, 5]


def test_differences_are_paired_and_name_what_they_compare(learned) -> None:
    pairs = [(d.method, d.against) for d in learned.differences]
    assert pairs == [("joint", "production"), ("baseline", "production"), ("joint", "baseline")]
    joint, baseline = (learned.values[m].value for m in ("joint", "baseline"))
    values = [d.comparison.difference for d in learned.differences]
    assert values == pytest.approx(
        [joint - learned.production.value, baseline - learned.production.value, joint - baseline]
    )
    between = learned.differences[2].comparison
    assert between.interval[0] < between.difference < between.interval[1]
    apart = sum(learned.values[m].standard_error ** 2 for m in ("joint", "baseline")) ** 0.5
    assert between.standard_error < 0.7 * apart  # the same queries, so most of the noise is common
    assert learned.differences[0].comparison.share_of_wins > 0.99


def test_on_its_own_training_clicks_a_pair_looks_better_than_it_is(world) -> None:
    """Why a third part is judged: asked of the impressions that trained it, the value is far too high."""
    few = world.frame.head(3000)
    config = configured(training={"epochs": 12, "stopping": "fixed", "minibatch": 64, "learning_rate": 0.05})
    found = learn(few, config, logging_policy=world.production)
    answer, truth = found.values["joint"], world.value(found.policy, few["query_id"])
    assert abs(answer.value - truth) < 4 * answer.standard_error
    parts = learning._read(few, config, Start(), 0)
    own = valuation.estimate(
        found.policy, sums.merge(parts.used), examination=found.config.theta, propensity="exact",
        logging_policy=world.production,
    )  # fmt: skip
    assert own.value > truth + 5 * own.standard_error


@pytest.mark.parametrize(("stopping", "wanted"), [("dcg", [0.325, 0.325, 0.15, 0.2]), ("fixed", [0.4, 0.4, 0, 0.2])])
def test_no_part_shares_an_impression_with_another(world, stopping, wanted) -> None:
    parts = learning._read(world.frame, configured(training={"stopping": stopping}), Start(), 3)
    whole = reading.read(world.frame)
    assert np.array_equal(parts.whole.shown, whole.shown)
    assert np.array_equal(parts.whole.clicks, whole.clicks)
    shares = [part.N / whole.N for part in (*parts.used, parts.held_out, parts.judged)]
    assert shares == pytest.approx(wanted, abs=0.02)


def test_doubly_robust_training(world) -> None:
    found = learn(world.frame, configured(objective="doubly-robust"), logging_policy=world.production)
    answer, truth = found.values["joint"], world.value(found.policy, world.frame["query_id"])
    assert found.propensity == "exact"
    assert abs(answer.value - truth) < 4 * answer.standard_error
    assert truth > 1.3 * found.production.value


def test_a_pandas_frame_gives_the_same(world) -> None:
    pd = pytest.importorskip("pandas")
    few, config = world.frame.head(2000), configured(propensity="frequency", training={"epochs": 1})
    as_pandas = pd.DataFrame({name: few[name].to_list() for name in few.columns})
    a, b = (learn(frame, config) for frame in (few, as_pandas))
    assert a.values["joint"].value == b.values["joint"].value


def items_of(world: World) -> pl.Series:
    return world.frame["items"].explode().unique().sort()


def test_start_from_features_scores_what_was_never_shown(world) -> None:
    items = items_of(world)
    rng = np.random.default_rng(0)
    extra = pl.concat([items, pl.Series([10**6, 10**6 + 1])])
    table = pl.DataFrame({"item_id": extra, "x": rng.normal(size=len(extra)), "kind": ["a", "b"] * (len(extra) // 2)})
    sizes = tr.StartConfig(generator_width=4, generator_dimension=2, ranker_width=8, ranker_dimension=6)
    config = configured(propensity="frequency", training={"epochs": 2})
    found = learn(world.frame.head(3000), config, start=Start(item_features=table, sizes=sizes))
    assert found.policy.generator.sizes()["dimension"] == 2
    assert found.policy.ranker.sizes()["dimension"] == 6
    assert 10**6 in found.policy.vocabulary.item_ids
    assert "two towers" in found.start
    with pytest.raises(DataError, match=str(items[3])):
        learn(world.frame.head(3000), config, start=Start(item_features=table.filter(pl.col("item_id") != items[3])))
    with pytest.raises(DataError, match=r"item_id: Int64 in the log, String in the features"):
        learn(world.frame, config, start=Start(item_features=table.cast({"item_id": pl.String})))


def test_start_from_embeddings_and_from_a_policy(world) -> None:
    rng = np.random.default_rng(0)
    config = configured(propensity="frequency", training={"epochs": 1})
    few = world.frame.head(3000)
    tables = [
        pl.DataFrame({name: ids, "embedding": rng.normal(size=(len(ids), 4)).tolist()})
        for name, ids in (("query_id", few["query_id"].unique()), ("item_id", few["items"].explode().unique()))
    ]
    found = learn(few, config, start=Start(query_embeddings=tables[0], item_embeddings=tables[1]))
    assert found.policy.generator.sizes()["F"] == 4
    again = learn(few, config, start=Start(world.production))
    assert again.policy.vocabulary.item_ids.equals(world.task.vocabulary.item_ids)
    exact = learn(few, configured(training={"epochs": 1}), start=Start(world.production))
    assert (exact.propensity, exact.why) == ("exact", "the policy to start from is taken for the one that drew the log")


def test_interrupted_and_resumed_per_method(world, tmp_path: Path) -> None:
    config = configured(propensity="frequency", training={"epochs": 3})
    few, methods = world.frame.head(3000), ["joint", "independent"]
    whole = learn(few, config, methods=methods)

    def stop(method: str, state: tr.training.history.Progress) -> None:
        if (method, state.epoch, state.done) == ("independent", 2, 0.0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(few, config, methods=methods, checkpoints=tmp_path, progress=stop)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["independent", "joint"]
    resumed = learn(few, config, methods=methods, checkpoints=tmp_path, resume=True)
    for method in methods:
        assert resumed.values[method].value == whole.values[method].value


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"methods": ["magic"]}, ConfigError, "a method is one of baseline, independent, joint; got 'magic'"),
        ({"config": {"candidates": 5000}}, ConfigError, "5000 candidates, but there are only"),
        ({"config": {"candidates": 3}}, ConfigError, "3 candidates are fewer than the 5 places"),
        ({"config": {"shown": 3}}, LogError, "row 0, column items"),
        (
            {"config": {"held_out": 0.6, "judged": 0.5, "training": {"stopping": "dcg"}}},
            ConfigError,
            "0.6 and 0.5 came",
        ),
        ({"config": {"propensity": "logged"}}, LogError, "no column `propensities`"),
        ({"config": {"propensity": "exact"}}, ConfigError, "exact propensities need the policy that drew the log"),
    ],
)
def test_each_mistake_is_one_clear_error(world, wrong, error, message) -> None:
    config = configured(**wrong.get("config", {}))
    with pytest.raises(error, match=message):
        learn(world.frame.head(500), config, methods=wrong.get("methods"))


@pytest.mark.parametrize("objective", ["ips", "doubly-robust"])
def test_a_log_without_clicks_or_without_rows_is_refused(world, objective) -> None:
    silent = world.frame.head(500).with_columns(clicks=pl.col("clicks").list.eval(pl.element() * 0))
    with pytest.raises(LogError, match="not enough clicks to learn from: none for training, of 500 impressions"):
        learn(silent, configured(objective=objective))
    with pytest.raises(InputError, match="empty"):
        learn(world.frame.head(0), configured(objective=objective))


def test_two_starts_or_half_a_start_are_refused(world) -> None:
    with pytest.raises(ConfigError, match="starts from one thing only; a policy and features came"):
        Start(world.production, item_features="x.parquet")
    with pytest.raises(ConfigError, match="of both sides, queries and items; those of one came"):
        Start(query_embeddings="x.parquet")


def test_the_summary_is_plain(learned) -> None:
    from tandemrank._base.files import as_json

    summary = learned.summary()
    assert as_json(summary)
    assert [m["method"] for m in summary["methods"]] == ["joint", "baseline"]
    assert set(summary["methods"][1]["chosen"]) == {"ranker alone", "generator for the ranker"}
