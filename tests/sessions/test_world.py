"""The world of sessions: its formula by hand, and its effects one by one."""

import numpy as np
import pytest
from pydantic import ValidationError

from session_worlds import relevance, world
from tandemrank.sessions.world import MOST_TIRED, SessionWorldConfig


def by_hand(of, query: int, last: int, tired: int, item: int) -> float:
    c, z = of.config, item % of.config.topics
    pull = c.influence if last >= 0 and last % 2 == 1 else 0.0
    taste = (1 - pull) * of.taste[query, z] + (pull if z == last else 0.0)
    worn = (1 - c.boredom) ** tired if z == last else 1.0
    return 0.95 / (1 + 1 / 2 + 1 / 3) * of.quality[item] * taste * worn


def test_relevance_and_the_next_state_by_hand() -> None:
    of = world()
    ids = of.state_ids.to_list()
    for state, name in enumerate(ids):
        query, topic, tired = name.split("|")
        last, k = (int(topic), int(tired)) if topic else (-1, 0)
        for item in range(16):
            assert relevance(of)[state, item] == pytest.approx(by_hand(of, int(query), last, k, item), rel=1e-12)
            z = item % 4
            k_next = min(k + 1, MOST_TIRED) if z == last else 1
            assert ids[of.after(np.array([state]), np.array([item]))[0]] == f"{query}|{z}|{k_next}"
        rested = f"{query}|{topic}|{k - 1}" if k > 1 else f"{query}||"
        assert ids[of.after(np.array([state]), np.array([-1]))[0]] == rested
    assert (relevance(of)[:, :3] @ [1, 1 / 2, 1 / 3] <= 1).all()


def test_each_effect_can_be_switched_off() -> None:
    def differs(**switches) -> np.ndarray:
        """Of every state of a query, how far it is from the one without a click."""
        R = relevance(world(**switches))[: world().each]
        return np.abs(R - R[0]).max(1)

    assert (differs()[1:] > 0).all()
    assert (differs(boredom=0.0)[1:4] == 0).all()  # a topic that does not pull
    assert (differs(boredom=0.0)[4:7] > 0).all()
    assert (differs(influence=0.0)[1:] > 0).all()
    assert (differs(boredom=0.0, influence=0.0) == 0).all()
    still = world(boredom=0.0, influence=0.0)
    assert still.after(np.array([0, 13]), np.array([5, -1])).tolist() == [0, 13]


@pytest.mark.parametrize("switches", [{"candidates": 2}, {"candidates": 17}, {"topics": 17}, {"boredom": 1.1}])
def test_what_makes_no_world_is_refused(switches: dict) -> None:
    with pytest.raises(ValidationError):
        SessionWorldConfig(**{**world().config.model_dump(), **switches})
