"""What training on top of the posterior is worth: the learners side by side over worlds where the truth is known.

    python benchmarks/learners.py [--data ml-1m.zip] [--worlds synthetic,noisy,...] [--out learners.json] [--json]

Worlds: `synthetic` (1,500 users, 800 items, N = 30k and 300k), `noisy` (the same, clicks .9 / .1), `sparse` (most users were
seen once or twice), `features` (the stages are two models: popularity and features, then a cross network; both are
trained, so `nothing on top` and `posterior, 3 epochs` both mean as many epochs as the others, on what the posterior expects,
and differ in nothing), and with `--data` the paper's: `movielens-0.1M`, `movielens-1M`, `movielens-noisy-0.1M`. Learners, all
on the same log and from production's embeddings:

    given, ips              what `--set initial=given --set objective=ips` trains: inverse propensities from production on
    nothing on top          the posterior with memory as both stages, no epoch of training
    posterior, 3 epochs     the race on what the posterior expects, on top of it (`refine=3`)
    doubly robust, 3 epochs the same with cross-fitted, shrunken residuals
    ips, 3 epochs           the same with inverse propensities
    log alone               the posterior without production's embeddings

Printed for the pair of Joint: NDCG@10 of the most likely list, expected NDCG@10 and clicks of drawn lists, over the same of
production, seconds. With `--out` finished rows are kept there, and what is there is not run again. One run per world, K2 a
seventh of the items: the default is chosen by all worlds together, not by one.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from tandemrank.training.informed import scorer_of

from tandemrank._base.config import validated
from tandemrank._base.files import write_json
from tandemrank._base.random import derive
from tandemrank.beliefs import posterior
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.evaluation import Evaluation, evaluate
from tandemrank.experiments.trainer import Trainer, simulate_log
from tandemrank.experiments.world import World, build_world, impressions, load_task, start_policy
from tandemrank.logs import counting
from tandemrank.policies.two_stage import TwoStagePolicy

LEARNERS: dict[str, dict[str, object]] = {
    "given, ips": {"initial": "given", "objective": "ips"},
    "nothing on top": {},
    "posterior, 3 epochs": {"training": {"refine": 3}},
    "doubly robust, 3 epochs": {"objective": "doubly-robust", "training": {"refine": 3}},
    "ips, 3 epochs": {"objective": "ips", "training": {"refine": 3}},
}
SMALL = {"queries": 1500, "items": 800, "rank": 30}
WORLDS: dict[str, tuple[dict[str, object], int]] = {
    "synthetic-30k": (SMALL, 30_000),
    "synthetic-300k": (SMALL, 300_000),
    "noisy-30k": ({**SMALL, "relevant": 0.9, "irrelevant": 0.1}, 30_000),
    "sparse-2k": (SMALL, 2_000),
    "features-30k": ({**SMALL, "stages": {"generator": "popularity", "ranker": "cross"}}, 30_000),
    "movielens-0.1M": ({}, 100_000),
    "movielens-1M": ({}, 1_000_000),
    "movielens-noisy-0.1M": ({"relevant": 0.9, "irrelevant": 0.1}, 100_000),
}
SEED = 0


@dataclass(frozen=True)
class Row:
    """One learner in one world; `ratio` is of the expected clicks of drawn lists to production's."""

    world: str
    learner: str
    ndcg: float
    expected: float
    clicks: float
    ratio: float
    seconds: float


def row(world: str, learner: str, found: Evaluation, live: Evaluation, seconds: float) -> Row:
    """The means of an evaluation."""
    ndcg, expected, clicks = (float(np.nanmean(x)) for x in (found.ndcg, found.ndcg_expected, found.utility))
    return Row(world, learner, ndcg, expected, clicks, clicks / float(np.nanmean(live.utility)), seconds)


def rows_of(name: str, data: str | None, done: set[str]) -> list[Row]:
    """Every learner that is not done, in one world."""
    switches, N = WORLDS[name]
    base = {**switches, "impressions": N, **({"data": data} if name.startswith("movielens") else {})}
    seed, live = derive(SEED, "run", 0), None
    world, rows = None, []
    for learner in ["production", *LEARNERS, "log alone"]:
        if learner in done:
            continue
        config = validated(ExperimentConfig, {**base, "learning": LEARNERS.get(learner, {})})
        world = world or build_world(load_task(config), config, seed)
        K2 = max(10, world.task.D // 7)
        live = live or judged(start_policy(world, config, K2), world)
        if learner == "production":
            rows.append(row(name, learner, live, live, 0.0))
        elif learner == "log alone":
            rows.append(_log_alone(world, config, name, K2, live))
        else:
            outcome = Trainer(world, config, simulate_log(world, config, N, seed), seed).run("joint", K2)
            rows.append(row(name, learner, judged(outcome.policy, world), live, outcome.seconds))
        print(f"{rows[-1].world:22} {rows[-1].learner:24} {rows[-1].ndcg:.4f}", flush=True)
    return rows


def judged(policy: TwoStagePolicy, world: World) -> Evaluation:
    """On the users who were logged."""
    return evaluate(policy, world.task.relevance, world.theta, world.q, samples=2, seed=SEED)


def _log_alone(world: World, config: ExperimentConfig, name: str, K2: int, live: Evaluation) -> Row:
    drawn = impressions(world, config.impressions, derive(SEED, "run", 0))
    log = counting.from_impressions(drawn, world.task.vocabulary)
    since = time.perf_counter()
    scorer = scorer_of(posterior.fit(log, world.theta))
    pair = replace(start_policy(world, config, K2), generator=scorer, ranker=scorer)
    return row(name, "log alone", judged(pair, world), live, time.perf_counter() - since)


def main() -> None:
    """Measures what is missing, and prints all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="MovieLens-1M, for its worlds")
    parser.add_argument("--worlds", default=",".join(name for name in WORLDS if not name.startswith("movielens")))
    parser.add_argument("--out", type=Path, help="file of finished rows")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [Row(**x) for x in json.loads(arguments.out.read_text())] if arguments.out and arguments.out.exists() else []
    for name in arguments.worlds.split(","):
        rows += rows_of(name, arguments.data, {r.learner for r in rows if r.world == name})
        if arguments.out:
            write_json(arguments.out, [asdict(r) for r in rows])
    if arguments.json:
        print(json.dumps([asdict(r) for r in rows], indent=2))
        return
    print(f"{'world':22} {'learner':24} {'NDCG':>6} {'drawn':>6} {'clicks':>7} {'ratio':>6} {'s':>6}")
    for r in rows:
        print(
            f"{r.world:22} {r.learner:24} {r.ndcg:6.3f} {r.expected:6.3f} {r.clicks:7.3f} {r.ratio:6.2f} {r.seconds:6.1f}"
        )


if __name__ == "__main__":
    main()
