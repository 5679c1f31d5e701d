"""Tuning of peers: by held-out clicks alone; lists of all items, with clicked items first, and of new ones."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from tandemrank._base.config import validated
from tandemrank.errors import LogError
from tandemrank.experiments import tuning
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.peers import PEERS, Evidence, Peer, Scores, Setting
from tandemrank.experiments.trainer import simulate_log
from tandemrank.experiments.tuning import Choice, PeerLog, lists_of, peer_log, tune
from tandemrank.experiments.world import build_world, load_task

CONFIG = validated(ExperimentConfig, {"queries": 60, "items": 40, "rank": 5, "learning": {"list_length": 5}})
WORLD = build_world(load_task(CONFIG), CONFIG, 0)
LOG = peer_log(WORLD, CONFIG, 4000, 0)
K = 5


def test_lists_by_hand() -> None:
    """Scores 5 > 4 > 3 > 2 > 1, the second and the last are clicked: first they come, in their own order, or not at all."""
    clicked = csr_matrix([[0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]])
    found = lists_of(lambda q: np.tile(np.arange(5.0, 0.0, -1.0), (len(q), 1)), np.arange(3), 3, clicked)
    assert found.plain.tolist() == [[0, 1, 2]] * 3
    assert found.clicked_first.tolist() == [[1, 4, 0], [0, 1, 2], [0, 1, 2]]
    assert found.new.tolist() == [[0, 2, 3], [0, 1, 2], [4, -1, -1]]


def test_close_scores_of_clicked_items_keep_their_order() -> None:
    """A large constant on top would round them to ties."""
    s = np.array([[0.1, 0.1 + 1e-6, 0.1 + 2e-6, 0.5]], np.float32)
    found = lists_of(lambda q: s, np.array([0]), 4, csr_matrix([[1, 1, 1, 0]]))
    assert found.clicked_first.tolist() == [[2, 1, 0, 3]]


def shifted(evidence: Evidence, setting: Setting) -> Scores:
    row = np.roll(np.arange(40, 0, -1), int(setting["shift"])).astype(np.float32)
    return lambda q: np.tile(row, (len(q), 1))


def test_tuning_takes_what_held_out_clicks_prefer() -> None:
    """For new items another setting than for all: the judge alone decides."""
    nothing = replace(LOG.part, log=replace(LOG.part.log, clicks=LOG.part.log.clicks * 0))

    def judge(q: np.ndarray, lists: np.ndarray) -> float:
        return float((lists[:, 0] == 3).mean()) if (lists[:, 0] == lists[0, 0]).all() else -1.0

    peer = Peer("shifted", ({"shift": 0}, {"shift": 3}, {"shift": 5}), shifted)
    found = tune(peer, PeerLog(nothing, LOG.whole, judge), WORLD.q, K)
    assert found.choice.setting == {
        "shift": 3,
        "clicked_first": 1.0,
    }  # nothing is clicked: a tie, to which 1 is as good
    assert found.choice.new_setting == {"shift": 3}
    other = tune(peer, PeerLog(LOG.part, LOG.whole, judge), WORLD.q, K)
    assert other.choice.setting == {"shift": 3, "clicked_first": 0.0}
    assert (other.lists[:, 0] == 3).all()
    assert not LOG.whole.binary[WORLD.q.repeat(K), other.new_lists.ravel()].any()


def test_a_known_choice_is_taken_without_asking_held_out_clicks() -> None:
    def judge(q: np.ndarray, lists: np.ndarray) -> float:
        raise AssertionError("held-out clicks were asked")

    peer = Peer("shifted", ({"shift": 0}, {"shift": 3}), shifted)
    known = Choice({"shift": 5, "clicked_first": 0.0}, {"shift": 7})
    found = tune(peer, PeerLog(LOG.part, LOG.whole, judge), WORLD.q, K, known)
    assert (found.choice, found.tuning_seconds) == (known, 0.0)
    assert (found.lists[:, 0] == 5).all()
    clicked = LOG.whole.binary[WORLD.q].toarray() > 0
    unclicked = np.where(clicked, np.inf, (np.arange(40) - 7) % 40)
    assert np.array_equal(found.new_lists[:, 0], unclicked.argmin(1))


def test_the_log_is_that_of_the_trainings_and_its_parts_are_apart() -> None:
    log = simulate_log(WORLD, CONFIG, 4000, 0)
    assert (LOG.whole.binary != (log.clicked > 0)).nnz == 0
    assert LOG.whole.log.N == 4000
    assert pytest.approx(0.85 * 4000, abs=5 * np.sqrt(4000 * 0.85 * 0.15)) == LOG.part.log.N
    for evidence in (LOG.part, LOG.whole):
        assert evidence.halves[0].N + evidence.halves[1].N == evidence.log.N
        assert sum(half.clicks.sum() for half in evidence.halves) == evidence.log.clicks.sum()


def test_tuning_never_sees_the_truth() -> None:
    """With the truth turned round after the log was drawn, every peer shows the same lists."""
    peer = next(peer for peer in PEERS if peer.name == "ridge autoencoder")
    turned = replace(WORLD, task=replace(WORLD.task, relevance=csr_matrix(WORLD.task.relevance[::-1])))
    one, other = (tune(peer, LOG, world.q, K) for world in (WORLD, turned))
    assert np.array_equal(one.lists, other.lists)


def test_too_short_a_log_is_refused() -> None:
    with pytest.raises(LogError, match="not enough clicks to tune peers on"):
        tuning.peer_log(WORLD, CONFIG, 2, 0)
