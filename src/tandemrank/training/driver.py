"""The driver of methods: a stage that is trained alone is trained once, for every method and every K2.

    method -> phases (`schedules`) -> `loop.train`, phase by phase -> the pair

Every phase has a seed of its own, derived from its key (and from K2 where the pair matters), and a checkpoint of its own: what
comes out does not depend on which methods are asked for, in which order, or on interruptions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, get_args

from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix

from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import checkpoint as checkpoints
from tandemrank.training.config import TrainingConfig
from tandemrank.training.history import Epoch, Progress
from tandemrank.training.loop import Criterion, Trained, Watch, train
from tandemrank.training.schedules import UNTRAINED, Method, Phase, schedule_of
from tandemrank.training.weights import Weights, check_depth

Alone: TypeAlias = dict[
    tuple[Phase, int, str], Trained
]  # by phase, K2 where it matters, and what the stage started from


class Methods:
    """Trains methods on one log, all from one `start`; `beliefs` is the policy of the method that trains nothing.

    `coordinates` come before the phase's own in the derivation of its seed. `checkpoints` is a folder with a file per phase.
    With a `criterion` no policy is worse than its start by it: where training found nothing better, the start is kept. `run`
    trains a phase: `loop.train`, or with the same arguments `ray_train.train_on_ray`. Policies with a stage in common, trained
    on one log with the same switches and seed, may share what was trained `alone`.
    """

    def __init__(
        self,
        start: TwoStagePolicy | None,
        beliefs: TwoStagePolicy | None,
        weights: Weights | csr_matrix,
        theta: ArrayLike,
        config: TrainingConfig,
        *,
        seed: int,
        coordinates: tuple[object, ...] = (),
        criterion: Criterion | None = None,
        watch: Watch | None = None,
        watch_every: int = 1,
        checkpoints: Path | None = None,
        resume: bool = False,
        alone: Alone | None = None,
        run: Callable[..., Trained] = train,
    ) -> None:
        self._start = start
        self.beliefs = beliefs
        self.weights = weights
        self.theta = theta
        self.config = config
        self.seed = seed
        self.coordinates = coordinates
        self.criterion = criterion
        self.watch = watch
        self.watch_every = watch_every
        self.checkpoints = checkpoints
        self.resume = resume
        self.run = run
        self._alone: Alone = {} if alone is None else alone
        self._is_shared = alone is not None
        self._identities: dict[str, str] = {}

    @property
    def start(self) -> TwoStagePolicy:
        """What every method that trains starts from."""
        if self._start is None:
            raise ConfigError("a method that trains needs a policy to start from.")
        return self._start

    def train(
        self, method: Method, K2: int | None = None, *, progress: Callable[[Progress], None] | None = None
    ) -> Trained:
        """The policy of a method, by default for as many candidates as the start has; and the epochs that it consists of."""
        if method == UNTRAINED:
            if self.beliefs is None:
                raise ConfigError("the method beliefs needs the beliefs of the log.")
            return Trained(_with_candidates(self.beliefs, K2), ())
        start = _with_candidates(self.start, K2)
        check_depth(self.config.rank_weights, start.K2)
        schedule = schedule_of(method, self.config.schedule, start.generator, start.ranker)
        policy = start
        history: tuple[Epoch, ...] = ()
        for number, phase in enumerate(schedule):
            found = self._phase(policy, phase, _of_schedule(progress, number, len(schedule)))
            moved = {stage: getattr(found.policy, stage) for stage in _changed(phase)}
            policy, history = replace(policy, **moved), history + found.history
        is_worse = self.criterion is not None and self.criterion(policy) < self.criterion(start)
        return Trained(start.copy() if is_worse else policy, history, is_worse)

    def alone(self, phase: Phase) -> Trained:
        """What comes of a phase that concerns one stage, from the start; trained once."""
        return self._phase(self.start, phase, None)

    def _phase(self, policy: TwoStagePolicy, phase: Phase, progress: Callable[[Progress], None] | None) -> Trained:
        """One phase: from the start where it concerns one stage, which is trained once, else from the policy as it is."""
        known = phase, policy.K2 if phase.knows_candidates else 0, self._identity(phase)
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
            criterion=self.criterion,
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

    def _identity(self, phase: Phase) -> str:
        """What the stage of a phase was before training, where others may have trained it too."""
        if not (self._is_shared and phase.is_alone):
            return ""
        if phase.view not in self._identities:
            scorers = [self.start.ranker if phase.view == "ranker" else self.start.generator]
            if not scorers[0].scores_everything:
                scorers.append(self.start.generator)  # alone, it is trained for the generator's candidates
            arrays = [t.detach().numpy() for scorer in scorers for t in scorer.state_dict().values()]
            described = [[scorer.kind, scorer.spec()] for scorer in scorers]
            self._identities[phase.view] = checkpoints.identity_of(described, arrays)
        return self._identities[phase.view]


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
