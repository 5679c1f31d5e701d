"""A small world of sessions and policies of it, for the tests."""

from functools import cache

import numpy as np
import polars as pl

from tandemrank._base.ids import Vocabulary
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions import simulation
from tandemrank.sessions.simulation import SessionWorld, SessionWorldConfig

SMALL = {"queries": 2, "items": 16, "topics": 4, "list_length": 3, "candidates": 6, "steps": 4, "sharpness": 1.0}


@cache
def world(**switches) -> SessionWorld:
    return SessionWorld.of(SessionWorldConfig(**{**SMALL, **switches}), 6)


def relevance(of: SessionWorld) -> np.ndarray:
    """R of all states and items."""
    return of.relevance(np.arange(len(of.state_ids))[:, None], np.arange(of.config.items)[None, :])


def by_state(of: SessionWorld, scores: np.ndarray) -> TwoStagePolicy:
    """A policy whose queries are the states of the world, its stages not quite the same."""
    ids = Vocabulary(of.state_ids, of.item_ids)
    generator = GivenScores(scores + np.random.default_rng(5).normal(0, 0.3, scores.shape))
    return TwoStagePolicy(generator, GivenScores(scores), of.config.candidates, of.config.list_length, ids)


@cache
def log(sessions: int = 3000, seed: int = 1, **switches) -> pl.DataFrame:
    """Of production, with propensities."""
    of = world(**switches)
    production = of.production()
    parts = list(simulation.play(production, of, sessions, seed=seed))
    return simulation.log_frame(parts, of, simulation.propensities(production, of))
