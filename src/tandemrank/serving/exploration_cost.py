"""What exploration costs and what it buys, before a pair goes live: per strategy, over some of its queries.

    kept              sum_d min(rho(d), rho_best(d)) / sum(theta): the attention that stays where the best list puts it
    clicks            mean over impressions of a log of sum_d rho(d) / rho_0(d) c(d): expected clicks per impression (IPS)
    effective_best    sum(theta) / sum_d rho_best(d)^2 / rho(d): the share of the next log that counts for the best list
    effective_other   the same for a pair that knows nothing (equal scores): how much is learned of everything else

The best list is the most likely one. An effective share of 0 says that no log of this strategy, however long, can answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from tandemrank._base import buckets, checksum
from tandemrank._base.ids import Id
from tandemrank._base.random import derive
from tandemrank.errors import LogError
from tandemrank.logs import sources
from tandemrank.serving.exploration import Exploration, parse
from tandemrank.serving.live_policy import LivePolicy

Floats = NDArray[np.float64]
STRATEGIES = ("trained", "temperature:0.5", "temperature:2.0", "uniform:0.01", "uniform:0.1", "deterministic")
QUERIES, SAMPLES = 100, 50
OTHERS = 200  # items that stand for all, where the re-ranker sees candidates alone


@dataclass(frozen=True)
class StrategyCost:
    """The price tag of one strategy; `clicks` and its standard error are None without a log."""

    strategy: str
    kept: float
    clicks: float | None
    clicks_error: float | None
    effective_best: float
    effective_other: float


@dataclass(frozen=True)
class ExplorationCosts:
    """The price tags, and what they rest on."""

    policy: str
    queries: int
    impressions: int
    strategies: tuple[StrategyCost, ...]


def exploration_costs(
    live: LivePolicy,
    theta: Sequence[float],
    *,
    asked: Exploration | None = None,
    log: Sequence[str | Path] = (),
    queries: int = QUERIES,
    seed: int = 0,
) -> ExplorationCosts:
    """The price of the usual strategies and of the one that is asked for, over some queries of the pair or of the log."""
    clicks = _clicked(log, live) if log else None
    known = list(live.query_at) if clicks is None else sorted(set(clicks["query_id"]), key=str)
    chosen = [known[n] for n in np.unique(np.linspace(0, len(known) - 1, min(queries, len(known))).astype(int))]
    part = None if clicks is None else clicks.filter(pl.col("query_id").is_in(chosen))
    names = list(dict.fromkeys([*([asked.name] if asked is not None else []), *STRATEGIES]))
    rows = {name: list[_Row]() for name in names}
    for q in chosen:
        shown = None if part is None else part.filter(pl.col("query_id") == q)
        view = _view(live, q, shown, theta, seed)
        for name in names:
            rows[name].append(_row(live, view, parse(name), shown, float(np.sum(theta))))
    found = tuple(_cost(name, rows[name]) for name in names)
    return ExplorationCosts(live.digest, len(chosen), 0 if part is None else part["row"].n_unique(), found)


def _clicked(paths: Sequence[str | Path], live: LivePolicy) -> pl.DataFrame:
    """The impressions of a log with propensities, an item a row, of queries that the pair knows."""
    try:
        frame = pl.concat([_read(path) for path in sources.paths(list(paths))])
    except LogError:
        raise
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise LogError(
            f"cannot price by {', '.join(map(str, paths))}: {str(error).splitlines()[0]}. Expected Parquet files with "
            f"query_id, items, clicks and propensities, as a server writes them."
        ) from error
    known = frame.with_row_index("row").filter(pl.col("query_id").is_in(list(live.query_at)))
    if not len(known):
        raise LogError("the log has no impression of a query that the pair knows. Give a log of the same system.")
    return known.explode("items", "clicks", "propensities")


def _read(path: str | Path) -> pl.DataFrame:
    with buckets.local(path) as here:
        if damage := checksum.problem(Path(here)):
            raise LogError(f"{path} {damage}")
        return pl.read_parquet(here, glob=False, columns=["query_id", "items", "clicks", "propensities"])


@dataclass(frozen=True)
class _View:
    """The items of a query that a price depends on, and their exposures by a strategy.

    `best`, `flat`: exposure by the most likely list, and by equal scores. `count`: how many items each stands for in a sum over
    all.  Shapes: documents, best, flat, count [n].
    """

    documents: NDArray[np.int64]
    best: Floats
    flat: Floats
    count: Floats
    exposure: Callable[[Exploration], Floats]


def _view(live: LivePolicy, q: Id, shown: pl.DataFrame | None, theta: Sequence[float], seed: int) -> _View:
    """All items; or, where the re-ranker sees candidates alone, those of the best list, of the log, and a sample of all."""
    curve, best, flat = torch.tensor(list(theta), dtype=torch.float32), parse("deterministic"), parse("uniform:1.0")
    scores = live.scores(q)

    def options(how: Exploration) -> dict[str, int]:
        return {"samples": SAMPLES, "seed": derive(seed, "price", how.name, q)}

    if not live.ranks_candidates:
        s_c, s_r = (torch.from_numpy(s)[None] for s in scores.rows())

        def of_all(how: Exploration) -> Floats:
            return how.exposure(s_c, s_r, curve, live.K2, **options(how))[0]

        D = s_c.shape[1]
        return _View(np.arange(D), of_all(best), of_all(flat), np.ones(D), of_all)
    ranker, row = scores.remembering(), scores.s_c
    M = len(row)
    items = [] if shown is None else [live.item_at[item] for item in shown["items"] if item in live.item_at]
    listed = best.draw_one(row, ranker, live.K2, len(theta), 0)
    others = np.random.default_rng(derive(seed, "price", "others", q)).permutation(M)[:OTHERS]
    at = np.unique(np.concatenate([listed[listed >= 0], items, others])).astype(np.int64)

    def of_some(how: Exploration) -> Floats:
        return how.exposure_of(row, ranker, at, curve, live.K2, **options(how))[0]

    count = np.where(np.isin(at, others), M / len(others), 0.0)
    equal = np.full(len(at), float(np.sum(theta[:M])) / M)
    return _View(at, of_some(best), equal, count, of_some)


class _Row(NamedTuple):
    """What a strategy does with one query; `gains` of each impression of the log."""

    kept: float
    effective_best: float
    effective_other: float
    gains: Floats


def _row(live: LivePolicy, view: _View, how: Exploration, shown: pl.DataFrame | None, Z: float) -> _Row:
    rho = view.exposure(how)
    gains = np.zeros(0) if shown is None else _ips(live, shown, view.documents, rho)
    kept = float(np.minimum(rho, view.best).sum()) / Z
    ones = np.ones(len(rho))
    return _Row(kept, _effective(view.best, rho, ones, Z), _effective(view.flat, rho, view.count, Z), gains)


def _cost(name: str, rows: Sequence[_Row]) -> StrategyCost:
    values = np.concatenate([row.gains for row in rows])
    return StrategyCost(
        name, float(np.mean([row.kept for row in rows])), float(values.mean()) if len(values) else None,
        float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None,
        float(np.mean([row.effective_best for row in rows])), float(np.mean([row.effective_other for row in rows])),
    )  # fmt: skip


def _effective(wanted: Floats, rho: Floats, count: Floats, Z: float) -> float:
    there = (wanted > 0) & (count > 0)
    if (rho[there] <= 0).any():
        return 0.0
    return min(1.0, Z / float(np.sum(count[there] * np.square(wanted[there]) / rho[there])))


def _ips(live: LivePolicy, rows: pl.DataFrame, documents: NDArray[np.int64], rho: Floats) -> Floats:
    """sum_d rho(d) / rho_0(d) c(d) of each impression of one query.  Shapes: documents, rho [n] -> [impressions]."""
    item = np.array([live.item_at.get(item, -1) for item in rows["items"]], np.int64)
    at = np.minimum(np.searchsorted(documents, item), len(documents) - 1)
    terms = np.where(documents[at] == item, rho[at], 0.0) * rows["clicks"].to_numpy() / rows["propensities"].to_numpy()
    _, place = np.unique(rows["row"].to_numpy(), return_inverse=True)
    return np.bincount(place, weights=terms).astype(np.float64)
