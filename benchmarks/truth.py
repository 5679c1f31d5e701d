"""Are the answers true? What is promised, against the truth of an independent simulator (`tests/independent`).

    python benchmarks/truth.py --logs 20 --results truth.jsonl --json

`coverage`, `bias`: the 95% interval of a trained pair and its value, propensities fitted to the lists of a two-stage logger;
30,000 impressions over 7,650 queries (sparse), over 1,490 (medium), 150,000 over 1,490 (large). The truth is the expected
clicks of the pair for the queries of the part that values it, each as often as it came there. Of both, logs whose value is
refused are left out, and counted (`refused`), or not (`..._with_refused`). `stated_error`: the standard error, and the root
mean square of what it is about. `trusted_coverage`: where the verdict is "trust it".
`rare_ratio`: true clicks of queries seen once or twice, pair over production. `changing_bias`: a logger that was retrained
once, its propensities logged. `deterministic_promise`: a logger that always shows the same; the promised gain less the true
one, as a share of production, where a promise is made; `deterministic_gain`: the true one. `few_coverage`, `few_bias`: the
value of a known pair on 3,000 impressions of one to five queries. `search_seconds` (of the clock), `search_cpu_seconds`,
`search_mb`: `tandemrank learn` on 200,000 impressions. Every log's result is a line of the file, so an interrupted run goes on,
and a longer one only adds.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import tandemrank as tr
from independent import simulator

SIZES = {
    "sparse": (30_000, 7_650), "medium": (30_000, 1_490), "large": (150_000, 1_490), "tiny": (2_000, 100),
}  # fmt: skip
SEARCH = (200_000, 40_000, 17_000)  # impressions, queries, items: about 30,000 and 16,500 of them come up
DRAWS = 30_000  # lists that the truth of a trained pair rests on, at least one of each query: an error of 0.2%
REFUSED = "cannot be answered from this log"
Result = dict[str, Any]


def trained(size: str, seed: int) -> Result:
    """A pair trained on a log without propensities: what is promised, and what it is worth."""
    n, queries = SIZES[size]
    world = simulator.world(seed, queries=queries, items=60 if size == "tiny" else 400)
    log = simulator.impressions(world, n, seed + 10_000)
    learned = learn_from(world, log, seed)
    value, pair = learned.values["beliefs"], learned.policy
    q, s_c, s_r = scores_of(pair, world)
    times = np.bincount(log.query, minlength=queries)[q].astype(float)
    rare = times <= 2
    valued = value.estimate.denominator / value.estimate.denominator.sum()
    draws = times / times.sum() * DRAWS
    new = simulator.value_by_query(world, q, s_c, s_r, pair.K2, pair.K, samples=draws, seed=seed)
    old = simulator.value_by_query(
        world, q, world.s_c[q], world.s_r[q], world.K2, len(world.theta), samples=draws, seed=seed + 1
    )
    return {
        "value": value.value, "low": value.interval[0], "high": value.interval[1], "error": value.standard_error,
        "truth": float(new @ valued), "production": float(old @ valued),
        "observed": learned.production.value, "verdict": str(value.verdict),
        "rare_new": float(new[rare] @ times[rare]), "rare_old": float(old[rare] @ times[rare]),
        "balance": value.diagnostics.balance if value.diagnostics else None, "stays": learned.trained["beliefs"].stays,
        "over_queries": value.over_queries,
    }  # fmt: skip


def learn_from(world: simulator.World, log: simulator.Log, seed: int) -> tr.training.results.Learned:
    """A trained pair, its curve known, everything else by default."""
    config = tr.LearningConfig(examination=tuple(world.theta), candidates=min(60, len(np.unique(log.items))))
    return tr.learn(frame_of(log), config, seed=seed)


def frame_of(log: simulator.Log, propensities: np.ndarray | None = None) -> pl.DataFrame:
    """The log as the package reads it."""
    lists = {"items": log.items, "clicks": log.clicks} | (
        {} if propensities is None else {"propensities": propensities}
    )
    return pl.DataFrame(
        {"query_id": log.query, **{name: pl.Series(x).arr.to_list() for name, x in lists.items()}},
    )


def scores_of(pair: tr.TwoStagePolicy, world: simulator.World) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The queries that a pair knows, and its scores of all items of the world; what it does not know is never shown."""
    q, items = (ids.to_numpy() for ids in (pair.vocabulary.query_ids, pair.vocabulary.item_ids))
    s_c = np.full((len(q), world.R.shape[1]), -1e9)
    s_r = s_c.copy()
    for rows, candidate, ranker in pair.batches():
        s_c[rows[:, None], items], s_r[rows[:, None], items] = candidate.numpy(), ranker.numpy()
    return q, s_c, s_r


def deterministic(size: str, seed: int) -> Result:
    """A logger that hardly ever leaves its best list: what is promised beyond production, and what is true of it."""
    n, queries = SIZES[size]
    world = simulator.world(seed, queries=queries // 5, items=60 if size == "tiny" else 400, sharpness=30.0)
    log = simulator.impressions(world, n // 3, seed + 10_000)
    learned = learn_from(world, log, seed)
    value, pair = learned.values["beliefs"], learned.policy
    q, s_c, s_r = scores_of(pair, world)
    times = value.estimate.denominator
    new = simulator.value_by_query(world, q, s_c, s_r, pair.K2, pair.K, samples=20, seed=seed)
    old = simulator.value_by_query(
        world, q, world.s_c[q], world.s_r[q], world.K2, len(world.theta), samples=5, seed=seed + 1
    )
    true_new, true_old = (float(x @ times / times.sum()) for x in (new, old))
    refused = value.verdict == tr.offpolicy.verdicts.Verdict.REFUSE
    return {
        "promised": None if refused else value.value - learned.production.value, "gain": true_new - true_old,
        "low": value.interval[0], "high": value.interval[1], "truth": true_new, "production": true_old,
        "verdict": str(value.verdict), "propensity": learned.propensity, "stays": learned.trained["beliefs"].stays,
    }  # fmt: skip


def changing(size: str, seed: int) -> Result:
    """A logger that was retrained once, with its propensities: the value of another pair, which is known."""
    del size
    before = simulator.world(seed, queries=40, items=50, K=5, K2=20)
    after = replace(before, s_c=before.s_c[:, ::-1].copy(), s_r=0.5 * before.s_r)
    frames, times = [], np.zeros(40)
    for number, world in enumerate((before, after)):
        log = simulator.impressions(world, 4_000, 2 * seed + number)
        # A logger knows its own propensities: by 1,500 draws they are so noisy that weights are 1% too large.
        rho_0 = simulator.exposures(world, np.arange(40), samples=12_000, seed=seed + 50_000 + number)
        times += np.bincount(log.query, minlength=40)
        frames.append(frame_of(log, np.maximum(rho_0[log.query[:, None], log.items], 1e-4)))
    wanted = 0.5 * (before.s_c + after.s_c)
    pair = pair_of(wanted, before.s_r, K2=20, K=5)
    value = tr.estimate(pair, pl.concat(frames), examination=before.theta, seed=seed)
    truth = simulator.value_by_query(before, np.arange(40), wanted, before.s_r, 20, 5, samples=1_000, seed=seed)
    mean = float(truth @ times / times.sum())
    return {"value": value.value, "low": value.interval[0], "high": value.interval[1], "truth": mean}


def few(size: str, seed: int) -> Result:
    """One to five queries, 3,000 impressions: the value of a known pair, with logged propensities and by the log alone."""
    del size
    queries = 1 + seed % 5
    world = simulator.world(seed, queries=queries, items=30, K=5, K2=12, sharpness=0.6)
    log = simulator.impressions(world, 3_000, seed + 10_000)
    rho_0 = simulator.exposures(world, np.arange(queries), samples=20_000 // queries, seed=seed + 50_000)
    logged = frame_of(log, np.maximum(rho_0[log.query[:, None], log.items], 1e-4))
    wanted = 0.5 * world.s_c + 0.5 * np.log(world.R)
    pair = pair_of(wanted, wanted, K2=15, K=5)
    times = np.bincount(log.query, minlength=queries)
    true = simulator.value_by_query(world, np.arange(queries), wanted, wanted, 15, 5, samples=8_000, seed=seed)
    found: Result = {"truth": float(true @ times / times.sum()), "queries": queries}
    for name, frame in (("logged", logged), ("alone", logged.drop("propensities"))):
        value = tr.estimate(pair, frame, examination=world.theta, seed=seed)
        found[name] = {
            "value": value.value, "low": value.interval[0], "high": value.interval[1], "verdict": str(value.verdict),
        }  # fmt: skip
    return found


def pair_of(s_c: np.ndarray, s_r: np.ndarray, *, K2: int, K: int) -> tr.TwoStagePolicy:
    """A pair by its scores of all queries and items, which are numbered.  Shapes: s_c, s_r [Q, D]."""
    q, d = (x.ravel() for x in np.meshgrid(*map(np.arange, s_c.shape), indexing="ij"))
    scores = {"query_id": q, "item_id": d, "candidate_score": s_c.ravel(), "ranker_score": s_r.ravel()}
    return tr.policies.outside.policy_from_scores(pl.DataFrame(scores), K2=K2, K=K)


def search(size: str, seed: int) -> Result:
    """The command line on a log of the size of a search engine's: seconds of the processor and of the clock, and memory."""
    n, queries, items = SEARCH if size != "tiny" else (2_000, 400, 300)
    log = simulator.search_log(n, queries, items, seed)
    with tempfile.TemporaryDirectory() as folder:
        frame_of(log).write_parquet(Path(folder) / "log.parquet")
        command = [
            sys.executable,
            "-m",
            "tandemrank",
            "learn",
            "--logs",
            f"{folder}/log.parquet",
            "--out",
            f"{folder}/pair",
        ]
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "mb": after.ru_maxrss / 1024}


MEASURES: dict[str, Callable[[str, int], Result]] = {
    "trained": trained, "deterministic": deterministic, "changing": changing, "few": few, "search": search,
}  # fmt: skip


def jobs(sizes: list[str], measures: list[str], logs: int) -> Iterator[tuple[str, str, int]]:
    """All that has to be done, a log of each kind at a time."""
    for seed in range(1, logs + 1):
        for measure in measures:
            for size in sizes if measure == "trained" else ["tiny" if sizes == ["tiny"] else "medium"]:
                if measure != "search" or seed == 1:
                    yield measure, size, seed


def run(file: Path, sizes: list[str], measures: list[str], logs: int) -> list[Result]:
    """Does what the file does not have yet; every result of the file that was asked for."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {(one["measure"], one["size"], one["seed"]): one for one in map(json.loads, lines)}
    for measure, size, seed in jobs(sizes, measures, logs):
        if (measure, size, seed) not in known:
            began = time.perf_counter()
            found = {"measure": measure, "size": size, "seed": seed, **MEASURES[measure](size, seed)}
            found["took"] = time.perf_counter() - began
            known[measure, size, seed] = found
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(found) + "\n")
    return [known[job] for job in jobs(sizes, measures, logs)]


def summary(results: list[Result]) -> Result:
    """The numbers of the table, and over how many logs."""
    by_size = {}
    for size in SIZES:
        if chosen := [one for one in results if one["measure"] == "trained" and one["size"] == size]:
            by_size[size] = chosen
    every = [one for some in by_size.values() for one in some]
    answered = {size: [one for one in some if one["verdict"] != REFUSED] for size, some in by_size.items()}
    trusted = [one for one in every if one["verdict"] == "trust it"]
    fixed, changed, small, sought = (
        [one for one in results if one["measure"] == measure]
        for measure in ("deterministic", "changing", "few", "search")
    )
    of_few = {kind: [one | one[kind] for one in small] for kind in ("logged", "alone")}
    new, old = (sum(one[f"rare_{side}"] for one in every) for side in ("new", "old"))
    beyond = [(one["promised"] - one["gain"]) / one["production"] for one in fixed if one["promised"] is not None]
    return {
        "logs": {size: len(some) for size, some in by_size.items()},
        "refused": {size: len(some) - len(answered[size]) for size, some in by_size.items()},
        "coverage": {size: _held(some) for size, some in answered.items()},
        "bias": {size: _bias(some) for size, some in answered.items()},
        "coverage_with_refused": {size: _held(some) for size, some in by_size.items()},
        "bias_with_refused": {size: _bias(some) for size, some in by_size.items()},
        "stated_error": {size: _error(some) for size, some in by_size.items()},
        "trusted_coverage": _held(trusted),
        "trusted": len(trusted),
        "rare_ratio": new / old if old else None,
        "changing_bias": _bias(changed),
        "changing_coverage": _held(changed),
        "deterministic_promise": _mean([*beyond, *[0.0] * (len(fixed) - len(beyond))])["mean"] if fixed else None,
        "deterministic_logs": len(fixed),
        "deterministic_refused": len(fixed) - len(beyond),
        "deterministic_gain": _mean([one["gain"] / one["production"] for one in fixed]) if fixed else None,
        "few_logs": len(small),
        "few_coverage": {kind: _held(some) for kind, some in of_few.items()},
        "few_bias": {kind: _bias(some) for kind, some in of_few.items()},
        "search_seconds": sought[0]["seconds"] if sought else None,
        "search_cpu_seconds": sought[0]["cpu_seconds"] if sought else None,
        "search_mb": sought[0]["mb"] if sought else None,
    }


def _held(results: list[Result]) -> float | None:
    """How often the interval holds the truth."""
    return float(np.mean([one["low"] <= one["truth"] <= one["high"] for one in results])) if results else None


def _error(results: list[Result]) -> dict[str, float]:
    """The standard error that is stated, and the root mean square of value over truth, less 1: equal if the one is honest."""
    of = np.array([[one["error"] / one["truth"], one["value"] / one["truth"] - 1] for one in results])
    stated, found = np.sqrt(np.square(of).mean(0))
    return {"stated": float(stated), "found": float(found)}


def _bias(results: list[Result]) -> dict[str, float] | None:
    """Value over truth, less 1: the mean over logs, and its standard error."""
    if not results:
        return None
    return _mean([one["value"] / one["truth"] - 1 for one in results])


def _mean(of: list[float]) -> dict[str, float]:
    """With its standard error."""
    off = np.array(of)
    return {
        "mean": float(off.mean()),
        "error": float(off.std(ddof=1) / len(off) ** 0.5) if len(off) > 1 else float("nan"),
    }


def main() -> None:
    """Measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--sizes", default="sparse,medium,large")
    parser.add_argument("--measures", default=",".join(MEASURES))
    parser.add_argument("--results", type=Path, default=Path("truth.jsonl"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = summary(run(asked.results, asked.sizes.split(","), asked.measures.split(","), asked.logs))
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:24s} {value}")


if __name__ == "__main__":
    main()
