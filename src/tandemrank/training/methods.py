"""Methods, run: a stage that is trained alone is trained once, for every method and every K2.

    method -> phases (`schedules`) -> `loop.train`, phase by phase -> the policy

Every phase has a seed of its own, derived from its key (and from K2 where both stages matter), and a checkpoint: what comes
out does not depend on which methods are asked for, in which order, or on interruptions.

Whether training the generator pays is asked of the beliefs (`choose`): what they expect of a policy, in clicks per impression,

    U = sum_q n_q sum_d rho_cr(d) R_hat(q, d) / sum_q n_q

Nothing gets more than the belief would by ranking all items itself. Where the untrained stages already get nearly all of that
there is nothing to train. Else the generator is trained alone, for its re-ranker, and both in turns, and what is expected to
get most is kept: a generator approximates what is believed, and no click is looked at twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.arguments import checked
from tandemrank._base.progress import python_progress
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.gradients import race
from tandemrank.policies import candidates
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import BATCH, TwoStagePolicy
from tandemrank.training.checkpoint import Epoch, Progress
from tandemrank.training.config import TrainingConfig
from tandemrank.training.data import TrainingData
from tandemrank.training.loop import Trained, Watch
from tandemrank.training.loop import train as train_phases
from tandemrank.training.schedules import UNTRAINED, Method, Phase, schedule_of
from tandemrank.training.start import believed_policy
from tandemrank.training.weights import Weights


@dataclass(frozen=True)
class Methods:
    """Trains methods on one log, all from one `start`; `beliefs` is the policy of the method that trains nothing.

    `coordinates` come before the phase's own in the derivation of its seed. `checkpoints` is a folder with a file per phase.
    `run` trains a phase: `loop.train`, or with the same arguments `ray_train.train_on_ray`.
    """

    start: TwoStagePolicy | None
    beliefs: TwoStagePolicy | None
    weights: Weights | csr_matrix
    theta: ArrayLike
    config: TrainingConfig
    seed: int
    coordinates: tuple[object, ...] = ()
    watch: Watch | None = None
    watch_every: int = 1
    checkpoints: Path | None = None
    resume: bool = False
    run: Callable[..., Trained] = train_phases
    _alone: dict[tuple[Phase, int], Trained] = field(default_factory=dict)  # by phase, and K2 where it matters

    def train(
        self, method: Method, K2: int | None = None, *, progress: Callable[[Progress], None] | None = None
    ) -> Trained:
        """The policy of a method, by default for as many candidates as the start has; and the epochs that it consists of."""
        start = self.beliefs if method == UNTRAINED else self.start
        if start is None:
            needed = "the beliefs of the log" if method == UNTRAINED else "a policy to start from"
            raise ConfigError(f"the method {method} needs {needed}; got none.")
        policy = start = _with_candidates(start, K2)
        schedule = schedule_of(method, self.config.schedule, start.generator, start.ranker)
        history: tuple[Epoch, ...] = ()
        for number, phase in enumerate(schedule):
            found = self._phase(policy, phase, _of_schedule(progress, number, len(schedule)))
            moved = {stage: getattr(found.policy, stage) for stage in _changed(phase)}
            policy, history = replace(policy, **moved), history + found.history
        return Trained(policy, history)

    def _phase(self, policy: TwoStagePolicy, phase: Phase, progress: Callable[[Progress], None] | None) -> Trained:
        """One phase: from the start where it concerns one stage, which is trained once, else from the policy as it is."""
        assert self.start is not None  # a method that trains has one
        known = phase, policy.K2 if phase.knows_candidates else 0
        if phase.is_alone and known in self._alone:
            return self._alone[known]
        own = (phase.key, policy.K2) if phase.knows_candidates else (phase.key,)
        start = replace(self.start, K2=policy.K2) if phase.among_candidates else self.start
        found = self.run(
            start if phase.is_alone else policy,
            self.weights,
            self.theta,
            self.config,
            schedule=(phase,),
            seed=derive(self.seed, "training", *self.coordinates, *own) % 2**32,
            checkpoint=None if self.checkpoints is None else self.checkpoints / _file(*own),
            resume=self.resume,
            progress=progress,
            watch=self.watch,
            watch_every=self.watch_every,
        )
        if phase.is_alone:
            self._alone[known] = found
        return found


def _with_candidates(policy: TwoStagePolicy, K2: int | None) -> TwoStagePolicy:
    """The policy with another number of candidates; refuses more than there are items."""
    D = len(policy.vocabulary.item_ids)
    if K2 is None:
        return policy
    if K2 > D:
        raise ConfigError(f"K2 = {K2} candidates, but there are only {D} items. Ask for fewer candidates.")
    return replace(policy, K2=K2)


def check_methods(methods: Sequence[str]) -> list[Method]:
    """The methods, each once; refuses other names."""
    if wrong := [method for method in methods if method not in get_args(Method)]:
        raise ConfigError(f"a method is one of {', '.join(get_args(Method))}; got {wrong[0]!r}.")
    return list(dict.fromkeys(methods))  # type: ignore[arg-type]


def _changed(phase: Phase) -> tuple[str, ...]:
    return ("generator", "ranker") if phase.from_mean else phase.stages


def _file(key: str, K2: int | None = None) -> str:
    return f"{key.replace(' ', '-')}{'' if K2 is None else f'-K2-{K2}'}.safetensors"


def _of_schedule(
    progress: Callable[[Progress], None] | None, number: int, phases: int
) -> Callable[[Progress], None] | None:
    """The progress of one phase as that of a whole schedule."""
    return None if progress is None else lambda state: progress(state._replace(phase=number, phases=phases))


@checked
def train(
    start: TwoStagePolicy,
    log: TrainingData,
    config: TrainingConfig | None = None,
    *,
    method: str = "joint",
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Trained:
    """Trains both stages of a policy by one method (`schedules`) on what a log says; the policy itself stays as it is.

    `log`: what `training.data.prepare` makes of a log, or `log(N)` of `experiments.paper`. `config`: by default the switches
    that the data came with. A log of one's own goes to `learn`, which also chooses the method and values the result.
    """
    [chosen] = check_methods([method])
    believed = None
    if log.beliefs is not None:
        believed = believed_policy(log.beliefs, start.vocabulary, K2=start.K2, K=start.K)
    switches = config or log.config.training
    driver = Methods(start, believed, log.weights, log.theta[: start.K], switches, seed=seed)
    if progress is not None:
        return driver.train(chosen, progress=progress)
    with python_progress() as (_, epoch):
        return driver.train(chosen, progress=lambda state: epoch(chosen, state))


AUTO = "auto"
TRIED: tuple[Method, ...] = (UNTRAINED, "independent", "baseline", "joint")
ENOUGH = 0.998  # of what the re-ranker would get by ranking all items: then the generator is not trained
TOO_MANY = (
    20_000_000_000  # queries times items, beyond which trials would take hours: who wants one asks for it by its name
)
MANY, LEAST_EPOCHS = 10_000, 2  # queries: an epoch of more has more steps, so fewer epochs are needed
QUERIES, SAMPLES = 2_000, 4  # that an expectation is taken over
FEWER = 500  # queries of the curve over numbers of candidates, which chooses nothing
TIMES = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # of the candidates that are asked for


@dataclass(frozen=True)
class Tried:
    """One method that was tried, and the clicks per impression that the beliefs expect of it."""

    method: Method
    expected: float


@dataclass(frozen=True)
class Candidates:
    """A number of candidates, and the share that the beliefs expect of it of what the re-ranker would get over all items."""

    candidates: int
    kept: float


@dataclass(frozen=True)
class MethodChoice:
    """What the beliefs expect of every method that was tried, and of the re-ranker over all items (`everything`); and of the
    one that was chosen with fewer and with more candidates."""

    method: Method
    tried: tuple[Tried, ...]
    everything: float
    by_candidates: tuple[Candidates, ...] = ()


def of_trials(config: TrainingConfig, queries: int) -> TrainingConfig:
    """The switches by which methods are tried: epochs that nobody asked for are as many as give the steps of MANY queries."""
    if "epochs" in config.model_fields_set:
        return config
    epochs = max(round(config.epochs * min(MANY / max(queries, 1), 1.0)), LEAST_EPOCHS)
    return config.model_copy(update={"epochs": epochs})


def choose(
    train: Callable[[Method], Trained],
    ranker: Scorer,
    weights: Weights,
    impressions: NDArray[np.float64],
    theta: NDArray[np.float64],
    *,
    seed: int,
) -> tuple[Trained, MethodChoice]:
    """The method of which the beliefs expect most; the first of the best. `ranker`: the beliefs as a stage.

    What is not trained is tried alone where it loses next to nothing, and where trials would take hours.
    Shapes: impressions [Q]; theta [K]."""
    q = weights.queries
    some = np.sort(np.random.default_rng(seed).permutation(q)[:QUERIES])

    shown = float(impressions[some].sum())

    def expected(policy: TwoStagePolicy) -> float:
        return expected_clicks(policy, weights, theta, some, seed=seed) / shown

    found = train(UNTRAINED)
    D = len(found.policy.vocabulary.item_ids)
    everything = expected_over_all(ranker, weights, theta, some, seed=seed) / shown
    tried = [Tried(UNTRAINED, expected(found.policy))]
    if tried[0].expected < ENOUGH * everything and len(q) * D < TOO_MANY:
        for method in TRIED[1:]:
            one = train(method)
            tried.append(Tried(method, expected(one.policy)))
            if tried[-1].expected > max(other.expected for other in tried[:-1]):
                found = one
    method = max(tried, key=lambda one: one.expected).method
    few = some[:: max(-(-len(some) // FEWER), 1)]
    most = expected_over_all(ranker, weights, theta, few, seed=seed)
    policy = found.policy

    def kept(n: int) -> float:
        """Of all items the re-ranker keeps everything."""
        return (
            1.0 if n == D else expected_clicks(replace(policy, K2=n), weights, theta, few, seed=seed) / max(most, 1e-12)
        )

    sizes = sorted({min(max(round(policy.K2 * times), policy.K), D) for times in TIMES})
    return found, MethodChoice(method, tuple(tried), everything, tuple(Candidates(n, kept(n)) for n in sizes))


def expected_clicks(
    policy: TwoStagePolicy, weights: Weights, theta: NDArray[np.float64], q: NDArray[np.int64], *, seed: int
) -> float:
    """The sum of the clicks that are expected of some queries, by the race.  Shapes: theta [K]; q [n]."""
    curve, generator = torch.as_tensor(theta, dtype=torch.float32), torch.Generator().manual_seed(seed)
    return sum(
        float(policy.batch_utility(part, weights.rows(part), curve, SAMPLES, generator).sum())
        for part in policy.parts(q)
    )


def expected_over_all(
    ranker: Scorer, weights: Weights, theta: NDArray[np.float64], q: NDArray[np.int64], *, seed: int
) -> float:
    """The same of a re-ranker that ranks every item that has a weight itself.  Shapes: theta [K]; q [n]."""
    curve, generator, total = torch.as_tensor(theta, dtype=torch.float32), torch.Generator().manual_seed(seed), 0.0
    for part in (q[first : first + BATCH] for first in range(0, len(q), BATCH)):
        w = weights.rows(part)
        each = np.diff(w.indptr)
        there = np.arange(each.max(initial=1)) < each[:, None]
        items, values = np.full(there.shape, -1, np.int32), np.zeros(there.shape, np.float32)
        items[there], values[there] = w.indices, w.data
        s = candidates.scores_of(ranker, part, items)
        # By the exposures, which all samples share: the utility of so many candidates takes twenty times as long.
        rho, _ = race.exposure(s, s, curve, s.shape[1], samples=SAMPLES, generator=generator)
        total += float((rho.double() * torch.from_numpy(values)).sum())
    return total
