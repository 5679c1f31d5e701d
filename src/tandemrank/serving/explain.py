"""A policy for people, before or while it is live: what it makes of a query, and what exploration costs and buys.

A query: the generator's candidates, the re-ranker's order, the exposure. Exploration, per strategy, over some queries:

    kept              sum_d min(rho(d), rho_best(d)) / sum(theta): the attention that stays where the best list puts it
    clicks            mean over impressions of a log of sum_d rho(d) / rho_0(d) c(d): expected clicks per impression (IPS)
    effective_best    sum(theta) / sum_d rho_best(d)^2 / rho(d): the share of the next log that counts for the best list
    effective_other   the same for a policy that knows nothing (equal scores): how much is learned of everything else

The best list is the most likely one. An effective share of 0 says that no log of this strategy, however long, can answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from tandemrank._base.ids import Id
from tandemrank._base.random import derive
from tandemrank.errors import LogError
from tandemrank.logs import sources
from tandemrank.policies.features import FeatureValues
from tandemrank.serving.drawing import Exploration, parse
from tandemrank.serving.live_policy import LivePolicy, Source, as_kind
from tandemrank.serving.sealing import read_segment

Floats = NDArray[np.float64]
BEST = Exploration("deterministic")
SAMPLES = 50
SHOWN = 20  # items of an explained query
FEW = 10  # samples of the race, where each asks a heavy re-ranker about K2 items
STRATEGIES = ("trained", "temperature:0.5", "temperature:2.0", "uniform:0.01", "uniform:0.1", "deterministic")
QUERIES = 100
OTHERS = 200  # items that stand for all, where the re-ranker sees candidates alone

# --- a query ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExplainedItem:
    """An item: its scores, its rank by the generator, its place in the most likely list, and its exposure."""

    item: Id
    generator: float
    generator_rank: int
    ranker: float
    place: int | None
    exposure: float


@dataclass(frozen=True)
class Explained:
    """A policy's view of a query: of its most likely candidates those with the most exposure, and its most likely list.

    `others_exposure`: of all items that are not listed; where lists are drawn by chance others are candidates at times.
    """

    policy: str
    folder: str
    source: Source
    candidates_total: int
    K2: int
    candidates: tuple[ExplainedItem, ...]
    others_exposure: float


def explain(
    live: LivePolicy, query_id: Id | None, features: FeatureValues | None, how: Exploration, theta: Sequence[float]
) -> Explained:
    """What a policy makes of a query; nothing is logged, as nobody saw a list."""
    query = None if query_id is None else as_kind(query_id, live.query_kind, "query")
    scores = live.scores(query, features)
    s_c, s_r = scores.s_c, scores.remembering()
    place = {int(d): k + 1 for k, d in enumerate(BEST.draw(s_c, s_r, live.K2, live.K, 0)) if d >= 0}
    order = np.argsort(-s_c, kind="stable")[: live.K2]
    generator_rank = {int(d): n + 1 for n, d in enumerate(order)}
    # Where the re-ranker sees candidates alone, those of the generator's first ones that people look at.
    looked = np.union1d(order[:SHOWN], list(place)) if live.ranks_candidates else order
    documents = np.sort(looked).astype(np.int64)
    curve, samples = torch.tensor(list(theta), dtype=torch.float32), FEW if live.ranks_candidates else SAMPLES
    rho, _ = how.exposure(s_c, s_r, documents, curve, live.K2, samples=samples, seed=0)
    second = s_r[documents] if isinstance(s_r, np.ndarray) else s_r(documents.astype(np.int32))
    row = {int(d): n for n, d in enumerate(documents)}
    most = documents[np.argsort(-rho, kind="stable")[:SHOWN]]
    found = tuple(
        ExplainedItem(
            item=live.items[d],
            generator=float(s_c[d]),
            generator_rank=generator_rank[d],
            ranker=float(second[row[d]]),
            place=place.get(d),
            exposure=float(rho[row[d]]),
        )
        for d in dict.fromkeys([*place, *map(int, most)])
    )
    return Explained(
        policy=live.digest,
        folder=live.name,
        source=live.source(query, features),
        candidates_total=len(live.items),
        K2=live.K2,
        candidates=found,
        others_exposure=max(0.0, float(curve[: len(place)].sum()) - sum(one.exposure for one in found)),
    )


# --- exploration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StrategyCost:
    """What one strategy costs and buys; `clicks` and its standard error are None without a log."""

    strategy: str
    kept: float
    clicks: float | None
    clicks_error: float | None
    effective_best: float
    effective_other: float


@dataclass(frozen=True)
class ExplorationCosts:
    """The costs of strategies, and how much they were measured on."""

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
    """The costs of the usual strategies and of the one asked for, over some queries of the policy or of the log."""
    clicks = _clicked(log, live) if log else None
    known = list(live.query_at) if clicks is None else sorted(set(clicks["query_id"]), key=str)
    chosen = [known[n] for n in np.unique(np.linspace(0, len(known) - 1, min(queries, len(known))).astype(int))]
    part = None if clicks is None else clicks.filter(pl.col("query_id").is_in(chosen))
    names = list(dict.fromkeys([*([asked.name] if asked is not None else []), *STRATEGIES]))
    rows = {name: list[_QueryCost]() for name in names}
    for q in chosen:
        shown = None if part is None else part.filter(pl.col("query_id") == q)
        for name, found in zip(names, _query_costs(live, q, names, shown, theta, seed), strict=True):
            rows[name].append(found)
    return ExplorationCosts(
        policy=live.digest,
        queries=len(chosen),
        impressions=0 if part is None else part["row"].n_unique(),
        strategies=tuple(_mean_cost(name, rows[name]) for name in names),
    )


def _clicked(paths: Sequence[str | Path], live: LivePolicy) -> pl.DataFrame:
    """The impressions of a log with propensities, an item a row, of queries that the policy knows."""
    columns = ["query_id", "items", "clicks", "propensities"]
    try:
        frame = pl.concat([read_segment(path, columns) for path in sources.paths(list(paths))])
    except pl.exceptions.PolarsError as error:
        raise LogError(
            f"{', '.join(map(str, paths))}: {str(error).splitlines()[0]}. Give segments of one log."
        ) from error
    known = frame.with_row_index("row").filter(pl.col("query_id").is_in(list(live.query_at)))
    if not len(known):
        raise LogError("the log has no impression of a query that the policy knows. Give a log of the same system.")
    return known.explode("items", "clicks", "propensities")


class _QueryCost(NamedTuple):
    """What a strategy does with one query; `gains` of each impression of the log."""

    kept: float
    effective_best: float
    effective_other: float
    gains: Floats


def _query_costs(
    live: LivePolicy, q: Id, names: Sequence[str], shown: pl.DataFrame | None, theta: Sequence[float], seed: int
) -> list[_QueryCost]:
    """Of each strategy."""
    curve, Z = torch.tensor(list(theta), dtype=torch.float32), float(np.sum(theta))
    scores = live.scores(q)
    s_c, s_r = scores.s_c, scores.remembering()
    best_list = BEST.draw(s_c, s_r, live.K2, len(theta), 0)
    logged = [] if shown is None else [live.item_at[item] for item in shown["items"] if item in live.item_at]
    documents, count = _looked_at(live, [*best_list[best_list >= 0], *logged], derive(seed, "cost", "others", q))
    best, _ = BEST.exposure(s_c, s_r, documents, curve, live.K2, samples=1, seed=0)
    equal = np.full(len(documents), float(np.sum(theta[: len(s_c)])) / len(s_c))
    found = []
    for name in names:
        options = {"samples": SAMPLES, "seed": derive(seed, "cost", name, q)}
        rho, _ = parse(name).exposure(s_c, s_r, documents, curve, live.K2, **options)
        found.append(
            _QueryCost(
                kept=float(np.minimum(rho, best).sum()) / Z,
                effective_best=_effective(best, rho, np.ones(len(rho)), Z),
                effective_other=_effective(equal, rho, count, Z),
                gains=np.zeros(0) if shown is None else _ips(live, shown, documents, rho),
            )
        )
    return found


def _looked_at(live: LivePolicy, needed: Sequence[int], seed: int) -> tuple[NDArray[np.int64], Floats]:
    """The items that a cost is computed by, and how many each stands for in a sum over all.

    All items; or, where the re-ranker sees candidates alone, those that are needed and a sample of all.  Shapes: [n], [n].
    """
    D = len(live.items)
    if not live.ranks_candidates:
        return np.arange(D), np.ones(D)
    others = np.random.default_rng(seed).permutation(D)[:OTHERS]
    documents = np.unique(np.concatenate([needed, others])).astype(np.int64)
    return documents, np.where(np.isin(documents, others), D / len(others), 0.0)


def _mean_cost(name: str, rows: Sequence[_QueryCost]) -> StrategyCost:
    gains = np.concatenate([row.gains for row in rows])
    return StrategyCost(
        strategy=name,
        kept=float(np.mean([row.kept for row in rows])),
        clicks=float(gains.mean()) if len(gains) else None,
        clicks_error=float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else None,
        effective_best=float(np.mean([row.effective_best for row in rows])),
        effective_other=float(np.mean([row.effective_other for row in rows])),
    )


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
