"""Small trainings that one process and a team must end alike; run as a program it is one worker: RANK SIZE FOLDER."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import torch
from safetensors.torch import save_file
from scipy.sparse import csr_matrix

from own_models import OwnNetwork
from tandemrank._base.ids import Vocabulary
from tandemrank.policies import candidates
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import Trained, train
from tandemrank.training.team import ALONE, Team, Workers

Q, D = 40, 50
RNG = np.random.default_rng(3)
USERS, ITEMS, TRAITS = (RNG.normal(size=(n, 4)).astype(np.float32) for n in (Q, D, D))
IDS = Vocabulary(pl.Series("query_id", range(Q)), pl.Series("item_id", range(D)))
LIKED = csr_matrix(np.where(RNG.random((Q, D)) < 0.15, 1 + RNG.random((Q, D)), 0.0).astype(np.float32))
THETA = [1.0, 0.5, 0.25]
FACTORS = MatrixFactorisation(USERS, ITEMS)


def own_pair() -> TwoStagePolicy:
    return TwoStagePolicy(FACTORS, OwnNetwork(Q, TRAITS[:, :2]), 6, 3, IDS)


def same_pair() -> TwoStagePolicy:
    return TwoStagePolicy(FACTORS, FACTORS, 12, 3, IDS)


def given_pair() -> TwoStagePolicy:
    scores = GivenScores(USERS @ ITEMS.T)
    return TwoStagePolicy(scores, scores, 12, 3, IDS)


SPARSE = {"sparse", "one by one"}  # as if items were many
# A network of Adam's steps turns rounding into other weights; what it is worth must be the same.
CHAOTIC = {"own"}
# Of each: the pair, the switches, and more of `train`. A minibatch of one query leaves a worker without any.
CASES = {
    "dense": (same_pair, {}, {}),
    "sparse": (same_pair, {}, {}),
    "adam": (same_pair, {"optimiser": "adam", "minibatch": 7}, {"method": "baseline"}),
    "one by one": (same_pair, {"minibatch": 1, "epochs": 1}, {"method": "stacking"}),
    "paper": (given_pair, {"schedule": "paper", "gradient": "reinforce", "samples": 5}, {}),
    "own": (own_pair, {}, {}),
}


@contextmanager
def racing(name: str) -> Iterator[None]:
    """By the sparse race, where that is the case."""
    before = candidates.LARGE
    candidates.LARGE = 0 if name in SPARSE else before
    try:
        yield
    finally:
        candidates.LARGE = before


def trained(name: str, team: Team = ALONE, folder: Path | None = None, resume: bool = False) -> Trained:
    pair, switches, more = CASES[name]
    # Where everything has a weight a re-ranker of candidates gets a sample of it.
    w = csr_matrix(0.1 + LIKED.toarray()) if name == "own" else LIKED
    path = None if folder is None else folder / f"{name}.safetensors"
    config = TrainingConfig(**{"epochs": 2, **switches})
    with racing(name):
        return train(pair(), w, THETA, config, seed=5, team=team, checkpoint=path, resume=resume, **more)


def state(found: Trained) -> dict[str, torch.Tensor]:
    """All weights of both stages."""
    stages = {"generator": found.policy.generator, "ranker": found.policy.ranker}
    return {f"{stage} {name}": t for stage, model in stages.items() for name, t in model.state_dict().items()}


def work(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    where = f"file://{folder.resolve() / 'meet'}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
    team = Workers(Q)
    for name in CASES:
        found = trained(name, team, folder)
        objective = torch.tensor([epoch.objective for epoch in found.history])
        save_file({**state(found), "history": objective}, folder / f"{name}-{rank}.safetensors")
    # All is on the disk. gloo's threads may still be there when the interpreter goes, and then the process aborts
    # ("terminate called without an active exception"); the package's own groups are ended in the same way, by Ray.
    torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
