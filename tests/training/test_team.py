"""A team of processes ends where one process does, whatever is trained; all of its workers agree, to the last bit."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.sparse import csr_matrix

import team_cases
from tandemrank.gradients._bridge import keys_for
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train
from tandemrank.training.schedules import schedule_of
from tandemrank.training.team import ALONE, Workers, share_of

SIZE = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the workers of a team left behind."""
    out = tmp_path_factory.mktemp("team")
    paths = [os.path.dirname(team_cases.__file__), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    lines = [[sys.executable, team_cases.__file__, str(rank), str(SIZE), str(out)] for rank in range(SIZE)]
    workers = [subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) for line in lines]
    for worker in workers:
        words = worker.communicate(timeout=300)[1]
        assert worker.returncode == 0, words[-3000:]
    return out


@pytest.mark.parametrize("name", team_cases.CASES)
def test_a_team_ends_where_one_process_does(folder, name) -> None:
    ours, *others = (load_file(folder / f"{name}-{rank}.safetensors") for rank in range(SIZE))
    for other in others:
        assert all(torch.equal(ours[key].nan_to_num(), other[key].nan_to_num()) for key in ours)
    history = ours.pop("history")
    alone = team_cases.trained(name)
    if name not in team_cases.CHAOTIC:
        for key, t in team_cases.state(alone).items():
            assert torch.allclose(ours[key], t, rtol=1e-4, atol=1e-4), key
    objectives = [epoch.objective for epoch in alone.history]
    assert np.allclose(history, objectives, rtol=0.02 if name in team_cases.CHAOTIC else 1e-4)


class SeenError(Exception):
    """What was wanted has been seen."""


class Looking(Workers):
    """One of `size` workers that never meet: looks at the gradients of one minibatch instead of adding them up."""

    def __init__(self, rank: int, size: int, q: torch.Tensor) -> None:
        self.rank, self.size, self.is_first, self.q = rank, size, rank == 0, q
        self.queries = share_of(team_cases.Q, rank, size)
        self.seen: dict[str, torch.Tensor] = {}

    def check_same(self, state) -> None:
        """Nobody to compare with."""

    def share(self, _, generator):
        return super().share(self.q, generator)

    def add_up(self, models) -> None:
        for number, model in enumerate(models):
            self.seen |= {
                f"{number} {key}": x.grad.to_dense() for key, x in model.named_parameters() if x.grad is not None
            }
        raise SeenError


def gradients(name: str, q: torch.Tensor, phase: int, rank: int = 0, size: int = 1) -> dict[str, torch.Tensor]:
    """The gradients of a worker's share of one minibatch, the first of a phase."""
    pair = team_cases.CASES[name][0]()
    schedule = schedule_of("joint", "tandem", pair.generator, pair.ranker)[phase : phase + 1]
    config = TrainingConfig(minibatch=len(q))
    everything, team = csr_matrix(0.1 + team_cases.LIKED.toarray()), Looking(rank, size, q)
    with team_cases.racing(name), pytest.raises(SeenError):
        train(pair, everything, team_cases.THETA, config, schedule=schedule, seed=1, team=team)
    return team.seen


@pytest.mark.parametrize(("name", "phase"), [("dense", 0), ("sparse", 1), ("sparse", 2), ("own", 0)])
def test_the_gradients_of_the_shares_add_up_to_that_of_the_minibatch(name, phase) -> None:
    """Value by value: of the shared parameters and of each query's own, which only its own worker has."""
    q = torch.tensor([3, 8, 1, 30, 22, 5, 17])
    whole, ours, theirs = (gradients(name, q, phase, *of) for of in ((0, 1), (0, 2), (1, 2)))
    assert whole.keys() == ours.keys() == theirs.keys()
    for key, g in whole.items():
        assert torch.allclose(ours[key] + theirs[key], g, rtol=1e-4, atol=1e-7), key
    assert any(bool(g.abs().sum() > 0) for g in whole.values())


def test_a_worker_without_a_query_of_the_minibatch_adds_nothing() -> None:
    q = torch.tensor([2, 4])
    assert all(bool((g == 0).all()) for g in gradients("dense", q, 0, 1, 2).values())
    whole, ours = (gradients("dense", q, 0, *of) for of in ((0, 1), (0, 2)))
    assert all(torch.allclose(ours[key], g, rtol=1e-4) for key, g in whole.items())


def test_one_process_goes_on_from_the_checkpoint_of_a_team(folder) -> None:
    found = team_cases.trained("adam", folder=folder, resume=True)
    last = load_file(folder / "adam-0.safetensors")
    assert all(torch.equal(t, last[key]) for key, t in team_cases.state(found).items())
    assert len(found.history) == 4


def test_a_team_of_one_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    share = ALONE.share(torch.arange(3), generator)
    assert (share.q.tolist(), share.weight) == ([0, 1, 2], 1.0)
    own = torch.Generator().manual_seed(1)
    for _ in range(2):
        assert share.keys().tolist() == keys_for(3, own).tolist()
    assert ALONE.total(2.5) == 2.5
