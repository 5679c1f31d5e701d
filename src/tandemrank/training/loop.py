"""One training loop, to which Baseline, Independent and Joint are values (`schedules`), not kinds of loop.

Each step improves one stage on one objective,

    sum_q sum_d w[q, d] rho_cr(d)   with   w[q, d] = sum_i c_i(d) / rho_0(d)          (paper: cltr-obj-2s, cltr-grad-2s)

where rho_cr is the exposure, under the weights alpha of the ranks, by the pair of stages or by the stage alone (K2 = D,
paper: cltr-obj). An epoch ends with a checkpoint.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix, issparse
from torch import Tensor

from tandemrank._base.files import check_target
from tandemrank._base.results import Result
from tandemrank._base.sparse import canonical_csr
from tandemrank.errors import ConfigError
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import checkpoint as checkpoints
from tandemrank.training.checkpoint import Checkpoint, Epoch, Progress, with_prefix
from tandemrank.training.config import TrainingConfig
from tandemrank.training.objective import Objective
from tandemrank.training.schedules import Method, Phase, Stage, View, schedule_of
from tandemrank.training.steps import minibatch_size, optimisers_of, own_tensors
from tandemrank.training.team import ALONE, Team
from tandemrank.training.weights import SparseWeights, Weights, rank_weights

Tell = Callable[[Progress], None]
Watch = Callable[[TwoStagePolicy], dict[str, float]]


@dataclass(frozen=True, repr=False)
class Trained(Result):
    """A trained policy and how it came about; `stays`: it keeps what each query was shown, since its log cannot speak of other
    items (`valuing`)."""

    policy: TwoStagePolicy
    history: tuple[Epoch, ...]
    stays: bool = False

    def summary(self) -> dict[str, Any]:
        return {"policy": repr(self.policy), "history": self.history, "stays": self.stays, "seconds": self.seconds}

    def _lines(self) -> list[str]:
        return [f"trained in {len(self.history)} epochs: {self.policy!r}"]

    def _rows(self) -> list[dict[str, Any]]:
        return [epoch._asdict() for epoch in self.history]

    @property
    def seconds(self) -> float:
        """The time of all epochs."""
        return sum(epoch.seconds for epoch in self.history)


def train(
    policy: TwoStagePolicy,
    weights: Weights | csr_matrix,
    theta: ArrayLike,
    config: TrainingConfig | None = None,
    *,
    method: Method = "joint",
    schedule: Sequence[Phase] | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Tell | None = None,
    watch: Watch | None = None,
    watch_every: int = 1,
    team: Team = ALONE,
) -> Trained:
    """Trains both stages of a copy of `policy` by a schedule, by default that of `method`.

    With `checkpoint` every epoch is saved there, and `resume` goes on from it: the weights come out bit by bit as if nothing
    had happened. `watch` is recorded in the history and never decides anything; it is called every so many epochs and for the
    last one. `team`: who else trains the same, each other queries.
    Shapes: weights [Q, D], sparse or any `Weights`; theta [K].
    """
    config = config or TrainingConfig()
    weights = SparseWeights(canonical_csr(weights)) if issparse(weights) else weights
    if weights.shape != (len(policy.vocabulary.query_ids), len(policy.vocabulary.item_ids)):
        raise ConfigError(f"weights have the shape {weights.shape}, but the policy's vocabulary is of another size.")
    schedule = tuple(schedule or schedule_of(method, config.schedule, policy.generator, policy.ranker))
    loop = _Loop(policy.copy(), weights, theta, config, schedule, seed, team)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and not resume:
        check_target(path, checkpoints.CHECKPOINT)  # now, and not after the first epoch
    if path is not None and resume and (found := checkpoints.read(path, loop.identity)) is not None:
        loop.restore(found)
    team.check_same([loop.phase, loop.epoch, int(loop.identity[:15], 16)])
    tell = progress or (lambda _: None)
    while loop.phase < len(schedule):
        was_empty = loop.is_empty()
        if not loop.phase_is_over():
            loop.run_epoch(tell, watch, watch_every)
        if loop.phase_is_over():
            loop.end_phase()
        if path is not None and team.is_first and not was_empty:
            checkpoints.write(path, loop.identity, loop.checkpoint())
    return Trained(loop.policy, tuple(loop.history))


class _Loop:
    """The state of a training: everything that a checkpoint holds, and nothing else that changes."""

    def __init__(
        self,
        policy: TwoStagePolicy,
        weights: Weights,
        theta: ArrayLike,
        config: TrainingConfig,
        schedule: tuple[Phase, ...],
        seed: int,
        team: Team,
    ) -> None:
        self.team = team
        self.policy, self.weights, self.config, self.schedule = policy, weights, config, schedule
        self.theta = torch.tensor(np.asarray(theta), dtype=torch.float32)
        self.objective = Objective.of(policy, config)
        self.models = self.objective.models
        self.random = torch.Generator().manual_seed(seed)
        self.queries = torch.from_numpy(weights.queries)
        self.identity = self.identity_with(seed)
        self.history: list[Epoch] = []
        self.phase = 0
        self.begin_phase()

    def identity_with(self, seed: int) -> str:
        """What this training depends on; the names that readers see are no part of it."""
        phases = [{name: x for name, x in asdict(phase).items() if name != "name"} for phase in self.schedule]
        switches, sizes = self.config.model_dump(), [self.policy.K2, self.policy.K]
        arrays = list(self.weights.arrays())
        for model in self.models.values():
            arrays += [t.detach().numpy() for t in model.state_dict().values()]
        return checkpoints.identity_of([switches, phases, seed, sizes, self.theta.tolist()], arrays)

    @property
    def plan(self) -> Phase:
        return self.schedule[self.phase]

    @property
    def epochs(self) -> int:
        """Of this phase."""
        most = self.plan.most_epochs
        return self.config.epochs if most is None else min(self.config.epochs, most)

    def begin_phase(self) -> None:
        if self.plan.from_mean:
            self.take_mean()
        # A phase with nothing to do has none: the first optimiser of a process imports torch's compiler, two seconds.
        sampled = minibatch_size(self.config, len(self.queries)) if self.objective.is_sparse else None
        self.optimisers = {
            s: optimisers_of(self.models[s], self.config, self.plan.rate, sampled)
            for s in (() if self.is_empty() else self.plan.stages)
        }
        self.epoch = 0

    def take_mean(self) -> None:
        """Both stages get the mean of their weights.

        Trained from one start on the same clicks they differ by the noise of their draws; the mean has half its variance.
        """
        other = self.models["ranker"].state_dict()
        mean = {
            name: (x + other[name]) / 2 if x.is_floating_point() else x
            for name, x in self.models["generator"].state_dict().items()
        }
        for model in self.models.values():
            model.load_state_dict(mean)

    def is_empty(self) -> bool:
        """Whether there is nothing to do in this phase."""
        return self.epochs == 0 or len(self.queries) == 0

    def phase_is_over(self) -> bool:
        return self.epoch >= self.epochs or self.is_empty()

    def end_phase(self) -> None:
        """Begins the next phase if there is one."""
        self.phase += 1
        if self.phase < len(self.schedule):
            self.begin_phase()

    def run_epoch(self, tell: Tell, watch: Watch | None, every: int) -> None:
        start = time.perf_counter()
        size = minibatch_size(self.config, len(self.queries))
        phases, total = len(self.schedule), 0.0
        order = self.queries[torch.randperm(len(self.queries), generator=self.random)]
        last = self.history[-1] if self.history else None
        for first in range(0, len(order), size):
            self.set_rates((self.epoch + first / len(order)) / self.epochs)
            total += self.minibatch(order[first : first + size])
            done = min(first + size, len(order)) / len(order)
            tell(self.progress(phases, done, last))
        for stage, optimisers in self.optimisers.items():
            self.team.gather(own_tensors(self.models[stage], optimisers))
        total = self.team.total(total)
        self.epoch += 1
        is_watched = self.epoch % every == 0 or self.epoch == self.epochs
        seconds = time.perf_counter() - start
        watched = watch(self.watched()) if watch and is_watched else {}
        self.history.append(Epoch(self.plan.name, self.epoch, total / len(order), seconds, watched))
        tell(self.progress(phases, 0.0, self.history[-1]))

    def progress(self, phases: int, done: float, last: Epoch | None) -> Progress:
        """Where it stands."""
        return Progress(phase=self.phase, phases=phases, epoch=self.epoch, epochs=self.epochs, done=done, last=last)

    def set_rates(self, done: float) -> None:
        """The learning rates after this share of the phase's epochs."""
        share = 1.0 - done if self.config.optimiser == "rows" else 1.0
        for optimiser in self.all_optimisers():
            for group in optimiser.param_groups:
                group["lr"] = optimiser.defaults["lr"] * share

    def all_optimisers(self) -> list[torch.optim.Optimizer]:
        return [optimiser for own in self.optimisers.values() for optimiser in own]

    def minibatch(self, q: Tensor) -> float:
        """Our steps of one minibatch; returns the sum of our queries' objectives before the last step."""
        ours = self.team.share(q, self.random)
        w = self.weights.rows(ours.q.numpy())
        value = torch.zeros(())
        for view, stages in self.moves():
            value = self.objective.utility(view, stages, ours.q, w, self.alpha(view), ours.keys())
            if not value.requires_grad:
                raise ConfigError(
                    f"the scores of the {stages[0]} do not depend on its parameters: nothing can be trained."
                )
            moved = [optimiser for stage in stages for optimiser in self.optimisers[stage]]
            for optimiser in moved:
                optimiser.zero_grad()
            (-ours.weight * value.sum() / len(q)).backward()  # type: ignore[no-untyped-call]
            self.team.add_up(self.models[stage] for stage in stages)
            for optimiser in moved:
                optimiser.step()
        return ours.weight * float(value.detach().sum())

    def moves(self) -> list[tuple[View, list[Stage]]]:
        """What a minibatch does, one after the other: the stages that move at once, and the exposure they improve."""
        steps = self.plan.steps
        if not self.plan.at_once:
            return [(step.view, [step.stage]) for step in steps]
        views = dict.fromkeys(step.view for step in steps)
        return [(view, [step.stage for step in steps if step.view == view]) for view in views]

    def alpha(self, view: View) -> Tensor:
        """The weights of the ranks, for lists of the pair out of its candidates or of a stage alone.  Shapes: -> [depth]."""
        K2 = self.policy.K2 if view == "pair" else self.weights.shape[1]
        if self.plan.among_candidates and K2 > self.policy.K2:
            return torch.ones(self.policy.K2)
        clicked = self.weights.clicked / max(len(self.queries), 1)
        return rank_weights(self.config.rank_weights, self.theta, clicked, K2)

    def watched(self) -> TwoStagePolicy:
        """The policy whose lists are watched: the pair, or one stage alone over all documents."""
        view = self.plan.view
        if view == "pair":
            return self.policy
        alone = self.models[view]
        if not alone.scores_everything:
            return self.policy
        return TwoStagePolicy(alone, alone, len(self.policy.vocabulary.item_ids), self.policy.K, self.policy.vocabulary)

    def checkpoint(self) -> Checkpoint:
        """Weights, the optimisers' moments, the state of the random numbers; in the end the weights alone."""
        is_over = self.phase == len(self.schedule)
        tensors = {"random": self.random.get_state()}
        for stage, model in self.models.items():
            tensors |= {f"now.{stage}.{name}": t.detach().clone() for name, t in model.state_dict().items()}
        for place, optimiser in enumerate([] if is_over else self.all_optimisers()):
            for number, moments in optimiser.state_dict()["state"].items():
                tensors |= {f"moments.{place}.{number}.{name}": t for name, t in moments.items()}
        return Checkpoint(self.phase, self.epoch, tuple(self.history), tensors)

    def restore(self, found: Checkpoint) -> None:
        """Goes on from a checkpoint of this training."""
        self.history, self.phase = list(found.history), found.phase
        is_over = self.phase == len(self.schedule)
        if not is_over:
            self.begin_phase()
        for stage, model in self.models.items():
            model.load_state_dict(with_prefix(found.tensors, f"now.{stage}."))
        self.random.set_state(found.tensors["random"])
        if is_over:
            return
        self.epoch = found.epoch
        for place, optimiser in enumerate(self.all_optimisers()):
            saved = optimiser.state_dict()
            for name, t in with_prefix(found.tensors, f"moments.{place}.").items():
                number, moment = name.split(".")
                saved["state"].setdefault(int(number), {})[moment] = t
            optimiser.load_state_dict(saved)
