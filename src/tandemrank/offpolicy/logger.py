"""The logging policy of a log that has no propensities, fitted to the lists that it showed.

    log pi(y) = sum_k ( s_{y_k} - log sum_{d not in y_{<k}} exp(s_d) ),    s(q, d) = a_d + <u_q, v_d>

Plackett-Luce by maximum likelihood. A score for each (query, item) is not identified by the few lists of a query, so the
model is shared: the popularity a_d of every item and a low-rank taste <u_q, v_d>, with a Gaussian prior that leaves a
query with few lists at its popularity. Lists held out decide when to stop, so a logger that does not know its queries
is not given tastes. `Feedback` is not enough: the likelihood needs the lists. The exposures of what is fitted come from
the race, exactly as those of a known logging policy (paper: propensity_def).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base import random
from tandemrank._base.adam import Adam
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.impressions import Impressions
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

Kind = Literal["logged", "exact", "frequency", "fitted"]  # of propensities
Asked = Literal["auto"] | Kind
LISTS = 1_000_000  # lists that a fit looks at: the first of the log; more would hardly change it
HELD_OUT = 0.1
WHOLE = 4096  # items that a fit looks at for every query; of more, a sample stands for all
SAMPLED = 1024  # its expected size
LEFT = 1e-6  # the least mass that is left after a list: rounding, where a logger always shows the same
ENOUGH = 1e-4  # nats that a list must gain for an epoch to count as better


@dataclass(frozen=True)
class Lists:
    """Shown lists in inside positions, -1 where a list is short.  Shapes: query [n]; items [n, K]."""

    query: NDArray[np.int64]
    items: NDArray[np.int64]


@dataclass(frozen=True)
class Fitted:
    """The scores of the fitted logging policy, which shows lists of K, the length of its tastes (0: popularity alone), and
    the mean log-probability of a held-out list: of it, and of popularity alone."""

    scorer: MatrixFactorisation
    K: int
    rank: int
    held_out: float
    popularity: float


@dataclass(frozen=True)
class FittedLogger:
    """A logging policy that was fitted to lists of the same logger before, with how many lists per query that were."""

    policy: TwoStagePolicy
    lists: float


def lists_of(parts: Iterable[Impressions | Lists], *, limit: int = LISTS) -> Lists:
    """The first lists of impressions that come in parts; no more parts are taken than are needed."""
    query, items = [], []
    n = 0
    for part in parts:
        query.append(part.query.astype(np.int64))
        items.append(part.items.astype(np.int64))
        n += len(part.query)
        if n >= limit:
            break
    if not n:
        raise LogError("expected a log with impressions to fit the logging policy to; it is empty. Check the path.")
    return Lists(np.concatenate(query)[:limit], np.concatenate(items)[:limit])


def fit(
    lists: Lists,
    vocabulary: Vocabulary,
    *,
    ranks: Sequence[int] = (8, 32),
    prior: float = 1.0,
    epochs: int = 100,
    seed: int = 0,
) -> Fitted:
    """The logging policy of greatest likelihood (with a prior on the tastes), one-stage: K2 = D.

    Popularity alone first, then tastes of each length in `ranks` while that makes held-out lists likelier; `prior` is
    the precision of the tastes. Adam on batches of queries.  Shapes: lists.query [n], lists.items [n, K].
    """
    if any(rank < 1 for rank in ranks) or prior < 0 or epochs < 1:
        raise ConfigError(f"expected ranks >= 1, prior >= 0, epochs >= 1; got {ranks}, {prior}, {epochs}.")
    Q, D = len(vocabulary.query_ids), len(vocabulary.item_ids)
    K = lists.items.shape[1]
    job = _LoggerFit(lists, D, seed)
    generator = torch.Generator().manual_seed(seed)
    best = alone = job.optimise([torch.from_numpy(np.log(job.counts + 0.5)).float()], 0.0, epochs)
    for rank in ranks:
        tastes = [0.1 * torch.randn(n, rank, generator=generator) for n in (Q, D)]
        found = job.optimise([alone.parameters[0], *tastes], prior, epochs)
        gain = found.held_out - best.held_out
        if not gain.mean() > 2 * gain.std() / len(gain) ** 0.5:
            break  # no better than by chance
        best = found
    a, u, v = (*best.parameters, torch.zeros(Q, 0), torch.zeros(D, 0))[:3]
    queries, items = torch.cat([torch.ones(Q, 1), u], 1), torch.cat([a[:, None], v], 1)
    scorer = MatrixFactorisation(queries.numpy(), items.numpy())
    return Fitted(
        scorer,
        min(K, D),
        u.shape[1],
        float(best.held_out.mean()),
        float(alone.held_out.mean()),
    )


@dataclass(frozen=True)
class _Best:
    """The parameters of the best epoch, and the log-probability of each held-out list."""

    parameters: list[Tensor]
    held_out: NDArray[np.float64]
    epoch: int


@dataclass(frozen=True)
class _Batch:
    """Some queries, the distinct pairs that they were shown, and their lists as places among these, -1 where one is short.

    Shapes: query [B]; row, item [P], the query's place and the item of every pair; lists [n, K]; list_row [n].
    """

    query: Tensor
    row: Tensor
    item: Tensor
    lists: Tensor
    list_row: Tensor


@dataclass(frozen=True)
class _Sample:
    """Items that stand for all: item d is there with chance pi_d and counts 1 / pi_d (Horvitz and Thompson), else 0.

    Shapes: items, weight [m]; counted [D], the weight of every item, 0 where it is not there.
    """

    items: Tensor
    weight: Tensor
    counted: Tensor


def inclusion(counts: NDArray[np.integer], size: int) -> NDArray[np.float64]:
    """pi_d = min(1, c (n_d + 1)): the chance to stand for all items, about `size` of them, by how often each was shown.

    Shapes: counts [D] -> [D].
    """
    if len(counts) <= size:
        return np.ones(len(counts))
    mass, pi = counts + 1.0, np.zeros(len(counts))
    while True:  # what is certain leaves more for the others
        open_ = pi < 1
        pi[open_] = (size - (~open_).sum()) * mass[open_] / mass[open_].sum()
        if not (pi[open_] > 1).any():
            return pi
        pi = np.where(pi >= 1, 1.0, 0.0)


def _drawn(pi: NDArray[np.float64], there: NDArray[np.bool_]) -> _Sample:
    """The sample of some items.  Shapes: pi, there [D]."""
    items, counted = np.flatnonzero(there), np.where(there, 1 / pi, 0.0)
    return _Sample(
        *(torch.from_numpy(x) for x in (items, counted[items].astype(np.float32), counted.astype(np.float32)))
    )


def _sorted(lists: Lists, chosen: NDArray[np.bool_], place: NDArray[np.int64]) -> Lists:
    """The chosen lists, those of a query together, in the order of their places.  Shapes: chosen [n]; place [Q]."""
    order = np.flatnonzero(chosen)[np.argsort(place[lists.query[chosen]], kind="stable")]
    return Lists(lists.query[order], lists.items[order])


class _LoggerFit:
    """One fit: lists in batches, those that are held out, and the chances of the items to stand for all."""

    def __init__(self, lists: Lists, D: int, seed: int) -> None:
        keys = random.random_keys(seed, random.Stream.FIT_HELD_OUT, np.arange(len(lists.query)))
        apart = random.uniforms(keys) < HELD_OUT
        # Queries in random order: those of neighbouring ids may be alike, and a batch should be like any other.
        place = np.random.default_rng(seed).permutation(int(lists.query.max(initial=0)) + 1)
        shows = (lists.items >= 0).any(1)  # a list of nothing says nothing
        used, held_out = _sorted(lists, shows & ~apart, place), _sorted(lists, shows & apart, place)
        if not (used.items >= 0).any():
            raise LogError(
                f"expected lists with items to fit the logging policy to; got {len(lists.query)} lists, and what is not "
                f"held out of them shows nothing. Give a longer log, or its propensities."
            )
        self.counts = np.bincount(used.items[used.items >= 0], minlength=D)
        self.pi = inclusion(self.counts, D if D <= WHOLE else SAMPLED)
        self.rng = np.random.default_rng(seed)
        self.used, self.n = _batches(used), len(used.query)
        self.judged = _batches(held_out if len(held_out.query) else used)
        self.judges = self.sample()

    def sample(self) -> _Sample:
        """Each item by its chance, independently."""
        return _drawn(self.pi, self.rng.random(len(self.pi)) < self.pi)

    def optimise(self, start: list[Tensor], prior: float, epochs: int, patience: int = 5) -> _Best:
        """Adam until the held-out lists stop getting likelier; the parameters of the best epoch."""
        parameters = [p.clone().requires_grad_() for p in start]
        optimiser = Adam(parameters, 0.03)
        share = prior / max(1, self.n)
        best = _Best([p.detach().clone() for p in parameters], self.judge(parameters), 0)
        for epoch in range(1, epochs + 1):
            for batch in self.used:
                loss = -_log_probability(parameters, batch, self.sample()).mean()
                loss = loss + share / 2 * sum((p.square().sum() for p in parameters[1:]), torch.zeros(()))
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            found = self.judge(parameters)
            if found.mean() > best.held_out.mean() + ENOUGH:
                best = _Best([p.detach().clone() for p in parameters], found, epoch)
            elif epoch - best.epoch >= patience:
                break
        return best

    def judge(self, parameters: list[Tensor]) -> NDArray[np.float64]:
        """log pi(y) of every held-out list, by the same sample every time.  Shapes: -> [n]."""
        with torch.no_grad():
            return torch.cat([_log_probability(parameters, part, self.judges) for part in self.judged]).double().numpy()


def _batches(lists: Lists) -> list[_Batch]:
    """Lists of about an eighth of the queries at a time, at most 512 of them: memory is O(512 x items of a sample)."""
    first = np.flatnonzero(np.diff(lists.query, prepend=-1))
    step = int(np.clip(len(first) // 8, 1, 512))
    return [_batch(lists.query[i:j], lists.items[i:j]) for i, j in pairwise(np.append(first[::step], len(lists.query)))]


def _batch(query: NDArray[np.int64], items: NDArray[np.int64]) -> _Batch:
    """The lists of some queries, in their order.  Shapes: query [n], items [n, K]."""
    distinct, list_row = np.unique(query, return_inverse=True)
    listed = items >= 0
    D = int(items.max(initial=0)) + 1
    pairs, place = np.unique((list_row[:, None] * D + items)[listed], return_inverse=True)
    places = np.full(items.shape, -1, np.int64)
    places[listed] = place
    return _Batch(*(torch.from_numpy(x) for x in (distinct, pairs // D, pairs % D, places, list_row)))


def _log_probability(parameters: list[Tensor], batch: _Batch, sample: _Sample) -> Tensor:
    """log pi(y) of lists by the mass that is left after each place; one normaliser per query, whatever its lists.

        Z_q = sum_{d shown} exp(s_d) + sum_{d in the sample, not shown} exp(s_d) / pi_d

    What a query was shown counts as it is, the sample stands for the rest: unbiased, and exact where it has all items.
    Shapes: parameters a [D] and, with tastes, u [Q, F], v [D, F] -> [n].
    """
    a, *tastes = parameters
    own, others = a[batch.item], a[sample.items][None]  # without tastes one row for all
    if tastes:
        u, v = tastes[0][batch.query], tastes[1]
        own = own + (u[batch.row] * v[batch.item]).sum(1)
        others = others + u @ v[sample.items].T
    with torch.no_grad():
        top = torch.full((len(batch.query),), -torch.inf).scatter_reduce(0, batch.row, own, "amax")
        top = torch.maximum(top, others.amax(1)) if len(sample.items) else top
        top = top if tastes else top.max().expand(len(top))
    own, mass = own - top[batch.row], (others - top[: len(others), None]).exp() @ sample.weight
    # A shown pair whose item is in the sample would count twice.
    Z = mass.expand(len(batch.query)).index_add(0, batch.row, own.exp() * (1 - sample.counted[batch.item]))
    log_p = own - Z.log()[batch.row]
    listed = batch.lists >= 0
    chosen = torch.where(listed, log_p[batch.lists.clamp(min=0)], 0.0)
    drawn = torch.where(listed, chosen.exp(), 0.0).cumsum(1)
    left = 1 - torch.cat([torch.zeros_like(drawn[:, :1]), drawn[:, :-1]], 1)
    return torch.where(listed, chosen - left.clamp(min=LEFT).log(), 0.0).sum(1)
