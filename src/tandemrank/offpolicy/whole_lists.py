"""A reward of the whole list, of which nobody knows what each item has a part in: the pseudo-inverse estimator.

    U_hat = 1/N sum_i r_i  1_i' G^+ q,     G = E_0[1_s 1_s'],   q = E_new[1_s]           (Swaminathan et al. 2017)

1_s has a 1 for every (rank, item) of a list s. Unbiased where the reward is a sum over places, E[r | s] = sum_k phi(k, s_k),
phi unknown and of each query its own, and where q lies in what the logger's lists span: the share that does not is
`unsupported`. G has the size of all (rank, item) of a query squared, so this is for few items and short lists. Without the
policy that drew the log G is counted in it: each X_i = r_i 1_i' G^+ q is then a regression of the reward on what stood where.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.arguments import checked
from tandemrank._base.ids import IdRegistry, Vocabulary, positions_of
from tandemrank._base.random import Stream, random_keys
from tandemrank._base.results import Result, within
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.checks import examine
from tandemrank.logs.schema import is_long
from tandemrank.logs.sources import Source, batches, describe
from tandemrank.offpolicy.exposure import MostLikely
from tandemrank.offpolicy.uncertainty import normal_interval
from tandemrank.offpolicy.verdicts import CARE_MISSING, REFUSE_MISSING, Verdict
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
LARGEST = 400  # (rank, item) of a query: a matrix of so many rows has a pseudo-inverse at once
DRAWS = 4000  # lists of a query, by which a policy's chances are known


@dataclass(frozen=True, kw_only=True, repr=False)
class ListValue(Result):
    """What a policy would be worth by a reward of the whole list, and production, per impression.

    `unsupported`: the share of what it would show where the logger's lists say nothing of it, and its reward counts as 0.
    """

    reward: str
    value: float
    standard_error: float
    interval: tuple[float, float]
    production: float
    difference: float
    difference_interval: tuple[float, float]
    verdict: Verdict
    reasons: tuple[str, ...]
    unsupported: float
    queries: int
    impressions: float

    def _lines(self) -> list[str]:
        return [
            f"{self.value:.3f} {self.reward} per impression {within(*self.interval)}; production {self.production:.3f}",
            f"difference {self.difference:+.3f} {within(*self.difference_interval, '+')}",
            f"{self.verdict}: {'; '.join(self.reasons)}",
        ]

    def _rows(self) -> list[dict[str, Any]]:
        sides = (("policy", self.value, self.interval), ("difference", self.difference, self.difference_interval))
        return [{"side": side, "value": value, "low": low, "high": high} for side, value, (low, high) in sides]


@dataclass(frozen=True)
class _Lists:
    """Lists of a log with their rewards, in inside positions; -1 pads.  Shapes: query, reward, weight [n]; items [n, K]."""

    query: NDArray[np.int64]
    items: NDArray[np.int64]
    reward: Floats
    weight: Floats
    names: Vocabulary


@checked
def value_of_lists(
    policy: TwoStagePolicy | MostLikely,
    log: Source,
    reward: str = "reward",
    *,
    logging_policy: TwoStagePolicy | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> ListValue:
    """What a policy would be worth by a reward of the whole list: a column with a number for each impression of a wide log."""
    if not 0.5 <= level < 1:
        raise ConfigError(f"level must be from 0.5 to below 1; got {level}.")
    found = _read(log, reward)
    X, missing = np.zeros(len(found.query)), np.zeros(len(found.query))
    for number, rows in _queries(found.query):
        shown = found.items[rows]
        new = _drawn(policy, found.names, number, seed)
        drew = None if logging_policy is None else _drawn(logging_policy, found.names, number, seed + 1)
        logged = (shown, found.weight[rows]) if drew is None else (drew, None)
        worth, missing[rows] = pseudo_inverse(shown, new, *logged)
        X[rows] = found.reward[rows] * worth
    return _summed(reward, found, X, float(missing @ found.weight / found.weight.sum()), level)


def pseudo_inverse(
    shown: NDArray[np.int64], new: NDArray[np.int64], logged: NDArray[np.int64], weight: Floats | None = None
) -> tuple[Floats, float]:
    """1_i' G^+ q of shown lists, by lists of the new policy and of the logger, and how much of q the logger's do not span.

    That is |q - G G^+ q| / |q|, from 0 to 1, since it is what a projection leaves.
    `weight`: of the logger's lists.  Shapes: shown [n, K]; new [m, K]; logged [l, K]; weight [l] -> [n].
    """
    K = max(x.shape[1] for x in (shown, new, logged))
    items = np.unique(np.concatenate([x[x >= 0] for x in (shown, new, logged)]))
    if K * len(items) > LARGEST:
        raise LogError(
            f"a reward of the whole list is for few items and short lists: expected ranks times items of a query of at most "
            f"{LARGEST}; got {K} x {len(items)}. Give a reward of each item (--reward)."
        )
    mine, theirs, q = (_marks(x, items, K) for x in (shown, logged, new))
    p = np.full(len(logged), 1 / len(logged)) if weight is None else weight / weight.sum()
    G, mean = (theirs * p[:, None]).T @ theirs, q.mean(0)
    inverse = np.linalg.pinv(G, hermitian=True)
    lost = mean - G @ (inverse @ mean)
    return mine @ (inverse @ mean), float(np.linalg.norm(lost) / max(float(np.linalg.norm(mean)), 1e-12))


def _marks(lists: NDArray[np.int64], items: NDArray[np.int64], K: int) -> Floats:
    """1_s of lists.  Shapes: lists [n, K or fewer] -> [n, K items]."""
    found = np.zeros((len(lists), K, len(items)))
    row, rank = np.nonzero(lists >= 0)
    found[row, rank, np.searchsorted(items, lists[row, rank])] = 1.0
    return found.reshape(len(lists), -1)


def _read(log: Source, reward: str) -> _Lists:
    """Every list of a log with its reward."""
    names, parts = IdRegistry(), []
    for piece in batches(log, also={reward: "weight"}):
        if piece.frame is None or piece.found:
            raise LogError(describe(piece, piece.found[0]))
        if not len(piece.frame):
            continue
        if is_long(piece.frame.columns):
            raise LogError(f"{piece.name}: a reward of the whole list is asked of a wide log, one row per impression.")
        column = piece.frame[reward]
        if not column.dtype.is_numeric() or column.null_count() or not column.is_finite().all():
            raise LogError(f"{piece.name}, column {reward}: expected a finite number for each impression; got others.")
        found, shown = examine(piece.frame, names, None)
        if shown is None:
            raise LogError(describe(piece, found[0]))
        weight = np.ones(len(shown.query)) if shown.weight is None else shown.weight
        parts.append((shown.query, shown.table(len(shown.query)).items, column.cast(float).to_numpy(), weight))
    if not parts:
        raise LogError("expected a log with impressions; it is empty.")
    K = max(items.shape[1] for _, items, _, _ in parts)
    padded = [np.pad(items, ((0, 0), (0, K - items.shape[1])), constant_values=-1) for _, items, _, _ in parts]
    query, _, gained, weight = (
        np.concatenate(some) for some in zip(*((q, q, r, w) for q, _, r, w in parts), strict=True)
    )
    return _Lists(query.astype(np.int64), np.concatenate(padded).astype(np.int64), gained, weight, names.vocabulary())


def _queries(query: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every query, and the places of its impressions."""
    order = np.argsort(query, kind="stable")
    starts = np.flatnonzero(np.diff(query[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        yield int(query[rows[0]]), rows


def _drawn(side: TwoStagePolicy | MostLikely, names: Vocabulary, number: int, seed: int) -> NDArray[np.int64]:
    """Lists of a policy for a query of the log, in the positions of the log; items that it does not know come after.

    Shapes: -> [draws, K].
    """
    policy = side.policy if isinstance(side, MostLikely) else side
    q = policy.vocabulary.queries(names.query_ids[number : number + 1], "the policy")
    if isinstance(side, MostLikely):
        lists = policy.most_likely(q)
    else:
        keys = random_keys(seed, Stream.LISTS, number * DRAWS + np.arange(DRAWS))
        lists = policy.draw(q, np.zeros(DRAWS, np.int64), keys)
    at = positions_of(names.item_ids, policy.vocabulary.item_ids, "item", missing="mark")
    at = np.where(at >= 0, at, len(names.item_ids) + np.arange(len(at)))
    return np.where(lists >= 0, at[np.maximum(lists, 0)], -1)


def _summed(reward: str, found: _Lists, X: Floats, unsupported: float, level: float) -> ListValue:
    w = found.weight / found.weight.sum()
    value, live = float(w @ X), float(w @ found.reward)
    error, paired = (float(np.sqrt(np.square(w * (x - w @ x)).sum())) for x in (X, X - found.reward))
    words = f"{unsupported:.1%} of what it would show stands where the logger's lists say nothing of it"
    verdict = (
        Verdict.REFUSE
        if unsupported > REFUSE_MISSING
        else Verdict.CARE
        if unsupported > CARE_MISSING
        else Verdict.TRUST
    )
    return ListValue(
        reward=reward,
        value=value,
        standard_error=error,
        interval=normal_interval(value, error, level),
        production=live,
        difference=value - live,
        difference_interval=normal_interval(value - live, paired, level),
        verdict=verdict,
        reasons=(words, "the reward is taken for a sum over places: what items do together is not in it"),
        unsupported=unsupported,
        queries=len(np.unique(found.query)),
        impressions=float(found.weight.sum()),
    )
