"""The world of sessions for gymnasium."""

from itertools import pairwise

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from session_worlds import SMALL, relevance  # noqa: E402
from tandemrank.errors import InputError  # noqa: E402
from tandemrank.sessions.environment import SessionEnvironment  # noqa: E402
from tandemrank.sessions.simulation import SessionWorldConfig  # noqa: E402


def played(environment: SessionEnvironment, seed: int) -> list[tuple[int, float]]:
    """The states and rewards of one episode of the best lists."""
    R = relevance(environment.world)
    state, _ = environment.reset(seed=seed)
    found, over = [], False
    while not over:
        before = int(state)
        state, reward, left, cut, _ = environment.step(np.argsort(-R[before])[:3])
        found.append((before, reward))
        over = left or cut
    return found


def test_an_episode_is_a_session() -> None:
    environment = SessionEnvironment(SessionWorldConfig(**SMALL))
    episodes = [played(environment, seed) for seed in range(60)]
    assert played(environment, 7) == episodes[7]
    assert max(map(len, episodes)) == 4
    assert min(map(len, episodes)) == 1
    assert {reward for one in episodes for _, reward in one} == {0.0, 1.0}
    assert all(one[0][0] % environment.world.each == 0 for one in episodes)  # nothing is clicked at the start
    for one in episodes:
        for (state, reward), (after, _) in pairwise(one):
            assert reward == 0 or after % environment.world.each > 0
            assert state // environment.world.each == after // environment.world.each


def test_gymnasium_finds_nothing_wrong_with_it_but_lists_of_one_item_twice() -> None:
    environment = SessionEnvironment(SessionWorldConfig(**SMALL))
    assert environment.observation_space.n == 26
    assert environment.action_space.shape == (3,)
    environment.reset(seed=0)
    for wrong in ([1, 1, 2], [1, 2], [1, 2, 99]):
        with pytest.raises(InputError, match="different items"):
            environment.step(np.array(wrong))
