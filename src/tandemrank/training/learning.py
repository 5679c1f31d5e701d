"""`learn`: a click log of one's own, no ratings anywhere, becomes two stages and what they would be worth if they were live.

    read -> believe -> build -> train -> value

The log's impressions are split: one part trains, and one, which nothing before has seen, values what came out: on its own
training clicks every policy looks better than it is. Production,
which drew the log, needs no estimate: its value is the clicks per impression that the last part shows.
The re-ranker is what the log is believed to say (`beliefs`), the generator the product nearest to it. By default the generator
is trained for its re-ranker where the beliefs expect that to pay (`methods.choose`).
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix
from torch import nn

from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.config import resolve, switch_values
from tandemrank._base.progress import python_progress
from tandemrank._base.random import derive
from tandemrank.beliefs.contexts import ContextLog
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.model_fit import KINDS, learners
from tandemrank.clicks.examination import Behaviour, ExaminationCurve, as_read, behaviour
from tandemrank.clicks.models import CellCurve, check_examination
from tandemrank.errors import ConfigError
from tandemrank.logs.contexts import check_columns
from tandemrank.logs.counting import WHOLE
from tandemrank.logs.feedback import fingerprint
from tandemrank.logs.pairs import TESTED, pairs_of
from tandemrank.logs.reading import LogParts
from tandemrank.logs.sources import Source
from tandemrank.logs.sums import merge
from tandemrank.offpolicy.comparison import by_frequency
from tandemrank.offpolicy.estimators import check_exposures, of_queries
from tandemrank.offpolicy.logger import LISTS, lists_of
from tandemrank.offpolicy.propensities import check_curve, row_propensities
from tandemrank.offpolicy.verdicts import cells_words, stopping_words
from tandemrank.policies.memory import excluding
from tandemrank.policies.own import arguments_of, module_class, module_of
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy, default_candidates
from tandemrank.training import valuing
from tandemrank.training.checkpoint import Progress
from tandemrank.training.config import EVALUATION_SHARE, LearningConfig
from tandemrank.training.data import Besides, TrainingData, before_training, prepare
from tandemrank.training.loop import Trained
from tandemrank.training.loop import train as train_here
from tandemrank.training.methods import AUTO, TRIED, MethodChoice, Methods, check_methods, choose, of_trials
from tandemrank.training.parts import Parts, facts_of, read_parts, read_rewards
from tandemrank.training.ray_train import check_ready, train_on_ray
from tandemrank.training.results import Learned, differences_of
from tandemrank.training.schedules import UNTRAINED, Method
from tandemrank.training.start import Start, believed_policy, initial_policy
from tandemrank.training.weights import BeliefWeights

CHECKED = 2_000  # queries whose propensities are looked at before training


def _nothing(*_: object) -> None:
    """For those who do not listen."""


@dataclass(frozen=True)
class Listener:
    """Who hears how far it is: `stage` what is under way, `epoch` every epoch, `note` what to know before training."""

    stage: Callable[[str], None] = _nothing
    epoch: Callable[[Method, Progress], None] = _nothing
    note: Callable[[str], None] = _nothing


@dataclass(frozen=True)
class LearningPlan:
    """What `learn` is asked for. `chooses`: of the methods the one is kept of which the beliefs expect most. `behaviour`: how
    the lists of the log are read, as it says itself."""

    log: Source
    config: LearningConfig
    start: Start
    model: nn.Module | None
    checkpoints: Path | None
    engine: Engine
    listener: Listener
    methods: tuple[Method, ...] = ()
    chooses: bool = False
    generator: Scorer | None = None
    ranker: Scorer | None = None
    logging_policy: TwoStagePolicy | None = None
    seed: int = 0
    resume: bool = False
    behaviour: Behaviour | None = None
    reward: str | None = None

    @property
    def believes(self) -> bool:
        """Whether beliefs are fitted: not where given stages are trained on clicks alone."""
        return UNTRAINED in self.methods or not self.start.has_stages or self.config.objective == "beliefs"

    @property
    def trains(self) -> bool:
        """Whether a method may train: else both stages are made of the beliefs as they are."""
        return any(method != UNTRAINED for method in self.methods)


@dataclass(frozen=True)
class Built:
    """Both stages before training: untrained, and what the methods that train start from; None where it is not asked for.

    `ranker`: the beliefs as a stage.
    """

    beliefs: TwoStagePolicy | None
    start: TwoStagePolicy | None
    ranker: Scorer | None


@checked
def learn(
    log: Source,
    config: LearningConfig | None = None,
    *,
    generator: Scorer | None = None,
    ranker: Scorer | None = None,
    model: str | nn.Module | None = None,
    context: Sequence[str] | None = None,
    method: str | None = None,
    methods: Sequence[str] | None = None,
    start: Start | None = None,
    theta: ArrayLike | ExaminationCurve | None = None,
    logging_policy: TwoStagePolicy | None = None,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    resume: bool = False,
    engine: Engine = "local",
    listener: Listener | None = None,
    reward: str | None = None,
    **switches: Any,
) -> Learned:
    """Learns both stages from a click log alone, and values them on impressions that nothing before has seen.

    `log`: files, folders, patterns, a frame of polars or pandas. What `config` leaves open comes from the log:
    `list_length` is its longest list, `candidates` at most its items. `methods`: auto (the default), which trains the generator
    where that pays; beliefs, which trains nothing; independent, baseline, stacking and joint, which train (`schedules`);
    `method` is one of them. `generator` and `ranker`: models of one's own (`tr.Generator`, `tr.Ranker`) instead of the product
    nearest to the beliefs, and of the beliefs; a copy of them is trained. `model`: the only model of features f that the
    beliefs may use, by its name or as a module of one's own with `forward(u, z, p)`. `context`: columns of the log that are the
    context of an impression, such as `["device"]` (`policy.recommend(..., context={"device": "phone"})`).
    `logging_policy`: who drew the log; without it propensities are those of the log, or fitted to its lists. With
    `checkpoints`, a folder, every epoch is saved there, one file per phase, and `resume` goes on from it. The engine ray reads
    files by tasks and trains on all nodes of a cluster, which must all see files and checkpoints. `reward`: the column of the
    log with what clicked items were worth, which is learned and valued in place of clicks: what the log is believed to say of a
    click, times what a click on the item is worth. Nothing is trained then. `theta`: the examination curve, as `examine` gives
    it. Other keywords are switches (`candidates=500`, `epochs=5`) and what a `Start` has (`item_features=frame`).
    """
    config, start = _by_keyword(config, start, theta, switches)
    with _heard(listener) as hears:
        plan = planned(
            log,
            _with_context(config or LearningConfig(), context),
            asked(method, methods),
            generator=generator,
            ranker=ranker,
            model=model,
            start=start,
            logging_policy=logging_policy,
            seed=seed,
            checkpoints=checkpoints,
            resume=resume,
            engine=engine,
            listener=hears,
            reward=reward,
        )
        parts = read(plan)
        plan, parts = _as_read(plan, parts)
        plan = resolved(plan, parts)
        data = believe(plan, parts)
        data, built = build(plan, parts, data)
        trained, choice = train(plan, data, built)
        return value(plan, parts, data, trained, choice)


@contextmanager
def _heard(listener: Listener | None) -> Iterator[Listener]:
    """Who listens; where nobody is named, who looks at the terminal or the notebook."""
    if listener is not None:
        yield listener
        return
    with python_progress() as (stage, epoch):
        yield Listener(stage=stage, epoch=epoch)


# --- what is asked ----------------------------------------------------------------------------------------------------


def planned(
    log: Source,
    config: LearningConfig,
    methods: list[str],
    *,
    model: str | nn.Module | None = None,
    start: Start | None = None,
    checkpoints: str | Path | None = None,
    engine: Engine = "local",
    listener: Listener | None = None,
    **rest: Any,
) -> LearningPlan:
    """The arguments of `learn`, checked, as a plan; the `rest` are fields of it."""
    config, module = _with_model(config, model)
    plan = LearningPlan(
        log=as_read(log, config.examination),
        config=config,
        start=(start or Start()).with_tables(),
        model=module,
        checkpoints=None if checkpoints is None else Path(checkpoints),
        engine=check_engine(engine),
        listener=listener or Listener(),
        **rest,
    )
    return _plan(plan, methods)


def asked(method: str | None, methods: Sequence[str] | None) -> list[str]:
    """The methods by name: one, several, or auto."""
    if method is not None and methods is not None:
        raise ConfigError("expected method or methods; got both. Leave one out.")
    if methods is not None and not (isinstance(methods, list | tuple) and all(isinstance(m, str) for m in methods)):
        raise ConfigError(f"methods: expected a list of names; got {methods!r:.60}. Write methods=['joint'].")
    if method is not None:
        return [method]
    return [AUTO] if methods is None else list(methods)


def _by_keyword(
    config: LearningConfig | None,
    start: Start | None,
    theta: ArrayLike | ExaminationCurve | None,
    switches: dict[str, Any],
) -> tuple[LearningConfig, Start]:
    """The switches and what to start from, with those that came as keywords."""
    of_start = {field.name: switches.pop(field.name) for field in fields(Start) if field.name in switches}
    start = replace(start or Start(), **of_start)
    if theta is not None:
        own = theta.curve if isinstance(theta, ExaminationCurve) else tuple(check_examination(theta).tolist())
        switches["examination"] = own
    if not switches:
        return config or LearningConfig(), start
    return resolve(LearningConfig, preset=switch_values(config or LearningConfig()), flags=switches), start


def _with_context(config: LearningConfig, context: Sequence[str] | None) -> LearningConfig:
    """The switches with the columns of the context."""
    if context is not None and config.context:
        raise ConfigError("expected context once; got it as an argument and as a switch. Leave one out.")
    return config.model_copy(update={"context": check_columns(config.context if context is None else context)})


def _with_model(config: LearningConfig, model: str | nn.Module | None) -> tuple[LearningConfig, nn.Module | None]:
    """The switches with the name of f, and the user's own f where it is one: a module, or a class by its name."""
    if not isinstance(model, str | nn.Module | None):
        raise ConfigError(f"model: expected a name or a torch module; got {model!r:.60}.")
    if model is not None and config.model is not None:
        raise ConfigError("expected model once; got it as an argument and as a switch. Leave one out.")
    module = model if isinstance(model, nn.Module) else None
    name = config.model if model is None else model if isinstance(model, str) else type(model).__name__
    if name is not None and name not in KINDS and module is None and module_class(name) is not None:
        module = module_of({"class": name, "keywords": {}})
    learners(module or name)  # refuses what is unknown or not installed
    return config.model_copy(update={"model": name}), module


def _plan(plan: LearningPlan, wanted: list[str]) -> LearningPlan:
    """The plan with its methods; refuses what cannot be done, and switches without effect."""
    if plan.reward is not None:
        if plan.config.context:
            raise ConfigError("a reward is learned without a context: leave out one of them.")
        if (
            not set(wanted) <= {AUTO, UNTRAINED}
            or plan.config.safe
            or plan.ranker is not None
            or plan.generator is not None
        ):
            raise ConfigError(
                "a reward is learned by the beliefs alone: leave out the method, models of your own and --safe (ask `decide "
                "--reward`, which knows bounds)."
            )
        wanted = [UNTRAINED]
    chooses = AUTO in wanted
    if chooses and len(set(wanted)) > 1:
        raise ConfigError("the method auto tries the others itself: give it alone.")
    plan = replace(plan, methods=TRIED if chooses else tuple(check_methods(wanted)), chooses=chooses)
    refuse_without_effect(plan)
    if plan.engine == "ray" and plan.trains:
        check_ready(checkpoints=plan.checkpoints)
    if plan.model is not None and (problem := arguments_of(plan.model).problem):
        plan.listener.note(f"the model of features can be learned, but not saved: {problem}.")
    return plan


def refuse_without_effect(plan: LearningPlan) -> None:
    """Refuses switches that would be accepted and ignored."""
    config, defaults = plan.config, LearningConfig()
    given = _of_training(plan)
    if given and not plan.trains:
        raise ConfigError(
            f"{given[0]} would have no effect: nothing is trained, both stages are made of the beliefs as they are. Leave it "
            "out, or give another method."
        )
    if "schedule" in given and "joint" not in plan.methods:
        raise ConfigError("schedule would have no effect: it is of the method joint alone. Leave it out.")
    if _differs(config, defaults, "objective") and (plan.chooses or not plan.trains):
        raise ConfigError(
            "objective would have no effect: the generator is trained on what the beliefs expect. Leave it out, or give a "
            "method (--method joint)."
        )
    of_beliefs = {
        "model": config.model is not None,
        "context": bool(config.context),
        "features": plan.start.has_features,
    }
    if not plan.believes and any(of_beliefs.values()):
        raise ConfigError(
            f"{next(name for name, given in of_beliefs.items() if given)} would have no effect: what is given is trained on "
            "clicks alone. Leave it out, or train on the beliefs (--set objective=beliefs)."
        )
    if config.objective == "ips" and plan.trains:
        return
    if _differs(config, defaults, "clip"):
        raise ConfigError(
            "clip would have no effect: no click is divided by its propensity in training. Leave it out, or train by clicks "
            "(--method joint --set objective=ips)."
        )


def _of_training(plan: LearningPlan) -> list[str]:
    """The switches of training that differ from their defaults."""
    config, defaults = plan.config.training, LearningConfig().training
    return [name for name in config.model_fields_set if _differs(config, defaults, name)]


def _differs(config: object, defaults: object, name: str) -> bool:
    return bool(getattr(config, name) != getattr(defaults, name))


def resolved(plan: LearningPlan, parts: Parts) -> LearningPlan:
    """The plan with what the log decides: K, the longest list; K2, at most all items."""
    config, D = plan.config, len(parts.vocabulary.item_ids)
    K = config.list_length or parts.list_length
    K2 = config.candidates or default_candidates(D, K)
    if K2 > D:
        raise ConfigError(
            f"{K2} candidates, but there are only {D} items. Ask for fewer (--candidates), or give the features of more items."
        )
    if K2 < K:
        raise ConfigError(
            f"{K2} candidates are fewer than the {K} places of a list. Ask for more (--candidates), or for shorter lists "
            "(--set list_length=...)."
        )
    own = (plan.start.has_stages and not plan.chooses) or plan.generator is not None or plan.ranker is not None
    if K2 == D and plan.trains and not own:
        plan = _one_stage(plan, D)
    share = config.evaluation_share or EVALUATION_SHARE
    update = {"list_length": K, "candidates": K2, "evaluation_share": share}
    return replace(plan, config=config.model_copy(update=update))


def _one_stage(plan: LearningPlan, D: int) -> LearningPlan:
    """The plan where all items are candidates of the belief: nothing is left to train; refuses what asks for it."""
    trains = [f"the method {method}" for method in plan.methods if method != UNTRAINED]
    given = _of_training(plan) if plan.chooses else trains
    if given:
        raise ConfigError(
            f"{given[0]} would have no effect: all {D} items are candidates, so the re-ranker, which is the belief, decides "
            "alone. Ask for fewer candidates (--candidates), or leave it out."
        )
    return replace(plan, methods=(UNTRAINED,), chooses=False)


# --- the five steps ---------------------------------------------------------------------------------------------------


def read(plan: LearningPlan) -> Parts:
    """The log in its parts; its first lists are kept where a logging policy may have to be fitted to them."""
    config = plan.config
    unknown = plan.logging_policy is None
    needed = config.propensity == "fitted" or (unknown and (config.propensity == "auto" or config.safe))
    found = read_parts(
        plan.log,
        config,
        plan.start,
        derive(plan.seed, "split") % 2**32,
        lists=LISTS if needed else TESTED,
        logging_policy=plan.logging_policy,
        engine=plan.engine,
    )
    if plan.reward is None:
        return found
    _, items = (plan.start.features(found.vocabulary) or Features()).encoded(found.train.Q, found.train.D)
    rewards = read_rewards(plan.log, plan.reward, found.split, found.vocabulary, items.numbers)
    return replace(found, rewards=rewards)


def _as_read(plan: LearningPlan, parts: Parts) -> tuple[LearningPlan, Parts]:
    """Where readers stop after a click, the log by the last click above; examination as they read, whatever curve was given."""
    if isinstance(plan.config.examination, CellCurve):
        return plan, parts
    whole = LogParts((merge(parts.all()),), (), parts.first, by_time=False, split=WHOLE)
    found = behaviour(plan.log, whole, engine=plan.engine)
    plan = replace(plan, behaviour=found)
    if found.cells is None:
        if found.dependence is not None and found.dependence.stops:
            plan.listener.note(f"{stopping_words(found.dependence)}.")
        return plan, parts
    plan.listener.note(f"{cells_words(found)}.")
    plan = replace(plan, config=plan.config.model_copy(update={"examination": found.cells}))
    return plan, parts if found.cells.states is None else read(plan)


def believe(plan: LearningPlan, parts: Parts) -> TrainingData:
    """What the log says: its propensities, the beliefs, and the weights of the documents."""
    plan.listener.stage("what the log says: its propensities and its beliefs")
    vectors, found = plan.start.vectors(parts.vocabulary), parts.in_context
    if UNTRAINED in plan.methods and plan.start.policy is not None and vectors is None:
        raise ConfigError(
            f"the beliefs start from a policy with vectors of all queries and items; got one of the kind "
            f"{plan.start.policy.ranker.kind}. Train it instead (--method joint)."
        )
    besides = Besides(
        vectors=vectors,
        features=plan.start.features(parts.vocabulary),
        model=plan.model,
        times=parts.train_times,
        contexts=None if found is None else ContextLog.of(found.train_times, found.contexts),
    )
    data = prepare(
        parts.train,
        plan.config,
        besides,
        needs_beliefs=plan.believes,
        logging_policy=plan.logging_policy,
        lists=lambda: lists_of([parts.first]),
        seed=derive(plan.seed, "rho_0") % 2**32,
        engine=plan.engine,
    )
    _refuse_without_support(plan, parts, data)
    of_features = () if data.beliefs is None else data.beliefs.notes
    for words in (*before_training(parts.train, plan.config), *of_features):
        plan.listener.note(words)
    return data


def build(plan: LearningPlan, parts: Parts, data: TrainingData) -> tuple[TrainingData, Built]:
    """Both stages before training, without the pairs that must not be shown, whose weights do not count either."""
    config, beliefs, start, ranker = plan.config, None, None, None
    K2 = config.candidates or config.K
    if data.beliefs is not None:
        worth = None if parts.rewards is None else parts.rewards.worth
        product = plan.ranker is not None
        beliefs = believed_policy(data.beliefs, parts.vocabulary, K2=K2, K=config.K, product=product, worth=worth)
        ranker, beliefs = beliefs.ranker, _with_own(plan, beliefs)
    if plan.trains:
        given = plan.start.has_stages and not plan.chooses
        start = beliefs
        if given:
            start = _with_own(plan, initial_policy(plan.start, parts.vocabulary, K2=K2, K=config.K))
    if config.exclude is None:
        return data, Built(beliefs, start, ranker)
    pairs = pairs_of(parts.train, config.exclude)
    assert isinstance(data.weights, BeliefWeights)  # clicks have no weights of other pairs, and are refused
    weights = replace(data.weights, excluded=pairs)
    beliefs, start = (None if one is None else _excluding(one, pairs) for one in (beliefs, start))
    return replace(data, weights=weights), Built(beliefs, start, ranker)


def _with_own(plan: LearningPlan, policy: TwoStagePolicy) -> TwoStagePolicy:
    """The policy with a copy of each stage that was given."""
    given = {"generator": plan.generator, "ranker": plan.ranker}
    own = {name: copy.deepcopy(stage) for name, stage in given.items() if stage is not None}
    return replace(policy, **own) if own else policy  # type: ignore[arg-type]


def train(plan: LearningPlan, data: TrainingData, built: Built) -> tuple[dict[Method, Trained], MethodChoice | None]:
    """Every method; where the beliefs choose, the one of which they expect most."""
    switches = plan.config.training
    driver = Methods(
        built.start,
        built.beliefs,
        data.weights,
        data.theta,
        of_trials(switches, len(data.weights.queries)) if plan.chooses else switches,
        seed=plan.seed,
        checkpoints=plan.checkpoints,
        resume=plan.resume,
        run=train_on_ray if plan.engine == "ray" else train_here,
    )

    def trained(method: Method) -> Trained:
        return driver.train(method, progress=_of_method(plan.listener, method))

    if not plan.chooses:
        return {method: trained(method) for method in plan.methods}, None
    plan.listener.stage("what the beliefs expect of the generator")
    seed = derive(plan.seed, "choice") % 2**32
    assert built.ranker is not None  # the beliefs choose
    found, choice = choose(trained, built.ranker, data.weights, data.impressions, data.theta, seed=seed)
    return {choice.method: found}, choice


def value(
    plan: LearningPlan, parts: Parts, data: TrainingData, trained: dict[Method, Trained], choice: MethodChoice | None
) -> Learned:
    """What every policy is worth on the part that nothing before has seen, beside production."""
    found = valuing.Valuer(
        config=plan.config,
        parts=parts,
        data=data,
        logging_policy=plan.logging_policy,
        seed=plan.seed,
        tell=plan.listener.stage,
        engine=plan.engine,
    ).all(trained)
    name = fingerprint(parts.all())
    kept = {method for method, gate in found.gates.items() if gate.kept_production}
    named = {
        method: one if method in kept else replace(one, policy=replace(one.policy, trained_on=name))
        for method, one in found.trained.items()
    }
    groups = {
        method: by_frequency(each.estimate, found.production.estimate, found.times)
        for method, each in found.values.items()
    }
    valued, used = next(iter(found.values.values())), data.propensities
    kind = valued.propensity or used.kind
    learned = Learned(
        config=plan.config,
        start=plan.start,
        log=facts_of(parts),
        propensity=kind,
        propensity_reason=used.reason if kind == used.kind else valued.propensity_reason,
        trained=named,
        values=found.values,
        production=found.production,
        differences=differences_of(found.values, found.production, named),
        gates=found.gates,
        most_likely=found.most_likely,
        by_frequency=groups,
        choice=choice,
        beliefs=data.beliefs,
        behaviour=plan.behaviour,
        reward=plan.reward or "clicks",
    )
    for method, one in named.items():
        if method not in kept:  # what stands on the card of the saved policy
            named[method] = replace(one, policy=replace(one.policy, about=learned.about(method)))
    return learned


def _excluding(policy: TwoStagePolicy, pairs: csr_matrix) -> TwoStagePolicy:
    """The policy to which some pairs are not available."""
    generator = excluding(policy.generator, pairs)
    ranker = generator if policy.ranker is policy.generator else excluding(policy.ranker, pairs)
    return replace(policy, generator=generator, ranker=ranker)


def _refuse_without_support(plan: LearningPlan, parts: Parts, data: TrainingData) -> None:
    """Refuses, before and not after the training, a log whose clicks the propensities cannot value."""
    log, used, theta = parts.evaluation, data.propensities, plan.config.theta
    check_curve(log, theta)
    if used.kind == "fitted":
        return  # it may show whatever it was fitted to
    # Of interest is whether it is 0 where something was clicked; of many queries and items some tell, and what values asks all.
    logged = np.flatnonzero(log.impressions)
    if used.logger is not None and used.logger.exposes_sparsely and len(logged) > CHECKED:
        log = of_queries(log, np.isin(np.arange(log.Q), logged[:: -(-len(logged) // CHECKED)]))
    rho_0 = row_propensities(log, theta, used.kind, used.logger, samples=2, only_clicked=True, engine=plan.engine)
    check_exposures(rho_0, rho_0, log)


def _of_method(listener: Listener, method: Method) -> Callable[[Progress], None]:
    return lambda state: listener.epoch(method, state)
