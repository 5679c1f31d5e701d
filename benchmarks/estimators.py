"""The error of every estimator over worlds where the truth is known: which one should be the default?

    python benchmarks/estimators.py [--kind graded|binary] [--worlds 3] [--first 100] [--logs 40] [--fitted 10] [--json]

A `graded` world: 200 queries, 120 items with tastes, K = 5 shown of K2 = 30 candidates, clicks theta_k R with theta_k = 1/k
and R from .02 to .6. The log is drawn by a production pair; a new pair is `near` (production's scores, doubled for its re-
ranker), `better` (production mixed with the truth), `far` (scores of its own) or `outside` (it shows much that production
hardly ever shows). A `binary` world is the synthetic one of `tandemrank table` in the same size: an item is relevant or not,
production is a factorisation that knows the mean query, and the beliefs have its vectors as a prior; `better` is then the
policy that the beliefs of another log make, 30 impressions per query long. Logs are short (10 impressions per query),
middling (100) and long (1,000). Propensities are exact, or fitted to the lists. Reward models are cross-fitted by impressions,
as in `estimate`. Printed: root mean squared error in % of the true value (that of the log's queries, each as often as it came)
and bias in %, over all logs of all worlds; and for each estimator the geometric mean over all kinds of world but `outside`,
over that of IPS, with a 95% interval (logs drawn with replacement, the same for all estimators). `direct_...` and `robust_...`
are the direct method and the doubly robust estimator with each reward model: click rates by item, and the beliefs with
memory (in graded worlds, of the log alone); `robust_truth` has the true R for a reward model, which nobody has: no other can
be expected to do better. Worlds 0 to 2 are those on which beta_ips was worked out: judge it on others.
About an hour on one core.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

import item_rate
from tandemrank._base.ids import Vocabulary
from tandemrank._base.random import derive
from tandemrank.beliefs.belief import Beliefs
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.model import Belief, RewardModel
from tandemrank.beliefs.space import Vectors
from tandemrank.beliefs.vectors import vectors_of
from tandemrank.clicks.models import position_based
from tandemrank.clicks.simulation import simulate
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.world import build_world, load_task
from tandemrank.gradients import race
from tandemrank.logs import feedback
from tandemrank.logs.counting import from_impressions, parts_of
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.sums import merge
from tandemrank.offpolicy import estimators
from tandemrank.offpolicy.estimators import Estimate, Floats, by_query, safe_ratio
from tandemrank.offpolicy.logger import lists_of
from tandemrank.offpolicy.propensities import fitted_policy
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import LearningConfig

Q, D, K, K2 = 200, 120, 5, 30
THETA = 1 / np.arange(1.0, K + 1)
PAIRS = ("near", "better", "far", "outside")
LENGTHS = (10, 100, 1000)  # impressions per query
SAMPLES = 2000  # of the race for the exposures that count as true
MODELS = ("item_rate", "beliefs")
NAMES = (
    "ips", "clipped", "self_normalised", "beta_ips", *(f"{kind}_{m}" for m in MODELS for kind in ("direct", "robust")),
    "robust_truth",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One estimator in one kind of world, over many logs. Percentages of the true value; `bias_error`: standard error."""

    propensity: str
    pair: str
    impressions: int
    estimator: str
    error: float
    bias: float
    bias_error: float


@dataclass(frozen=True)
class Summary:
    """The geometric mean of an estimator's errors over that of IPS, with its 95% interval."""

    propensity: str
    estimator: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class World:
    """What is true, and the vectors that are known before the log.  Shapes: relevance, rho_0 and every rho [Q, D]."""

    relevance: Floats
    production: TwoStagePolicy
    rho_0: Floats
    rho: dict[str, Floats]
    vectors: Vectors | None = None


class Truth(RewardModel):
    """What is true, as a reward model.  Shapes: relevance [Q, D]."""

    kind = "truth"

    def __init__(self, relevance: Floats) -> None:
        self.relevance = relevance

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Belief:
        return Belief(self.relevance[q, d], np.zeros(len(q)))

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        return np.pad(self.relevance[q], ((0, 0), (0, 1)))

    def constants(self) -> dict[str, Any]:
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"relevance": self.relevance}

    @classmethod
    def restored(cls, constants: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> "Truth":
        return cls(arrays["relevance"])


def world(seed: int) -> World:
    """Tastes of three dimensions and popularity; production knows half of them."""
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    known, other = (rng.normal(size=(Q, 3)) @ rng.normal(size=(3, D)) / np.sqrt(3) for _ in range(2))
    popular = rng.normal(size=D)
    relevance = 0.02 + 0.58 / (1 + np.exp(2 - known - other - 0.5 * popular))
    live = 0.8 * known + 0.5 * popular

    def pair(generator: Floats, ranker: Floats) -> TwoStagePolicy:
        return TwoStagePolicy(
            *(GivenScores(csr_matrix(x.astype(np.float32))) for x in (generator, ranker)), K2, K, vocabulary
        )

    mixed, strange = live + other, 0.8 * rng.normal(size=(Q, D)) + 0.3 * live
    scores = {
        "near": (live, 2 * live),
        "better": (mixed, mixed),
        "far": (strange, strange),
        "outside": (-live, 1.5 * other),
    }
    return World(
        relevance, pair(live, live), exposure(live, live), {name: exposure(*both) for name, both in scores.items()}
    )


def binary_world(seed: int) -> World:
    """The synthetic world of the table, small; its production scores all queries as the mean one."""
    config = ExperimentConfig(
        queries=Q,
        items=D,
        rank=10,
        production_share=0.2,
        world_seed=seed,
        logged_users="all",
        learning=LearningConfig(list_length=K),
    )
    found = build_world(load_task(config), config, seed)
    production, relevance = found.production, found.task.relevance
    vectors = vectors_of(production, found.task.vocabulary)
    live = production.plain_scores(np.arange(Q))[0].numpy().astype(np.float64)
    parts = list(
        simulate(production.sample, relevance, np.arange(Q), 30 * Q, position_based(THETA), seed=derive(seed, "before"))
    )
    known = believed(from_impressions(parts, found.task.vocabulary), vectors).matrix(np.arange(Q))[:, :-1]
    better = np.log(known / (1 - known))
    rng = np.random.default_rng(seed)
    strange = 0.8 * rng.normal(size=(Q, D)) + 0.3 * live
    scores = {"near": (live, 2 * live), "better": (better, better), "far": (strange, strange)}
    rho = {name: exposure(*both) for name, both in scores.items()}
    return World(relevance.toarray().astype(np.float64), production, exposure(live, live, D), rho, vectors)


def believed(log: Feedback, vectors: Vectors | None) -> Beliefs:
    """The beliefs of a log."""
    return fit(Counts.of([log], THETA), production=vectors)


KINDS = {"graded": world, "binary": binary_world}


def exposure(generator: Floats, ranker: Floats, candidates: int = K2) -> Floats:
    """rho of all documents, with hardly any noise.  Shapes: -> [Q, D]."""
    s_c, s_r = (torch.as_tensor(x, dtype=torch.float32) for x in (generator, ranker))
    curve, seeded = torch.as_tensor(THETA, dtype=torch.float32), torch.Generator().manual_seed(0)
    return race.exposure(s_c, s_r, curve, candidates, samples=SAMPLES, generator=seeded)[0].double().numpy()


def logs(of: World, n: int, number: int, seed: int) -> Iterator[tuple[Feedback, Feedback, Callable[[], Floats]]]:
    """Logs in two parts by impression, each with what fits a logger to its lists.  Shapes: the fitted rho_0 [Q, D]."""
    sparse, vocabulary = csr_matrix(of.relevance), of.production.vocabulary
    for i in range(number):
        key = derive(seed, n, i)
        parts = list(simulate(of.production.sample, sparse, np.arange(Q), n * Q, position_based(THETA), seed=key))
        one, other = parts_of(parts, vocabulary, (0.5,), seed=key)

        def fitted(parts: list = parts, key: int = key) -> Floats:
            logger = fitted_policy(lists_of(parts), vocabulary, seed=key)
            with torch.no_grad():
                s_c, s_r = logger.scores(np.arange(Q))
            curve = torch.as_tensor(THETA, dtype=torch.float32)
            seeded = torch.Generator().manual_seed(0)
            return race.exposure(s_c, s_r, curve, logger.K2, samples=200, generator=seeded)[0].double().numpy()

        yield one, other, fitted


# Of each kind: for the one part by the other, and the other way round.
Fitted = dict[str, tuple[RewardModel, RewardModel]]


def fitted_models(one: Feedback, other: Feedback, of: World) -> Fitted:
    """Every reward model, cross-fitted."""
    vectors, truth = of.vectors, Truth(of.relevance)
    return {
        "truth": (truth, truth),
        "item_rate": (item_rate.reward_model(other, THETA), item_rate.reward_model(one, THETA)),
        "beliefs": (believed(other, vectors), believed(one, vectors)),
    }


def pooled(parts: list[Estimate]) -> Estimate:
    """One estimate of two parts of a log, query by query: what cross-fitting ends with."""
    return Estimate(*(np.sum([getattr(part, of) for part in parts], axis=0) for of in ("numerator", "denominator")))


def self_normalised(rho: Floats, rho_0: Floats, log: Feedback) -> Estimate:
    """IPS over the same sum for the exposure, whose expectation is known.  Shapes: rho, rho_0 [P]."""
    w = safe_ratio(rho, rho_0, log.shown)
    return Estimate(by_query(w * log.clicks, log) * THETA.sum(), by_query(w * feedback.exposure(log, THETA), log))


def values(rho: Floats, rho_0: Floats, one: Feedback, other: Feedback, models: Fitted) -> dict[str, Estimate]:
    """Every estimator on one log.  Shapes: rho, rho_0 [Q, D]."""
    log = merge([one, other])
    on_log = rho[log.query, log.item], rho_0[log.query, log.item], log
    minimum = np.quantile(on_log[1][log.clicks > 0], 0.01)
    modelled = {}
    for name, both in models.items():
        direct, robust = [], []
        for part, reward in zip((one, other), both, strict=True):
            at = np.searchsorted(*(((x.query.astype(np.int64) * D) + x.item) * K + x.rank for x in (log, part)))
            promised = (rho * reward.matrix(np.arange(Q))[:, :D]).sum(1)
            on_part = on_log[0][at], on_log[1][at], part
            direct.append(Estimate(promised * part.impressions, part.impressions.astype(np.float64)))
            r_hat = reward.at(part.query, part.item).mean
            robust.append(estimators.doubly_robust(*on_part, theta=THETA, r_hat=r_hat, direct=promised))
        modelled |= {f"direct_{name}": pooled(direct), f"robust_{name}": pooled(robust)}
    return modelled | {
        "ips": estimators.ips(*on_log),
        "clipped": estimators.ips(on_log[0], np.maximum(on_log[1], minimum), log),
        "self_normalised": self_normalised(*on_log),
        "beta_ips": estimators.beta_ips(*on_log, theta=THETA),
    }


Cells = dict[tuple[str, str, int], Floats]  # errors in % [logs, estimators] by propensity, pair, impressions per query


def measure(kind: str, worlds: range, number: int, fitted_number: int) -> Cells:
    """All worlds, all estimators."""
    every = {seed: KINDS[kind](seed) for seed in worlds}
    off: dict[tuple[str, str, int], list[list[float]]] = {}
    for propensity, repeats in (("exact", number), ("fitted", fitted_number)):
        for n in LENGTHS:
            for seed, of in every.items():
                for one, other, fitted in logs(of, n, repeats, seed):
                    rho_0 = of.rho_0 if propensity == "exact" else fitted()
                    models = fitted_models(one, other, of)
                    share = (one.impressions + other.impressions) / (one.N + other.N)
                    for pair, rho in of.rho.items():
                        truth = float(share @ (rho * of.relevance).sum(1))
                        found = values(rho, rho_0, one, other, models)
                        errors = [100 * (found[name].value / truth - 1) for name in NAMES]
                        off.setdefault((propensity, pair, n), []).append(errors)
    return {cell: np.array(errors) for cell, errors in off.items()}


def table(cells: Cells) -> list[Row]:
    """Error and bias of each estimator in each kind of world."""
    rows = []
    for (propensity, pair, n), x in cells.items():
        error, bias, spread = np.sqrt(np.square(x).mean(0)), x.mean(0), x.std(0) / np.sqrt(len(x))
        rows += [
            Row(propensity, pair, n, *of)
            for of in zip(NAMES, *(v.tolist() for v in (error, bias, spread)), strict=True)
        ]
    return rows


def summaries(cells: Cells, replicates: int = 2000) -> list[Summary]:
    """Each estimator over IPS, in the mean of all kinds of world that a log can speak about."""
    rng, found = np.random.default_rng(0), []
    for propensity in dict.fromkeys(kind for kind, _, _ in cells):
        chosen = [x for (kind, pair, _), x in cells.items() if kind == propensity and pair != "outside"]
        draws = [np.stack([x, *(x[rng.integers(len(x), size=len(x))] for _ in range(replicates))]) for x in chosen]
        log_error = np.mean([np.log(np.square(d).mean(1)) / 2 for d in draws], axis=0)  # [1 + replicates, estimators]
        ratio = np.exp(log_error - log_error[:, :1])
        low, high = np.quantile(ratio[1:], [0.025, 0.975], axis=0)
        found += [
            Summary(propensity, *of) for of in zip(NAMES, *(v.tolist() for v in (ratio[0], low, high)), strict=True)
        ]
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(KINDS), default="graded")
    parser.add_argument("--worlds", type=int, default=3)
    parser.add_argument("--first", type=int, default=100, help="number of the first world")
    parser.add_argument("--logs", type=int, default=40, help="logs of each world with exact propensities")
    parser.add_argument("--fitted", type=int, default=10, help="logs of each world with fitted propensities")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    worlds = range(arguments.first, arguments.first + arguments.worlds)
    cells = measure(arguments.kind, worlds, arguments.logs, arguments.fitted)
    rows, means = table(cells), summaries(cells)
    if arguments.json:
        print(json.dumps({"rows": [asdict(x) for x in rows], "summary": [asdict(x) for x in means]}, indent=2))
        return
    print(f"{'propensity':10} {'pair':8} {'n':>5}  " + "  ".join(f"{name:>15}" for name in NAMES))
    for start in range(0, len(rows), len(NAMES)):
        first = rows[start]
        line = "  ".join(f"{r.error:7.2f} {r.bias:+7.2f}" for r in rows[start : start + len(NAMES)])
        print(f"{first.propensity:10} {first.pair:8} {first.impressions:5}  {line}")
    for x in means:
        print(f"{x.propensity:10} {x.estimator:16} over IPS: {x.ratio:.3f} [{x.low:.3f}, {x.high:.3f}]")


if __name__ == "__main__":
    main()
