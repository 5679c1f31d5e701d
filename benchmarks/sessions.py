"""What values and learning over sessions reach, measured (docs/explanation/sessions.md).

    python benchmarks/sessions.py variance       ratios of lists over ratios of exposures, one stage: the variances
    python benchmarks/sessions.py coverage       how often a 95% interval holds: 200 logs, 5 steps, two-stage production
    python benchmarks/sessions.py learning       looking ahead against the same learner that does not, with effects and without
    python benchmarks/sessions.py last-click     the same by the last click, not by the state of the world
    python benchmarks/sessions.py clicks         what several clicks in a step do to a value
    python benchmarks/sessions.py time           a million steps against the verbs of one list
    python benchmarks/sessions.py figure         value against the horizon, into docs/figures

Each takes minutes on one core; --runs makes it shorter.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

import tandemrank as tr
from _common import options, positive, report, threads
from tandemrank._base.files import replacing
from tandemrank._base.ids import Vocabulary
from tandemrank.experiments.evaluation import over_runs
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions import learning, simulation, valuation
from tandemrank.sessions.simulation import SessionWorld, SessionWorldConfig
from tandemrank.training.config import LearningConfig

Tell = Callable[[int], None]
TRUTH = 200_000  # sessions that a truth is taken over


def soft(world: SessionWorld, sharpness: float = 1.0) -> TwoStagePolicy:
    """A two-stage policy of states that knows the relevance, not too sharp to be valued from production's log."""
    state, item = np.arange(len(world.state_ids))[:, None], np.arange(world.config.items)[None, :]
    scores = sharpness * np.log(world.relevance(state, item) + 1e-9)
    generator = GivenScores(scores + np.random.default_rng(3).normal(0, 0.3, scores.shape))
    ids, c = Vocabulary(world.state_ids, world.item_ids), world.config
    return TwoStagePolicy(generator, GivenScores(scores), c.candidates, c.list_length, ids)


def drawn(world: SessionWorld, sessions: int, seed: int, rho_0: np.ndarray | None) -> pl.DataFrame:
    """A log of production."""
    return simulation.log_frame(list(simulation.play(world.production(), world, sessions, seed=seed)), world, rho_0)


def variance(runs: int, progress: Tell) -> dict[str, object]:
    """In the tiny world of the tests, by dynamic programming: policies of so many seeds, the median."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import session_enumeration as exact

    rows = []
    for T in (1, 2, 4, 8):
        found = []
        for seed in range(runs):
            new, old = exact.policy(seed, K2=5, spread=0.7), exact.policy(seed + 1000, K2=5, spread=0.7)
            R = exact.relevance(seed)
            ours, lists = (exact.moments(new, old, R, T, 1.0, by_lists=by)[1] for by in (False, True))
            found.append(lists / ours)
        rows.append({"steps": T, "least": min(found), "median": median(found)})
        progress(len(rows))
    return {"policies": runs, "rows": rows}


def coverage(runs: int, progress: Tell) -> dict[str, object]:
    """5,000 sessions of at most 5 steps in each log; a two-stage policy of states."""
    world = SessionWorld.of(SessionWorldConfig(steps=5))
    policy, rho_0 = soft(world), simulation.propensities(world.production(), world)
    truth = float(simulation.clicks_of(policy, world, 2 * TRUTH, seed=99).mean())
    found: dict[str, list[tuple[float, float, bool]]] = {"doubly_robust": [], "self_normalised": [], "ips": []}
    bounds = []
    for run in range(runs):
        log = tr.sessions.read(drawn(world, 5000, 1000 + run, rho_0))
        for name, values in found.items():
            one = valuation.estimate(policy, log, estimator=name, seed=run)  # type: ignore[arg-type]
            values.append((one.value, one.standard_error, one.interval[0] <= truth <= one.interval[1]))
        bounds.append(one.lower_bound <= truth)
        progress(run + 1)
    rows = [
        {
            "estimator": name,
            "coverage": float(np.mean([inside for *_, inside in values])),
            "bias": float(np.mean([value for value, *_ in values])) - truth,
            "spread": float(np.std([value for value, *_ in values])),
            "mean_standard_error": float(np.mean([error for _, error, _ in values])),
        }
        for name, values in found.items()
    ]
    return {"logs": runs, "truth": truth, "bound_holds": float(np.mean(bounds)), "rows": rows}


EFFECTS = {"boredom, influence, leaving": {}, "none": {"boredom": 0.0, "influence": 0.0, "leaving": 0.0}}


def learned(world: SessionWorld, run: int, state: list[str] | None, **how: object) -> dict[str, TwoStagePolicy]:
    """Myopic Joint and the same that looks ahead, of one log of 20,000 sessions."""
    log = tr.sessions.read(drawn(world, 20_000, run, None), state)
    config = LearningConfig(candidates=world.config.candidates)
    found = {}
    for name, discount in (("myopic", 0.0), ("ahead", 1.0)):
        one = learning.learn(
            log, config, discount=discount, method="joint", logging_policy=world.production(), seed=run, **how
        )
        found[name] = one.policy
    return found


def learning_table(runs: int, progress: Tell, state: list[str] | None = None) -> dict[str, object]:
    """Paired: one log, the same sessions; the true clicks per session by simulation."""
    rows, done = [], 0
    for effects, switches in EFFECTS.items():
        pairs = []
        for run in range(runs):
            world = SessionWorld.of(SessionWorldConfig(**switches), run)
            policies = learned(world, run, state)
            pairs.append([simulation.clicks_of(p, world, 20_000, seed=500 + run).mean() for p in policies.values()])
            done += 1
            progress(done)
        near, far = np.array(pairs).T
        gain = over_runs(far / near - 1)
        row = {"effects": effects, "myopic": float(near.mean()), "ahead": float(far.mean())}
        rows.append(row | {"gain": gain.mean, "low": gain.low, "high": gain.high})
    return {"runs": runs, "rows": rows}


def clicks(runs: int, progress: Tell) -> dict[str, object]:
    """The same policy where a step has at most one click, and where it may have several, of which one moves the state."""
    rows = []
    for several in (False, True):
        for T in (1, 2, 5, 10):
            world = SessionWorld.of(SessionWorldConfig(several_clicks=several, steps=T))
            policy, rho_0 = soft(world), simulation.propensities(world.production(), world)
            truth = float(simulation.clicks_of(policy, world, TRUTH, seed=99).mean())
            values, shares = [], []
            for run in range(runs):
                frame = drawn(world, 20_000, 1000 + run, rho_0)
                values.append(valuation.estimate(policy, frame, seed=run).value)
                shares.append(float((frame["clicks"].list.sum() > 1).mean()))
            error = float(np.std(values, ddof=1)) / runs**0.5 / truth
            off = float(np.mean(values)) / truth - 1
            rows.append({"several_clicks": np.mean(shares), "steps": T, "truth": truth, "off": off, "error": error})
            progress(len(rows))
    return {"runs": runs, "rows": rows}


def timing(runs: int, progress: Tell) -> dict[str, object]:
    """100,000 sessions of ten steps, lists of ten, 1,000 items; the verbs of one list take the state as the query."""
    world = SessionWorld.of(SessionWorldConfig(leaving=0.0, list_length=10, candidates=50, items=1000, queries=20))
    policy = soft(world)
    frame = drawn(world, 100_000, 1, simulation.propensities(world.production(), world))
    config = LearningConfig(candidates=50)
    plain = frame.with_columns(query_id="state").drop("state", "session_id", "step")
    jobs: dict[str, Callable[[], object]] = {
        "estimate, one list": lambda: tr.estimate(policy, plain),
        "estimate, sessions": lambda: valuation.estimate(policy, frame),
        "learn, one list": lambda: tr.learn(plain, config),
        "learn, sessions": lambda: learning.learn(frame, config),
    }
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    with threads(1):
        tr.estimate(policy, plain.head(1000))  # compiled
        for run in range(runs):
            for name, job in jobs.items():
                start = time.process_time()
                job()
                taken[name].append(time.process_time() - start)
            progress(run + 1)
    seconds = {name: median(some) for name, some in taken.items()}
    return {
        "steps": len(frame),
        "rows": [{"verb": name, "cpu_seconds": x} for name, x in seconds.items()],
        "ratio_estimate": seconds["estimate, sessions"] / seconds["estimate, one list"],
        "ratio_learn": seconds["learn, sessions"] / seconds["learn, one list"],
    }


def figure(runs: int, progress: Tell) -> dict[str, object]:
    """Clicks of the first steps of sessions, against how many count: production, myopic Joint, and looking ahead."""
    import matplotlib.pyplot as plt

    T, curves = 20, dict[str, list[np.ndarray]]()
    for run in range(runs):
        world = SessionWorld.of(SessionWorldConfig(steps=T), run)
        policies = {"production": world.production(), **learned(world, run, None, horizon=T)}
        for name, policy in policies.items():
            by_step = np.zeros(T)
            for part in simulation.play(policy, world, 20_000, seed=500 + run):
                by_step[part.step] += part.clicks.sum() / 20_000
            curves.setdefault(name, []).append(np.cumsum(by_step))
        progress(run + 1)
    folder = Path(__file__).resolve().parents[1] / "docs" / "figures"
    plt.rcParams["svg.hashsalt"] = "sessions"
    chart, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    words = {"ahead": "looking ahead", "myopic": "myopic", "production": "production"}
    for (name, some), colour in zip(reversed(curves.items()), ("#1b6ca8", "#d1495b", "#777777"), strict=True):
        axes.plot(range(1, T + 1), np.mean(some, 0), label=words[name], color=colour)
    axes.set(xlabel="steps that count (the horizon)", ylabel="clicks per session", xlim=(1, T), ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(folder / "sessions.svg") as path:
        chart.savefig(path, format="svg", metadata={"Date": None})
    rows = [
        {"steps": t, **{name: float(np.mean(some, 0)[t - 1]) for name, some in curves.items()}} for t in (1, 5, 10, 20)
    ]
    return {"runs": runs, "rows": rows}


MEASUREMENTS: dict[str, tuple[Callable[[int, Tell], dict[str, object]], int]] = {
    "variance": (variance, 20),
    "coverage": (coverage, 200),
    "learning": (learning_table, 10),
    "last-click": (partial(learning_table, state=["query_id", "last_click", "since_click"]), 3),
    "clicks": (clicks, 10),
    "time": (timing, 3),
    "figure": (figure, 3),
}


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--runs", type=positive, help="logs, worlds, policies or repetitions")
    asked = parser.parse_args()
    measure, usual = MEASUREMENTS[asked.what]
    report(partial(measure, asked.runs or usual), f"measuring {asked.what}", as_json=asked.json)
