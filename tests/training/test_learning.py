"""From a log alone to valued pairs, where the truth is known: values that hold, starts of every kind, one error for each
mistake. The world is small, its log a frame; no ratings enter."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

import tandemrank as tr
from tandemrank._base.ids import same_ids
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError, DataError, InputError, LogError
from tandemrank.experiments import datasets, evaluation
from tandemrank.experiments.world import build_world, impressions, load_task
from tandemrank.logs import reading, sources, sums, writing
from tandemrank.logs.exclusion import pairs_of
from tandemrank.offpolicy import valuation
from tandemrank.beliefs.storage import load as load_reward
from tandemrank.beliefs.storage import save as save_reward
from tandemrank.policies import features
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.reports import training as training_report
from tandemrank.training import learning
from tandemrank.training.documents import SparseWeights, WithoutPairs, without_pairs
from tandemrank.training.history import Progress
from tandemrank.training.learning import learn
from tandemrank.training.parts import facts_of, read_parts
from tandemrank.training.start import Start

GIVEN = {"initial": "given", "objective": "ips"}  # training itself is tested: the posterior leaves it nothing to do
CONFIG = {**GIVEN, "candidates": 20, "training": {"epochs": 6, "minibatch": 64, "learning_rate": 0.03}}


def configured(**more: object) -> tr.LearningConfig:
    return tr.LearningConfig.model_validate({**CONFIG, **more})


@dataclass(frozen=True)
class World:
    frame: pl.DataFrame
    task: datasets.Task
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
    config = tr.ExperimentConfig(queries=120, items=60, rank=6, learning=tr.LearningConfig(list_length=5))
    task = load_task(config)
    built = build_world(task, config, seed=0)
    path = writing.write(impressions(built, 8_000, 0), tmp_path_factory.mktemp("own") / "log", task.vocabulary)
    return World(pl.read_parquet(path), task, built.production, built.theta)


@pytest.fixture(scope="module")
def learned(world) -> learning.Learned:
    return learn(world.frame, configured(), methods=["joint", "baseline"])


def test_the_log_is_read_once(world, monkeypatch) -> None:
    """Also where propensities are fitted to its lists."""
    read, opened = sources._files, []
    monkeypatch.setattr(sources, "_files", lambda source: opened.append(source) or read(source))
    assert learn(world.frame, configured(training={"epochs": 1})).propensity == "fitted"
    assert len(opened) == 1


def test_learn_from_a_frame_alone_beats_production_and_knows_by_how_much(world, learned) -> None:
    """No policy, no propensities, no ratings: the fitted propensities give values within their errors of the truth."""
    assert (learned.propensity, learned.config.list_length, learned.config.candidates) == ("fitted", 5, 20)
    clicks = world.frame["clicks"].list.sum()
    assert abs(learned.production.value - clicks.mean()) < 5 * learned.production.standard_error
    assert learned.log.impressions == learned.log.train + learned.log.held_out + learned.log.evaluation == 8_000
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
    config = configured(training={"epochs": 12, "minibatch": 64, "learning_rate": 0.05})
    found = learn(few, config, logging_policy=world.production)
    answer, truth = found.values["joint"], world.value(found.policy, few["query_id"])
    assert abs(answer.value - truth) < 4 * answer.standard_error
    parts = read_parts(few, config, Start(), derive(0, "split") % 2**32)
    own = valuation.estimate(
        found.policy, parts.train, examination=found.config.theta, propensity="exact",
        logging_policy=world.production,
    )  # fmt: skip
    assert own.value > truth + 5 * own.standard_error


@pytest.mark.parametrize(
    ("stopping", "objective", "wanted"),
    [
        (True, "ips", [0.65, 0.15, 0.2]),
        (False, "ips", [0.8, 0, 0.2]),
        (True, "doubly-robust", [0.325, 0.325, 0.15, 0.2]),
        (False, "doubly-robust", [0.4, 0.4, 0, 0.2]),
    ],
)
def test_no_part_shares_an_impression_with_another(world, stopping, objective, wanted) -> None:
    config = configured(training={"early_stopping": stopping}, objective=objective)
    parts = read_parts(world.frame, config, Start(), 3)
    whole, all_parts = reading.read(world.frame), sums.merge(parts.all())
    assert np.array_equal(all_parts.shown, whole.shown)
    assert np.array_equal(all_parts.clicks, whole.clicks)
    assert [part.N / whole.N for part in parts.all()] == pytest.approx(wanted, abs=0.02)
    assert parts.seen.N + parts.evaluation.N == whole.N
    facts = facts_of(parts)
    assert (facts.impressions, facts.queries, facts.clicks) == (
        8_000,
        (whole.impressions > 0).sum(),
        whole.clicks.sum(),
    )
    assert (facts.items, facts.list_length) == (len(np.unique(whole.item)), 5)
    assert facts.pairs == len(set(zip(whole.query.tolist(), whole.item.tolist(), strict=True)))
    plain = read_parts(world.frame, configured(training={"early_stopping": stopping}), Start(), 3)
    assert np.array_equal(parts.evaluation.shown, plain.evaluation.shown)  # whatever the objective


def test_by_default_both_stages_are_the_posterior_of_the_training_part(world) -> None:
    """Nothing is trained on top, so the methods agree; the value is that of impressions that the posterior has not seen."""
    config = tr.LearningConfig(candidates=20)
    found = learn(world.frame, config, methods=("joint", "baseline"), logging_policy=world.production)
    answer, truth = found.values["joint"], world.value(found.policy, world.frame["query_id"])
    assert abs(answer.value - truth) < 4 * answer.standard_error
    assert truth > 1.3 * found.production.value
    assert found.trained["joint"].history == ()
    assert found.policy.generator.kind == found.policy.ranker.kind == "remembering"
    q = np.arange(len(found.policy.vocabulary.query_ids))
    assert np.array_equal(found.policy.most_likely(q), found.trained["baseline"].policy.most_likely(q))
    asked = config.model_copy(update={"training": config.training.model_copy(update={"refine": 1})})
    refined = learn(world.frame, asked, logging_policy=world.production)
    assert {epoch.phase for epoch in refined.trained["joint"].history} == {
        "generator alone",
        "re-ranker alone",
        "both stages",
    }


def test_doubly_robust_training(world) -> None:
    found = learn(world.frame, configured(objective="doubly-robust"), logging_policy=world.production)
    answer, truth = found.values["joint"], world.value(found.policy, world.frame["query_id"])
    assert found.propensity == "exact"
    assert abs(answer.value - truth) < 4 * answer.standard_error
    assert truth > 1.3 * found.production.value


@pytest.mark.parametrize(("what", "objective"), [("clicked", "posterior"), ("shown", "doubly-robust")])
def test_a_pair_that_must_not_repeat(world, what, objective) -> None:
    """Nothing that was clicked, or shown, is in its lists or in its value; and it learns: better new items than its start."""
    config = configured(objective=objective, exclude=what)
    found = learn(world.frame, config, start=Start(world.production), logging_policy=world.production)
    parts = read_parts(world.frame, config, Start(world.production), derive(0, "split") % 2**32)
    pairs = pairs_of(parts.train, what)
    pair = found.policy
    assert same_ids(pair.vocabulary, parts.vocabulary)
    lists = pair.most_likely()
    rows, places = np.nonzero(lists >= 0)
    assert len(rows)
    assert not pairs[rows, lists[rows, places]].any()
    barred, _ = pair.exposure(*pairs.nonzero(), world.theta, samples=4)
    assert not barred.any()
    before = np.nanmean(evaluation.ndcg_of_new(world.production.most_likely(exclude=pairs), *truth(world, pairs)))
    after = np.nanmean(evaluation.ndcg_of_new(lists, *truth(world, pairs)))
    assert after > before


def truth(world, pairs):
    return np.arange(world.task.Q), world.task.relevance, pairs


def test_weights_of_excluded_pairs_do_not_count() -> None:
    weights = csr_matrix(np.array([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0]], np.float32))
    pairs = csr_matrix(np.array([[0, 1, 1], [0, 0, 1]]))
    assert without_pairs(weights, pairs).toarray().tolist() == [[1, 0, 0], [0, 3, 0]]
    wrapped = WithoutPairs(SparseWeights(weights), pairs)
    assert wrapped.rows(np.array([1, 0])).toarray().tolist() == [[0, 3, 0], [1, 0, 0]]
    assert (wrapped.shape, wrapped.clicked, wrapped.queries.tolist()) == ((2, 3), 4, [0, 1])
    assert len(wrapped.arrays()) == 5


def test_what_leaves_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="objective = posterior or doubly-robust"):
        configured(objective="ips", exclude="clicked")
    with pytest.raises(ValueError, match="exclude and safe"):
        configured(objective="doubly-robust", exclude="clicked", safe=True)
    with pytest.raises(ValueError, match="exclude is for logs of one's own"):
        tr.ExperimentConfig(learning=configured(objective="doubly-robust", exclude="shown"))
    with pytest.raises(ValueError, match="generator_score = auto is for logs of one's own"):
        tr.ExperimentConfig(stages=tr.Stages(generator_score="auto"))


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
    assert found.policy.generator.spec()["dimension"] == 2
    assert found.policy.ranker.spec()["dimension"] == 6
    assert 10**6 in found.policy.vocabulary.item_ids
    assert "two towers" in found.start.words
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
    assert found.policy.generator.spec()["F"] == 4
    again = learn(few, config, start=Start(world.production))
    assert again.policy.vocabulary.item_ids.equals(world.task.vocabulary.item_ids)
    exact = learn(few, configured(training={"epochs": 1}), start=Start(world.production))
    assert (exact.propensity, exact.propensity_reason) == (
        "exact",
        "the policy to start from is taken for the one that drew the log",
    )


def test_interrupted_and_resumed_per_method(world, tmp_path: Path) -> None:
    config = configured(propensity="frequency", training={"epochs": 3})
    few, methods = world.frame.head(3000), ["joint", "independent"]
    whole = learn(few, config, methods=methods)

    def stop(method: str, state: Progress) -> None:
        if (method, state.epoch, state.done) == ("joint", 2, 0.0) and state.phase == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(few, config, methods=methods, checkpoints=tmp_path, progress=stop)
    assert {p.stem for p in tmp_path.iterdir()} == {"generator-alone", "ranker-alone", "both-K2-20"}
    resumed = learn(few, config, methods=methods, checkpoints=tmp_path, resume=True)
    for method in methods:
        assert resumed.values[method].value == whole.values[method].value


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"methods": ["magic"]}, ConfigError, "a method is one of baseline, independent, stacking, joint; got 'magic'"),
        ({"config": {"candidates": 5000}}, ConfigError, "5000 candidates, but there are only"),
        ({"config": {"candidates": 3}}, ConfigError, "3 candidates are fewer than the 5 places"),
        ({"config": {"list_length": 3}}, LogError, "row 0, column items"),
        (
            {"config": {"evaluation_share": 0.5, "training": {"early_stopping": {"held_out_share": 0.6}}}},
            ConfigError,
            "0.5 and 0.6 came",
        ),
        ({"config": {"propensity": "logged"}}, LogError, "no column `propensities`"),
        ({"config": {"propensity": "exact"}}, ConfigError, "exact propensities need the policy that drew the log"),
    ],
)
def test_each_mistake_is_one_clear_error(world, wrong, error, message) -> None:
    config = configured(**wrong.get("config", {}))
    with pytest.raises(error, match=message):
        learn(world.frame.head(500), config, methods=wrong.get("methods", ["joint"]))


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


def test_the_click_noise_is_told_and_the_reward_model_can_be_saved(world, tmp_path: Path) -> None:
    found = learn(world.frame, tr.LearningConfig(candidates=20))
    constants = found.summary()["posterior"]
    assert 0 <= constants["noise"]["irrelevant"] < constants["noise"]["relevant"] <= 1
    assert f"{constants['noise']['relevant']:.1%} are clicked if relevant" in training_report.html(found)
    saved = load_reward(save_reward(found.posterior, tmp_path / "reward"))
    q, d = np.arange(20), np.arange(20)
    assert np.array_equal(saved.at(q, d).mean, found.posterior.at(q, d).mean)
    assert learn(world.frame, configured(training={"epochs": 1})).summary()["posterior"] is None


def test_the_summary_is_plain(learned) -> None:
    from tandemrank._base.files import as_json

    summary = learned.summary()
    assert as_json(summary)
    assert [m["method"] for m in summary["methods"]] == ["joint", "baseline"]
    assert set(summary["methods"][1]["chosen"]) == {"re-ranker alone", "generator for the re-ranker"}


def test_the_rank_that_was_used_is_told_and_not_the_one_that_was_asked_for(world) -> None:
    few = world.frame.head(300)
    config = configured(propensity="frequency", training={"epochs": 1})
    found = learn(few, config, start=Start(sizes=tr.StartConfig(rank=500)))
    assert found.start.sizes.rank == found.policy.generator.spec()["F"] < 50
    assert f"{found.start.sizes.rank} dimensions" in found.start.words


def test_a_list_length_that_is_said_is_the_one_that_is_not_said() -> None:
    """Whether a switch was set is no switch: only its value counts."""
    same = tr.LearningConfig(list_length=None, candidates=None, training=tr.TrainingConfig())
    assert same == tr.LearningConfig()
    assert same.model_dump() == tr.LearningConfig.model_validate(tr.LearningConfig().model_dump()).model_dump()
    assert np.array_equal(tr.LearningConfig(list_length=10).theta, tr.LearningConfig().theta)


def test_the_defaults_come_from_the_log_alone(world) -> None:
    """A configuration that went through JSON decides as the first did."""
    few = world.frame.head(600)
    config = tr.LearningConfig(propensity="frequency", training=tr.TrainingConfig(epochs=1))
    one = learn(few, config)
    other = learn(few, tr.LearningConfig.model_validate_json(config.model_dump_json()))
    assert one.config == other.config
    assert (one.config.list_length, one.config.candidates) == (5, len(one.policy.vocabulary.item_ids))


def test_a_table_of_features_is_read_once(world, tmp_path: Path, monkeypatch) -> None:
    items = items_of(world)
    pl.DataFrame({"item_id": items, "x": np.arange(len(items)) / 10}).write_parquet(tmp_path / "items.parquet")
    read = pl.read_parquet
    seen: list[str] = []

    def spy(source, **options):
        seen.append(str(source))
        return read(source, **options)

    monkeypatch.setattr(features.pl, "read_parquet", spy)
    config = configured(propensity="frequency", training={"epochs": 1})
    learn(world.frame.head(1000), config, start=Start(item_features=tmp_path / "items.parquet"))
    assert seen == [str(tmp_path / "items.parquet")]


def test_every_seed_is_its_own(world, monkeypatch) -> None:
    """The split of the log, the propensities, the start, every phase and the value have seeds of their own."""
    seen: list[int] = []
    monkeypatch.setattr(learning, "derive", lambda *parts: seen.append(derive(*parts)) or seen[-1])
    learn(world.frame.head(600), configured(propensity="frequency", training={"epochs": 1}), seed=3)
    assert len(seen) == len(set(seen)) == 3
    assert 3 not in seen


@pytest.mark.parametrize("start", ["clicks", "features"])
def test_a_log_is_read_once_also_where_a_logger_is_fitted_to_its_lists(world, monkeypatch, start) -> None:
    few, reads = world.frame.head(1000), []
    original = sources.batches

    def spy(*arguments, **options):
        reads.append(arguments)
        return original(*arguments, **options)

    for module in (sources, reading):
        monkeypatch.setattr(module, "batches", spy)
    items = pl.concat([items_of(world), pl.Series([-5, 10**6])])  # other ids before and after the log's own
    table = pl.DataFrame({"item_id": items, "x": np.arange(len(items)) / 10})
    begin = Start(item_features=table) if start == "features" else Start()
    found = learn(few, configured(training={"epochs": 1}), start=begin)
    assert found.propensity == "fitted"
    assert len(reads) == 1


def test_the_lists_a_logger_is_fitted_to_are_those_of_the_log_in_any_vocabulary(world) -> None:
    few = world.frame.head(50)
    items = pl.concat([items_of(world), pl.Series([-5, 10**6])])
    begin = Start(item_features=pl.DataFrame({"item_id": items, "x": np.arange(len(items)) / 10})).with_tables()
    for start in (Start(), begin):
        parts = read_parts(few, configured(), start, 0, lists=30)
        ids = parts.vocabulary
        assert ids.query_ids.gather(parts.first.query).to_list() == few["query_id"].head(30).to_list()
        shown = ids.item_ids.gather(parts.first.items.ravel()).to_numpy().reshape(parts.first.items.shape)
        assert shown.tolist() == few["items"].head(30).to_list()


def of_items(world: World) -> pl.DataFrame:
    """Features of the items: how each is liked by two groups of queries, which a log does not say."""
    R = world.task.relevance
    numbers = {f"x{n}": np.asarray(R[n::2].sum(0), float).ravel() for n in range(2)}
    return pl.DataFrame({"item_id": world.task.vocabulary.item_ids, **numbers})


def of_pairs(world: World) -> pl.DataFrame:
    """Features of the pairs that are relevant alone: the flag of all others is what there is to learn."""
    R = world.task.relevance.tocoo()
    ids = world.task.vocabulary
    return pl.DataFrame(
        {"query_id": ids.query_ids.gather(R.row), "item_id": ids.item_ids.gather(R.col), "x": np.ones(R.nnz)}
    )


@pytest.mark.parametrize("ranker", ["cross", "trees"])
def test_a_re_ranker_over_pair_features_learns_what_they_say(world, ranker, tmp_path) -> None:
    """The features tell relevance itself: the pair must be far better than production, and stay so when it is saved."""
    stages = tr.Stages(generator="popularity", ranker=ranker)
    start = Start(item_features=of_items(world), pair_features=of_pairs(world), stages=stages)
    config = configured(training={"epochs": 8, "minibatch": 32}, initial="given", objective="posterior")
    found = learn(world.frame, config, methods=["stacking"], start=start)
    policy, queries = found.trained["stacking"].policy, world.frame["query_id"]
    assert world.value(policy, queries) > 1.25 * world.value(world.production, queries)
    again = tr.load(policy.save(tmp_path / "pair"))
    assert (again.most_likely() == policy.most_likely()).all()
    assert found.start.words == f"generator popularity; re-ranker {ranker}"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"pair_features": "pairs.parquet"}, "pair features are for a re-ranker that takes them"),
        (
            {"stages": tr.Stages(ranker="cross"), "sizes": tr.StartConfig(generator_width=3)},
            "generator_width is a size of",
        ),
        (
            {"stages": tr.Stages(generator="popularity", ranker="cross"), "sizes": tr.StartConfig(rank=7)},
            "rank is a size of a factorisation of the clicks, but generator popularity; re-ranker cross",
        ),
        (
            {"stages": tr.Stages(ranker="cross", missing_pairs="refuse"), "item_features": "c"},
            "missing_pairs = refuse needs pair features, and none are given",
        ),
        (
            {
                "stages": tr.Stages(generator="popularity"),
                "query_embeddings": "a",
                "item_embeddings": "b",
                "item_features": "c",
            },
            None,
        ),
    ],
)
def test_stages_and_starts_that_do_not_fit_are_refused(more, told) -> None:
    if told is None:
        Start(**more)  # features are for the models then, embeddings for the factorisation
    else:
        with pytest.raises(ConfigError, match=told):
            Start(**more)


def test_what_a_model_of_features_remembers_is_limited_too(world) -> None:
    stages = tr.Stages(generator="popularity", ranker="factorisation")
    config = tr.LearningConfig(candidates=20, memory=9, training=tr.TrainingConfig(epochs=1))
    pair = learn(world.frame, config, start=Start(stages=stages), logging_policy=world.production).policy
    assert [len(stage.memory.item) for stage in (pair.generator, pair.ranker)] == [9, 9]


def test_held_out_clicks_choose_the_method(world, monkeypatch) -> None:
    """All that apply are trained on the same part; the best by held-out clicks is kept, and said."""
    said: list[str] = []
    config = configured(training={"epochs": 2, "minibatch": 64})
    start = Start(stages=tr.Stages(generator_rank=2))
    found = learn(world.frame, config, methods=["auto"], start=start, say=said.append)
    assert found.choice is not None
    judgements = {one.method: one.judgement for one in found.choice.tried}
    assert list(judgements) == ["joint", "stacking", "independent", "baseline"]
    assert list(found.trained) == [found.choice.method]
    assert judgements[found.choice.method] == max(judgements.values())
    assert found.log.held_out > 0
    assert found.summary()["choice"]["method"] == found.choice.method
    words = (
        "generator factorisation of rank 2; re-ranker factorisation; factorisation: matrix factorisation of the clicks"
    )
    assert found.start.words.startswith(words)
    alone = learn(world.frame, configured(training={"epochs": 2, "minibatch": 64, "early_stopping": True}), start=start)
    assert alone.log.held_out == found.log.held_out  # the part that early stopping has, too


@pytest.mark.parametrize(("methods", "pairs"), [(["stacking"], 3), (["auto"], 8)])
def test_held_out_clicks_choose_whether_the_re_ranker_gets_the_generators_score(
    world, tmp_path, methods, pairs
) -> None:
    """Each is trained as if it had been asked for by name; the best by held-out clicks is kept, and is what is saved."""
    config = configured(training={"epochs": 2, "minibatch": 64, "early_stopping": True})

    def start(score: str) -> Start:
        return Start(stages=tr.Stages(generator="popularity", ranker="factorisation", generator_score=score))

    found = learn(world.frame, config, methods=methods, start=start("auto"), checkpoints=tmp_path / "checkpoints")
    choice = found.choice
    assert choice is not None
    assert len({(one.method, one.generator_score) for one in choice.tried}) == len(choice.tried) == pairs
    best = max(choice.tried, key=lambda one: one.judgement)
    assert (choice.method, choice.generator_score) == (best.method, best.generator_score)
    assert found.start.stages.generator_score == choice.generator_score
    alone = learn(world.frame, config, methods=[choice.method], start=start(choice.generator_score))
    assert found.policy.ranker.kind == alone.policy.ranker.kind
    for name, weights in alone.policy.ranker.state_dict().items():
        assert torch.equal(weights, found.policy.ranker.state_dict()[name])
    assert found.summary()["choice"]["tried"][0]["generator_score"] == "off"
    assert "Held-out clicks chose" in " ".join(training_report.sentences(found))


@pytest.mark.parametrize(
    ("methods", "more", "score", "told"),
    [
        (["auto", "joint"], {}, "off", "give it alone"),
        (["auto"], {"safe": True, "initial": "given"}, "off", "auto and safe cannot"),
        (["joint"], {"safe": True, "initial": "given"}, "auto", "generator_score = auto and safe cannot"),
        (["joint", "stacking"], {}, "auto", "chooses one pair of one method: joint or stacking, or auto; joint, stacking came"),
        (["baseline"], {}, "auto", "baseline came"),
    ],
)  # fmt: skip
def test_auto_that_cannot_be_is_refused(world, methods, more, score, told) -> None:
    with pytest.raises(ConfigError, match=told):
        learn(world.frame, configured(**more), methods=methods, start=Start(stages=tr.Stages(generator_score=score)))


def test_where_clicks_are_few_that_is_said_before_training(world) -> None:
    """Of two models and Joint only: 300 impressions of 120 queries leave a few clicked items each."""
    said: list[str] = []
    config = configured(training={"epochs": 1})
    two, short = Start(stages=tr.Stages(generator_rank=2)), world.frame.head(900)
    learn(short, config, start=two, say=said.append)
    assert len(said) == 1
    assert "clicks are few:" in said[0]
    assert "--method auto and --generator-score auto" in said[0]
    learn(short, config, say=said.append)
    learn(short, config, start=two, methods=["stacking"], say=said.append)
    assert len(said) == 1


def test_a_lower_rank_of_the_posterior_is_no_training(world) -> None:
    """The generator is its nearest factorisation with the same memory; no epoch follows."""
    found = learn(world.frame, tr.LearningConfig(candidates=20), start=Start(stages=tr.Stages(generator_rank=2)))
    assert not found.trained["joint"].history
    generator, ranker = found.policy.generator, found.policy.ranker
    assert generator.base.items.shape[1] == 2 < ranker.base.items.shape[1]
    assert np.array_equal(generator.memory.value, ranker.memory.value)


def test_logged_propensities_of_lists_that_never_vary_say_nothing_of_other_items() -> None:
    """A fifth of what the pair showed was outside, and a reward model promised 8% for it: the pair was worse by 4%."""
    rng = np.random.default_rng(2)
    R = rng.random((60, 20)) ** 2
    lists = np.argsort(-(R + 0.3 * rng.normal(size=R.shape)))[:, :3]
    query, theta = np.repeat(np.arange(60), 100), 1 / np.arange(1, 4)
    clicks = rng.random((6_000, 3)) < theta * R[query[:, None], lists[query]]
    columns = {"items": lists[query].tolist(), "clicks": clicks.astype(int).tolist()}
    log = pl.DataFrame({"query_id": query, **columns, "propensities": [theta.tolist()] * 6_000})
    found = learn(log)
    assert found.trained["joint"].stays
    assert found.propensity == "logged"
    shown = found.policy.recommend(list(range(60)))["items"].to_list()
    assert all({*items} == {*lists[q].tolist()} for q, items in enumerate(shown))
    best = -np.sort(-np.take_along_axis(R, lists, 1)) @ theta
    live = np.take_along_axis(R, lists, 1) @ theta
    assert found.differences[0].comparison.interval[0] < best.mean() - live.mean()
