"""A world of sessions in plain NumPy, in which the truth is known: boredom, influence, leaving.

A user belongs to a query (a segment of users) and is in a state (query, topic of the last click, how tired of it):

    R(x, d) = most quality_d ((1 - pull_z) taste[q, topic_d] + pull_z [topic_d = z]) (1 - boredom [topic_d = z])^tired

`influence`: a click on an item of every other topic pulls the taste there. `boredom`: each click in a row on one topic makes
its items pay less, and a step without a click makes up for one. `leaving`: after a step without a click a user may leave.
Clicks are position-based, at most one in a step; with `several_clicks` every item is clicked by itself, and the one furthest
down moves the state. Switched off, each effect is gone; without all three every step is the same.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandemrank._base.ids import Vocabulary
from tandemrank.clicks.models import examination_curve
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
MOST_TIRED = 3


class SessionWorldConfig(BaseModel):
    """The switches of the world."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    queries: int = Field(default=4, ge=1, le=10_000, description="segments of users")
    items: int = Field(default=200, ge=2, le=100_000, description="items")
    topics: int = Field(default=8, ge=1, le=1000, description="topics of items")
    list_length: int = Field(default=5, ge=1, le=100, description="places of a list, K")
    candidates: int = Field(default=20, ge=1, description="candidates of production's generator, K2")
    steps: int = Field(default=10, ge=1, le=1000, description="steps of a session at most")
    boredom: float = Field(default=0.8, ge=0, le=1, description="what a click takes from its topic")
    influence: float = Field(default=0.8, ge=0, le=1, description="how far a click pulls the taste to its topic")
    leaving: float = Field(default=0.3, ge=0, le=1, description="chance to leave after a step without a click")
    several_clicks: bool = Field(default=False, description="whether a step may have several clicks")
    sharpness: float = Field(default=3.0, ge=0, le=100, description="how well production's scores tell relevance")

    @model_validator(mode="after")
    def _fits(self) -> "SessionWorldConfig":
        if not self.list_length <= self.candidates <= self.items or self.topics > self.items:
            raise ValueError("expected list_length <= candidates <= items, and at most as many topics as items")
        return self


@dataclass(frozen=True)
class SessionWorld:
    """The world of a seed. States are numbered query by query: nothing clicked yet, then (topic, tired).

    Shapes: topic, quality [D]; taste [queries, topics].
    """

    config: SessionWorldConfig
    topic: Whole
    quality: Floats
    taste: Floats

    @staticmethod
    def of(config: SessionWorldConfig, seed: int = 0) -> "SessionWorld":
        rng = np.random.default_rng(seed)
        topic = np.arange(config.items) % config.topics
        quality = rng.beta(4, 2, config.items)
        taste = rng.dirichlet(np.full(config.topics, 5.0), config.queries)
        return SessionWorld(config, topic, quality, taste / taste.max(1, keepdims=True))

    @cached_property
    def theta(self) -> Floats:
        """The examination curve.  Shapes: -> [K]."""
        return examination_curve(self.config.list_length)

    @property
    def each(self) -> int:
        """States of a query."""
        return 1 + self.config.topics * MOST_TIRED

    @cached_property
    def state_ids(self) -> pl.Series:
        """As logs have them: query|topic|tired."""
        inner = ["|", *(f"{z}|{k}" for z in range(self.config.topics) for k in range(1, MOST_TIRED + 1))]
        return pl.Series("state", [f"{q}|{one}" for q in range(self.config.queries) for one in inner])

    @cached_property
    def item_ids(self) -> pl.Series:
        """Whole numbers."""
        return pl.Series("item_id", np.arange(self.config.items))

    def parts_of(self, state: Whole) -> tuple[Whole, Whole, Whole]:
        """Query, topic of the last click (-1: none) and how tired.  Shapes: [n] -> [n] each."""
        query, inner = state // self.each, state % self.each - 1
        return query, np.where(inner < 0, -1, inner // MOST_TIRED), np.where(inner < 0, 0, inner % MOST_TIRED + 1)

    def relevance(self, state: Whole, item: Whole) -> Floats:
        """R of items in states, whose shapes go together."""
        c = self.config
        query, last, tired = self.parts_of(state)
        z = self.topic[item]
        pull = np.where((last >= 0) & (last % 2 == 1), c.influence, 0.0)
        same = z == last
        most = 1.0 if c.several_clicks else 0.95 / self.theta.sum()
        taste = (1 - pull) * self.taste[query, z] + pull * same
        found: Floats = most * self.quality[item] * taste * np.where(same, (1 - c.boredom) ** tired, 1.0)
        return found

    def after(self, state: Whole, item: Whole) -> Whole:
        """The next state, after a click on an item or on none (-1).  Shapes: [n], [n] -> [n]."""
        if not self.config.boredom and not self.config.influence:
            return state
        query, last, tired = self.parts_of(state)
        z = np.where(item >= 0, self.topic[item], last)
        tired = np.where(item < 0, tired - 1, np.where(z == last, np.minimum(tired + 1, MOST_TIRED), 1))
        return query * self.each + np.where(tired <= 0, 0, 1 + z * MOST_TIRED + tired - 1)

    def production(self, seed: int = 0) -> TwoStagePolicy:
        """Two stages that know the query and not the state, each with an error of its own."""
        c, rng = self.config, np.random.default_rng([seed, 1])
        start = np.arange(c.queries) * self.each
        R = self.relevance(start[:, None], np.arange(c.items)[None, :])
        known = c.sharpness * (R / R.max(1, keepdims=True) - 0.5)
        stages = [GivenScores(known + rng.normal(0, 0.5, R.shape)) for _ in range(2)]
        ids = Vocabulary(pl.Series("query_id", np.arange(c.queries)), self.item_ids)
        return TwoStagePolicy(stages[0], stages[1], c.candidates, c.list_length, ids)
