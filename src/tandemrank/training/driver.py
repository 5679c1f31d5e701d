"""The driver of methods: a stage that is trained alone is trained once, for every method and every K2.

    method -> phases (`schedules`) -> `loop.train`, phase by phase -> the policy

Every phase has a seed of its own, derived from its key (and from K2 where both stages matter), and a checkpoint: what comes
out does not depend on which methods are asked for, in which order, or on interruptions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix

from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.checkpoint import Epoch, Progress
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import Trained, Watch, train
from tandemrank.training.schedules import UNTRAINED, Method, Phase, schedule_of
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
    run: Callable[..., Trained] = train
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
