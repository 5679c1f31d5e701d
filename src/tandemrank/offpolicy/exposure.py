"""How a policy spreads the attention of a log's queries over the items: what every estimator needs to know of it.

rho_cr(d | q) = E_{y_c} E_{y_r} [theta_{k(d)}]                                       (paper: 2stage-true-utility)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base import cluster
from tandemrank._base.cluster import Engine
from tandemrank._base.ids import positions_of
from tandemrank._base.random import derive
from tandemrank.beliefs.model import RewardModel
from tandemrank.gradients import race
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.estimators import Exposure
from tandemrank.offpolicy.examined import Curves
from tandemrank.policies import candidates
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Tell = Callable[[int, int], None]  # hears how many of how many queries are done

CELLS = 2**21  # scores in memory at once: queries x items of a batch
RACES = 4_000  # of all queries together, at least: with 20 for each of many, or many for each of a few
MANY_RACES, LEAST = 100_000, 5  # where items are many, no more in all than this, and no fewer for a query
LARGE_BATCH = 128  # queries at once where nothing has scores of all items
STAGE_SAMPLES = 5  # of the candidates in random order: hardly any noise


@dataclass(frozen=True)
class MostLikely:
    """A policy that always shows its most likely list, as `recommend` does, where the policy itself draws one."""

    policy: TwoStagePolicy


@dataclass(frozen=True)
class Races:
    """How many races of each query, and by which seed.

    `progress` hears how many of how many queries are done, where that is here: the engine ray shares them out over a cluster.
    """

    samples: int
    seed: int
    progress: Tell | None = None
    engine: Engine = "local"


def exposure_on(
    pair: TwoStagePolicy | MostLikely,
    log: Feedback,
    curves: Floats | Curves,
    races: Races,
    reward: RewardModel | None = None,
    *,
    drawn: Exposure | None = None,
) -> Exposure:
    """The exposures by the race, by one curve for all queries or by a mixture of a few for each (`curves`).

    `drawn`: as in `_by_curve`.  Shapes: curves [K].
    """
    curves = curves if isinstance(curves, Curves) else Curves.same(curves, log.Q)
    each = [_by_curve(pair, log, theta, races, reward, drawn) for theta in curves.few]
    if len(each) == 1:
        return each[0]
    everybody = np.arange(log.Q)
    return Exposure(
        rho=np.maximum(curves.mixed(log.query, [one.rho for one in each]), 0.0),
        total=curves.mixed(everybody, [one.total for one in each]),
        supported=curves.mixed(everybody, [one.supported for one in each]),
        random=curves.mixed(everybody, [np.zeros(0) if one.random is None else one.random for one in each]),
        direct=curves.mixed(everybody, [one.direct for one in each]),
        error=np.abs(curves.mixed(log.query, [np.zeros(0) if one.error is None else one.error for one in each])),
    )


def _by_curve(
    pair: TwoStagePolicy | MostLikely,
    log: Feedback,
    theta: Floats,
    races: Races,
    reward: RewardModel | None,
    drawn: Exposure | None,
) -> Exposure:
    """The exposures by the race, in one pass over the logged queries: all items of a batch of queries, never of all.

    Of most likely lists they are theta_k at rank k, exactly; `drawn`, that of the policy that draws its lists, has the same
    candidates in random order, and spares their race where items are many. Few queries get more samples, since their noise does
    not average out. Items that only the log knows have no exposure; items that only the policy knows have no support.
    Shapes: theta [K].
    """
    policy = pair.policy if isinstance(pair, MostLikely) else pair
    logged = np.flatnonzero(log.impressions)
    races, step = replace(races, samples=races_for(pair, races.samples, len(logged))), _step(policy)
    shares, parts = drawn is not None and policy.exposes_sparsely, []
    cuts = policy.cuts(-(-len(logged) // step), races.engine)
    positions = policy.vocabulary.queries(log.vocabulary.query_ids.gather(logged), "the policy to value")
    for start, stop in cuts if len(cuts) > 1 else ():
        own = slice(start * step, stop * step)
        first, last = logged[own.start], logged[own][-1] + 1
        some = policy.of_queries(positions[own])
        worth = None if reward is None else reward.part(int(first), int(last))
        part = MostLikely(some) if isinstance(pair, MostLikely) else some
        parts.append((part, log.of_queries(int(first), int(last)), worth, start))
    if not parts:
        found = _exposure_on(pair, log, reward, 0, theta, races, step, shares)
    else:
        all_parts = cluster.mapped(_exposure_on, parts, theta, replace(races, progress=None), step, shares)
        found = _joined(log, logged[[start * step for start, _ in cuts]], all_parts)
    return replace(found, random=drawn.random) if shares and drawn is not None else found


def _exposure_on(
    pair: TwoStagePolicy | MostLikely,
    log: Feedback,
    reward: RewardModel | None,
    number: int,
    theta: Floats,
    races: Races,
    step: int,
    shares: bool,
) -> Exposure:
    """The same of a part of a log, in batches of `step` queries from this number on, each with random numbers of its own."""
    policy = pair.policy if isinstance(pair, MostLikely) else pair
    logged = np.flatnonzero(log.impressions)
    positions = policy.vocabulary.queries(log.vocabulary.query_ids.gather(logged), "the policy to value")
    here = positions_of(policy.vocabulary.item_ids, log.vocabulary.item_ids, "item", missing="mark")[log.item]
    there = positions_of(log.vocabulary.item_ids, policy.vocabulary.item_ids, "item", missing="mark")
    once = ((np.diff(log.query, prepend=-1) != 0) | (np.diff(log.item, prepend=-1) != 0)) & (here >= 0)
    rho = np.zeros(len(log.query))
    error = np.zeros(len(log.query))
    total = np.zeros(log.Q)
    supported = np.zeros(log.Q)
    random = np.zeros(log.Q)
    direct = np.zeros(log.Q)
    curve = torch.as_tensor(theta[: policy.K], dtype=torch.float32)
    for first in range(0, len(logged), step):
        generator = torch.Generator().manual_seed(derive(races.seed, number + first // step))
        part = logged[first : first + step]
        rows = slice(*np.searchsorted(log.query, [part[0], part[-1] + 1]))
        at = np.searchsorted(part, log.query[rows]), np.maximum(here[rows], 0)
        worth, q = None if reward is None else Worth(reward, part, there), positions[first : first + step]
        how = _of_candidates if policy.exposes_sparsely else _of_everything
        if isinstance(pair, MostLikely):
            # For its candidates in random order alone.
            found = _nothing(len(q), len(at[0])) if shares else how(policy, q, at, curve, None, 1, generator)
            found = _of_fixed(found, policy.most_likely(q), at, theta[: policy.K], worth)
        else:
            found = how(policy, q, at, curve, worth, races.samples, generator)
        rho[rows] = np.where(here[rows] >= 0, np.maximum(found.rho, 0.0), 0.0)  # rounding may go below
        error[rows] = np.where(here[rows] >= 0, found.error, 0.0)
        total[part] = found.total
        supported[part] = np.bincount(at[0], np.where(once[rows], found.rho, 0.0), len(part))
        random[part] = np.bincount(at[0], np.where(once[rows], found.shuffled, 0.0), len(part))
        random[part] /= np.maximum(found.shuffled_total, np.finfo(float).tiny)  # nothing at all is available to some
        direct[part] = found.direct
        if races.progress:
            races.progress(first + len(part), len(logged))
    if len(there) <= policy.K2:
        random[:] = 1.0  # one stage: nothing is lost at a generator that passes everything on
    return Exposure(
        rho=rho,
        total=total,
        supported=supported,
        random=random,
        direct=direct,
        error=error,
    )


def _step(policy: TwoStagePolicy) -> int:
    """Queries of a batch."""
    return LARGE_BATCH if policy.exposes_sparsely else max(1, CELLS // len(policy.vocabulary.item_ids))


def _joined(log: Feedback, first: NDArray[np.int64], parts: Sequence[Exposure]) -> Exposure:
    """The exposures of parts of a log, whose queries begin at `first`, as one."""
    rows: dict[str, Floats] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("rho", "error")
    }
    queries = {name: np.zeros(log.Q) for name in ("total", "supported", "random", "direct")}
    for start, part in zip(first, parts, strict=True):
        for name, values in queries.items():
            own = getattr(part, name)
            values[start : start + len(own)] = own
    return Exposure(**rows, **queries)


def races_for(pair: TwoStagePolicy | MostLikely, asked: int, queries: int) -> int:
    """Samples for each query. Their noise is each query's own, so an interval over queries counts it; few queries get more, for
    with them no interval would, and many queries of many items fewer."""
    policy = pair.policy if isinstance(pair, MostLikely) else pair
    most = max(LEAST, MANY_RACES // max(queries, 1)) if policy.exposes_sparsely else asked
    return max(min(asked, most), RACES // max(queries, 1))


@dataclass(frozen=True)
class _BatchExposure:
    """Of a batch: exposures of logged pairs, by the policy and with its candidates in random order, and sums over all items.

    `error`: the standard error of rho.  Shapes: rho, error, shuffled [n]; total, shuffled_total, direct [B].
    """

    rho: Floats
    error: Floats
    shuffled: Floats
    total: Floats
    shuffled_total: Floats
    direct: Floats


@dataclass(frozen=True)
class Worth:
    """A reward model for a batch of queries and the items of a policy, which it knows by other positions, or not (-1).

    Shapes: q [B]; there [items of the policy].
    """

    reward: RewardModel
    q: NDArray[np.int64]
    there: NDArray[np.int64]

    def of_all(self) -> Floats:
        """Shapes: -> [B, items of the policy]."""
        return self.reward.matrix(self.q)[:, self.there]

    def of(self, rows: NDArray[np.int64], items: NDArray[np.integer]) -> Floats:
        """Of some items, 0 where there is none (-1).  Shapes: rows [n], the places of queries; items [n, K] -> [n, K]."""
        known = self.there[np.maximum(items, 0)]
        q = np.repeat(self.q[rows], items.shape[1])
        mean = self.reward.at(q, np.maximum(known, 0).ravel()).mean.reshape(items.shape)
        if (known < 0).any():
            mean = np.where(known >= 0, mean, self.reward.unknown(self.q)[rows, None])
        return np.where(items >= 0, mean, 0.0)


At: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


def _of_everything(
    policy: TwoStagePolicy,
    q: NDArray[np.int64],
    at: At,
    curve: Tensor,
    worth: Worth | None,
    samples: int,
    g: torch.Generator,
) -> _BatchExposure:
    s_c, s_r = policy.plain_scores(q)
    (every, error), (shuffled, _) = (
        [x.double().numpy() for x in race.exposure(s_c, s, curve, policy.K2, samples=n, generator=g)]
        for s, n in ((s_r, samples), (torch.zeros_like(s_r), STAGE_SAMPLES))
    )
    direct = np.zeros(len(q)) if worth is None else (every * worth.of_all()).sum(1)
    return _BatchExposure(
        rho=every[at],
        error=error[at],
        shuffled=shuffled[at],
        total=every.sum(1),
        shuffled_total=shuffled.sum(1),
        direct=direct,
    )


def _of_candidates(
    policy: TwoStagePolicy,
    q: NDArray[np.int64],
    at: At,
    curve: Tensor,
    worth: Worth | None,
    samples: int,
    g: torch.Generator,
) -> _BatchExposure:
    """The same where the re-ranker is asked about candidates only: exposures of the logged pairs, the sums as they must be, and
    the direct part by drawn lists."""
    D = len(policy.vocabulary.item_ids)
    wanted, inverse = np.unique(at[0] * D + at[1], return_inverse=True)
    pairs = csr_matrix(
        (np.ones(len(wanted), np.float32), wanted % D, np.searchsorted(wanted, np.arange(len(q) + 1) * D)),
        shape=(len(q), D),
    )
    found = candidates.shown(policy, q, curve, pairs, samples=samples, generator=g)
    total = np.full(len(q), float(curve.sum()))
    direct = np.zeros(len(q))
    if worth is not None:
        rows = np.repeat(np.arange(len(q)), samples)
        gain = worth.of(rows, found.lists.reshape(len(rows), -1)[:, : len(curve)]) @ curve.double().numpy()
        direct = gain.reshape(len(q), samples).mean(1)
    return _BatchExposure(
        rho=found.rho[inverse],
        error=found.error[inverse],
        shuffled=found.shuffled[inverse],
        total=total,
        shuffled_total=total,
        direct=direct,
    )


def _nothing(B: int, n: int) -> _BatchExposure:
    """Of a batch of B queries and n logged pairs."""
    return _BatchExposure(
        rho=np.zeros(n),
        error=np.zeros(n),
        shuffled=np.zeros(n),
        total=np.zeros(B),
        shuffled_total=np.zeros(B),
        direct=np.zeros(B),
    )


def _of_fixed(
    found: _BatchExposure, lists: NDArray[np.int32], at: At, theta: Floats, worth: Worth | None
) -> _BatchExposure:
    """The same of lists that are always shown: theta_k of the item at rank k.  Shapes: lists [B, K]; theta [K]."""
    lists = lists[:, : len(theta)]
    rho = (lists[at[0]] == at[1][:, None]) @ theta
    direct = np.zeros(len(lists)) if worth is None else worth.of(np.arange(len(lists)), lists) @ theta
    return replace(found, rho=rho, error=np.zeros_like(rho), total=(lists >= 0) @ theta, direct=direct)
