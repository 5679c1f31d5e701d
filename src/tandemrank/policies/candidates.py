"""A policy whose re-ranker sees candidates only: lists, draws, exposure and utility, for any number of items.

The generator scores everything once, as products where it can; the re-ranker is asked about the candidates, and where an
exposure is wanted about the documents it is wanted of. A policy that shows out of everything (K2 = D) is one stage, its
re-ranker's. `is_large` decides who comes here; small catalogues have the dense race (`gradients.race`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.random import mix
from tandemrank.errors import PolicyError
from tandemrank.gradients import lazy_race, race, sparse_alone, sparse_race
from tandemrank.gradients._bridge import keys_for
from tandemrank.gradients.products import GeneratorScores, Source
from tandemrank.policies.scorers import Scorer, checked_scores

LARGE = 20_000  # items from which on training by the sparse race is faster than by the dense one (docs/how-to/scale.md)
LARGE_EXPOSURE = 6_000  # the same for the exposures of some documents: they need no gradient


class Pair(Protocol):
    """Two stages and their sizes."""

    @property
    def generator(self) -> Scorer: ...
    @property
    def ranker(self) -> Scorer: ...
    @property
    def K2(self) -> int: ...
    @property
    def K(self) -> int: ...


def is_large(generator: Scorer, ranker: Scorer) -> bool:
    """Whether the re-ranker is asked about candidates only: it cannot score everything, or everything is too much."""
    return not ranker.scores_everything or int(generator.spec()["D"]) > LARGE


def exposes_sparsely(generator: Scorer, ranker: Scorer) -> bool:
    """Whether exposures of some documents come from the sparse race: large, or nearly."""
    return is_large(generator, ranker) or int(generator.spec()["D"]) > LARGE_EXPOSURE


def generator_scores(scorer: Scorer, q: Tensor) -> GeneratorScores:
    """The scores of all items without gradients, as products where they are such.  Shapes: q [B] -> [B, D]."""
    with torch.no_grad():
        found = scorer.factors(q)
        return scorer(q).detach() if found is None else found


def distinct(pair: Pair, q: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first query of each kind, and the kind of every query: those that both stages score alike by one vector.

    Shapes: q [B] -> [kinds], [B].
    """
    with torch.no_grad():
        found = [stage.factors(torch.from_numpy(q)) for stage in (pair.generator, pair.ranker)]
    vectors = [one.queries.numpy() for one in found if one is not None and one.listed is None]
    if len(vectors) < len(found):
        return np.arange(len(q)), np.arange(len(q))
    _, first, kind = np.unique(np.concatenate(vectors, 1), axis=0, return_index=True, return_inverse=True)
    return first, kind.ravel()


_asked: "WeakSet[Scorer]" = WeakSet()  # re-rankers whose scores were seen not to depend on the order of the items


def ranker_scores(scorer: Scorer, q: Tensor, items: Tensor) -> Tensor:
    """The re-ranker's scores of some items; refuses what are none, and the first time those that depend on the order of the
    items: it is then asked about two queries backwards, too.  Shapes: q [B], items [B, M] -> [B, M]."""
    found = checked_scores(scorer.score(q, items), tuple(items.shape), scorer, "re-ranker")
    if scorer not in _asked and items.shape[1] > 1:
        with torch.no_grad():
            again = checked_scores(scorer.score(q[:2], items[:2].flip(1)), found[:2].shape, scorer, "re-ranker")
        if not torch.allclose(found[:2].detach(), again.detach().flip(1), rtol=1e-4, atol=1e-4):
            raise PolicyError(
                f"the scores of the re-ranker ({scorer.kind}) depend on the order of its candidates, or on chance: the same "
                "items backwards had others. A score must be a function of query and item; turn off dropout and the like."
            )
        _asked.add(scorer)
    return found


def is_one_stage(pair: Pair) -> bool:
    """Whether everything is a candidate, so that the re-ranker alone decides."""
    return int(pair.generator.spec()["D"]) == pair.K2


def _one_stage_scores(pair: Pair, q: NDArray[np.int64]) -> GeneratorScores:
    """The re-ranker's scores where everything is a candidate.  Shapes: q [B] -> [B, D]."""
    if pair.ranker.scores_everything:
        return generator_scores(pair.ranker, torch.tensor(q))
    with torch.no_grad():
        everything = torch.arange(pair.K2).expand(len(q), -1)
        return ranker_scores(pair.ranker, torch.tensor(q), everything).detach()


def top(pair: Pair, q: NDArray[np.int64], exclude: csr_matrix | None = None) -> NDArray[np.int32]:
    """The K2 items with the highest generator scores, the highest first, -1 where fewer are available.

    Shapes: q [B]; exclude [B, D], what is not available -> [B, K2].
    """
    scores = generator_scores(pair.generator, torch.tensor(q))
    return _without(lambda n: lazy_race.top(scores, n)[0], pair.K2, exclude)


def _without(best: Callable[[int], NDArray[np.int32]], n: int, exclude: csr_matrix | None) -> NDArray[np.int32]:
    """The n best of those that are not excluded: so many more are asked for.  Shapes: exclude [B, D] -> [B, n]."""
    if exclude is None:
        return best(n)
    B, D = exclude.shape
    found = best(min(D, n + int(np.diff(exclude.indptr).max(initial=0))))
    rows = np.repeat(np.arange(B), np.diff(exclude.indptr))
    taken = np.isin(np.arange(B)[:, None] * D + found, rows * D + exclude.indices)
    found = np.where(taken, np.int32(-1), found)
    order = np.argsort(found < 0, axis=1, kind="stable")
    return np.take_along_axis(found, order, 1)[:, :n]


def most_likely(pair: Pair, q: NDArray[np.int64], exclude: csr_matrix | None = None) -> NDArray[np.int32]:
    """The list shown if both stages take their highest scores, ties to the lower number.

    Shapes: q [B]; exclude [B, D], what is not available -> [B, K].
    """
    if is_one_stage(pair):
        scores = _one_stage_scores(pair, q)
        shown = _without(lambda n: lazy_race.top(scores, n)[0], pair.K, exclude)
        return np.pad(shown, ((0, 0), (0, pair.K - shown.shape[1])), constant_values=-1)
    # In the order of their numbers, so that ties end as they do where everything is scored.
    candidates = np.sort(top(pair, q, exclude), axis=1)
    s_r = scores_of(pair.ranker, q, candidates)
    return _shown(race.most_likely(_availability(candidates), s_r, candidates.shape[1], pair.K), candidates)


def draw(pair: Pair, q: NDArray[np.int64], *, rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """One drawn list for each key.  Shapes: q [B]; rows [n], the query of each list; keys [n] -> [n, K]."""
    if is_one_stage(pair):
        return sparse_alone.draw(_one_stage_scores(pair, q), pair.K, rows=rows, keys=keys)
    source = Source.of(generator_scores(pair.generator, torch.tensor(q)))
    grid, place = sparse_alone.by_row(rows, keys, len(q))
    arrived = lazy_race.races(source, pair.K2, grid)
    candidates = np.sort(arrived.first[rows, place, : pair.K2], axis=1)
    s_r = scores_of(pair.ranker, q[rows], candidates)
    second = mix(keys ^ np.uint64(0x5851F42D4C957F2D))  # the second race has clocks of its own
    shown = race.draw(
        _availability(candidates), s_r, candidates.shape[1], pair.K, rows=np.arange(len(rows)), keys=second
    )
    return _shown(shown, candidates)


def scores_of(ranker: Scorer, q: NDArray[np.int64], candidates: NDArray[np.int32]) -> Tensor:
    """The re-ranker's scores, -inf where there is no candidate.  Shapes: q [B], candidates [B, K2] -> [B, K2]."""
    items = torch.from_numpy(np.maximum(candidates, 0).astype(np.int64))
    with torch.no_grad():
        s_r = ranker_scores(ranker, torch.tensor(q), items).detach()
    return s_r.where(torch.from_numpy(candidates >= 0), -torch.inf)


def _availability(candidates: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(np.where(candidates >= 0, np.float32(0), np.float32(-np.inf)))


def _shown(places: NDArray[np.int32], candidates: NDArray[np.int32]) -> NDArray[np.int32]:
    found = np.take_along_axis(candidates, np.maximum(places, 0), axis=1)
    return np.where(places >= 0, found, -1).astype(np.int32)


def exposure(
    pair: Pair,
    q: NDArray[np.int64],
    theta: Tensor,
    documents: csr_matrix,
    *,
    samples: int,
    generator: torch.Generator,
    in_random_order: bool = False,
) -> tuple[Tensor, Tensor]:
    """rho_cr of some documents of each query and its standard error, in the order of the pattern.

    `in_random_order`: as if the re-ranker shuffled its candidates.
    Shapes: q [B]; theta [K]; documents CSR [B, D] -> [nnz], [nnz].
    """
    positions = torch.tensor(q)
    if is_one_stage(pair):
        if in_random_order:
            chance = float(theta.sum()) / documents.shape[1]
            return torch.full((documents.nnz,), chance), torch.zeros(documents.nnz)
        s = _one_stage_scores(pair, q)
        if len(theta) == 1:
            every = s if isinstance(s, Tensor) else s.whole()
            return race.exposure(every, every, theta, pair.K2, samples=1, generator=generator, documents=documents)
        return sparse_alone.exposure(s, theta, documents, samples=samples, generator=generator)
    s_c = generator_scores(pair.generator, positions)
    plan = sparse_race.plan(s_c, documents, pair.K2, samples=samples, moves_generator=False, generator=generator)
    if in_random_order:
        return sparse_race.exposure(torch.zeros(plan.ranker_documents.shape), plan, theta)
    with torch.no_grad():
        s_r = ranker_scores(pair.ranker, positions, plan.ranker_documents).detach()
    return sparse_race.exposure(s_r, plan, theta)


@dataclass(frozen=True)
class Shown:
    """Exposures of some documents, by the policy and with its candidates in random order, and lists that it drew.

    `error`: the standard error of rho.  Shapes: rho, error, shuffled [nnz]; lists [B, S, K], -1 where too few are available.
    """

    rho: NDArray[np.float64]
    error: NDArray[np.float64]
    shuffled: NDArray[np.float64]
    lists: NDArray[np.int32]


def shown(
    pair: Pair, q: NDArray[np.int64], theta: Tensor, documents: csr_matrix, *, samples: int, generator: torch.Generator
) -> Shown:
    """All of these from the same races of the generator: one pass over its scores, where one by one they take three.

    Shapes: q [B]; theta [K]; documents CSR [B, D].
    """
    if is_one_stage(pair):
        (rho, error), (shuffled, _) = (
            exposure(pair, q, theta, documents, samples=n, generator=generator, in_random_order=shuffles)
            for shuffles, n in ((False, samples), (True, 1))
        )
        rows = np.repeat(np.arange(len(q)), samples)
        drawn = draw(pair, q, rows=rows, keys=keys_for(len(rows), generator)).reshape(len(q), samples, -1)
        return Shown(rho.double().numpy(), error.double().numpy(), shuffled.double().numpy(), drawn)
    plan = sparse_race.plan(
        generator_scores(pair.generator, torch.tensor(q)), documents, pair.K2, samples=samples, moves_generator=False,
        generator=generator,
    )  # fmt: skip
    with torch.no_grad():
        s_r = ranker_scores(pair.ranker, torch.tensor(q), plan.ranker_documents).detach()
    (rho, error), (shuffled, _) = (sparse_race.exposure(s, plan, theta) for s in (s_r, torch.zeros_like(s_r)))
    lists = _lists_of(plan, s_r, pair.K, keys_for(len(q) * samples, generator))
    return Shown(rho.double().numpy(), error.double().numpy(), shuffled.double().numpy(), lists)


def _lists_of(plan: sparse_race.SparsePlan, s_r: Tensor, K: int, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """A list out of the candidates of each race of a plan.  Shapes: s_r [B, M_r]; keys [B S] -> [B, S, K]."""
    (B, S), n = plan.count.shape, plan.places.shape[2] - 1
    row = np.repeat(np.arange(B), S)
    places = np.where(np.arange(n) < plan.count[:, :, None], plan.places[:, :, :n], -1).reshape(B * S, n)
    found = np.where(places >= 0, plan.documents.numpy()[row[:, None], places], -1).astype(np.int32)
    s = s_r[torch.from_numpy(row)[:, None], torch.from_numpy(np.maximum(places, 0)).long()]
    at = race.draw(_availability(found), s, n, K, rows=np.arange(B * S), keys=keys)
    return _shown(at, found).reshape(B, S, K)


def utility(
    pair: Pair, q: NDArray[np.int64], w: csr_matrix, theta: Tensor, *, samples: int, generator: torch.Generator
) -> NDArray[np.float64]:
    """sum_d rho_cr(d) w_d of each query.  Shapes: q [B]; w CSR [B, D]; theta [K] -> [B]."""
    rho, _ = exposure(pair, q, theta, w, samples=samples, generator=generator)
    rows = np.repeat(np.arange(len(q)), np.diff(w.indptr))
    return np.bincount(rows, rho.double().numpy() * w.data, len(q)).astype(np.float64)


def check_ranker(scorer: Scorer) -> None:
    """Refuses a re-ranker whose scores are no scores: of the wrong shape, NaN or +inf, or another in another order.

    It is asked about a few items of two queries, forwards and backwards.
    """
    spec = scorer.spec()
    q = torch.tensor([0, spec["Q"] - 1])
    items = torch.from_numpy(np.unique(np.linspace(0, spec["D"] - 1, 8).astype(np.int64))).expand(2, -1)
    _asked.discard(scorer)
    with torch.no_grad():
        ranker_scores(scorer, q, items)
