"""What each live pair makes of a query, for people: the generator's candidates, the re-ranker's order, the exposure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.ids import Id
from tandemrank.gradients.single import Ranker
from tandemrank.policies.features import FeatureValues
from tandemrank.serving.exploration import Exploration
from tandemrank.serving.live_policy import LivePolicy, Scores, Source, as_kind
from tandemrank.serving.records import Traffic

SHOWN, SAMPLES = 20, 50
FEW = 10  # samples of the race, where each asks a heavy re-ranker about K2 items


@dataclass(frozen=True)
class ExplainedItem:
    """An item: its scores, its rank by the generator, its place in the most likely list, and its exposure."""

    item: Id
    generator: float
    generator_rank: int
    ranker: float
    place: int | None
    exposure: float


@dataclass(frozen=True)
class Explained:
    """One pair's view of a query: of its most likely candidates those with the most exposure, and its most likely list.

    `others_exposure`: of all items that are not listed; where lists are drawn by chance others are candidates at times.
    """

    policy: str
    folder: str
    source: Source
    candidates_total: int
    K2: int
    candidates: tuple[ExplainedItem, ...]
    others_exposure: float


def explain(
    traffic: Traffic[LivePolicy],
    query_id: Id | None,
    features: FeatureValues | None,
    how: Exploration,
    theta: Sequence[float],
) -> list[Explained]:
    """Of every live pair; nothing is logged, as nobody saw a list."""
    curve = torch.tensor(list(theta), dtype=torch.float32)
    return [_of_pair(arm.live, query_id, features, how, curve) for arm in traffic.arms]


def _of_pair(
    live: LivePolicy, query_id: Id | None, features: FeatureValues | None, how: Exploration, theta: Tensor
) -> Explained:
    query = None if query_id is None else as_kind(query_id, live.query_kind, "query")
    scores = live.scores(query, features)
    ranker = scores.remembering()
    s_c = scores.s_c
    best = Exploration("deterministic").draw_one(s_c, ranker, live.K2, live.K, 0)
    place = {int(d): k + 1 for k, d in enumerate(best) if d >= 0}
    order = np.argsort(-s_c, kind="stable")[: live.K2]
    generator_rank = {int(d): n + 1 for n, d in enumerate(order)}
    # Where the re-ranker sees candidates alone, those of the generator's first ones that people look at.
    looked = order if scores.s_r is not None else np.union1d(order[:SHOWN], list(place))
    documents = np.sort(looked).astype(np.int64)
    rho = _exposure(scores, ranker, documents, how, theta, live.K2)
    s_r = ranker(documents.astype(np.int32))
    most = documents[np.argsort(-rho, kind="stable")[:SHOWN]]
    row = {int(d): n for n, d in enumerate(documents)}
    found = tuple(
        ExplainedItem(
            item=live.items[d],
            generator=float(s_c[d]),
            generator_rank=generator_rank[d],
            ranker=float(s_r[row[d]]),
            place=place.get(d),
            exposure=float(rho[row[d]]),
        )
        for d in dict.fromkeys([*place, *map(int, most)])
    )
    return Explained(
        policy=live.digest,
        folder=live.name,
        source=live.source(query, features),
        candidates_total=len(live.items),
        K2=live.K2,
        candidates=found,
        others_exposure=max(0.0, float(theta[: len(place)].sum()) - sum(one.exposure for one in found)),
    )


def _exposure(
    scores: Scores, ranker: Ranker, documents: NDArray[np.int64], how: Exploration, theta: Tensor, K2: int
) -> NDArray[np.float64]:
    """Of some items.  Shapes: documents [n] -> [n]."""
    if scores.s_r is None:
        return how.exposure_of(scores.s_c, ranker, documents, theta, K2, samples=FEW, seed=0)[0]
    s_c, s_r = (torch.from_numpy(s)[None] for s in (scores.s_c, scores.s_r))
    found: NDArray[np.float64] = how.exposure(s_c, s_r, theta, K2, samples=SAMPLES, seed=0)[0][documents]
    return found
