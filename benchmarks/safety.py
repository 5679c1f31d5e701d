"""Does it keep what it promises? Selection, small logs and intervals, where the truth is known.

    python benchmarks/safety.py [--parts small,coverage,selection] [--logs 1000] [--runs 25] [--worlds 200]
                                [--lengths 100,1000] [--results safety.jsonl] [--json]

Logs and true values come from `two_stage_world`, plain NumPy that shares no code with the package; decisions, training and
intervals come from the package as a user has them. Results are appended to a file, and what is there is not done again.

    selection  10 pairs, 300 queries, 30,000 impressions, exact propensities, 20 worlds. A re-ranker is production's scores plus
               a times the taste that production does not know, a from -1 to 1 at random, plus noise; generators likewise.
               `decide` as it is (bound over impressions) and by queries: is what it ships better than production, and is it
               the best of the ten?
    small      200 queries, 60 items, 100 to 1M impressions: `learn` with production as the prior, as it is and behind the gate
               (safe), which lets through what is surely better.
    coverage   worlds with the same items and other queries (200, 100 impressions each); no propensities, no policy: `learn`
               fits both. Does the 95% interval of the trained pair hold its true value? An interval by queries is about other
               queries of the kind: `population`, the mean over all worlds; `own` is the value for the log's queries.
About two hours on one core, one of them for the logs of 1M impressions.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
from torch import Tensor

import tandemrank as tr
import two_stage_world as simulator
from tandemrank._base.ids import Vocabulary
from tandemrank.decisions.decision import Call, PolicyDecision, decide
from tandemrank.errors import TandemRankError
from tandemrank.gradients import race
from tandemrank.offpolicy.comparison import sure_difference
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from two_stage_world import Floats, Pair, World

Record = dict[str, Any]  # one line of the file
WORLDS = 20  # of selection: logs differ by their lists and clicks
LENGTHS = (100, 1_000, 10_000, 100_000, 1_000_000)
KINDS = ("none", "gate")  # what was learned as it is, and let through by its bound alone (safe)


# --- selection --------------------------------------------------------------------------------------------------------


def candidates(of: World, seed: int) -> dict[str, Pair]:
    """Ten pairs, better and worse."""
    rng = np.random.default_rng([seed, 5])
    found = {}
    for number in range(10):
        a, b = rng.uniform(-1, 1), rng.uniform(0, 0.5)
        noise = 0.3 * rng.normal(size=of.live.shape)
        found[f"pair {number}"] = (of.live + b * a * of.other, of.live + a * of.other + noise)
    return found


@cache
def selection_world(seed: int) -> tuple[World, dict[str, TwoStagePolicy], dict[str, float]]:
    """A world, its pairs and production, and the true value of each."""
    of = simulator.world(seed, 300, 40, K2=15)
    pairs = candidates(of, seed) | {"production": (of.live, of.live)}
    truth = {name: float(simulator.value(pair, of, draws=100).mean()) for name, pair in pairs.items()}
    return of, {name: given(pair, of) for name, pair in pairs.items()}, truth


def selection(number: int, N: int) -> Iterator[Record]:
    """One decision about one log."""
    of, policies, truth = selection_world(number % WORLDS)
    sides = {name: policy for name, policy in policies.items() if name != "production"}
    log = simulator.log(of, N, 10_000 + number)
    with mock.patch.object(race, "exposure", exposure_once):
        found = decide(sides, log, logging_policy=policies["production"], seed=number)
    chosen = {"impressions": found.chosen if found.call == Call.SHIP else None, "queries": by_queries(found.candidates)}
    best = max(sides, key=lambda name: truth[name])
    for rule, name in chosen.items():
        gain = 0.0 if name is None else truth[name] - truth["production"]
        record = {"part": "selection", "number": number, "rule": rule, "shipped": name is not None}
        yield record | {"gain": gain, "most": truth[best] - truth["production"], "best": name == best}


REAL, MADE = race.exposure, {}


def exposure_once(s_c: Tensor, s_r: Tensor, alpha: Tensor, K2: int, **how: Any) -> tuple[Tensor, Tensor]:
    """The exposures of the same scores are found once: lists and clicks are what differs from log to log, not the pairs."""
    documents = how.get("documents")
    parts = [x.numpy().tobytes() for x in (s_c, s_r, alpha)]
    parts += [] if documents is None else [documents.indices.tobytes(), documents.indptr.tobytes()]
    key = (hashlib.sha1(b"".join(parts)).digest(), K2, how["samples"])
    if key not in MADE:
        MADE[key] = REAL(s_c, s_r, alpha, K2, **how)
    return MADE[key]


def by_queries(found: tuple[PolicyDecision, ...]) -> str | None:
    """What the same decision would ship by the bound over queries."""
    sure = []
    for one in found:
        new, old = (
            replace(x, sample=replace(x.sample, independent="queries"))
            for x in (one.comparison.new, one.comparison.old)
        )
        if (sure_difference(new, old, level=1 - 0.05 / len(found)) or -1.0) > 0 and one.comparison.interval[0] > 0:
            sure.append(one)
    return max(sure, key=lambda one: one.comparison.difference).name if sure else None


def given(pair: Pair, of: World) -> TwoStagePolicy:
    """A pair of tables for the package."""
    Q, D = of.relevance.shape
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    return TwoStagePolicy(GivenScores(pair[0]), GivenScores(pair[1]), of.K2, of.K, vocabulary)


# --- training ---------------------------------------------------------------------------------------------------------


def production(of: World) -> TwoStagePolicy:
    """The live pair as a factorisation, which training starts from."""
    Q, D = of.relevance.shape
    parts = (of.live_queries.astype(np.float32), of.live_items.astype(np.float32))
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    return TwoStagePolicy(MatrixFactorisation(*parts), MatrixFactorisation(*parts), of.K2, of.K, vocabulary)


def tables(policy: TwoStagePolicy) -> Pair:
    """A trained pair for the simulator."""
    s_c, s_r = policy.plain_scores(np.arange(len(policy.vocabulary.query_ids)))
    return s_c.double().numpy(), s_r.double().numpy()


def small(run: int, N: int) -> Iterator[Record]:
    """One log, learned from with the gate and without; a log that `learn` refuses leaves production as it is."""
    of = simulator.world(1000 + run, 200, 60)
    log = simulator.log(of, N, run)
    live = float(simulator.value((of.live, of.live), of, draws=200).mean())
    for kind in KINDS:
        record = {"part": "small", "number": run, "N": N, "caution": kind, "live": live}
        config = tr.LearningConfig(candidates=of.K2, safe=kind == "gate")
        try:
            learned = tr.learn(log, config, start=tr.Start(production(of)), logging_policy=production(of), seed=run)
        except TandemRankError:
            yield record | {"value": live, "kept": True}
            continue
        kept = [one.kept_production for one in learned.gates.values()] == [True]
        value = live if kept else float(simulator.value(tables(learned.policy), of, draws=200).mean())
        yield record | {"value": value, "kept": kept}


def coverage(number: int, N: int) -> Iterator[Record]:
    """One trained pair, its interval, and its true value for the log's queries, each as often as it comes."""
    of = simulator.world(5000 + number, 200, 60, items_seed=7)
    learned = tr.learn(simulator.log(of, N, number), tr.LearningConfig(candidates=of.K2), seed=number)
    found, vocabulary = learned.values["beliefs"], learned.policy.vocabulary
    ids = np.asarray(vocabulary.item_ids), np.asarray(vocabulary.query_ids)
    s_c, s_r = (spread(x, *ids, of.relevance.shape) for x in tables(learned.policy))
    value = float(simulator.value((s_c, s_r), of, draws=200).mean())
    low, high = found.interval
    record = {"part": "coverage", "number": number, "value": value, "estimate": found.value, "low": low, "high": high}
    yield record | {"verdict": str(found.verdict), "propensity": str(learned.propensity)}


def spread(scores: Floats, items: Floats, queries: Floats, shape: tuple[int, ...]) -> Floats:
    """Scores by outside ids; what the pair does not know is never shown.  Shapes: -> [Q, D]."""
    found = np.full(shape, -1e9)
    found[np.ix_(queries.astype(int), items.astype(int))] = scores
    return found


# --- what comes out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Over all logs: how often something shipped, was worse than production, was the best of the ten; the share of the gain."""

    rule: str
    logs: int
    shipped: float
    worse_than_production: int
    best_found: float
    share_of_gain: float


@dataclass(frozen=True)
class Small:
    """Clicks against production's, in %; the gain in % of that without caution; how often production was kept."""

    N: int
    caution: str
    runs: int
    fifth_percentile: float
    mean: float
    share_of_unsafe_gain: float
    kept_production: float


@dataclass(frozen=True)
class Intervals:
    """The share of 95% intervals that hold the value: `population`, of queries like these; `own`, of the log's."""

    worlds: int
    population: float
    own: float
    mean_error: float
    trusted: float


def select_rows(records: list[Record]) -> list[Selection]:
    rows = []
    for rule in dict.fromkeys(r["rule"] for r in records):
        own = [r for r in records if r["rule"] == rule]
        shipped = np.array([r["shipped"] for r in own])
        gain, most = (np.array([r[name] for r in own]) for name in ("gain", "most"))
        best = np.array([r["best"] for r in own])
        rows.append(
            Selection(
                rule,
                len(own),
                float(shipped.mean()),
                int((gain < 0).sum()),
                float(best.mean()),
                gain.sum() / most.sum(),
            )
        )
    return rows


def _cells(records: list[Record]) -> Iterator[tuple[int, str, list[Record]]]:
    for N, kind in dict.fromkeys((r["N"], r["caution"]) for r in sorted(records, key=lambda r: r["N"])):
        yield N, kind, [r for r in records if (r["N"], r["caution"]) == (N, kind)]


def small_rows(records: list[Record]) -> list[Small]:
    rows = []
    plain = {N: np.mean([r["value"] - r["live"] for r in own]) for N, kind, own in _cells(records) if kind == "none"}
    for N, kind, own in _cells(records):
        ahead = np.array([r["value"] / r["live"] - 1 for r in own])
        gain = float(np.mean([r["value"] - r["live"] for r in own]) / plain[N])
        kept = float(np.mean([r["kept"] for r in own]))
        rows.append(
            Small(N, kind, len(own), 100 * float(np.quantile(ahead, 0.05)), 100 * float(ahead.mean()), 100 * gain, kept)
        )
    return rows


def interval_rows(records: list[Record]) -> list[Intervals]:
    low, high, value, said = (np.array([r[name] for r in records]) for name in ("low", "high", "value", "estimate"))
    holds = [float(((low <= x) & (x <= high)).mean()) for x in (value.mean(), value)]
    trusted = float(np.mean([r["verdict"] == "trust it" for r in records]))
    return [Intervals(len(records), *holds, 100 * float((said / value - 1).mean()), trusted)]


@dataclass(frozen=True)
class Part:
    """Measures one number at one length of the log; the rows of all records; the option of how many; the lengths."""

    measure: Callable[[int, int], Iterator[Record]]
    rows: Callable[[list[Record]], list[Any]]
    option: str
    lengths: tuple[int, ...]


PARTS = {
    "small": Part(small, small_rows, "runs", LENGTHS),
    "coverage": Part(coverage, interval_rows, "worlds", (20_000,)),
    "selection": Part(selection, select_rows, "logs", (30_000,)),
}


def done(path: Path, part: str) -> list[Record]:
    """What the file has of a part; a line that was cut off is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found += [record] if record["part"] == part else []
    return found


def fill(path: Path, part: str, number: int, lengths: tuple[int, ...]) -> list[Record]:
    """Does what is missing, the short logs first; each is written when all of it is there."""
    of = PARTS[part]
    only = of.lengths[0]  # of parts whose records do not say it
    have = {(record["number"], record.get("N", only)) for record in done(path, part)}
    for N in of.lengths:
        for one in range(number if N in lengths else 0):
            if (one, N) not in have:
                lines = "".join(json.dumps(record) + "\n" for record in of.measure(one, N))
                with path.open("a", encoding="utf-8") as file:
                    file.write(lines)
    return [record for record in done(path, part) if record["number"] < number]


def main() -> None:
    """Measures what is missing and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--lengths", default="", help="of small: only these, separated by commas")
    parser.add_argument("--results", type=Path, default=Path("safety.jsonl"), help="file that results are appended to")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = {}
    for part in arguments.parts.split(","):
        of = PARTS[part]
        lengths = tuple(int(N) for N in arguments.lengths.split(",") if N) or of.lengths
        records = fill(arguments.results, part, getattr(arguments, of.option), lengths)
        rows[part] = [asdict(row) for row in of.rows(records)] if records else []
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for part, own in rows.items():
        print(part)
        for row in own:
            print(
                "  "
                + "  ".join(f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in row.items())
            )


if __name__ == "__main__":
    main()
