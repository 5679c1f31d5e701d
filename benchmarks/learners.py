"""Beliefs and what a practitioner would do instead, on the same logs of the independent worlds: one table, with seconds.

    python benchmarks/learners.py [--worlds "shop 30k,zipf"] [--learners "beliefs;LightGBM, shown"] [--seeds 1] [--out FILE]
    python benchmarks/learners.py --data ml-1m.zip --worlds "MovieLens 100000,MovieLens 1000000" [...]

Worlds: `tests/independent/worlds.py`. Peers: `benchmarks/peers.py`. Settings are fixed there. Printed for every learner: true
clicks of its lists on known queries, on items not clicked before, on queries that the log has not seen, and CPU seconds; then
the beliefs over the best peer and over production, by world. With `--out` finished rows are kept, and not run again.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl

import peers
from movielens import MovieLens

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import tandemrank as tr
from independent import worlds
from independent.worlds import Judged, World
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.fitting import fit
from tandemrank.clicks.examination import behaviour
from tandemrank.logs import reading
from tandemrank.logs.pairs import TESTED
from tandemrank.training.parts import TIMES

OURS = ("beliefs", "beliefs, features", "learn")
MOVIELENS = "MovieLens "


@dataclass(frozen=True)
class Row:
    """One learner in one world."""

    world: str
    seed: int
    learner: str
    all_items: float
    new_items: float
    cold: float
    seconds: float


def log_of(w: World) -> pl.DataFrame:
    """The log as a user has it, in the order of time."""
    lists = {"query_id": w.query, "items": w.items.tolist(), "clicks": w.clicks.astype(int).tolist()}
    return pl.DataFrame({**lists, "timestamp": np.arange(len(w.query))})


def counts_of(w: World) -> Counts:
    """The log as the beliefs take it: examination as the log says that lists are read, as in `learn`; else the given curve."""
    log, (Q, D) = log_of(w), w.R.shape
    how = {"times": TIMES, "lists": TESTED, "vocabulary": Vocabulary(range(Q), range(D)), "K": len(w.theta)}
    read = reading.read_parts(log, **how)
    cells = behaviour(log, read).cells
    curve = tuple(w.theta.tolist()) if cells is None else cells
    config = tr.LearningConfig(examination=curve, list_length=len(w.theta))
    read = read if config.by is None else reading.read_parts(log, **how, by=config.by)
    return Counts.of([part.less(config.offset) for part in read.train], config.theta)


def believed(w: World, *, features: bool, seed: int = 0) -> peers.Scores:
    """The beliefs of the log."""
    known = Features(query=w.query_features, item=w.item_features) if features else Features()
    found = fit(counts_of(w), known, seed=seed)
    return lambda q: found.matrix(q)[:, :-1]


def learned(w: World) -> peers.Scores:
    """What `learn` makes of the log, of which it holds a fifth out."""
    ids = ("query_id", "item_id")
    config = tr.LearningConfig(examination=tuple(w.theta.tolist()))
    found = tr.learn(log_of(w), config, methods=["beliefs"])
    assert found.beliefs is not None
    known = found.policy.vocabulary
    rows, columns = (np.asarray(getattr(known, f"{name}s")) for name in ids)
    place = np.full(w.R.shape[0], -1)
    place[rows] = np.arange(len(rows))

    def scores(q: np.ndarray) -> np.ndarray:
        s = np.full((len(q), w.R.shape[1]), -np.inf)
        seen = place[q] >= 0
        s[np.ix_(seen, columns)] = found.beliefs.matrix(place[q[seen]])[:, :-1]
        return s

    return scores


def learners_of(w: World) -> dict[str, Callable[[], peers.Scores]]:
    """Everything that learns from the log of a world."""
    has_features = w.item_features is not None
    e = peers.Evidence(
        query=w.query, items=w.items, clicks=w.clicks, theta=w.theta, Q=w.R.shape[0], D=w.R.shape[1],
        query_features=w.query_features, item_features=w.item_features,
    )  # fmt: skip
    found: dict[str, Callable[[], peers.Scores]] = {"beliefs": lambda: believed(w, features=False)}
    found["learn"] = lambda: learned(w)
    if has_features:
        found["beliefs, features"] = lambda: believed(w, features=True)
    for peer in peers.PEERS:
        if has_features or not peer.features:
            found[peer.name] = lambda peer=peer: peers.tuned(peer, e)  # type: ignore[misc]
    return found


def rows_of(name: str, seed: int, wanted: list[str] | None, done: set[str], data: Path | None) -> list[Row]:
    """Every learner that is wanted and not done, in one world."""
    if name.startswith(MOVIELENS):
        return movielens_rows(name, seed, wanted, done, data)
    w = worlds.WORLDS[name](seed)
    rows = []

    def add(learner: str, found: Judged, seconds: float) -> None:
        rows.append(Row(name, seed, learner, found.all_items, found.new_items, found.cold, seconds))
        print(line(rows[-1]), flush=True)

    for learner, judge in (("production", worlds.judge_production), ("best possible", worlds.judge_best)):
        if learner not in done:
            add(learner, judge(w), 0.0)
    for learner, learn in learners_of(w).items():
        if learner in done or (wanted is not None and learner not in wanted):
            continue
        since = time.process_time()
        scores = learn()
        seconds = time.process_time() - since
        add(learner, worlds.judge(w, scores), seconds)
    return rows


def movielens_rows(name: str, seed: int, wanted: list[str] | None, done: set[str], data: Path | None) -> list[Row]:
    """Every learner that is wanted and not done, on MovieLens: NDCG@10 in the place of clicks."""
    if data is None:
        raise SystemExit("expected --data, the zip of MovieLens-1M; got none.")
    w = MovieLens(data, int(name.removeprefix(MOVIELENS)), seed)
    learners: dict[str, Callable[[], peers.Scores]] = {
        "beliefs": lambda: w.believed(features=False),
        "beliefs, features": lambda: w.believed(features=True),
    } | {peer.name: lambda peer=peer: peers.tuned(peer, w.log) for peer in peers.PEERS if not peer.features}
    rows = []
    for learner, learn in learners.items():
        if learner in done or (wanted is not None and learner not in wanted):
            continue
        since = time.process_time()
        scores = learn()
        seconds = time.process_time() - since
        rows.append(Row(name, seed, learner, *w.judge(scores), float("nan"), seconds))
        print(line(rows[-1]), flush=True)
    return rows


def line(r: Row) -> str:
    """A row to read."""
    return (
        f"{r.world:20} {r.seed:4} {r.learner:24} {r.all_items:7.4f} {r.new_items:7.4f} {r.cold:7.4f} {r.seconds:6.1f}"
    )


def ratios(rows: list[Row]) -> list[str]:
    """The beliefs over the best peer and over production, by world and in the geometric mean."""
    lines, logs = [], []
    for key in dict.fromkeys((r.world, r.seed) for r in rows):
        mine = {r.learner: r for r in rows if (r.world, r.seed) == key}
        rivals = [r for n, r in mine.items() if n not in (*OURS, "production", "best possible")]
        for name in OURS:
            if name not in mine or not rivals:
                continue
            best = max(rivals, key=lambda r: r.all_items)
            fresh = max(rivals, key=lambda r: r.new_items)
            over = mine[name].all_items / best.all_items
            logs.append(np.log(over))
            lines.append(
                f"{key[0]:20} {key[1]:4} {name:18} all {over:.3f} of {best.learner:24} new "
                f"{mine[name].new_items / fresh.new_items:.3f} of {fresh.learner:24} production "
                f"{mine[name].all_items / mine['production'].all_items if 'production' in mine else np.nan:.3f}"
            )
    if logs:
        share = np.mean(np.array(logs) >= 0)
        lines.append(f"geometric mean over the best peer {np.exp(np.mean(logs)):.3f}, at least 1 in {share:.0%}")
    return lines


def main() -> None:
    """Measures what is missing, and prints all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(worlds.WORLDS))
    parser.add_argument("--learners", help="some of them, with ; between; all by default")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--data", type=Path, help="zip of MovieLens-1M, for worlds that are called MovieLens N")
    parser.add_argument("--out", type=Path, help="file of finished rows")
    arguments = parser.parse_args()
    wanted = arguments.learners.split(";") if arguments.learners else None
    rows = [Row(**x) for x in json.loads(arguments.out.read_text())] if arguments.out and arguments.out.exists() else []
    for seed in map(int, arguments.seeds.split(",")):
        for name in arguments.worlds.split(","):
            rows += rows_of(
                name, seed, wanted, {r.learner for r in rows if (r.world, r.seed) == (name, seed)}, arguments.data
            )
            if arguments.out:
                arguments.out.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print("\n".join(ratios(rows)))


if __name__ == "__main__":
    main()
