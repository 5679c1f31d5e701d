"""A log of one's own, no ratings anywhere: from the log to trained pairs and what each would be worth if it were live.

    log -> (train, held out, evaluation) -> start -> training, each method -> off-policy values on `evaluation`

The log's impressions are parted (`parts`): training sees the first part, the second says when to stop (it is empty without
early stopping), and the third, which neither has seen, values what came out: on its own training clicks every pair looks
better than it is. Production, which drew the log, needs no estimate: its value is the clicks per impression that the third
part shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from scipy.sparse import csr_matrix

from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.ids import same_ids
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.logs.exclusion import pairs_of
from tandemrank.logs.feedback import fingerprint
from tandemrank.logs.sources import Source
from tandemrank.offpolicy.comparison import by_frequency
from tandemrank.offpolicy.estimators import check_exposures
from tandemrank.offpolicy.exposure import MostLikely, Tell, exposure_lost
from tandemrank.offpolicy.logger import LISTS, lists_of
from tandemrank.offpolicy.propensities import FittedLogger, check_curve, fitted_policy, row_propensities
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.valuation import estimate_all
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.policies.remembering import excluding
from tandemrank.policies.retrieval import has_products
from tandemrank.policies.stacked import Stacked
from tandemrank.policies.stages import Score, Stages
from tandemrank.policies.two_stage import TwoStagePolicy, default_candidates
from tandemrank.training.caution import Caution
from tandemrank.training.choice import AUTO, before_training, choose, few_clicks, held_out_share, is_auto, tried
from tandemrank.training.config import EVALUATION_SHARE, LearningConfig, Safety
from tandemrank.training.data import TrainingData, prepare
from tandemrank.training.documents import WithoutPairs, without_pairs
from tandemrank.training.driver import Methods, check_methods
from tandemrank.training.gate import Guarded, guard
from tandemrank.training.history import Progress
from tandemrank.training.informed import forgetting, is_factorisation
from tandemrank.training.knowledge import informed_pair, staged_pair, start_tables, start_vectors
from tandemrank.training.loop import Trained, train
from tandemrank.training.parts import Parts, facts_of, read_parts
from tandemrank.training.ray_train import check_ready, train_on_ray
from tandemrank.training.results import Learned, differences_of
from tandemrank.training.schedules import Method
from tandemrank.training.start import Start, StartConfig, initial_pair
from tandemrank.training.staying import staying, strays

LOST_SAMPLES = 50  # of the race, for what a pair can lose at worst
NOT_SHARED = (
    "nothing is trained on top of the posterior (refine = 0), so the engine ray has no training to share out, only the log to "
    "read. Training begins with --set refine=4, two different models, or --set initial=given --set objective=ips."
)
NOT_INDEXED = (
    "the pair to start from has an index, and its generator becomes one with a memory, whose scores are no products: what is "
    "trained comes without an index."
)


class LearnSwitches(BaseModel):
    """Every switch of `learn`, by its plain name: what `--set` and a TOML file take."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning: LearningConfig = LearningConfig()
    start: StartConfig = StartConfig()
    stages: Stages = Stages()


def learn(
    log: Source,
    config: LearningConfig | None = None,
    *,
    methods: Sequence[str] = ("joint",),
    start: Start | None = None,
    logging_policy: TwoStagePolicy | None = None,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    resume: bool = False,
    engine: Engine = "local",
    progress: Callable[[Method, Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Learned:
    """Trains both stages from a click log alone, by each method, and values what came out on impressions nobody saw.

    `log`: files, folders, patterns, a frame of polars or pandas. What `config` leaves open comes from the log:
    `list_length` is its longest list, `candidates` at most its items. Without a `logging_policy` the policy to start from
    is taken for it, unless the log has propensities. With `checkpoints`, a folder, every epoch is saved there, one file
    per phase, and `resume` goes on from it. The engine ray reads files by tasks and trains on all nodes of a cluster, which
    must all see files and checkpoints. With `methods = ["auto"]` all that apply are trained, with `generator_score = auto` the
    re-ranker with the generator's score and without, and what held-out clicks prefer is kept. `stage` is told what is under
    way, `progress` every epoch, and `say`, before training, what to know of it.
    """
    config, start = config or LearningConfig(), (start or Start()).with_tables()
    if check_engine(engine) == "ray":
        check_ready(trees=start.stages.ranker == "trees", caution=config.safe is not None, checkpoints=checkpoints)
    auto = is_auto(methods, config, start.stages)
    names = [] if AUTO in methods else check_methods(methods)
    # Which propensities there are is known only when the log is read, so its lists are kept unless they cannot be needed.
    unknown = logging_policy is start.policy is None
    needed = config.propensity == "fitted" or ((config.propensity == "auto" or config.safe is not None) and unknown)
    parts = read_parts(
        log, config, start, derive(seed, "split") % 2**32, lists=LISTS if needed else 0,
        held_out_share=held_out_share(config, auto=auto), engine=engine,
    )  # fmt: skip
    config, start = _resolved_config(config, parts), start.resolved(parts.train, posterior=config.from_posterior)
    under_way = stage or (lambda words: None)
    say = say or (lambda words: None)
    under_way("what the log says: its propensities and its posterior")
    data = prepare(
        parts.train, config, halves=parts.halves if len(parts.halves) == 2 else None,
        held_out=parts.held_out if auto or config.held_out_share else None,
        logging_policy=_logger(logging_policy, start, parts, config),
        lists=lambda: lists_of([parts.first]), vectors=start_vectors(start, parts.vocabulary),
        tables=start_tables(start, parts.vocabulary),
        seed=derive(seed, "rho_0") % 2**32,
    )  # fmt: skip
    _refuse_without_support(parts, data, config)
    for words in before_training(parts.train, config):
        say(words)
    logger = None if config.safe is None else _production(logging_policy, start, data, parts, seed)
    start = start if logger is None else _careful_start(start, logger, parts)
    K2, known = config.candidates or config.K, data.posterior if config.from_posterior else None
    if known is None:
        pair = initial_pair(start.base, parts.train, config.theta, K2=K2, K=config.K, seed=seed)
    else:
        pair = informed_pair(start.base, parts.train, config.theta, known, K2=K2, K=config.K, seed=seed)
        pair = forgetting(pair, config.memory)
    index = None if start.policy is None else start.policy.index
    folder = None if checkpoints is None else Path(checkpoints)
    jobs: dict[Score, _Job] = {}
    for score in start.stages.scores:
        own, refine, rest = _staged(pair, start.handing(score), parts, data, config, seed)
        place = folder if folder is None or not jobs else folder / f"score-{score}"
        each = names or tried(own.generator, own.ranker)
        jobs[score] = _Job(parts, rest, config, own, refine, each, seed, place, resume, engine, progress, under_way)
    job = next(iter(jobs.values()))
    if index is not None and not has_products(job.pair.generator):
        say(NOT_INDEXED)
    if (few := few_clicks(parts.train, job.pair.generator, job.pair.ranker, job.methods)) is not None:
        say(few)
    if engine == "ray" and all(one.refine == 0 for one in jobs.values()):
        say(NOT_SHARED)
    every = {(method, score): one for score, own in jobs.items() for method, one in own.train().items()}
    found, choice = {method: one for (method, _), one in every.items()}, None
    if auto:
        choice = choose({key: one.policy for key, one in every.items()}, data.judge(config))
        job, start = jobs[choice.generator_score], start.handing(choice.generator_score)
        found = {choice.method: every[choice.method, choice.generator_score]}
    trained, values, production, guarded, fixed = job.plain(found) if logger is None else job.careful(found, logger)
    name = fingerprint([parts.train, parts.held_out, parts.evaluation])
    trained = {
        method: one if method in guarded and guarded[method].kept_production
        else replace(one, policy=replace(one.policy.indexed_as(index), trained_on=name))
        for method, one in trained.items()
    }  # fmt: skip
    used = data.propensities
    taken = used.kind == "exact" and logging_policy is None
    reason = "the policy to start from is taken for the one that drew the log" if taken else used.reason
    differences = differences_of(values, production)
    groups = {
        method: by_frequency(value.estimate, production.estimate, parts.times) for method, value in values.items()
    }
    return Learned(
        config,
        start,
        facts_of(parts),
        used.kind,
        reason,
        trained,
        values,
        production,
        differences,
        guarded,
        fixed,
        groups,
        choice,
        data.posterior,
    )


def _staged(
    pair: TwoStagePolicy, start: Start, parts: Parts, data: TrainingData, config: LearningConfig, seed: int
) -> tuple[TwoStagePolicy, int | None, TrainingData]:
    """The pair with the models that are asked for, the epochs on top of it where it is the posterior itself, and what trains
    it: without the pairs that must not be shown."""
    whole = config.from_posterior and is_factorisation(pair) and start.stages.are_factorisations
    known = data.posterior if config.from_posterior else None
    pair = staged_pair(pair, start, parts.train, known, most=config.memory, seed=seed)
    if config.exclude is not None:
        data, pair = _excluding(data, pair, pairs_of(parts.train, config.exclude))
    return pair, config.training.refine if whole else None, data


def _excluding(data: TrainingData, pair: TwoStagePolicy, pairs: csr_matrix) -> tuple[TrainingData, TwoStagePolicy]:
    """Some pairs are not available to the pair, and their weights do not count: in training, in lists, in values."""
    if isinstance(pair.ranker, Stacked):
        raise ConfigError(
            "exclude and generator_score cannot be had together: leave one of the two out, or `recommend --exclude` the pairs."
        )
    weights = data.weights
    kept = without_pairs(weights, pairs) if isinstance(weights, csr_matrix) else WithoutPairs(weights, pairs)
    generator, ranker = (excluding(stage, pairs) for stage in (pair.generator, pair.ranker))
    return replace(data, weights=kept), replace(pair, generator=generator, ranker=ranker)


def _production(
    given: TwoStagePolicy | None, start: Start, data: TrainingData, parts: Parts, seed: int
) -> TwoStagePolicy:
    """The policy that caution measures by: the one that drew the log, or one that is fitted to its lists."""
    known = data.propensities.logger or given or start.policy
    if known is not None:
        return known
    return fitted_policy(lists_of([parts.first]), parts.vocabulary, seed=derive(seed, "rho_0") % 2**32)


def _careful_start(start: Start, logger: TwoStagePolicy, parts: Parts) -> Start:
    """Production itself, where nothing else is given and it knows the same ids."""
    given = (start.policy, start.query_embeddings, start.query_features, start.item_features)
    if any(one is not None for one in given) or not same_ids(logger.vocabulary, parts.vocabulary):
        return start
    return Start(policy=logger)


def _caution(safety: Safety, logger: TwoStagePolicy, parts: Parts) -> Caution:
    n = parts.train.impressions
    reach = safety.safe_reach or float(n.sum() / max((n > 0).sum(), 1))
    return Caution(safety.safe_objective, logger, parts.vocabulary, n, safety.safe_delta, reach)


Outcome = tuple[dict[Method, Trained], dict[Method, Value], Value, dict[Method, Guarded], dict[Method, Value]]


@dataclass(frozen=True)
class _Job:
    """What is trained, on what, from where: with caution or without."""

    parts: Parts
    data: TrainingData
    config: LearningConfig
    pair: TwoStagePolicy
    refine: int | None
    methods: list[Method]
    seed: int
    checkpoints: Path | None
    resume: bool
    engine: Engine
    progress: Callable[[Method, Progress], None] | None
    say: Callable[[str], None]

    def train(self, caution: Caution | None = None) -> dict[Method, Trained]:
        """Every method from the pair."""
        folder = self.checkpoints if caution is None or self.checkpoints is None else self.checkpoints / "careful"
        driver = Methods(
            self.pair, self.data.weights, self.config.theta, self.config.training, seed=self.seed,
            criterion=self.data.criterion(self.config), caution=caution, refine=self.refine, checkpoints=folder,
            resume=self.resume, run=train_on_ray if self.engine == "ray" else train,
        )  # fmt: skip
        return {method: driver.train(method, progress=_of_method(self.progress, method)) for method in self.methods}

    def values(self, policies: Sequence[TwoStagePolicy | MostLikely]) -> tuple[Value, ...]:
        """Of every pair, and of production, on the part for it."""
        words = "valuing what was trained, on impressions that nobody saw"
        self.say(words)
        seed = derive(self.seed, "value") % 2**32
        return _valued(
            policies, self.parts, self.data, self.config, seed, lambda n, of: self.say(f"{words}: {n / of:.0%}")
        )

    def lost(self, policy: TwoStagePolicy, live: TwoStagePolicy) -> float:
        """The exposure that a pair takes from what production shows."""
        seed = derive(self.seed, "lost") % 2**32
        return exposure_lost(policy, live, self.parts.evaluation, self.config.theta, samples=LOST_SAMPLES, seed=seed)

    def plain(self, trained: dict[Method, Trained]) -> Outcome:
        """Without caution; a pair that the log cannot speak about stays by what each query was shown."""
        used = self.data.propensities
        known = trained | (self.staying(trained) if used.only_shown else {})
        sampled, production, fixed = self.drawn_and_fixed(known)
        # Frequencies know nothing of what a short part of the log did not show, whatever the logger would have.
        out = {method for method, one in sampled.items() if used.kind != "frequency" and strays(one)}
        if kept := self.staying({method: known[method] for method in out}):
            of_kept, production, fixed_kept = self.drawn_and_fixed(kept)
            known, sampled, fixed = known | kept, sampled | of_kept, fixed | fixed_kept
        return known, sampled, production, {}, fixed

    def drawn_and_fixed(self, trained: dict[Method, Trained]) -> tuple[dict[Method, Value], Value, dict[Method, Value]]:
        """The values of drawn lists, of production, and of the most likely lists."""
        pairs = [one.policy for one in trained.values()]
        *found, production = self.values([*pairs, *map(MostLikely, pairs)])
        sampled, fixed = (dict(zip(trained, some, strict=True)) for some in (found[: len(pairs)], found[len(pairs) :]))
        return sampled, production, fixed

    def staying(self, trained: dict[Method, Trained]) -> dict[Method, Trained]:
        """Those of the pairs that can stay by what each query was shown, doing so; none where that must not be shown again."""
        if self.config.exclude is not None:
            return {}
        pairs = {
            method: staying(one.policy, self.parts.shown, most=self.config.memory) for method, one in trained.items()
        }
        return {
            method: replace(trained[method], policy=pair, stays=True)
            for method, pair in pairs.items()
            if pair is not None and not trained[method].stays
        }

    def careful(self, plain: dict[Method, Trained], logger: TwoStagePolicy) -> Outcome:
        """With caution, and without it for comparison; production is kept where the careful pair is not surely better."""
        safety = self.config.safe or Safety()
        trained = self.train(_caution(safety, logger, self.parts))
        live = replace(logger, K=min(self.config.K, logger.K2))
        pairs = [one.policy for some in (trained, plain) for one in some.values()]
        *found, of_live, production = self.values([*pairs, live])
        sides = zip(self.methods, found, found[len(self.methods) :], strict=False)
        guarded = {
            method: guard(a, b, production, safety, lost=self.lost(trained[method].policy, live))
            for method, a, b in sides
        }
        kept = {method for method, one in guarded.items() if one.kept_production}
        for method in kept:
            trained[method] = replace(trained[method], policy=live.copy())
        values = {method: of_live if method in kept else one.careful for method, one in guarded.items()}
        return trained, values, production, guarded, {}


def _refuse_without_support(parts: Parts, data: TrainingData, config: LearningConfig) -> None:
    """Refuses, before and not after the training, a log whose clicks the propensities cannot value."""
    log, used = parts.evaluation, data.propensities
    check_curve(log, config.theta)
    if used.kind == "fitted":
        return  # it may show whatever it was fitted to
    # Of interest is whether it is 0 where something was clicked.
    rho_0 = row_propensities(log, config.theta, used.kind, used.logger, samples=2, only_clicked=True)
    check_exposures(rho_0, rho_0, log)


def _of_method(
    progress: Callable[[Method, Progress], None] | None, method: Method
) -> Callable[[Progress], None] | None:
    return None if progress is None else lambda state: progress(method, state)


def _resolved_config(config: LearningConfig, parts: Parts) -> LearningConfig:
    """The configuration with what the log decides: K, the longest list; K2, at most all items."""
    D = len(parts.vocabulary.item_ids)
    K = config.list_length or parts.list_length
    K2 = config.candidates or default_candidates(D, K)
    if K2 > D:
        raise ConfigError(
            f"{K2} candidates, but there are only {D} items. Ask for fewer (--candidates), or give the features of more items."
        )
    if K2 < K:
        raise ConfigError(
            f"{K2} candidates are fewer than the {K} places of a list. Ask for more (--candidates), or for shorter lists "
            "(--list-length)."
        )
    share = config.evaluation_share or EVALUATION_SHARE
    return config.model_copy(update={"list_length": K, "candidates": K2, "evaluation_share": share})


def _logger(given: TwoStagePolicy | None, start: Start, parts: Parts, config: LearningConfig) -> TwoStagePolicy | None:
    """The policy that drew the log: the one given, else that to start from, unless the log has propensities itself."""
    if given is None and (config.propensity == "exact" or parts.evaluation.logged is None):
        return start.policy
    return given


def _valued(
    policies: Sequence[TwoStagePolicy | MostLikely],
    parts: Parts,
    data: TrainingData,
    config: LearningConfig,
    seed: int,
    progress: Tell,
) -> tuple[Value, ...]:
    """The value of every pair on the part for it, and production's: by fitted propensities that are corrected there, or doubly
    robust, with a reward model that learns from the others."""
    # A policy that was fitted to the log is used as the one that drew it: sums have no lists to fit another to.
    used = data.propensities
    is_fitted = used.kind == "fitted"  # then values are plain IPS, without a reward model
    reward = None if parts.held_out.N or is_fitted else data.posterior  # it has seen all that a model may see here
    times = parts.times
    asked = Question(
        examination=config.theta, estimator="ips" if is_fitted else "auto", propensity=used.kind,
        logging_policy=FittedLogger(used.logger, float(times[times > 0].mean())) if is_fitted and used.logger else used.logger,
        reward_log=parts.seen, reward="item-rate" if reward is None else reward, seed=seed,
        independent=None if config.safe is None else config.safe.gate_independent,
    )  # fmt: skip
    return estimate_all([*policies, PRODUCTION], parts.evaluation, asked, progress)
