"""MovieLens-1M as a world of `learners.py`: production knows its vectors, clicks are the paper's, the judge is NDCG@10.

Features: gender, age, occupation and region of users; year and genres of movies.
"""

import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from peers import Evidence, Scores
from tandemrank._base.random import derive
from tandemrank.beliefs.features import Features
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.evaluation import ndcg, ndcg_of_new
from tandemrank.experiments.world import World, build_world, impressions, load_task
from tandemrank.logs import counting
from tandemrank.training.data import Besides, prepare

ROWS = 500  # users that are scored at once


@dataclass(frozen=True)
class MovieLens:
    """A log of N impressions of the world of one run."""

    path: Path
    N: int
    run: int

    @cached_property
    def config(self) -> ExperimentConfig:
        """The paper's experiment, with our defaults."""
        return ExperimentConfig(data=str(self.path))

    @cached_property
    def seed(self) -> int:
        """As `tandemrank table --seed 0` has it."""
        return derive(0, "run", self.run)

    @cached_property
    def world(self) -> World:
        """Production and its users."""
        return build_world(load_task(self.config), self.config, self.seed)

    @cached_property
    def log(self) -> Evidence:
        """The log as peers take it."""
        parts = list(impressions(self.world, self.N, self.seed))
        query, items, clicks = (
            np.concatenate([getattr(p, name) for p in parts]).astype(np.int64) for name in ("query", "items", "clicks")
        )
        task = self.world.task
        return Evidence(query=query, items=items, clicks=clicks, theta=self.world.theta, Q=task.Q, D=task.D)

    def features(self) -> Features:
        """Of users and movies."""
        with zipfile.ZipFile(self.path) as archive:
            users, movies = (
                [line.split("::") for line in archive.read(f"ml-1m/{name}.dat").decode("latin-1").splitlines()]
                for name in ("users", "movies")
            )
        of_users = {"gender": 1, "age": 2, "occupation": 3, "region": 4}
        query = pl.DataFrame(
            {"query_id": [int(row[0]) for row in users]}
            | {
                name: [f"{name} {row[k][0] if name == 'region' else row[k]}" for row in users]
                for name, k in of_users.items()
            }
        )
        genres = sorted({genre for row in movies for genre in row[2].split("|")})
        item = pl.DataFrame(
            {"item_id": [int(row[0]) for row in movies], "year": [int(row[1][-5:-1]) for row in movies]}
            | {genre: [int(genre in row[2].split("|")) for row in movies] for genre in genres}
        )
        return Features.of(self.world.task.vocabulary, query=query, item=item)

    def believed(self, *, features: bool) -> Scores:
        """The beliefs, with production's vectors as their prior, as `learn --logging-policy` has them."""
        feedback = counting.from_impressions(impressions(self.world, self.N, self.seed), self.world.task.vocabulary)
        found = prepare(
            feedback,
            self.config.learning,
            Besides(features=self.features() if features else None),
            needs_beliefs=True,
            logging_policy=self.world.production,
            seed=derive(self.seed, "rho_0") % 2**32,
        ).beliefs
        assert found is not None
        return lambda q: found.matrix(q)[:, :-1]

    def judge(self, scores: Scores) -> tuple[float, float]:
        """NDCG@10 of the users who were logged: on all items, and on items that they have not clicked."""
        task, log, K = self.world.task, self.log, len(self.world.theta)
        row, place = np.nonzero(log.clicks)
        clicked = csr_matrix((np.ones(len(row)), (log.query[row], log.items[row, place])), shape=(task.Q, task.D))
        found: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        for q in np.array_split(self.world.q, max(1, len(self.world.q) // ROWS)):
            s = np.array(scores(q), np.float64)
            every = best(s, K)
            s[clicked[q].nonzero()] = -np.inf
            found.append((ndcg(every, q, task.relevance), ndcg_of_new(best(s, K), q, task.relevance, clicked)))
        everything, new = (np.concatenate(x) for x in zip(*found, strict=True))
        return float(np.nanmean(everything)), float(np.nanmean(new))


def best(scores: NDArray[np.float64], K: int) -> NDArray[np.int32]:
    """The K highest of every row.  Shapes: [B, D] -> [B, K]."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :K].astype(np.int32)
