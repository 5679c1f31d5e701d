"""Are the answers true? What is promised, against the truth of independent simulators (`tests/independent`), world by world.

    python benchmarks/truth.py --logs 100 --results truth.jsonl --json
    python benchmarks/truth.py --worlds adaptive,stop --logs 100

Of every world: how often the 95% interval of a value holds the truth (`coverage`), value over truth less 1 (`bias`, with its
standard error), the same of the gain over production where there is one, how often a bound is not above the truth, the
verdicts, how many policies that are worse were called "ship", and the standard error that is stated beside the one that was
found. `trusted`: of the logs with the verdict "trust it" alone. Every log's result is a line of the file, so an interrupted run
goes on, and a longer one only adds. The worlds are in `truth_worlds.py`; `search` is a log of the size of a search engine's,
for time and memory.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from truth_worlds import DEFAULT, WORLDS, Result

TRUST = "trust it"


def run(file: Path, names: Sequence[str], logs: int) -> list[Result]:
    """Does what the file does not have yet, a log of each world at a time; every result of the file that was asked for."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {(one["world"], one["seed"]): one for one in map(json.loads, lines)}
    jobs = [(name, seed) for seed in range(1, logs + 1) for name in names if name != "search" or seed == 1]
    for name, seed in jobs:
        if (name, seed) not in known:
            began = time.perf_counter()
            known[name, seed] = {"world": name, "seed": seed, **WORLDS[name](seed), "took": time.perf_counter() - began}
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(known[name, seed]) + "\n")
    return [known[job] for job in jobs]


def summary(results: Sequence[Result]) -> dict[str, Result]:
    """The numbers of every world."""
    names = dict.fromkeys(one["world"] for one in results)
    return {name: of_world([one for one in results if one["world"] == name]) for name in names}


def of_world(results: Sequence[Result]) -> Result:
    """The numbers of one world."""
    found: Result = {"logs": len(results)}
    if "value" not in results[0]:
        return found | {name: x for name, x in results[0].items() if name not in ("world", "seed", "took")}
    trusted = [one for one in results if one["verdict"] == TRUST]
    verdicts = Counter(one["verdict"] for one in results)
    found |= {"verdicts": {verdict: n / len(results) for verdict, n in verdicts.items()}}
    found |= of_intervals(results) | {"trusted": of_intervals(trusted) if trusted else None}
    if gains := [one["gain"] for one in results if "gain" in one]:
        found["gain"] = of_gains(gains)
    if calls := [one for one in results if "call" in one]:
        shipped = [one for one in calls if one["call"] == "ship"]
        worse = sum(one["gain"]["truth"] < 0 for one in shipped)
        found |= {"shipped": len(shipped) / len(calls), "worse_shipped": worse / len(calls)}
    more = {name for one in results for name in one.get("more", {})}
    return found | {name: mean([one["more"][name] for one in results if name in one["more"]]) for name in sorted(more)}


def of_intervals(results: Sequence[Result]) -> Result:
    """Of values."""
    off = np.array([one["value"] / one["truth"] - 1 for one in results])
    stated = np.array([one["error"] / one["truth"] for one in results])
    found = {"logs": len(results), "coverage": held(results), "bias": mean(off.tolist())}
    found["error"] = {
        "stated": float(np.sqrt(np.square(stated).mean())),
        "found": float(np.sqrt(np.square(off).mean())),
    }
    if bounds := [one["bound"] <= one["truth"] for one in results if one.get("bound") is not None]:
        found["bound_holds"] = float(np.mean(bounds))
    return found


def of_gains(gains: Sequence[Result]) -> Result:
    """Of differences to production: in clicks per impression."""
    found = {"truth": mean([one["truth"] for one in gains]), "coverage": held(gains)}
    found["beyond"] = mean([one["value"] - one["truth"] for one in gains])
    if bounds := [one["bound"] <= one["truth"] for one in gains if one.get("bound") is not None]:
        found["bound_holds"] = float(np.mean(bounds))
    return found


def held(results: Sequence[Result]) -> float:
    """How often the interval holds the truth."""
    return float(np.mean([one["low"] <= one["truth"] <= one["high"] for one in results]))


def mean(of: Sequence[float]) -> dict[str, float]:
    """With its standard error."""
    x = np.array(of)
    return {"mean": float(x.mean()), "error": float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")}


def line(name: str, of: Result) -> str:
    """A world on a line."""
    if "coverage" not in of:
        return f"{name:18s} " + "  ".join(f"{key} {value}" for key, value in of.items())
    said = "".join(f"  {share:4.0%} {verdict.split()[0]}" for verdict, share in of["verdicts"].items())
    bias, error = of["bias"], of["error"]
    found = (
        f"{name:18s} {of['logs']:4d} logs  holds {of['coverage']:4.0%}  bias {bias['mean']:+6.1%} ± {bias['error']:.1%}"
    )
    found += f"  error {error['stated']:.1%} stated {error['found']:.1%} found"
    gain: Any = of.get("gain")
    if gain:
        found += f"  gain holds {gain['coverage']:4.0%} beyond {gain['beyond']['mean']:+.3f}"
    if "worse_shipped" in of:
        found += f"  worse shipped {of['worse_shipped']:.0%}"
    return found + said


def main() -> None:
    """Measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--worlds", default=",".join(DEFAULT), help=f"of {', '.join(WORLDS)}")
    parser.add_argument("--results", type=Path, default=Path("truth.jsonl"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    names = asked.worlds.split(",")
    if unknown := [name for name in names if name not in WORLDS]:
        parser.error(f"unknown world {unknown[0]}; there are {', '.join(WORLDS)}")
    found = summary(run(asked.results, names, asked.logs))
    print(json.dumps(found, indent=1) if asked.json else "\n".join(line(name, of) for name, of in found.items()))


if __name__ == "__main__":
    main()
