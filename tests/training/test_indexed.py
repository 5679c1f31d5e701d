"""Training whose draws come from cells of items: as good as exact draws, resumed bit by bit, refused where it is no use."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.gradients import cells
from tandemrank.gradients.products import Products
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import indexed, loop
from tandemrank.training.config import EarlyStopping, TrainingConfig
from tandemrank.training.history import Epoch, lost_share, lost_words
from tandemrank.training.loop import train
from tandemrank.training.team import ALONE

RNG = np.random.default_rng(1)
Q, D = 40, 800
USERS, ITEMS = (RNG.normal(size=(n, 4)).astype(np.float32) for n in (Q, D))
IDS = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
LIKED = csr_matrix((RNG.random((Q, D)) < 0.01).astype(np.float32))
THETA = [1.0, 0.5]


@pytest.fixture
def few(monkeypatch) -> None:
    """Cells of few items, too, and proposals where clocks for all of them would be cheap."""
    monkeypatch.setattr(indexed, "FEWEST", 1)
    monkeypatch.setattr(cells, "EFFORT", 0.0)


def pair() -> TwoStagePolicy:
    return TwoStagePolicy(MatrixFactorisation(USERS, ITEMS), MatrixFactorisation(USERS, ITEMS), 30, 2, IDS)


def value(policy: TwoStagePolicy) -> float:
    return float(policy.utility(LIKED, THETA, samples=100).mean())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("method", ["joint", "independent"])
def test_it_learns_as_much_as_by_exact_draws(method) -> None:
    values, trained = {}, {}
    for race in ("sparse", "indexed"):
        found = [
            train(pair(), LIKED, THETA, TrainingConfig(epochs=6, race=race), method=method, seed=s) for s in (2, 3)
        ]
        values[race], trained[race] = [value(x.policy) for x in found], found
    spread = max(np.std(x) for x in values.values())
    assert np.mean(values["indexed"]) == pytest.approx(np.mean(values["sparse"]), abs=0.02 + 3 * spread)
    assert np.mean(values["indexed"]) > value(pair()) + 0.1
    lost = [epoch.lost_share for epoch in trained["indexed"][0].history]
    assert all(x is not None and 0 <= x < 0.02 for x in lost)
    assert lost_share(trained["indexed"][0].history) == max(lost)
    assert lost_share(trained["sparse"][0].history) is None


@pytest.mark.usefixtures("few")
def test_a_resumed_training_has_the_same_bits(tmp_path, monkeypatch) -> None:
    config = TrainingConfig(epochs=3, race="indexed")
    whole = train(pair(), LIKED, THETA, config, seed=4, checkpoint=tmp_path / "whole.safetensors")
    for after in (1, 2, 4, 7):
        path, seen = tmp_path / f"{after}.safetensors", []

        def stop(state, after=after, seen=seen) -> None:
            seen.append(state.done == 0.0)
            if sum(seen) > after and not seen[-1]:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(pair(), LIKED, THETA, config, seed=4, checkpoint=path, progress=stop)
        again = train(pair(), LIKED, THETA, config, seed=4, checkpoint=path, resume=True)
        for stage in ("generator", "ranker"):
            for a, b in zip(*(getattr(x.policy, stage).parameters() for x in (whole, again)), strict=True):
                assert torch.equal(a, b)
        assert [x.lost_share for x in again.history] == [x.lost_share for x in whole.history]


@pytest.mark.usefixtures("few")
def test_what_a_phase_starts_from_was_not_drawn() -> None:
    config = TrainingConfig(epochs=1, race="indexed", early_stopping=EarlyStopping())
    found = train(pair(), LIKED, THETA, config, seed=1, criterion=value)
    assert all((epoch.lost_share is None) == (epoch.epoch == 0) for epoch in found.history)


def test_cells_follow_their_items_now_and_then(monkeypatch) -> None:
    """And are made anew with each epoch; a stage of its own has cells of its own; scores that are no products have none."""
    index, model, other = indexed.Index(), *(MatrixFactorisation(USERS, ITEMS) for _ in range(2))
    items, means = torch.from_numpy(ITEMS.copy()), []
    for _ in range(2 * indexed.FOLLOW + 1):
        scores = index.on(model, Products(torch.from_numpy(USERS), items))
        assert isinstance(scores, Products)
        means.append(scores.cells.mean)
        items = items + 0.1
    changes = [i for i in range(1, len(means)) if means[i] is not means[i - 1]]
    assert changes == [indexed.FOLLOW, 2 * indexed.FOLLOW]
    assert index.on(other, scores).cells is not scores.cells
    given = torch.zeros(2, 3)
    assert index.on(model, given) is given
    assert indexed.Index().lost_share(ALONE) is None
    made = []
    monkeypatch.setattr(indexed, "FEWEST", 1)
    monkeypatch.setattr(cells, "EFFORT", 0.0)
    monkeypatch.setattr(loop, "Index", lambda: made.append(indexed.Index()) or made[-1])
    train(pair(), LIKED, THETA, TrainingConfig(epochs=2, race="indexed"), method="independent", seed=1)
    assert sum(bool(x.tally.proposed) for x in made) == 4


def test_where_it_is_no_use_it_is_refused() -> None:
    given = GivenScores(USERS @ ITEMS.T)
    for policy, message in (
        (pair(), "at least 100,000 items, and there are 800"),
        (TwoStagePolicy(given, given, 30, 2, IDS), "scores are products; those of a given-scores are none"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(policy, LIKED, THETA, TrainingConfig(race="indexed"))


def test_what_was_lost_is_said() -> None:
    history = [Epoch("both", n, 1.0, 0.5, 0.1, {}, lost) for n, lost in enumerate((None, 0.002, 0.0068))]
    assert "kept away 0.68% of an epoch's arrivals" in (lost_words(history) or "")
    assert lost_words(history[:1]) is None
