"""Data sets by name or path (`load`): the embedded synthetic world, MovieLens (`movielens`), own ratings (`ratings`).

What has a name of its own is in `NAMED`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError
from tandemrank.experiments.movielens import RELEASES, download_movielens, movielens
from tandemrank.experiments.ratings import Task, from_ratings, task_of
from tandemrank.experiments.synthetic import synthetic_world


def load(
    data: str | Path = "synthetic",
    *,
    queries: int | None = None,
    items: int | None = None,
    seed: int = 0,
    query_column: str = "user",
    item_column: str = "item",
    rating_column: str = "rating",
    threshold: float | None = None,
    graded: bool = False,
    cache: Path | None = None,
) -> Task:
    """The task that `data` names.

    `data` is "synthetic" (of size `queries` x `items`, from `seed`), "ml-1m" or "ml-100k" (downloaded once, unless a
    file or folder of that name is here), the path of a MovieLens zip or folder, or of a .csv or .parquet file with the
    three columns named; or another name in `NAMED`. `threshold` is 3 unless given; for own ratings it must be given. With
    `graded` what is above it is relevant by the share of the way to the highest rating, else by 1.
    """
    path = Path(data)
    if str(data) != "synthetic" and (queries is not None or items is not None):
        raise ConfigError(
            f"the numbers of queries and items size the synthetic world, but the data is {data}. Leave them out."
        )
    if str(data) == "synthetic" or (str(data) in NAMED and not os.path.exists(path)):
        return NAMED[str(data)](Asked(str(data), queries, items, seed, threshold, graded, cache))
    if os.path.isdir(path) or path.suffix.lower() == ".zip":
        return movielens(path, threshold=3.0 if threshold is None else threshold, graded=graded)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(
            f"unknown data {str(data)!r}: expected {', '.join(map(repr, NAMED))}, "
            "a MovieLens zip or folder, or a .csv or .parquet file of ratings."
        )
    if threshold is None:
        raise ConfigError(
            f"the ratings in {path} need a threshold: a rating above it counts as relevant (--threshold 3)."
        )
    return from_ratings(
        path, query=query_column, item=item_column, rating=rating_column, threshold=threshold, graded=graded
    )


def synthetic(
    queries: int = 6040, items: int = 3706, *, seed: int = 0, threshold: float = 3.0, graded: bool = False
) -> Task:
    """The embedded synthetic world, made to resemble MovieLens-1M; the same for the same seed. Ids count from 1."""
    ratings, known = synthetic_world(queries, items, seed=seed)
    ids = Vocabulary(pl.Series("query_id", np.arange(1, queries + 1)), pl.Series("item_id", np.arange(1, items + 1)))
    tastes = {f"taste {n + 1}": column for n, column in enumerate(known.T)}
    task = task_of("synthetic", ratings, ids, threshold, graded)
    return replace(task, item_features=pl.DataFrame({"item_id": ids.item_ids, **tastes}))


@dataclass(frozen=True)
class Asked:
    """What `load` was asked for by name. `queries` and `items` size the synthetic world; the threshold may be open."""

    name: str
    queries: int | None
    items: int | None
    seed: int
    threshold: float | None
    graded: bool
    cache: Path | None

    @property
    def stars(self) -> float:
        """The threshold, by default more than three stars."""
        return 3.0 if self.threshold is None else self.threshold


def _synthetic(asked: Asked) -> Task:
    sizes = {"queries": asked.queries, "items": asked.items}
    given = {name: n for name, n in sizes.items() if n is not None}
    return synthetic(**given, seed=asked.seed, threshold=asked.stars, graded=asked.graded)


def _downloaded(asked: Asked) -> Task:
    path = download_movielens(asked.name, cache=asked.cache)
    return movielens(path, threshold=asked.stars, graded=asked.graded)


# Every data set with a name of its own. A file or folder of that name, if there is one, is meant instead.
NAMED: dict[str, Callable[[Asked], Task]] = {"synthetic": _synthetic, **dict.fromkeys(RELEASES, _downloaded)}
