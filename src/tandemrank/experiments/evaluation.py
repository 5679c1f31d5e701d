"""How good a policy truly is, where the relevance is known: NDCG, recall of the generator, expected clicks.

    U = E_q sum_d rho_cr(d) R[q, d]                                                     (paper: 2stage-true-utility)

Every figure is kept per query, so two policies are compared by their paired differences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix
from scipy.stats import t as student
from torch import Tensor

from tandemrank._base.arguments import checked, matrix
from tandemrank._base.ids import Vocabulary, checked_positions, plain_ids, positions_of, same_ids
from tandemrank._base.results import Result, within
from tandemrank._base.sparse import canonical_csr
from tandemrank.beliefs.judgements import read_judgements
from tandemrank.clicks import simulation
from tandemrank.clicks.models import check_examination
from tandemrank.errors import ConfigError, DataError, PolicyError
from tandemrank.experiments.datasets import Task
from tandemrank.experiments.results import FIGURES, Evaluated, Figure, FigureDifference, Figures, Mean, PolicyFigures
from tandemrank.gradients import _bridge, lazy_race
from tandemrank.policies import candidates
from tandemrank.policies import features as tables
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy, extended
from tandemrank.training.loop import Trained

Floats = NDArray[np.float64]


def mean(values: Floats) -> Mean:
    """The mean and its normal 95% interval; queries without a value (NaN) are left out.  Shapes: [n]."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        raise DataError(
            "no query has a relevant document, so there is nothing to average. Check the relevance threshold."
        )
    half = 1.96 * known.std(ddof=1) / np.sqrt(len(known)) if len(known) > 1 else float("nan")
    return Mean(float(known.mean()), float(known.mean() - half), float(known.mean() + half), len(known))


def difference(a: Floats, b: Floats) -> Mean:
    """The mean of a - b over the same queries, with its interval.  Shapes: a, b [n]."""
    return mean(a - b)


def over_runs(values: Floats) -> Mean:
    """The mean over runs with its 95% Student interval.  Shapes: [runs]."""
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Mean(float(values.mean()), float(values.mean() - half), float(values.mean() + half), len(values))


@dataclass(frozen=True)
class Truth:
    """What a policy is evaluated by: relevance, the examination curve, and the queries that count.

    Shapes: relevance [Q, D]; theta [K]; q [n].
    """

    relevance: csr_matrix
    theta: Floats
    q: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """One policy on some queries; NaN for queries without a relevant document.

    ndcg: of the most likely list; ndcg_new: of the most likely list of items that the query has not clicked (`ndcg_of_new`),
    NaN without a log; ndcg_expected: of sampled lists; recall_at_K2: of the generator's K2 highest;
    utility: expected clicks; generator_alone, ranker_alone: NDCG of what a stage would show without the other.
    Shapes: each [n].
    """

    ndcg: Floats
    ndcg_new: Floats
    ndcg_expected: Floats
    recall_at_K2: Floats
    utility: Floats
    generator_alone: Floats
    ranker_alone: Floats

    def summary(self) -> dict[str, Any]:
        """The mean of every figure with its interval; one that is of no query is NaN."""
        return {figure: getattr(self.figures(), figure) for figure in FIGURES}

    def _lines(self) -> list[str]:
        found = self.figures()
        of = f" (means over {found.ndcg.n:,} queries)"
        return [
            f"NDCG {found.ndcg.mean:.3f} {within(found.ndcg.low, found.ndcg.high)}, recall of the candidates "
            f"{found.recall_at_K2.mean:.3f}, clicks per list {found.utility.mean:.3f}{of}"
        ]

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"figure": name, "value": one.mean, "low": one.low, "high": one.high, "queries": one.n}
            for name, one in self.summary().items()
        ]

    def figures(self) -> Figures:
        """The mean of every figure, with its interval."""
        known: dict[Figure, Floats] = {figure: getattr(self, figure) for figure in FIGURES}
        # Without a log, or where nothing new is relevant, and of a re-ranker that scores candidates only, one is of no query.
        optional: tuple[Figure, ...] = ("ndcg_new", "ranker_alone")
        none = [figure for figure in optional if np.isnan(known[figure]).all()]
        return Figures(**{figure: mean(values) for figure, values in known.items() if figure not in none})


def ndcg(lists: NDArray[np.int32], q: NDArray[np.int64], relevance: csr_matrix) -> Floats:
    """NDCG@K of one list per query: DCG = sum_k R / log2(k + 1) over the best possible one.

    Shapes: lists [n, K], -1 for an empty place; q [n]; relevance [Q, D] -> [n], NaN where nothing is relevant.
    """
    relevance, K = canonical_csr(relevance), lists.shape[1]
    discount = 1 / np.log2(np.arange(2, K + 2))
    gain = simulation.relevance_of(relevance, q, np.maximum(lists, 0)) * (lists >= 0)
    distinct, row = np.unique(q, return_inverse=True)
    ideal = _ideal(relevance[distinct], K, discount)[row]
    return _over((gain * discount).sum(1), ideal)


def ndcg_of_new(lists: NDArray[np.int32], q: NDArray[np.int64], relevance: csr_matrix, clicked: csr_matrix) -> Floats:
    """NDCG@K of lists without clicked items: what is clicked counts in neither the list nor the best possible one.

    Shapes: lists [n, K], -1 for an empty place; q [n]; relevance, clicked [Q, D] -> [n], NaN where nothing new is relevant.
    """
    distinct, row = np.unique(q, return_inverse=True)
    R = canonical_csr(relevance)[distinct]
    return ndcg(lists, row.astype(np.int64), R - R.multiply(clicked[distinct] != 0))


def _over(a: Floats, b: Floats) -> Floats:
    """a / b, NaN where b is 0."""
    result: Floats = np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0)
    return result


def _ideal(relevance: csr_matrix, K: int, discount: Floats) -> Floats:
    """The DCG of the K most relevant documents of every query.  Shapes: relevance [Q, D] -> [Q]."""
    row = np.repeat(np.arange(relevance.shape[0]), np.diff(relevance.indptr))
    order = np.lexsort((-relevance.data, row))
    place = np.arange(len(row)) - relevance.indptr[row]
    top = place < K
    gains = np.bincount(row[top], relevance.data[order][top] * discount[place[top]], relevance.shape[0])
    return gains.astype(np.float64)


MOST_SAMPLES = 10**6  # lists that are drawn of a query


@checked
def evaluate(
    policy: TwoStagePolicy | Trained,
    relevance: csr_matrix | Truth,
    theta: ArrayLike | None = None,
    q: ArrayLike | None = None,
    *,
    samples: int = 20,
    seed: int = 0,
    clicked: csr_matrix | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """All figures of one policy, a batch of queries at a time; those of new items need the pairs that were `clicked`.
    `progress` hears how many queries are done. A `Truth` has relevance, curve and queries in one.

    Shapes: relevance, clicked [Q, D]; theta [K]; q [n], all queries by default.
    """
    if not 1 <= samples <= MOST_SAMPLES:
        raise ConfigError(f"samples: expected from 1 to {MOST_SAMPLES:,}; got {samples}.")
    policy = policy.policy if isinstance(policy, Trained) else policy
    if isinstance(relevance, Truth):
        relevance, theta, q = relevance.relevance, relevance.theta, relevance.q
    if theta is None:
        raise ConfigError("theta: expected an examination curve, one number per rank; got None.")
    clicked = None if clicked is None else matrix("clicked", clicked)
    relevance = matrix("relevance", relevance, drop_zeros=True)  # an entry counts as a relevant document
    positions = np.arange(relevance.shape[0]) if q is None else checked_positions(q, relevance.shape[0], "queries")
    generator = torch.Generator().manual_seed(seed % 2**63)
    curve = torch.as_tensor(check_examination(theta), dtype=torch.float32)
    parts: list[dict[Figure, Floats]] = [{figure: np.empty(0) for figure in FIGURES}]
    done = 0
    for part in policy.parts(positions):
        parts.append(_figures(policy, part, relevance, curve, clicked, samples=samples, generator=generator))
        done += len(part)
        if progress:
            progress(done)
    return Evaluation(**{figure: np.concatenate([found[figure] for found in parts]) for figure in FIGURES})


def _figures(
    policy: TwoStagePolicy,
    q: NDArray[np.int64],
    relevance: csr_matrix,
    theta: Tensor,
    clicked: csr_matrix | None,
    *,
    samples: int,
    generator: torch.Generator,
) -> dict[Figure, Floats]:
    """Every figure of a batch of queries. Without clicked items the next ones move up in both stages.

    A re-ranker shows nothing alone if it scores candidates only, or if items are very many and it is not a dot product.
    Shapes: q [B]; theta [K] -> each [B].
    """
    R, unknown = relevance[q], np.full(len(q), np.nan)
    rows = np.repeat(np.arange(len(q)), samples)
    drawn = policy.draw(q, rows, _bridge.keys_for(len(rows), generator))
    D = len(policy.vocabulary.item_ids)  # relevance may have more: items that the policy does not know come last
    value = policy.batch_utility(q, R[:, :D].astype(np.float32), theta, samples, generator)
    everything = candidates.is_one_stage(policy) and R.shape[1] == D
    recall = np.ones(len(q)) if everything else _recall(candidates.top(policy, q), R)
    is_known = np.diff(R.indptr) > 0
    is_light = not policy.is_large or policy.ranker.factors(torch.from_numpy(q[:1])) is not None
    is_whole = policy.ranker.scores_everything and is_light
    new = None if clicked is None else policy.most_likely(q, exclude=clicked[:, :D])
    return {
        "ndcg": ndcg(policy.most_likely(q), q, relevance),
        "ndcg_new": unknown if new is None else ndcg_of_new(new, q, relevance, clicked),
        "ndcg_expected": ndcg(drawn, np.repeat(q, samples), relevance).reshape(len(q), samples).mean(1),
        "recall_at_K2": np.where(is_known, recall, np.nan),
        "utility": np.where(is_known, value, np.nan),
        "generator_alone": ndcg(_alone(policy.generator, q, policy.K), q, relevance),
        "ranker_alone": ndcg(_alone(policy.ranker, q, policy.K), q, relevance) if is_whole else unknown,
    }


def _alone(scorer: Scorer, q: NDArray[np.int64], K: int) -> NDArray[np.int32]:
    return lazy_race.top(candidates.generator_scores(scorer, torch.from_numpy(q)), K)[0]


def judge(
    policies: Mapping[str, TwoStagePolicy],
    task: Task,
    truth: Truth,
    *,
    samples: int = 20,
    seed: int = 0,
    clicked: csr_matrix | None = None,
    features: Mapping[str, FeatureSource | None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluated:
    """Policies by their names, on the truth: the figures of each, and the first less each other one, paired by query.

    `features`: `query_features`, `item_features` and `pair_features`, as of `recommend`, which answer for what a policy has
    not seen. `progress` hears how many queries are done, those of all policies added up.  Shapes: clicked [Q, D].
    """
    found: dict[str, Evaluation] = {}
    notes: list[str] = []
    for name, given in policies.items():
        policy, said = answering(given, task, features or {}, name)
        notes += said
        before = len(found) * len(truth.q)
        tell = None if progress is None else lambda n, before=before: progress(before + n)
        how: dict[str, Any] = {"samples": samples, "seed": seed, "progress": tell}
        found[name] = _in_places_of(policy, task.vocabulary, truth, clicked, **how)
    return paired(task.name, found, notes)


def _in_places_of(
    policy: TwoStagePolicy, ids: Vocabulary, truth: Truth, clicked: csr_matrix | None = None, **how: Any
) -> Evaluation:
    """A policy by a truth of these ids, in the policy's places; items that it does not know come after its own."""
    own = policy.vocabulary
    query, item = _positions(own.query_ids, ids.query_ids, "query"), _positions(own.item_ids, ids.item_ids, "item")
    unknown = item < 0
    item = np.where(unknown, len(own.item_ids) - 1 + np.cumsum(unknown), item)
    shape = len(own.query_ids), len(own.item_ids) + int(unknown.sum())

    def placed(values: csr_matrix) -> csr_matrix:
        found = values[query >= 0].tocoo()
        return csr_matrix((found.data, (query[query >= 0][found.row], item[found.col])), shape=shape)

    own_truth = Truth(placed(truth.relevance), truth.theta, query[truth.q])
    return evaluate(policy, own_truth, clicked=None if clicked is None else placed(clicked), **how)


def paired(data: str, found: Mapping[str, Evaluation], notes: Sequence[str] = ()) -> Evaluated:
    """The figures of each policy on the same queries, and the first less each other one, query by query."""
    first, *others = found
    figures = {name: one.figures() for name, one in found.items()}
    return Evaluated(
        data=data,
        policies=tuple(PolicyFigures(policy=name, **vars(figures[name])) for name in found),
        differences=tuple(
            FigureDifference(
                **vars(difference(getattr(found[first], figure), getattr(found[other], figure))),
                policy=first, against=other, figure=figure,
            )
            for other in others
            for figure in COMPARED
            if figures[first].of(figure).n
        ),
        notes=tuple(notes),
    )  # fmt: skip


def answering(
    policy: TwoStagePolicy, task: Task, features: Mapping[str, FeatureSource | None], name: str
) -> tuple[TwoStagePolicy, list[str]]:
    """The policy with an answer for all queries of the truth: by their features, else as the average query, as `serve` gives.
    Items that it does not know, by features or otherwise, are never shown. And what is not known, in words."""
    ids = task.vocabulary
    if same_ids(policy.vocabulary, ids):
        return policy, []
    if all(source is None for source in features.values()):
        raise ConfigError(
            f"{name} was made for other users or items than {task.name} has. Give its own data, or the features of what it has "
            "not seen (--query-features, --item-features); a pair that was trained without --start knows those of its log only."
        )
    own = policy.vocabulary
    new_queries = (positions_of(own.query_ids, ids.query_ids, "query", missing="mark", owner=name) < 0).sum()
    new_items = (positions_of(own.item_ids, ids.item_ids, "item", missing="mark", owner=name) < 0).sum()
    if new_items == len(ids.item_ids):
        raise ConfigError(f"{name} was made for other items than {task.name} has. Give its own data.")
    policy = extended(policy, **{table: _rows_of(source, table, ids) for table, source in features.items()})
    left = positions_of(policy.vocabulary.query_ids, ids.query_ids, "query", missing="mark") < 0
    if left.any():
        try:
            policy = policy.with_queries(plain_ids(ids.query_ids).filter(left))
        except PolicyError as error:
            raise ConfigError(
                f"{name} was made for other users than {task.name} has ({int(left.sum()):,} of {len(left):,}), and {error}"
            ) from error
    words = []
    if new_queries:
        words.append(f"{new_queries:,} queries (answered by their features, else as the average query)")
    if new_items:
        words.append(f"{new_items:,} items (known by their features, else never shown)")
    return policy, [f"{name} has not seen {' and '.join(words)}."] if words else []


def _rows_of(source: FeatureSource | None, table: str, ids: Vocabulary) -> FeatureSource | None:
    """The rows of a table of features for the ids of the truth; those of pairs as they are."""
    if source is None or table == "pair_features":
        return source
    side = table.removesuffix("_features")
    frame, known = tables.read(source, f"{side}_id"), plain_ids(getattr(ids, f"{side}_ids"))
    if frame[f"{side}_id"].dtype != known.dtype:
        raise DataError(
            f"column {side}_id: expected ids of {known.dtype}, as {side}s of the ratings; got {frame[f'{side}_id'].dtype}. "
            "Convert them."
        )
    found = frame.filter(frame[f"{side}_id"].is_in(known.implode()))
    return found if len(found) else None


COMPARED: tuple[Figure, ...] = ("ndcg", "ndcg_new", "ndcg_expected", "recall_at_K2", "utility")


def _recall(chosen: NDArray[np.int32], R: csr_matrix) -> Floats:
    """Share of the relevant documents among the generator's K2 highest.  Shapes: chosen [B, K2]; R [B, D] -> [B]."""
    row = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
    there = (np.arange(len(chosen))[:, None] * R.shape[1] + chosen)[chosen >= 0]
    found = np.bincount(row, np.isin(row * R.shape[1] + R.indices, there), R.shape[0])
    return _over(found.astype(np.float64), np.diff(R.indptr).astype(np.float64))


def judge_by_qrels(
    policies: Mapping[str, TwoStagePolicy],
    path: str | Path,
    theta: ArrayLike,
    *,
    samples: int = 20,
    seed: int = 0,
) -> Evaluated:
    """Policies by a file of judgements, on the queries that all of them know; its notes say how many that leaves out.

    Relevant items that a policy does not know count in the best possible list: it cannot show them.  Shapes: theta [K].
    """
    rows = read_judgements(path)
    highest = rows["rating"].max()
    if not isinstance(highest, float | int) or not highest > 0:
        raise DataError(f"{path}: expected some judgement above 0; got none.")
    ids = Vocabulary(*(rows[column].unique(maintain_order=True) for column in ("query_id", "item_id")))
    places = ids.queries(rows["query_id"]), ids.items(rows["item_id"])
    relevance = csr_matrix((rows["rating"].to_numpy() / highest, places), (len(ids.query_ids), len(ids.item_ids)))
    known = np.ones(len(ids.query_ids), np.bool_)
    for policy in policies.values():
        known &= _positions(policy.vocabulary.query_ids, ids.query_ids, "query") >= 0
    if not known.any():
        raise DataError(
            f"{path}: expected judgements of queries that every policy knows; got none (first: {ids.query_ids[0]!r})."
        )
    truth = Truth(relevance, check_examination(theta), np.flatnonzero(known))
    figures = {name: _in_places_of(policy, ids, truth, samples=samples, seed=seed) for name, policy in policies.items()}
    left = f"{int((~known).sum()):,} of {len(known):,} judged queries are not known to every policy, and are left out"
    return paired(Path(path).name, figures, () if known.all() else [left])


def _positions(ids: pl.Series, wanted: pl.Series, what: str) -> NDArray[np.int64]:
    """Where ids are, -1 where they are not; texts of a file may be whole numbers of a policy."""
    if ids.dtype.is_integer() and wanted.dtype == pl.String:
        numbers = wanted.cast(pl.Int64, strict=False)
        found = positions_of(ids, numbers.fill_null(0), what, missing="mark")
        return np.where(numbers.is_null().to_numpy(), -1, found)
    wanted = wanted.cast(pl.String) if ids.dtype == pl.String else wanted
    return positions_of(ids, wanted, what, missing="mark")
