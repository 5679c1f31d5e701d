"""What exploration costs and what it buys, before a pair goes live: per strategy, over some of its queries.

    kept              sum_d min(rho(d), rho_best(d)) / sum(theta): the attention that stays where the best list puts it
    clicks            mean over impressions of a log of sum_d rho(d) / rho_0(d) c(d): expected clicks per impression (IPS)
    effective_best    sum(theta) / sum_d rho_best(d)^2 / rho(d): the share of the next log that counts for the best list
    effective_other   the same for a pair that knows nothing (equal scores): how much is learned of everything else

The best list is the most likely one. An effective share of 0 says that no log of this strategy, however long, can answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from tandemrank._base import buckets
from tandemrank._base.ids import Id
from tandemrank._base.random import derive
from tandemrank.errors import LogError
from tandemrank.logs import sources
from tandemrank.serving.exploration import Exploration, parse
from tandemrank.serving.live import LivePair

Floats = NDArray[np.float64]
STRATEGIES = ("trained", "temperature:0.5", "temperature:2.0", "uniform:0.01", "uniform:0.1", "deterministic")
QUERIES, SAMPLES = 100, 50


@dataclass(frozen=True)
class Price:
    """The price tag of one strategy; `clicks` and its standard error are None without a log."""

    strategy: str
    kept: float
    clicks: float | None
    clicks_error: float | None
    effective_best: float
    effective_other: float


@dataclass(frozen=True)
class PriceList:
    """The price tags, and what they rest on."""

    policy: str
    queries: int
    impressions: int
    strategies: tuple[Price, ...]


def price_list(
    live: LivePair,
    theta: Sequence[float],
    *,
    asked: Exploration | None = None,
    log: Sequence[str | Path] = (),
    queries: int = QUERIES,
    seed: int = 0,
) -> PriceList:
    """The price of the usual strategies and of the one that is asked for, over some queries of the pair or of the log."""
    clicks = _clicked(log, live) if log else None
    known = list(live.query_at) if clicks is None else sorted(set(clicks["query_id"]), key=str)
    chosen = [known[n] for n in np.unique(np.linspace(0, len(known) - 1, min(queries, len(known))).astype(int))]
    part = None if clicks is None else clicks.filter(pl.col("query_id").is_in(chosen))
    names = list(dict.fromkeys([*([asked.name] if asked is not None else []), *STRATEGIES]))
    found = tuple(_price(live, parse(name), chosen, part, theta, seed) for name in names)
    return PriceList(live.digest, len(chosen), 0 if part is None else part["row"].n_unique(), found)


def _clicked(paths: Sequence[str | Path], live: LivePair) -> pl.DataFrame:
    """The impressions of a log with propensities, an item a row, of queries that the pair knows."""
    try:
        frame = pl.concat([_read(path) for path in sources.paths(list(paths))])
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
        return pl.read_parquet(here, glob=False, columns=["query_id", "items", "clicks", "propensities"])


def _price(
    live: LivePair, how: Exploration, queries: Sequence[Id], log: pl.DataFrame | None, theta: Sequence[float], seed: int
) -> Price:
    Z = float(np.sum(theta))
    kept, best_share, other_share, gains = [], [], [], []
    for q in queries:
        rho, best, flat = (
            _exposure(live, x, q, theta, seed) for x in (how, parse("deterministic"), parse("uniform:1.0"))
        )
        kept.append(float(np.minimum(rho, best).sum()) / Z)
        best_share.append(_effective(best, rho, Z))
        other_share.append(_effective(flat, rho, Z))
        if log is not None:
            gains.append(_ips(live, log.filter(pl.col("query_id") == q), rho))
    values = np.concatenate(gains) if gains else np.array([])
    return Price(
        how.name, float(np.mean(kept)), float(values.mean()) if len(values) else None,
        float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None,
        float(np.mean(best_share)), float(np.mean(other_share)),
    )  # fmt: skip


def _exposure(live: LivePair, how: Exploration, q: Id, theta: Sequence[float], seed: int) -> Floats:
    curve = torch.tensor(list(theta), dtype=torch.float32)
    s_c, s_r = (torch.from_numpy(s)[None] for s in live.rows(q))
    rho, _ = how.exposure(s_c, s_r, curve, live.K2, samples=SAMPLES, seed=derive(seed, "price", how.name, q))
    return rho


def _effective(wanted: Floats, rho: Floats, Z: float) -> float:
    there = wanted > 0
    if (rho[there] <= 0).any():
        return 0.0
    return min(1.0, Z / float(np.sum(np.square(wanted[there]) / rho[there])))


def _ips(live: LivePair, rows: pl.DataFrame, rho: Floats) -> Floats:
    """sum_d rho(d) / rho_0(d) c(d) of each impression of one query.  Shapes: rho [D] -> [impressions]."""
    at = np.array([live.item_at.get(item, -1) for item in rows["items"]], np.int64)
    terms = np.where(at >= 0, rho[at], 0.0) * rows["clicks"].to_numpy() / rows["propensities"].to_numpy()
    _, place = np.unique(rows["row"].to_numpy(), return_inverse=True)
    return np.bincount(place, weights=terms).astype(np.float64)
