"""A phase of training on a Ray cluster: a worker per node, the queries shared out between them (`team`), Ray Train around it.

    driver: ships pair, weights and switches -> workers: `loop.train` as a team -> their checkpoint -> driver: reads it

The first worker writes the same checkpoints that one process writes, after every epoch, into a folder that every node sees.
When a worker or a node dies, Ray starts the workers again, as many as there is room for, and they go on from the last one. What
comes out is that of one process up to rounding; one process can go on from a team's checkpoint, and a team from one's.
"""

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy.sparse import csr_matrix

from tandemrank import errors
from tandemrank._base.cluster import MISSING, connect
from tandemrank._base.files import check_target
from tandemrank.errors import ConfigError, JobError, TandemRankError
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import checkpoint as checkpoints
from tandemrank.training.checkpoint import CHECKPOINT, Progress
from tandemrank.training.loop import Trained, train
from tandemrank.training.team import Workers, share_of
from tandemrank.training.weights import BeliefWeights, Weights

REFUSED = "refused.json"  # what a worker could not do, for the others and for the driver
FAILURES = 8  # of workers, before a phase is given up
SECONDS = 1.0  # between two looks at the checkpoint, for those who want to know how far it is
# Watchers of Ray Train, a process each, that have nothing to watch here.
NOT_WANTED = (
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION",
    "RAY_TRAIN_METRICS_ENABLED",
)


def check_ready(*, checkpoints: object) -> None:
    """Refuses a machine without Ray Train, and a training without a folder for checkpoints."""
    if checkpoints is None:
        raise ConfigError(
            "the engine ray needs a folder for checkpoints that every node sees: give `checkpoints` (--out has it)."
        )
    _ray()


def train_on_ray(
    policy: TwoStagePolicy,
    *given: Any,
    checkpoint: Path,
    resume: bool,
    progress: Callable[[Progress], None] | None,
    **switches: Any,
) -> Trained:
    """`loop.train` by a team; `given` and `switches` are its own arguments."""
    if not resume:
        check_target(checkpoint, CHECKPOINT)
        checkpoint.unlink(missing_ok=True)
    _run(policy, given, {**switches, "checkpoint": str(checkpoint.resolve())}, progress)
    return train(policy, *given, **switches, checkpoint=checkpoint, resume=True)


def _ray() -> tuple[Any, Any, Any]:
    """Ray, connected, Ray Train and its torch; refuses where they are not installed."""
    ray = connect()
    for name in NOT_WANTED:
        os.environ.setdefault(name, "0")
    try:
        import ray.train
        import ray.train.torch
    except ImportError as error:
        raise ConfigError(MISSING) from error
    return ray, ray.train, ray.train.torch


def _run(policy: TwoStagePolicy, given: Any, switches: dict[str, Any], progress: Any) -> None:
    """Trains until the checkpoint says that the phase is over."""
    ray, ray_train, ray_torch = _ray()
    path = Path(switches["checkpoint"])
    path.parent.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix=f".{path.stem}-ray-", dir=path.parent))  # nobody else's, so it may be removed
    refused = own / REFUSED
    nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    threads = min((n for n in nodes if n), default=1)
    workers = max(sum(n > 0 for n in nodes), 1)
    weights, *rest = given
    parts = [ray.put(_part(weights, rank, workers)) for rank in range(workers)]
    job = {"job": ray.put((policy, rest, switches)), "weights": parts, "threads": threads, "folder": str(own)}
    trainer = ray_torch.TorchTrainer(
        _work, train_loop_config=job,
        torch_config=ray_torch.TorchConfig(backend="gloo"),
        scaling_config=ray_train.ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": threads}, placement_strategy="SPREAD"
        ),
        run_config=ray_train.RunConfig(
            name="phase", storage_path=str(own), failure_config=ray_train.FailureConfig(max_failures=FAILURES)
        ),
    )  # fmt: skip
    watcher = _Watcher(path, progress)
    try:
        trainer.fit()
        if refused.exists():
            kind, words = json.loads(refused.read_text(encoding="utf-8"))
            raise getattr(errors, kind)(words)
    except ray_train.TrainingFailedError as error:
        raise JobError(
            f"training on Ray was given up after {FAILURES} failures of workers ({error}). The same command with --resume "
            "goes on from the last epoch."
        ) from error
    finally:
        watcher.close()
        shutil.rmtree(own, ignore_errors=True)


def _part(weights: Weights | csr_matrix, rank: int, workers: int) -> Weights | csr_matrix:
    """The weights of a worker's queries; those of clicks are small, and everybody has all of them."""
    if not isinstance(weights, BeliefWeights):
        return weights
    return weights.part(*share_of(weights.shape[0], rank, workers))


class _Watcher:
    """Tells of every epoch that the checkpoint has."""

    def __init__(self, path: Path, progress: Callable[[Progress], None] | None) -> None:
        self.path, self.over, self.told = path, threading.Event(), 0
        self.thread = threading.Thread(target=self._watch, args=(progress,), daemon=True)
        if progress is not None:
            self.thread.start()

    def _watch(self, progress: Callable[[Progress], None]) -> None:
        while not self.over.wait(SECONDS):
            history = checkpoints.history_of(self.path)
            if len(history) > self.told:
                self.told, last = len(history), history[-1]
                progress(Progress(phase=0, phases=1, epoch=last.epoch, epochs=last.epoch, done=0.0, last=last))

    def close(self) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()


def _work(config: dict[str, Any]) -> None:
    """A worker: reads what is to be done, and does its share."""
    import numba
    import ray
    import torch

    (policy, rest, switches), rank = ray.get(config["job"]), torch.distributed.get_rank()
    weights = ray.get(config["weights"][rank])
    refused = Path(config["folder"]) / REFUSED
    if refused.exists():
        return
    numba.set_num_threads(min(config["threads"], numba.get_num_threads()))
    torch.set_num_threads(config["threads"])
    try:
        train(policy, weights, *rest, **switches, resume=True, team=Workers(len(policy.vocabulary.query_ids)))
    except TandemRankError as error:
        refused.write_text(json.dumps([type(error).__name__, str(error)]), encoding="utf-8")
        raise  # the others wait for this one's gradients: Ray ends them and starts all again, who then see the refusal
