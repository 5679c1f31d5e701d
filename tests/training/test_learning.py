"""From a log alone to valued pairs, where the truth is known: values that hold, starts of every kind, one error for each
mistake. The world is small, its log a frame; no ratings enter."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

import tandemrank as tr
from tandemrank._base.ids import same_ids
from tandemrank._base.random import derive
from tandemrank.beliefs.scorer import Believed
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.experiments import datasets, evaluation
from tandemrank.experiments.world import build_world, impressions, load_task
from tandemrank.logs import reading, sources, sums, writing
from tandemrank.logs.pairs import pairs_of
from tandemrank.offpolicy import valuation
from tandemrank.policies import candidates, features
from tandemrank.policies.memory import Remembering, Retrieval, memory_from
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.reports import training as training_report
from tandemrank.training import data, learning, results, valuing
from tandemrank.training import methods as methods_module
from tandemrank.training import start as start_module
from tandemrank.training import weights as weights_module
from tandemrank.training.checkpoint import Progress
from tandemrank.training.learning import Listener, learn
from tandemrank.training.methods import expected_clicks, expected_over_all
from tandemrank.training.parts import facts_of, read_parts
from tandemrank.training.start import Start
from tandemrank.training.weights import belief_weights

CONFIG = {"objective": "ips", "candidates": 20, "training": {"epochs": 6, "minibatch": 64, "learning_rate": 0.03}}


def configured(**more: object) -> tr.LearningConfig:
    return tr.LearningConfig.model_validate({**CONFIG, **more})


def train(log: object, config: tr.LearningConfig, **more: object) -> tr.Learned:
    """Learn by training, Joint unless another method is asked for."""
    return learn(log, config, **{"methods": ["joint"], **more})


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
    return train(world.frame, configured(), methods=["joint", "baseline"])


def test_the_log_is_read_once(world, monkeypatch) -> None:
    """Also where propensities are fitted to its lists."""
    read, opened = sources._pieces, []
    monkeypatch.setattr(sources, "_pieces", lambda *arguments: opened.append(1) or read(*arguments))
    assert train(world.frame, configured(training={"epochs": 1})).propensity == "fitted"
    assert len(opened) == 1


def test_learn_from_a_frame_alone_beats_production_and_knows_by_how_much(world, learned) -> None:
    """No policy, no propensities, no ratings: the fitted propensities give values within their errors of the truth."""
    assert (learned.propensity, learned.config.list_length, learned.config.candidates) == ("fitted", 5, 20)
    clicks = world.frame["clicks"].list.sum()
    assert abs(learned.production.value - clicks.mean()) < 5 * learned.production.standard_error
    assert learned.log.impressions == learned.log.train + learned.log.evaluation == 8_000
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
    assert learned.differences[0].comparison.interval[0] > 0


def test_on_its_own_training_clicks_a_pair_looks_better_than_it_is(world) -> None:
    """Why another part values it: asked of the impressions that trained it, the value is far too high."""
    few = world.frame.head(3000)
    config = configured(training={"epochs": 12, "minibatch": 64, "learning_rate": 0.05})
    found = train(few, config, logging_policy=world.production)
    answer, truth = found.values["joint"], world.value(found.policy, few["query_id"])
    assert abs(answer.value - truth) < 4 * answer.standard_error
    parts = read_parts(few, config, Start(), derive(0, "split") % 2**32)
    own = valuation.estimate(
        found.policy, parts.train, examination=found.config.theta, propensity="exact",
        logging_policy=world.production,
    )  # fmt: skip
    assert own.value > truth + 5 * own.standard_error


def test_no_part_shares_an_impression_with_another(world) -> None:
    parts = read_parts(world.frame, configured(), Start(), 3)
    whole, all_parts = reading.read(world.frame), sums.merge(parts.all())
    assert np.array_equal(all_parts.shown, whole.shown)
    assert np.array_equal(all_parts.clicks, whole.clicks)
    assert [part.N / whole.N for part in parts.all()] == pytest.approx([0.8, 0.2], abs=0.02)
    facts = facts_of(parts)
    assert (facts.impressions, facts.queries, facts.clicks) == (
        8_000,
        (whole.impressions > 0).sum(),
        whole.clicks.sum(),
    )
    assert (facts.items, facts.list_length) == (len(np.unique(whole.item)), 5)
    assert facts.pairs == len(set(zip(whole.query.tolist(), whole.item.tolist(), strict=True)))


def test_in_a_log_with_times_the_last_impressions_value_and_the_oldest_train(world) -> None:
    n = len(world.frame)
    frame = world.frame.with_columns(timestamp=(pl.int_range(pl.len()) * 7919 % n).cast(pl.Float64))
    parts = read_parts(frame, configured(), Start(), 3)
    assert parts.by_time
    ordered = frame.sort("timestamp")
    for part, rows in zip(parts.all(), (ordered[: n * 4 // 5], ordered[n * 4 // 5 :]), strict=True):
        assert len(rows) == part.N
        assert part.clicks.sum() == rows["clicks"].list.sum().sum()
    assert len(parts.train_times) == 8
    assert sums.merge(parts.train_times).clicks.tolist() == parts.train.clicks.tolist()
    assert parts.train_times[0].clicks.sum() == ordered[: n // 10]["clicks"].list.sum().sum()
    by_chance = read_parts(world.frame, configured(), Start(), 3)
    assert (by_chance.by_time, len(by_chance.train_times)) == (False, 1)


def test_weights_are_not_impressions(world) -> None:
    """A log of which one impression in a hundred was kept has as many lists per query as it has rows."""
    few = world.frame.head(2000)
    one, many = (read_parts(frame, configured(), Start(), 3).times for frame in (few, few.with_columns(weight=100)))
    assert np.array_equal(one, many)
    assert one.sum() == 2000


def test_by_default_the_re_ranker_is_the_belief_and_the_generator_its_nearest_product(world) -> None:
    """The value is that of impressions that the beliefs have not seen; what was trained is said, and nothing else."""
    found = learn(world.frame, tr.LearningConfig(candidates=20), logging_policy=world.production)
    [(method, answer)] = found.values.items()
    truth = world.value(found.policy, world.frame["query_id"])
    assert abs(answer.value - truth) < 4 * answer.standard_error
    assert truth > 1.3 * found.production.value
    assert (found.policy.generator.kind, found.policy.ranker.kind) == ("retrieval", "belief")
    assert found.choice is not None
    assert found.choice.method == method
    assert found.was_trained == (method != "beliefs")
    expected = {one.method: one.expected for one in found.choice.tried}
    assert expected[method] == max(expected.values())
    assert found.choice.everything >= 0.99 * expected[method]
    assert "The re-ranker alone, over all items" in " ".join(training_report.chosen(found))


def test_where_items_are_many_nobody_is_asked_about_all_of_them(world, monkeypatch) -> None:
    """By a re-ranker that is no product: the result is the same, up to the noise of other races; so is what is expected of it
    over all items."""
    arguments = {"config": tr.LearningConfig(candidates=20), "logging_policy": world.production}
    small = learn(world.frame, **arguments)
    log, ranker = (
        read_parts(world.frame, small.config, Start(), 3, logging_policy=world.production).train,
        small.policy.ranker,
    )
    alone = replace(small.policy, generator=ranker, K2=world.task.D)
    rest = belief_weights(log, small.beliefs, 20), small.config.theta, np.arange(40)
    assert expected_over_all(ranker, *rest, seed=3) == pytest.approx(expected_clicks(alone, *rest, seed=3), rel=0.01)
    for module in (candidates, weights_module):
        monkeypatch.setattr(module, "LARGE", 0)
    for scorer in (Believed, Retrieval, Remembering):
        monkeypatch.setattr(scorer, "forward", lambda *_: pytest.fail("asked about all items"))
    large = learn(world.frame, **arguments)
    [one], [other] = small.values.values(), large.values.values()
    assert other.value == pytest.approx(one.value, abs=2 * one.standard_error)
    assert large.choice.everything == pytest.approx(small.choice.everything, rel=0.01)
    assert large.policy.recommend().equals(small.policy.recommend())


def test_the_generator_is_trained_where_its_product_loses_clicks(world, monkeypatch) -> None:
    """With one dimension and as many candidates as places; every schedule of the generator is tried, the best one kept."""
    monkeypatch.setattr(start_module, "GENERATOR_RANK", 1)
    nothing = csr_matrix((world.task.Q, world.task.D), dtype=np.float32)
    original = start_module.generator_of

    def forgetful(ranker, rank):
        found = original(ranker, rank)
        return type(found)(found.queries, found.items, memory_from(*nothing.nonzero(), nothing.data, *nothing.shape))

    monkeypatch.setattr(start_module, "generator_of", forgetful)
    config = tr.LearningConfig(candidates=6, training=tr.TrainingConfig(epochs=6))
    found = learn(world.frame, config, logging_policy=world.production)
    assert [one.method for one in found.choice.tried] == ["beliefs", "independent", "baseline", "joint"]
    expected = [one.expected for one in found.choice.tried]
    assert max(expected) > expected[0]
    assert {one.method: one.expected for one in found.choice.tried}[found.choice.method] == max(expected)
    assert expected[0] < 0.998 * found.choice.everything
    assert found.was_trained
    assert {epoch.phase for epoch in found.trained[found.choice.method].history} <= {
        "generator alone", "generator for the re-ranker", "both stages",
    }  # fmt: skip
    assert f"{found.choice.method.capitalize()} was kept" in " ".join(training_report.chosen(found))
    monkeypatch.setattr(methods_module, "TOO_MANY", 1)
    found = learn(world.frame, config, logging_policy=world.production)
    assert (found.was_trained, len(found.choice.tried)) == (False, 1)
    assert training_report.chosen(found)[0].endswith("so nothing was trained: --method independent does.")


def test_where_all_items_are_candidates_there_is_one_stage(world) -> None:
    found = learn(world.frame.head(2000), logging_policy=world.production)
    assert len(found.policy.vocabulary.item_ids) == found.policy.K2
    assert found.policy.generator is found.policy.ranker
    assert not found.was_trained
    assert found.choice is None
    assert training_report.made(found).startswith("From these clicks alone a policy was made, of one stage")
    with pytest.raises(ConfigError, match="the method joint would have no effect: all 60 items are candidates"):
        learn(world.frame.head(2000), methods=["beliefs", "joint"], logging_policy=world.production)
    with pytest.raises(ConfigError, match="epochs would have no effect: all 60 items are candidates"):
        learn(world.frame.head(2000), tr.LearningConfig(training={"epochs": 3}))


def test_the_start_is_not_taken_for_the_policy_that_drew_the_log(world) -> None:
    few = world.frame.head(3000)
    found = learn(few, tr.LearningConfig(candidates=20), start=Start(world.production))
    assert found.propensity == "fitted"
    assert training_report.made(found).startswith("From these clicks and a saved policy a policy was made")
    assert learn(few, tr.LearningConfig(candidates=20), logging_policy=world.production).propensity == "exact"


def test_the_beliefs_take_vectors_of_a_policy_as_their_prior_and_refuse_others(world, monkeypatch) -> None:
    few, config = world.frame.head(3000), tr.LearningConfig(candidates=20)
    heard, fit = [], data.fit
    monkeypatch.setattr(data, "fit", lambda *a, **more: heard.append(more["production"]) or fit(*a, **more))
    learn(few, config, start=Start(world.production))
    assert np.array_equal(heard[0].items, world.production.ranker.items.detach().numpy())
    scores = tr.GivenScores(np.zeros((world.task.Q, world.task.D), np.float32))
    strange = TwoStagePolicy(scores, scores, 20, 5, world.task.vocabulary)
    with pytest.raises(ConfigError, match="got one of the kind given-scores"):
        learn(few, config, start=Start(strange), logging_policy=world.production)


@pytest.mark.parametrize(
    ("switches", "methods", "told"),
    [
        ({"training": {"epochs": 3}}, ["beliefs"], "epochs would have no effect: nothing is trained"),
        ({"training": {"learning_rate": 0.1}}, ["beliefs"], "learning_rate would have no effect"),
        ({"training": {"schedule": "paper"}}, ["beliefs"], "schedule would have no effect"),
        ({"training": {"rank_weights": "examination"}}, ["beliefs"], "rank_weights would have no effect"),
        ({"objective": "ips"}, None, "objective would have no effect"),
        ({"clip": "paper"}, None, "clip would have no effect"),
        ({"clip": "none"}, ["joint"], "clip would have no effect: no click is divided by its propensity"),
        ({"training": {"schedule": "paper"}}, ["baseline"], "schedule would have no effect: it is of the method joint"),
    ],
)
def test_a_switch_without_effect_is_refused_before_the_log_is_read(switches, methods, told) -> None:
    with pytest.raises(ConfigError, match=told):
        learn("no/such/log", tr.LearningConfig.model_validate(switches), methods=methods)


def test_methods_that_come_to_one_policy_are_said_to_and_not_compared(world) -> None:
    """Two trainings of which one keeps its start twice: no lines of differences that are 0 to the bit."""
    found = train(world.frame.head(2000), configured(propensity="frequency", training={"epochs": 1}))
    twice = {"joint": found.trained["joint"], "baseline": found.trained["joint"]}
    values = dict.fromkeys(twice, found.values["joint"])
    gaps = results.differences_of(values, found.production, twice)
    assert [(gap.method, gap.against) for gap in gaps] == [("joint", "production"), ("baseline", "production")]


def test_the_gate_keeps_production_where_nothing_is_surely_better(world) -> None:
    """A log of few impressions proves nothing; a long one does."""
    config = tr.LearningConfig(candidates=20, safe=True)
    few = learn(world.frame.head(120), config, logging_policy=world.production)
    gate = few.gates["beliefs"]
    assert gate.kept_production
    assert np.array_equal(few.policy.most_likely(), world.production.most_likely())
    assert "production is kept" in " ".join(training_report.gate_sentences(few))
    many = learn(world.frame, config, logging_policy=world.production)
    assert not many.gates["beliefs"].kept_production
    assert many.gates["beliefs"].lower_bound > 0
    assert "is surely better than production" in " ".join(training_report.gate_sentences(many))


def test_production_stays_where_what_was_learned_is_surely_worse(world, monkeypatch) -> None:
    """Nobody asked for the gate, and yet production is what comes back."""
    monkeypatch.setattr(valuing, "is_worse", lambda learned, production: True)
    few = world.frame.head(2000)
    found = learn(few, tr.LearningConfig(candidates=20), logging_policy=world.production)
    [gate] = found.gates.values()
    assert gate.worse
    assert gate.kept_production
    assert np.array_equal(found.policy.most_likely(), world.production.most_likely())
    assert "production stays" in " ".join(training_report.gate_sentences(found))


def test_a_log_with_times_is_valued_by_its_last_impressions(world) -> None:
    few = world.frame.head(2000).with_columns(timestamp=pl.int_range(pl.len()))
    found = learn(few, tr.LearningConfig(candidates=20), logging_policy=world.production)
    assert found.log.by_time
    last = few.tail(int(found.log.evaluation))["clicks"].list.sum().mean()
    assert found.production.value == pytest.approx(last)
    assert "and the last 400 value the result" in training_report.what_was_run(found)


@pytest.mark.parametrize("what", ["clicked", "shown"])
def test_lists_that_must_not_repeat(world, what) -> None:
    """Nothing that was clicked, or shown, is in its lists or in its value; and it learns: better new items than its start."""
    config = configured(objective="beliefs", exclude=what)
    found = train(world.frame, config, start=Start(world.production), logging_policy=world.production)
    parts = read_parts(world.frame, config, Start(world.production), derive(0, "split") % 2**32)
    pairs = pairs_of(parts.train, what)
    policy = found.policy
    assert same_ids(policy.vocabulary, parts.vocabulary)
    lists = policy.most_likely()
    rows, places = np.nonzero(lists >= 0)
    assert len(rows)
    assert not pairs[rows, lists[rows, places]].any()
    barred, _ = policy.exposure(*pairs.nonzero(), world.theta, samples=4)
    assert not barred.any()
    before = np.nanmean(evaluation.ndcg_of_new(world.production.most_likely(exclude=pairs), *truth(world, pairs)))
    after = np.nanmean(evaluation.ndcg_of_new(lists, *truth(world, pairs)))
    assert after > before


def truth(world, pairs):
    return np.arange(world.task.Q), world.task.relevance, pairs


def test_what_leaves_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="Use objective = beliefs"):
        configured(objective="ips", exclude="clicked")
    with pytest.raises(ValueError, match="exclude and safe"):
        configured(objective="beliefs", exclude="clicked", safe=True)
    with pytest.raises(ValueError, match="exclude is for logs of one's own"):
        tr.ExperimentConfig(learning=configured(objective="beliefs", exclude="shown"))


def test_a_pandas_frame_gives_the_same(world) -> None:
    pd = pytest.importorskip("pandas")
    few, config = world.frame.head(2000), configured(propensity="frequency", training={"epochs": 1})
    as_pandas = pd.DataFrame({name: few[name].to_list() for name in few.columns})
    a, b = (train(frame, config) for frame in (few, as_pandas))
    assert a.values["joint"].value == b.values["joint"].value


def items_of(world: World) -> pl.Series:
    return world.frame["items"].explode().unique().sort()


def test_start_from_embeddings_and_from_a_policy(world) -> None:
    rng = np.random.default_rng(0)
    config = configured(propensity="frequency", training={"epochs": 1})
    few = world.frame.head(3000)
    tables = [
        pl.DataFrame({name: ids, "embedding": rng.normal(size=(len(ids), 4)).tolist()})
        for name, ids in (("query_id", few["query_id"].unique()), ("item_id", few["items"].explode().unique()))
    ]
    found = train(few, config, start=Start(query_embeddings=tables[0], item_embeddings=tables[1]))
    assert found.policy.generator.spec()["F"] == 4
    again = train(few, config, start=Start(world.production))
    assert again.policy.vocabulary.item_ids.equals(world.task.vocabulary.item_ids)


def test_interrupted_and_resumed_per_method(world, tmp_path: Path) -> None:
    config = configured(propensity="frequency", training={"epochs": 3})
    few, methods = world.frame.head(3000), ["joint", "independent"]
    whole = train(few, config, methods=methods)

    def stop(method: str, state: Progress) -> None:
        if (method, state.epoch, state.done) == ("joint", 2, 0.0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(few, config, methods=methods, checkpoints=tmp_path, listener=Listener(epoch=stop))
    assert {p.stem for p in tmp_path.iterdir()} == {"tandem-K2-20"}
    resumed = train(few, config, methods=methods, checkpoints=tmp_path, resume=True)
    for method in methods:
        assert resumed.values[method].value == whole.values[method].value


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            {"methods": ["magic"]},
            ConfigError,
            "a method is one of beliefs, baseline, independent, stacking, joint; got 'magic'",
        ),
        ({"config": {"candidates": 5000}}, ConfigError, "5000 candidates, but there are only"),
        ({"config": {"candidates": 3}}, ConfigError, "3 candidates are fewer than the 5 places"),
        ({"config": {"list_length": 3}}, LogError, "row 0, column items"),
        ({"config": {"propensity": "logged"}}, LogError, "no column `propensities`"),
        ({"config": {"propensity": "exact"}}, ConfigError, "exact propensities need the policy that drew the log"),
    ],
)
def test_each_mistake_is_one_clear_error(world, wrong, error, message) -> None:
    config = configured(**wrong.get("config", {}))
    with pytest.raises(error, match=message):
        train(world.frame.head(500), config, methods=wrong.get("methods", ["joint"]))


@pytest.mark.parametrize("objective", ["ips", "beliefs"])
def test_a_log_without_clicks_or_without_rows_is_refused(world, objective) -> None:
    silent = world.frame.head(500).with_columns(clicks=pl.col("clicks").list.eval(pl.element() * 0))
    with pytest.raises(LogError, match="not enough clicks to learn from: none for training, of 500 impressions"):
        train(silent, configured(objective=objective))
    with pytest.raises(InputError, match="empty"):
        train(world.frame.head(0), configured(objective=objective))


def test_two_starts_or_half_a_start_are_refused(world) -> None:
    with pytest.raises(ConfigError, match="expected a policy or embeddings to start from; got both"):
        Start(world.production, query_embeddings="x.parquet", item_embeddings="y.parquet")
    with pytest.raises(ConfigError, match="of both sides, queries and items; got those of one"):
        Start(query_embeddings="x.parquet")


def test_the_noise_of_the_model_is_not_told_as_a_click_rate(world) -> None:
    """Its levels belong to a model: "89% are clicked if relevant" stood beside a click rate of 3%."""
    found = learn(world.frame, tr.LearningConfig(candidates=20))
    constants = found.summary()["beliefs"]
    assert constants["relevance"] in ("a bit", "graded")
    assert all(0 <= r <= 1 for r in constants["levels"])
    assert "clicked if relevant" not in training_report.report(found).html()


def test_the_summary_is_plain(learned) -> None:
    from tandemrank._base.files import as_json

    summary = learned.summary()
    assert as_json(summary)
    assert [m["method"] for m in summary["methods"]] == ["joint", "baseline"]
    assert {epoch["phase"] for epoch in summary["methods"][1]["history"]} == {"generator for the re-ranker"}


def test_a_list_length_that_is_said_is_the_one_that_is_not_said() -> None:
    """Whether a switch was set is no switch: only its value counts."""
    same = tr.LearningConfig(list_length=None, candidates=None, training=tr.TrainingConfig())
    assert same == tr.LearningConfig()
    assert same.model_dump() == tr.LearningConfig.model_validate(tr.LearningConfig().model_dump()).model_dump()
    assert np.array_equal(tr.LearningConfig(list_length=10).theta, tr.LearningConfig().theta)


def test_the_defaults_come_from_the_log_alone(world) -> None:
    """A configuration that went through JSON decides as the first did."""
    few = world.frame.head(600)
    config = tr.LearningConfig(propensity="frequency")
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
    train(world.frame.head(1000), config, start=Start(item_features=tmp_path / "items.parquet"))
    assert seen == [str(tmp_path / "items.parquet")]


def test_every_seed_is_its_own(world, monkeypatch) -> None:
    """The split of the log, the propensities, the start, every phase and the value have seeds of their own."""
    seen: list[int] = []
    for module in (learning, valuing):
        monkeypatch.setattr(module, "derive", lambda *parts: seen.append(derive(*parts)) or seen[-1])
    train(world.frame.head(600), configured(propensity="frequency", training={"epochs": 1}), seed=3)
    assert len(seen) == len(set(seen)) == 3
    assert 3 not in seen


@pytest.mark.parametrize("start", ["clicks", "features"])
def test_a_log_is_read_once_also_where_a_logger_is_fitted_to_its_lists(world, monkeypatch, start) -> None:
    few, reads = world.frame.head(1000), []
    original = sources.batches

    def spy(*arguments, **options):
        reads.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(sources, "batches", spy)
    items = pl.concat([items_of(world), pl.Series([-5, 10**6])])  # other ids before and after the log's own
    table = pl.DataFrame({"item_id": items, "x": np.arange(len(items)) / 10})
    begin = Start(item_features=table) if start == "features" else Start()
    found = train(few, configured(propensity="fitted", training={"epochs": 1}), start=begin)
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


def test_auto_is_asked_for_alone(world) -> None:
    with pytest.raises(ConfigError, match="give it alone"):
        learn(world.frame, methods=["auto", "joint"])


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
    [trained] = found.trained.values()
    assert trained.stays
    assert found.propensity == "logged"
    shown = found.policy.recommend(list(range(60)))["items"].to_list()
    assert all({*items} == {*lists[q].tolist()} for q, items in enumerate(shown))
    best = -np.sort(-np.take_along_axis(R, lists, 1)) @ theta
    live = np.take_along_axis(R, lists, 1) @ theta
    assert found.differences[0].comparison.interval[0] < best.mean() - live.mean()
