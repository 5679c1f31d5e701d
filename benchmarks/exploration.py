"""What exploration is worth: five rounds of serving, clicking and learning, for each way to draw lists, the truth known.

    python benchmarks/exploration.py                    ten worlds, a third of whose items come later: some ten minutes
    python benchmarks/exploration.py --new 0            the same with all items there from the beginning
    python benchmarks/exploration.py --strategies belief:4.0,trained --worlds 4 --json

In every round users click on drawn lists, by P(click) = theta_k R with graded relevance, and the beliefs of all clicks so far
make the next policy. In the first round a coarse production answers. `last`: true clicks per impression of what is served
after the last round; `best_lists`: of its most likely lists, what was learned; `all_rounds`: the mean over all rounds.
Differences are to the first strategy, in the same worlds.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from _common import not_negative, options, positive, report
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.exploring import exploring
from tandemrank.beliefs.fitting import fit
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.sums import merge
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving.drawing import AFFORDABLE, Exploration, parse
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.training.start import believed_policy

Floats = NDArray[np.float64]
Q, D, K2, K = 150, 200, 60, 10
THETA = 1 / np.arange(1, K + 1)
IDS = Vocabulary(pl.Series(np.arange(Q)), pl.Series(np.arange(D)))
STRATEGIES = "deterministic,trained,temperature:2.0,temperature:4.0,uniform:0.1,belief,belief:1.0,belief:2.0,belief:4.0"


@dataclass(frozen=True)
class World:
    """Relevance, production's scores, and the round in which an item comes.  Shapes: R, production [Q, D]; born [D]."""

    R: Floats
    production: Floats
    born: NDArray[np.int64]


def world(seed: int, new: float, rounds: int) -> World:
    """Tastes of six dimensions, popularity, and what is a pair's own; production knows two of the dimensions, badly."""
    rng = np.random.default_rng(seed)
    users, tastes, popular = rng.normal(size=(Q, 6)), rng.normal(size=(D, 6)) / np.sqrt(6), rng.normal(size=D)
    own = rng.normal(size=(Q, D))
    R = 0.8 / (1 + np.exp(3.2 - 0.7 * popular - 1.6 * users @ tastes.T - 0.5 * own))
    known = users[:, :2] + 0.7 * rng.normal(size=(Q, 2))
    production = 0.7 * popular + 0.3 * rng.normal(size=D) + 0.8 * known @ tastes[:, :2].T
    return World(R, production, np.where(rng.random(D) < new, rng.integers(1, max(rounds, 2), D), 0))


@dataclass(frozen=True)
class Live:
    """Scores of both stages, each way to draw with its share; without noise where lists are always the best ones."""

    parts: tuple[tuple[float, Floats, Floats], ...]
    is_drawn: bool = True

    def lists(self, q: NDArray[np.int64], there: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
        """Shapes: q [n]; there [D] -> [n, K]."""
        which = rng.choice(len(self.parts), len(q), p=[share for share, _, _ in self.parts])
        s_c, s_r = (np.stack([part[stage] for part in self.parts])[which, q] for stage in (1, 2))
        noise = rng.gumbel(size=(2, len(q), D)) if self.is_drawn else np.zeros((2, 1, 1))
        first = np.where(there, s_c + noise[0], -np.inf)
        last = -np.partition(-first, K2 - 1, axis=1)[:, K2 - 1 : K2]
        second = np.where(first >= last, s_r + noise[1], -np.inf)
        return np.argsort(-second, axis=1)[:, :K]


def live(policy: TwoStagePolicy, how: Exploration) -> Live:
    """A policy that draws its lists by a strategy, as `serve` does."""
    c = LivePolicy(policy).affordable(tuple(THETA)) if how.raised == AFFORDABLE else how.raised
    s_c, s_r = (s.numpy() for s in exploring(policy, c).plain_scores(np.arange(Q)))
    parts = [(share, a.astype(np.float64), np.asarray(b, np.float64)) for share, a, b in how.parts(s_c, s_r)]
    return Live(tuple(parts), how.strategy != "deterministic")


def value(w: World, served: Live, there: NDArray[np.bool_], rng: np.random.Generator) -> float:
    """True clicks per impression, by 20 lists of each query."""
    q = np.repeat(np.arange(Q), 20)
    return float((THETA * w.R[q[:, None], served.lists(q, there, rng)]).sum(1).mean())


def rounds_of(w: World, how: Exploration, rounds: int, impressions: int, seed: int) -> tuple[float, float, float]:
    """Clicks per impression after the last round, of the most likely lists then, and over all rounds."""
    rng = np.random.default_rng(seed)
    served, total, logs = Live(((1.0, w.production, w.production),)), 0.0, list[Feedback]()
    for number in range(rounds):
        there = w.born <= number
        total += value(w, served, there, rng)
        q = rng.integers(0, Q, impressions)
        items = served.lists(q, there, rng)
        clicks = rng.random(items.shape) < THETA * w.R[q[:, None], items]
        shown = Impressions(q.astype(np.int32), items.astype(np.int32), clicks.view(np.uint8))
        logs.append(from_impressions([shown], IDS))
        beliefs = fit(Counts.of([merge(logs) if number else logs[0]], THETA), None, seed=number)
        policy = believed_policy(beliefs, IDS, K2=K2, K=K)
        served = live(policy, how)
    everything = np.ones(D, np.bool_)
    last, best = (value(w, one, everything, rng) for one in (served, live(policy, Exploration("deterministic"))))
    return last, best, (total + last) / (rounds + 1)


@dataclass(frozen=True)
class Row:
    """A strategy: means over worlds, and paired differences to the deterministic one with their standard errors."""

    strategy: str
    last: float
    best_lists: float
    all_rounds: float
    last_gain: float
    last_error: float
    best_lists_gain: float
    best_lists_error: float


def rows(found: dict[str, list[tuple[float, float, float]]]) -> list[dict[str, object]]:
    """One for each strategy; the first of them is what the others are compared with."""
    base = np.array(next(iter(found.values())))
    made = []
    for strategy, values in found.items():
        every = np.array(values)
        gap = every - base
        error = gap.std(0, ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.full(3, np.nan)
        row = Row(strategy, *every.mean(0), gap[:, 0].mean(), error[0], gap[:, 1].mean(), error[1])
        made.append({name: x if isinstance(x, str) else round(float(x), 4) for name, x in vars(row).items()})
    return made


def main() -> None:
    """Parses, measures, prints."""
    asked = options(__doc__)
    asked.add_argument("--worlds", type=positive, default=10)
    asked.add_argument("--rounds", type=positive, default=5)
    asked.add_argument("--impressions", type=positive, default=3000, help="of a round")
    asked.add_argument("--new", type=float, default=0.33, help="share of the items that come in later rounds")
    asked.add_argument("--strategies", default=STRATEGIES, help="as serve's --exploration; the first is compared with")
    asked.add_argument("--seed", type=not_negative, default=0)
    a = asked.parse_args()
    names = a.strategies.split(",")

    def measure(progress: object) -> dict[str, object]:
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
        for number in range(a.worlds):
            w = world(a.seed + number, a.new, a.rounds)
            for name in names:
                found[name].append(rounds_of(w, parse(name), a.rounds, a.impressions, a.seed + 1000 + number))
                progress(number * len(names) + len([x for x in found.values() if len(x) > number]))  # type: ignore[operator]
        return {"worlds": a.worlds, "new": a.new, "rows": rows(found)}

    report(measure, "rounds", as_json=a.json, total=a.worlds * len(names))


if __name__ == "__main__":
    main()
