"""One training loop, to which Baseline, Independent and Joint are values (`schedules`), not kinds of loop.

Each step improves one stage on one objective,

    sum_q sum_d w[q, d] rho_cr(d)   with   w[q, d] = sum_i c_i(d) / rho_0(d)          (paper: cltr-obj-2s, cltr-grad-2s)

where rho_cr is the exposure, under the weights alpha of the ranks, by the pair of stages or by the stage alone (K2 = D,
paper: cltr-obj). An epoch ends with a checkpoint and, where clicks are held out, with a judgement on them; a phase then ends
when the judgement stops improving, with its best weights.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.files import replacing
from tandemrank.errors import ConfigError
from tandemrank.gradients import race, reinforce
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import TrainingConfig
from tandemrank.training.history import Epoch, Progress
from tandemrank.training.schedules import Phase, Stage, View, schedule_of
from tandemrank.training.steps import optimisers_of
from tandemrank.training.stopping import SMOOTH, Criterion, smoothed_judgement
from tandemrank.training.weights import SparseWeights, Weights


@dataclass(frozen=True)
class Trained:
    """A trained policy and how it came about."""

    policy: TwoStagePolicy
    history: tuple[Epoch, ...]


def train(
    policy: TwoStagePolicy,
    weights: Weights | csr_matrix,
    theta: ArrayLike,
    config: TrainingConfig | None = None,
    *,
    schedule: Sequence[Phase] | None = None,
    criterion: Criterion | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    watch: Callable[[TwoStagePolicy], dict[str, float]] | None = None,
    watch_every: int = 1,
) -> Trained:
    """Trains both stages of a copy of `policy` by a schedule, by default that of `config.method`.

    `criterion` judges a policy on held-out clicks, higher is better; without one, or with `stopping = "fixed"`, every phase
    has all its epochs. With `checkpoint` every epoch is saved there, and `resume` goes on from it: the weights come out
    bit by bit as if nothing had happened. `watch` is recorded in the history and never decides anything; it is
    called after the criterion, for the same policy, every so many epochs and for the last one.
    Shapes: weights [Q, D], sparse or any `Weights`; theta [K].
    """
    config = config or TrainingConfig()
    weights = SparseWeights(weights) if isinstance(weights, csr_matrix) else weights
    if weights.shape != (len(policy.vocabulary.query_ids), len(policy.vocabulary.item_ids)):
        raise ConfigError(f"weights have the shape {weights.shape}, but the policy's vocabulary is of another size.")
    schedule = tuple(schedule or schedule_of(config.method, config.joint_start, policy))
    loop = _Loop(
        policy.copy(), weights, theta, config, schedule, criterion, seed, Path(checkpoint) if checkpoint else None
    )
    if resume:
        loop.restore()
    tell = progress or (lambda _: None)
    while loop.phase < len(schedule):
        while not loop.phase_is_over():
            loop.run_epoch(tell, watch, watch_every)
            loop.save()
        loop.end_phase()
        loop.save()
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
        criterion: Criterion | None,
        seed: int,
        checkpoint: Path | None,
    ) -> None:
        self.policy, self.weights, self.config, self.schedule = policy, weights, config, schedule
        self.checkpoint = checkpoint
        self.theta = torch.as_tensor(np.asarray(theta), dtype=torch.float32)
        self.criterion = criterion if config.stopping != "fixed" else None
        self.models: dict[Stage, Scorer] = {"candidate": policy.generator, "ranker": policy.ranker}
        self.random = torch.Generator().manual_seed(seed)
        self.queries = torch.from_numpy(weights.queries)
        self.identity = _identity(config, schedule, seed, weights, policy, self.theta)
        self.history: list[Epoch] = []
        self.phase = 0
        self.begin_phase()

    @property
    def plan(self) -> Phase:
        return self.schedule[self.phase]

    @property
    def epochs(self) -> int:
        """Of this phase, at most."""
        return self.config.joint_epochs if self.plan.from_mean else self.config.epochs

    def begin_phase(self) -> None:
        if self.plan.from_mean:
            self.take_mean()
        stages = dict.fromkeys(step.stage for step in self.plan.steps)
        pace = self.config.joint_rate if self.plan.from_mean else 1.0
        self.optimisers = {s: optimisers_of(self.models[s], self.config, pace) for s in stages}
        self.epoch, self.best_epoch, self.best = 0, 0, -float("inf")
        self.best_weights = self.snapshot()

    def take_mean(self) -> None:
        """Both stages get the mean of their weights.

        Trained from one start on the same clicks they differ by the noise of their draws; the mean has half its variance.
        """
        other = self.models["ranker"].state_dict()
        mean = {
            name: (x + other[name]) / 2 if x.is_floating_point() else x
            for name, x in self.models["candidate"].state_dict().items()
        }
        for model in self.models.values():
            model.load_state_dict(mean)

    def phase_is_over(self) -> bool:
        waited = self.epoch - max(self.best_epoch, SMOOTH)
        stalled = self.criterion is not None and waited >= self.config.patience
        return self.epoch >= self.epochs or stalled or len(self.queries) == 0

    def end_phase(self) -> None:
        """Restores the best weights, and begins the next phase if there is one."""
        if self.criterion is not None and self.best_epoch > 0:
            for stage, model in self.models.items():
                model.load_state_dict(self.best_weights[stage])
        self.phase += 1
        if self.phase < len(self.schedule):
            self.begin_phase()

    def snapshot(self) -> dict[Stage, dict[str, Tensor]]:
        return {s: {k: v.detach().clone() for k, v in m.state_dict().items()} for s, m in self.models.items()}

    def run_epoch(
        self, tell: Callable[[Progress], None], watch: Callable[[TwoStagePolicy], dict[str, float]] | None, every: int
    ) -> None:
        start = time.perf_counter()
        # A dozen steps in an epoch or more: with fewer, what all queries share would hardly move.
        size = self.config.minibatch or max(min(256, len(self.queries) // 12), 1)
        phases = len(self.schedule)
        order = self.queries[torch.randperm(len(self.queries), generator=self.random)]
        last = self.history[-1] if self.history else None
        total = 0.0
        for number, first in enumerate(range(0, len(order), size)):
            self.set_rates((self.epoch + first / len(order)) / self.epochs)
            total += self.minibatch(order[first : first + size], number)
            done = min(first + size, len(order)) / len(order)
            tell(Progress(self.phase, phases, self.epoch, self.epochs, done, last))
        self.epoch += 1
        held_out = float("nan") if self.criterion is None else self.criterion(self.judged())
        seconds = time.perf_counter() - start
        is_watched = self.epoch % every == 0 or self.epoch == self.epochs
        watched = watch(self.judged()) if watch and is_watched else {}
        self.history.append(Epoch(self.plan.name, self.epoch, total / len(order), held_out, seconds, watched))
        judgement = smoothed_judgement(self.history[-self.epoch :])
        if judgement > self.best:
            self.best, self.best_epoch, self.best_weights = judgement, self.epoch, self.snapshot()
        tell(Progress(self.phase, phases, self.epoch, self.epochs, 0.0, self.history[-1]))

    def set_rates(self, done: float) -> None:
        """The learning rates after this share of the phase's epochs."""
        share = 1.0 - done if self.config.rate == "falling" else 1.0
        for optimiser in self.all_optimisers():
            for group in optimiser.param_groups:
                group["lr"] = optimiser.defaults["lr"] * share

    def all_optimisers(self) -> list[torch.optim.Optimizer]:
        return [optimiser for own in self.optimisers.values() for optimiser in own]

    def minibatch(self, q: Tensor, number: int) -> float:
        """The steps of one minibatch; returns the sum of the queries' objectives before the last step."""
        w = self.weights.rows(q.numpy())
        scores: dict[Stage, Tensor] = {}
        value = torch.zeros(())
        for view, stages in self.moves(number):
            for stage in _stages_of(view):
                if stage not in scores:
                    with torch.set_grad_enabled(stage in self.optimisers):
                        scores[stage] = self.models[stage](q)
            value = self.objective(view, stages, scores, w)
            moved = [optimiser for stage in stages for optimiser in self.optimisers[stage]]
            for optimiser in moved:
                optimiser.zero_grad()
            (-value.mean()).backward()  # type: ignore[no-untyped-call]
            for optimiser in moved:
                optimiser.step()
            for stage in stages:
                del scores[stage]
        return float(value.detach().sum())

    def moves(self, number: int) -> list[tuple[View, list[Stage]]]:
        """What minibatch `number` does, one after the other: the stages that move at once, and the exposure they improve."""
        steps = self.plan.steps
        if self.config.joint_step == "every-other":
            steps = (steps[number % len(steps)],)
        if self.config.joint_step != "together":
            return [(step.view, [step.stage]) for step in steps]
        views = dict.fromkeys(step.view for step in steps)
        return [(view, [step.stage for step in steps if step.view == view]) for view in views]

    def objective(self, view: View, stages: Sequence[Stage], scores: dict[Stage, Tensor], w: csr_matrix) -> Tensor:
        """The utility of each query, with a gradient for these stages alone.  Shapes: scores, w [B, D] -> [B]."""
        own = {s: x if s in stages else x.detach() for s, x in scores.items()}
        if view == "pair":
            s_c, s_r, K2 = own["candidate"], own["ranker"], self.policy.K2
        else:
            s_c, s_r, K2 = own[view].detach(), own[view], own[view].shape[1]
        options: dict[str, Any] = {"samples": self.config.samples, "generator": self.random}
        alpha = self.alpha(K2)
        if self.config.gradient == "race":
            return race.utility(s_c, s_r, w, alpha, K2, **options)
        return reinforce.utility(s_c, s_r, w, alpha, K2, baseline=self.config.gradient != "reinforce", **options)

    def alpha(self, K2: int) -> Tensor:
        """The weights of the ranks (paper: list-utility).  Shapes: -> [K], or [depth].

        Flat and deep overfits far less where clicks are few: it asks that the clicked come near the top, and leaves it to
        all clicks together who comes first. The automatic depth, 200 over the clicked items of a query, between 20 and
        100, was chosen on MovieLens-1M (docs/results). Deeper than a fifth of the candidates the re-ranker has no say.
        """
        if self.config.alpha == "examination":
            return self.theta
        clicked = self.weights.clicked / max(len(self.queries), 1)
        depth = self.config.depth or int(np.clip(200 / max(clicked, 1), 20, 100))
        return torch.ones(max(len(self.theta), min(depth, K2 // 5)))

    def judged(self) -> TwoStagePolicy:
        """The policy whose lists are judged: the pair, or one stage alone over all documents."""
        view = self.plan.judged
        if view == "pair":
            return self.policy
        alone = self.models[view]
        return TwoStagePolicy(alone, alone, len(self.policy.vocabulary.item_ids), self.policy.K, self.policy.vocabulary)

    def save(self) -> None:
        """One file, in one piece: weights, best weights, the optimisers' moments, the state of the random numbers."""
        if self.checkpoint is None:
            return
        tensors = {"random": self.random.get_state()}
        for kind, snapshot in (("now", self.snapshot()), ("best", self.best_weights)):
            tensors |= {f"{kind}.{s}.{name}": t for s, state in snapshot.items() for name, t in state.items()}
        for place, optimiser in enumerate(self.all_optimisers()):
            for number, moments in optimiser.state_dict()["state"].items():
                tensors |= {f"moments.{place}.{number}.{name}": t for name, t in moments.items()}
        state = {
            "identity": self.identity,
            "phase": self.phase,
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best": self.best,
            "history": [list(epoch) for epoch in self.history],
        }
        with replacing(self.checkpoint) as path:
            save_file({k: v.contiguous().clone() for k, v in tensors.items()}, path, {"state": json.dumps(state)})

    def restore(self) -> None:
        """Goes on from the checkpoint; refuses one of another training, starts anew where there is none."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        try:
            with safe_open(self.checkpoint, "pt") as file:
                state = json.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.checkpoint} is not a whole checkpoint ({error}). Delete it to start anew."
            ) from error
        if state["identity"] != self.identity:
            raise ConfigError(
                f"{self.checkpoint} is of another training (other switches, seed or clicks). "
                f"Give the same ones to go on, or another folder to start anew."
            )
        self.history = [Epoch(*epoch) for epoch in state["history"]]
        self.phase = state["phase"]
        is_over = self.phase == len(self.schedule)
        if not is_over:
            self.begin_phase()
        for stage, model in self.models.items():
            model.load_state_dict(_with_prefix(tensors, f"now.{stage}."))
        self.random.set_state(tensors["random"])
        if is_over:
            return
        self.epoch, self.best_epoch, self.best = state["epoch"], state["best_epoch"], state["best"]
        self.best_weights = {stage: _with_prefix(tensors, f"best.{stage}.") for stage in self.models}
        for place, optimiser in enumerate(self.all_optimisers()):
            saved = optimiser.state_dict()
            for name, t in _with_prefix(tensors, f"moments.{place}.").items():
                number, moment = name.split(".")
                saved["state"].setdefault(int(number), {})[moment] = t
            optimiser.load_state_dict(saved)


def _stages_of(view: View) -> Sequence[Stage]:
    return ("candidate", "ranker") if view == "pair" else (view,)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _identity(
    config: TrainingConfig,
    schedule: tuple[Phase, ...],
    seed: int,
    weights: Weights,
    policy: TwoStagePolicy,
    theta: Tensor,
) -> str:
    """What a training depends on, in one digest: a checkpoint of another one is not continued."""
    digest = hashlib.sha256(
        json.dumps([config.model_dump(), schedule, seed, policy.K2, policy.K, theta.tolist()], sort_keys=True).encode()
    )
    arrays: list[NDArray[Any]] = list(weights.arrays())
    for model in (policy.generator, policy.ranker):
        arrays += [t.detach().numpy() for t in model.state_dict().values()]
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
