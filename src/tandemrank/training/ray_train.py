"""A phase of training on a Ray cluster: a process per node, the queries shared out between them (`team`).

    driver: ships pair, weights and switches -> processes: `loop.train` as a team -> their checkpoint -> driver: reads it

The first process writes the same checkpoints that one alone writes, after every epoch, into a folder that every node sees.
When one dies all are started again (`cluster.together`), and go on from the last checkpoint. What comes out is that of one
process up to rounding; one process can go on from a team's checkpoint, and a team from one's.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scipy.sparse import csr_matrix

from tandemrank._base import cluster
from tandemrank._base.cluster import Group
from tandemrank._base.files import check_target
from tandemrank.errors import ConfigError
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.checkpoint import CHECKPOINT, Progress, history_of
from tandemrank.training.loop import Trained, train
from tandemrank.training.team import Workers, share_of
from tandemrank.training.weights import BeliefWeights, Weights

SECONDS = 1.0  # between two looks at the checkpoint, for those who want to know how far it is


def check_ready(*, checkpoints: object) -> None:
    """Refuses a machine without Ray, and a training without a folder for checkpoints."""
    if checkpoints is None:
        raise ConfigError(
            "the engine ray needs a folder for checkpoints that every node sees: give `checkpoints` (--out has it)."
        )
    cluster.connect()


def train_on_ray(
    policy: TwoStagePolicy,
    weights: Weights | csr_matrix,
    *given: Any,
    checkpoint: Path,
    resume: bool,
    progress: Callable[[Progress], None] | None,
    **switches: Any,
) -> Trained:
    """`loop.train` by a team; `given` and `switches` are its other arguments."""
    if not resume:
        check_target(checkpoint, CHECKPOINT)
        checkpoint.unlink(missing_ok=True)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    workers = max(len(cluster.nodes(cluster.connect())), 1)
    parts = [_part(weights, rank, workers) for rank in range(workers)]
    with _watched(checkpoint, progress):
        cluster.together(_work, parts, policy, given, {**switches, "checkpoint": checkpoint.resolve()})
    return train(policy, weights, *given, **switches, checkpoint=checkpoint, resume=True)


def _part(weights: Weights | csr_matrix, rank: int, workers: int) -> Weights | csr_matrix:
    """The weights of a worker's queries; those of clicks are small, and everybody has all of them."""
    if not isinstance(weights, BeliefWeights):
        return weights
    return weights.part(*share_of(weights.shape[0], rank, workers))


def _work(
    group: Group,  # its processes are those of `torch.distributed`, which a team talks by
    weights: Weights | csr_matrix,
    policy: TwoStagePolicy,
    given: tuple[Any, ...],
    switches: dict[str, Any],
) -> None:
    """A process: does its share, from the last checkpoint on."""
    train(policy, weights, *given, **switches, resume=True, team=Workers(len(policy.vocabulary.query_ids)))


@contextmanager
def _watched(path: Path, progress: Callable[[Progress], None] | None) -> Iterator[None]:
    """Tells, meanwhile, of every epoch that the checkpoint has."""
    over, told = threading.Event(), 0

    def watch(tell: Callable[[Progress], None]) -> None:
        nonlocal told
        while not over.wait(SECONDS):
            history = history_of(path)
            if len(history) > told:
                told, last = len(history), history[-1]
                tell(Progress(phase=0, phases=1, epoch=last.epoch, epochs=last.epoch, done=0.0, last=last))

    thread = threading.Thread(target=watch, args=(progress,), daemon=True)
    if progress is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if progress is not None:
            thread.join()
