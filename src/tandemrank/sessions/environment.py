"""The world of sessions as an environment of gymnasium (the extra `gym`), for others to play against.

An observation is the number of the state, an action a list of K items, the reward its clicks. Who leaves ends the episode;
after the most steps it is cut off.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank.errors import InputError
from tandemrank.sessions.simulation import SessionWorld, SessionWorldConfig, clicked


class SessionEnvironment(gymnasium.Env[np.int64, NDArray[np.int64]]):
    """One user at a time."""

    def __init__(self, config: SessionWorldConfig | None = None, *, seed: int = 0) -> None:
        self.world = SessionWorld.of(config or SessionWorldConfig(), seed)
        c = self.world.config
        self.observation_space = spaces.Discrete(len(self.world.state_ids))
        self.action_space = spaces.MultiDiscrete(np.full(c.list_length, c.items))
        self._state, self._step = np.zeros(1, np.int64), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Another user."""
        super().reset(seed=seed)
        self._state = self.np_random.integers(self.world.config.queries, size=1) * self.world.each
        self._step = 0
        return self._state[0], {}

    def step(self, action: NDArray[np.int64]) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Shows a list: its clicks, whether the user left, and whether the session was cut off."""
        items = np.asarray(action, np.int32)[None]
        if not self.action_space.contains(items[0].astype(np.int64)) or len(set(items[0].tolist())) < items.shape[1]:
            raise InputError(f"expected a list of {items.shape[1]} different items; got {items[0].tolist()}.")
        keys = self.np_random.integers(2**63, size=1).astype(np.uint64)
        clicks, moved, stays = clicked(self.world, self._state, items, random.mix(keys))
        self._state, self._step = self.world.after(self._state, moved), self._step + 1
        over = self._step >= self.world.config.steps
        return self._state[0], float(clicks.sum()), not bool(stays[0]), over, {"clicks": clicks[0]}
