"""The worlds of `truth.py`: each makes a log with an independent simulator, asks the package, and knows the truth.

A world takes a seed and returns `value`, `low`, `high`, `error`, `bound`, `verdict` and `truth`; of the difference to
production the same under `gain`; the `call` of a decision; and other numbers under `more`.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import tandemrank as tr
from independent import adaptive, simulator, worlds
from tandemrank.logs.sources import during
from tandemrank.offpolicy.comparison import Comparison
from tandemrank.offpolicy.values import Value

SIZES = {"sparse": (30_000, 7_650), "medium": (30_000, 1_490), "large": (150_000, 1_490), "tiny": (2_000, 100)}
SEARCH = (200_000, 40_000, 17_000)  # impressions, queries, items: about 30,000 and 16,500 of them come up
DRAWS = 30_000  # lists that the truth of a learned policy rests on, at least one of each query: an error of 0.2%
SMALL = {"queries": 100, "items": 50, "K": 5, "K2": 15}
Result = dict[str, Any]


# --- what is promised -------------------------------------------------------------------------------------------------


def promised(value: Value, truth: float) -> Result:
    """A value beside its truth."""
    low, high = value.interval
    return {
        "value": value.value,
        "low": low,
        "high": high,
        "error": value.standard_error,
        "bound": value.lower_bound,
        "verdict": str(value.verdict),
        "truth": truth,
    }


def gained(found: Comparison, truth: float) -> Result:
    """A difference to production beside its truth."""
    low, high = found.interval
    return {"value": found.difference, "low": low, "high": high, "bound": found.lower_bound, "truth": truth}


def frame_of(query: np.ndarray, items: np.ndarray, clicks: np.ndarray, **more: np.ndarray) -> pl.DataFrame:
    """A log as the package reads it; `more`: columns of impressions, or of shown items."""
    lists = {"items": items, "clicks": clicks} | {name: x for name, x in more.items() if x.ndim == 2}
    others = {name: x for name, x in more.items() if x.ndim == 1}
    return pl.DataFrame(
        {"query_id": query, **{name: pl.Series(x).arr.to_list() for name, x in lists.items()}, **others}
    )


def policy_of(s_c: np.ndarray, s_r: np.ndarray, *, K2: int, K: int) -> tr.TwoStagePolicy:
    """A policy by its scores of all queries and items, which are numbered.  Shapes: s_c, s_r [Q, D]."""
    q, d = (x.ravel() for x in np.meshgrid(*map(np.arange, s_c.shape), indexing="ij"))
    scores = {"query_id": q, "item_id": d, "candidate_score": s_c.ravel(), "ranker_score": s_r.ravel()}
    return tr.policies.outside.policy_from_scores(pl.DataFrame(scores), K2=K2, K=K)


def scores_of(policy: tr.TwoStagePolicy, D: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The queries that a policy knows, and its scores of all D items of the world; what it does not know is never shown."""
    q, items = (ids.to_numpy() for ids in (policy.vocabulary.query_ids, policy.vocabulary.item_ids))
    s_c = np.full((len(q), D), -1e9)
    s_r = s_c.copy()
    for rows, candidate, ranker in policy.batches():
        s_c[rows[:, None], items], s_r[rows[:, None], items] = candidate.numpy(), ranker.numpy()
    return q, s_c, s_r


# --- policies that are learned ----------------------------------------------------------------------------------------


def learned_on(w: worlds.World, seed: int, log: pl.DataFrame | None = None, **switches: Any) -> Result:
    """A policy that is learned from the log of a world, in the order of time, its curve known: promises and truths."""
    log = frame_of(w.query, w.items, w.clicks, timestamp=np.arange(float(len(w.query)))) if log is None else log
    config = {"examination": tuple(w.theta), "candidates": min(25, len(np.unique(w.items)))} | switches
    learned = tr.learn(log, tr.LearningConfig(**config), seed=seed)
    [method] = learned.values
    value, policy = learned.values[method], learned.policy
    times = value.estimate.denominator
    truth, live = true_value(w, policy, times, seed), production_value(w, policy, times, seed)
    return {
        **promised(value, truth),
        "gain": gained(learned.differences[0].comparison, truth - live),
        "more": {"gain_of_production": truth / live - 1, "stays": float(learned.trained[method].stays)},
    }


def true_value(w: worlds.World, policy: tr.TwoStagePolicy, times: np.ndarray, seed: int) -> float:
    """Expected clicks of drawn lists, queries as often as they came.  Shapes: times [queries of the policy]."""
    q, s_c, s_r = scores_of(policy, w.R.shape[1])
    rows = np.random.default_rng(seed).choice(len(q), DRAWS, p=times / times.sum())
    lists = simulator.draw(s_c, s_r, rows, policy.K2, policy.K, np.random.default_rng([seed, 1]))
    return float(worlds.expected_clicks(w, q[rows], lists).mean())


def production_value(w: worlds.World, policy: tr.TwoStagePolicy, times: np.ndarray, seed: int) -> float:
    """The same of production's own lists."""
    q = policy.vocabulary.query_ids.to_numpy()
    rows = q[np.random.default_rng(seed).choice(len(q), DRAWS, p=times / times.sum())]
    lists = worlds.shown(w, rows, np.random.default_rng([seed, 2]))
    return float(worlds.expected_clicks(w, rows, lists).mean())


def graded(seed: int, n: int, *, trust: float = 0.0, stop: bool = False, **switches: Any) -> worlds.World:
    """A small shop with graded relevance, and its log."""
    rng = np.random.default_rng(seed)
    w = worlds.graded("shop", rng, **SMALL | {"knows": 0.4, "middle": -1.2} | switches)
    return worlds.logged(w, n, rng, trust=trust, stop=stop)


def drift(seed: int) -> worlds.World:
    """Popularity and tastes change half way."""
    before, after = graded(seed, 6_000), graded(seed + 500, 6_000)
    mixed = 0.4 * np.log(before.R / (0.75 - before.R)) + 0.75 * np.log(after.R / (0.75 - after.R))
    second = worlds.logged(replace(before, R=0.75 * worlds.sigmoid(mixed)), 6_000, np.random.default_rng([seed, 1]))
    both = {name: np.concatenate([getattr(x, name) for x in (before, second)]) for name in ("query", "items", "clicks")}
    return replace(second, **both)


def pools(seed: int, *, queries: int = 2_000, items: int = 2_000, n: int = 80_000, pool: int = 50) -> worlds.World:
    """Every query has a pool of items that is always the same, drawn by popularity; what is outside is less relevant."""
    rng = np.random.default_rng(seed)
    w = worlds.graded("pools", rng, queries=queries, items=items, K2=pool, knows=0.5, middle=-1.5, zipf=0.0)
    popular = -0.5 * np.log(1.0 + rng.permutation(items))
    chosen = np.zeros(w.R.shape, np.bool_)
    np.put_along_axis(chosen, worlds.best(popular + rng.gumbel(size=w.R.shape), pool), True, 1)
    R = 0.75 * worlds.sigmoid(np.log(w.R / (0.75 - w.R)) - 2.0 * ~chosen)
    return worlds.logged(replace(w, R=R, s_c=np.where(chosen, 0.0, -1e9), sigma=(0.0, 0.7), random_share=0.2), n, rng)


def good_production(seed: int) -> worlds.World:
    """Production knows nearly all."""
    rng = np.random.default_rng(seed)
    w = worlds.graded("good", rng, **SMALL, middle=-1.2, own=0.9)
    truth = np.log(w.R / (0.75 - w.R))
    w = replace(w, s_c=truth + 0.6 * rng.normal(size=truth.shape), s_r=truth + 0.4 * rng.normal(size=truth.shape))
    return worlds.logged(replace(w, sigma=(0.5, 0.5), random_share=0.1), 12_000, rng)


def trained(size: str, seed: int) -> Result:
    """A policy learned from a log of the two-stage simulator, without propensities."""
    n, queries = SIZES[size]
    world = simulator.world(seed, queries=queries, items=60 if size == "tiny" else 400)
    log = simulator.impressions(world, n, seed + 10_000)
    config = tr.LearningConfig(examination=tuple(world.theta), candidates=min(60, len(np.unique(log.items))))
    learned = tr.learn(frame_of(log.query, log.items, log.clicks), config, seed=seed)
    value, policy = learned.values["beliefs"], learned.policy
    q, s_c, s_r = scores_of(policy, world.R.shape[1])
    times = np.bincount(log.query, minlength=queries)[q].astype(float)
    rare = times <= 2
    valued = value.estimate.denominator / value.estimate.denominator.sum()
    draws = times / times.sum() * DRAWS
    new = simulator.value_by_query(world, q, s_c, s_r, policy.K2, policy.K, samples=draws, seed=seed)
    old = simulator.value_by_query(
        world, q, world.s_c[q], world.s_r[q], world.K2, len(world.theta), samples=draws, seed=seed + 1
    )
    rarely = {"rare_ratio": float(new[rare] @ times[rare] / (old[rare] @ times[rare]))} if rare.any() else {}
    return {
        **promised(value, float(new @ valued)),
        "gain": gained(learned.differences[0].comparison, float((new - old) @ valued)),
        "more": {"over_queries_holds": float(value.over_queries[0] <= new @ valued <= value.over_queries[1]), **rarely},
    }


def deterministic(seed: int, *, queries: int = 298, items: int = 400, n: int = 10_000) -> Result:
    """A logger that hardly ever leaves its best list: what is promised beyond production, and what is true of it."""
    world = simulator.world(seed, queries=queries, items=items, sharpness=30.0)
    log = simulator.impressions(world, n, seed + 10_000)
    config = tr.LearningConfig(examination=tuple(world.theta), candidates=min(60, len(np.unique(log.items))))
    learned = tr.learn(frame_of(log.query, log.items, log.clicks), config, seed=seed)
    value, policy = learned.values["beliefs"], learned.policy
    q, s_c, s_r = scores_of(policy, world.R.shape[1])
    times = value.estimate.denominator / value.estimate.denominator.sum()
    new = simulator.value_by_query(world, q, s_c, s_r, policy.K2, policy.K, samples=20, seed=seed)
    old = simulator.value_by_query(
        world, q, world.s_c[q], world.s_r[q], world.K2, len(world.theta), samples=5, seed=seed + 1
    )
    true_new, true_old = float(new @ times), float(old @ times)
    return {
        **promised(value, true_new),
        "gain": gained(learned.differences[0].comparison, true_new - true_old),
        "more": {"gain_of_production": true_new / true_old - 1, "stays": float(learned.trained["beliefs"].stays)},
    }


def next_week(seed: int, *, queries: int = 0, items: int = 0, n: tuple[int, int] = (9_000, 4_000)) -> Result:
    """Learned from the past, decided on the future, where some `queries` and `items` are new."""
    rng = np.random.default_rng(seed)
    w = worlds.graded("week", rng, **SMALL | {"knows": 0.4, "middle": -1.2})
    late, p = np.arange(w.R.shape[1]) < items, w.traffic / w.traffic.sum()
    old = np.where(np.arange(len(p)) < queries, 0.0, p)
    query = np.concatenate([rng.choice(len(p), n[0], p=old / old.sum()), rng.choice(len(p), n[1], p=p)])
    lists = np.concatenate([worlds.shown(w, query[: n[0]], rng, ~late), worlds.shown(w, query[n[0] :], rng)])
    w = replace(w, query=query, items=lists, clicks=worlds.clicks_on(w, query, lists, rng))
    log = frame_of(w.query, w.items, w.clicks, timestamp=np.arange(float(len(query))))
    past, future = (during(log, **{end: float(n[0])}) for end in ("until", "since"))
    policy = tr.learn(past, tr.LearningConfig(examination=tuple(w.theta), candidates=25), seed=seed).policy
    found = tr.decide(policy, future, examination=w.theta, seed=seed)
    one = found.candidates[0]
    new = np.setdiff1d(query, policy.vocabulary.query_ids.to_numpy())
    whole = policy.with_queries(pl.Series(new)) if len(new) else policy
    times = np.bincount(query[n[0] :], minlength=len(p))[whole.vocabulary.query_ids.to_numpy()].astype(float)
    truth, live = true_value(w, whole, times, seed), production_value(w, whole, times, seed)
    gain = gained(one.comparison, truth - live) | {"bound": one.lower_bound}
    unknown = one.comparison.new.unknown
    share = {} if unknown is None else {"new_queries": unknown.queries, "new_items": unknown.items}
    return {**promised(one.comparison.new, truth), "gain": gain, "call": str(found.call), "more": share}


# --- policies that are given ------------------------------------------------------------------------------------------


def changing(seed: int) -> Result:
    """A logger that was retrained once, with its propensities: the value of another policy, which is known."""
    before = simulator.world(seed, queries=40, items=50, K=5, K2=20)
    after = replace(before, s_c=before.s_c[:, ::-1].copy(), s_r=0.5 * before.s_r)
    frames, times = [], np.zeros(40)
    for number, world in enumerate((before, after)):
        log = simulator.impressions(world, 4_000, 2 * seed + number)
        # A logger knows its own propensities: by 1,500 draws they are so noisy that weights are 1% too large.
        rho_0 = simulator.exposures(world, np.arange(40), samples=12_000, seed=seed + 50_000 + number)
        times += np.bincount(log.query, minlength=40)
        logged = np.maximum(rho_0[log.query[:, None], log.items], 1e-4)
        frames.append(frame_of(log.query, log.items, log.clicks, propensities=logged))
    wanted = 0.5 * (before.s_c + after.s_c)
    policy = policy_of(wanted, before.s_r, K2=20, K=5)
    value = tr.estimate(policy, pl.concat(frames), examination=before.theta, seed=seed)
    truth = simulator.value_by_query(before, np.arange(40), wanted, before.s_r, 20, 5, samples=1_000, seed=seed)
    return promised(value, float(truth @ times / times.sum()))


def adapting(seed: int) -> Result:
    """A logger that adapts while tastes move, with its propensities; K is 1 or 2, tastes move by little or by much.

    The policy ranks by the click rates of another log of the same world, whenever they were: better where tastes stand still.
    """
    how = {"K": 1 + seed % 2, "drift": (0.3, 0.6, 1.5)[seed % 3]}
    scores = 8 * adaptive.rates(adaptive.season(seed, 2, **how))
    log = adaptive.season(seed, 1, **how)
    policy = policy_of(scores, scores, K2=scores.shape[1], K=len(log.theta))
    frame = frame_of(log.query, log.items, log.clicks, propensities=log.propensity)
    found = tr.decide(policy, frame, examination=log.theta, seed=seed)
    one, truth = found.candidates[0], log.value(scores)
    gain = gained(one.comparison, truth - log.production()) | {"bound": one.lower_bound}
    return {**promised(one.comparison.new, truth), "gain": gain, "call": str(found.call)}


def few(seed: int, *, logs_propensities: bool) -> Result:
    """One to five queries, 3,000 impressions: the value of a known policy."""
    queries = 1 + seed % 5
    world = simulator.world(seed, queries=queries, items=30, K=5, K2=12, sharpness=0.6)
    log = simulator.impressions(world, 3_000, seed + 10_000)
    more = {}
    if logs_propensities:
        rho_0 = simulator.exposures(world, np.arange(queries), samples=20_000 // queries, seed=seed + 50_000)
        more["propensities"] = np.maximum(rho_0[log.query[:, None], log.items], 1e-4)
    wanted = 0.5 * world.s_c + 0.5 * np.log(world.R)
    policy = policy_of(wanted, wanted, K2=15, K=5)
    times = np.bincount(log.query, minlength=queries)
    true = simulator.value_by_query(world, np.arange(queries), wanted, wanted, 15, 5, samples=8_000, seed=seed)
    value = tr.estimate(policy, frame_of(log.query, log.items, log.clicks, **more), examination=world.theta, seed=seed)
    return promised(value, float(true @ times / times.sum()))


def search(seed: int, *, size: tuple[int, int, int] = SEARCH) -> Result:
    """The command line on a log of the size of a search engine's: seconds of the processor and of the clock, and memory."""
    log = simulator.search_log(*size, seed)
    with tempfile.TemporaryDirectory() as folder:
        frame_of(log.query, log.items, log.clicks).write_parquet(Path(folder) / "log.parquet")
        command = ["learn", "--logs", f"{folder}/log.parquet", "--out", f"{folder}/policy"]
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "tandemrank", *command], check=True, capture_output=True)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "mb": after.ru_maxrss / 1024}


WORLDS: dict[str, Callable[[int], Result]] = {
    "sparse": partial(trained, "sparse"),
    "medium": partial(trained, "medium"),
    "large": partial(trained, "large"),
    "tiny": partial(trained, "tiny"),
    "shop": lambda seed: learned_on(graded(seed, 12_000), seed),
    "low rates": lambda seed: learned_on(graded(seed, 20_000, middle=-4.0), seed),
    "zipf": lambda seed: learned_on(graded(seed, 12_000, zipf=1.1), seed),
    "good production": lambda seed: learned_on(good_production(seed), seed),
    "drift": lambda seed: learned_on(drift(seed), seed),
    "trust": lambda seed: learned_on(graded(seed, 12_000, trust=0.15), seed),
    "stop": lambda seed: learned_on(graded(seed, 12_000, stop=True), seed),
    "future": next_week,
    "next week": partial(next_week, queries=20, items=3),
    "short week": partial(next_week, queries=20, items=3, n=(9_000, 950)),
    "pools": lambda seed: learned_on(pools(seed), seed),
    "pools often": lambda seed: learned_on(pools(seed, queries=400), seed),
    "deterministic": deterministic,
    "changing": changing,
    "adaptive": adapting,
    "few logged": partial(few, logs_propensities=True),
    "few alone": partial(few, logs_propensities=False),
    "search": search,
}
DEFAULT = [name for name in WORLDS if name not in ("tiny", "search")]
