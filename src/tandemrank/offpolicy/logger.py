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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base import random
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.impressions import Impressions
from tandemrank.policies.scorers import MatrixFactorisation

LISTS = 1_000_000  # lists that a fit looks at: the first of the log; more would hardly change it
HELD_OUT = 0.1
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


def lists_of(parts: Iterable[Impressions | Lists], *, limit: int = LISTS) -> Lists:
    """The first lists of impressions that come in parts; no more parts are taken than are needed."""
    query, items, n = [], [], 0
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
        raise ConfigError(f"expected ranks >= 1, prior >= 0, epochs >= 1; {ranks}, {prior}, {epochs} came.")
    Q, D, K = len(vocabulary.query_ids), len(vocabulary.item_ids), lists.items.shape[1]
    apart = (
        random.uniforms(random.random_keys(seed, random.Stream.FIT_HELD_OUT, np.arange(len(lists.query)))) < HELD_OUT
    )
    used, held_out = _sorted(lists, ~apart), _sorted(lists, apart)
    if not (used.items >= 0).any():
        raise LogError(
            f"expected lists with items to fit the logging policy to; {len(lists.query)} lists came, and what is not "
            f"held out of them shows nothing. Give a longer log, or its propensities."
        )
    counts = np.bincount(used.items[used.items >= 0], minlength=D)
    generator = torch.Generator().manual_seed(seed)
    alone = _optimise([torch.from_numpy(np.log(counts + 0.5)).float()], used, held_out, 0.0, epochs)
    best = alone
    for rank in ranks:
        tastes = [0.1 * torch.randn(n, rank, generator=generator) for n in (Q, D)]
        found = _optimise([alone.parameters[0], *tastes], used, held_out, prior, epochs)
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


def _sorted(lists: Lists, chosen: NDArray[np.bool_]) -> Lists:
    """The chosen lists in the order of their queries."""
    order = np.flatnonzero(chosen)[np.argsort(lists.query[chosen], kind="stable")]
    return Lists(lists.query[order], lists.items[order])


def _optimise(start: list[Tensor], used: Lists, held_out: Lists, prior: float, epochs: int, patience: int = 5) -> _Best:
    """Adam until the held-out lists stop getting likelier; the parameters of the best epoch."""
    parameters = [p.clone().requires_grad_() for p in start]
    optimiser = torch.optim.Adam(parameters, lr=0.03)
    share = prior / max(1, len(used.query))
    judged = held_out if len(held_out.query) else used
    best = _Best([p.detach().clone() for p in parameters], _judge(parameters, judged), 0)
    for epoch in range(1, epochs + 1):
        for query, items in _batches(used):
            loss = -_log_probability(parameters, query, items).mean()
            loss = loss + share / 2 * sum((p.square().sum() for p in parameters[1:]), torch.zeros(()))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        found = _judge(parameters, judged)
        if found.mean() > best.held_out.mean() + ENOUGH:
            best = _Best([p.detach().clone() for p in parameters], found, epoch)
        elif epoch - best.epoch >= patience:
            break
    return best


def _batches(lists: Lists) -> list[tuple[Tensor, Tensor]]:
    """Lists of about an eighth of the queries at a time, at most 512 of them: memory is O(512 x D)."""
    distinct, first = np.unique(lists.query, return_index=True)
    step = int(np.clip(len(distinct) // 8, 1, 512))
    bounds = np.append(first[::step], len(lists.query))
    parts = pairwise(bounds)
    return [(torch.from_numpy(lists.query[i:j]), torch.from_numpy(lists.items[i:j])) for i, j in parts]


def _judge(parameters: list[Tensor], lists: Lists) -> NDArray[np.float64]:
    """log pi(y) of every list.  Shapes: -> [n]."""
    with torch.no_grad():
        return torch.cat([_log_probability(parameters, *part) for part in _batches(lists)]).double().numpy()


def _log_probability(parameters: list[Tensor], query: Tensor, items: Tensor) -> Tensor:
    """log pi(y) of lists by the mass that is left after each place; one normaliser per query, whatever its lists.

    Shapes: parameters a [D] and, with tastes, u [Q, F], v [D, F]; query [n], items [n, K] -> [n].
    """
    a, *tastes = parameters
    distinct, row = torch.unique_consecutive(query, return_inverse=True)
    if tastes:
        s = a + tastes[0][distinct] @ tastes[1].T
    else:
        s, row = a[None], torch.zeros_like(row)
    log_p = torch.log_softmax(s, 1)
    listed = items >= 0
    flat = row[:, None] * log_p.shape[1] + items.clamp(min=0)
    chosen = log_p.flatten().index_select(0, flat.flatten()).view(items.shape)
    drawn = torch.where(listed, chosen.exp(), 0.0).cumsum(1)
    left = 1 - torch.cat([torch.zeros_like(drawn[:, :1]), drawn[:, :-1]], 1)
    return torch.where(listed, chosen - left.clamp(min=LEFT).log(), 0.0).sum(1)
