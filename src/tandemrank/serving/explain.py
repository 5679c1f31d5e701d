"""What each live pair makes of a query, for people: the generator's candidates, the re-ranker's order, the exposure."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.ids import Id
from tandemrank.clicks.models import examination_curve
from tandemrank.gradients.single import Ranker
from tandemrank.policies.features import FeatureValues
from tandemrank.serving.exploration import Exploration
from tandemrank.serving.live import LivePair, Row, Source, as_kind
from tandemrank.serving.records import Traffic

SHOWN, SAMPLES = 20, 50
FEW = 10  # samples of the race, where each asks a heavy re-ranker about K2 items


@dataclass(frozen=True)
class Candidate:
    """An item: its scores, its rank by the generator, its place in the most likely list, and its exposure."""

    item: Id
    generator: float
    generator_rank: int
    ranker: float
    place: int | None
    exposure: float


@dataclass(frozen=True)
class Explained:
    """One pair's view of a query: the items with the most exposure, and those of its most likely list.

    Where the re-ranker sees candidates alone, those with the most among the generator's first ones.
    """

    policy: str
    folder: str
    source: Source
    candidates_total: int
    K2: int
    candidates: tuple[Candidate, ...]


def explain(
    traffic: Traffic[LivePair], query_id: Id | None, features: FeatureValues | None, how: Exploration
) -> list[Explained]:
    """Of every live pair; nothing is logged, as nobody saw a list."""
    return [_of_pair(arm.live, query_id, features, how) for arm in traffic.arms]


def _of_pair(live: LivePair, query_id: Id | None, features: FeatureValues | None, how: Exploration) -> Explained:
    query = None if query_id is None else as_kind(query_id, live.query_kind, "query")
    theta = torch.as_tensor(examination_curve(live.K), dtype=torch.float32)
    scores = live.scores(query, features)
    ranker, s_c = scores.remembering(), scores.s_c
    best = Exploration("deterministic").draw_one(s_c, ranker, live.K2, live.K, 0)
    place = {int(d): k + 1 for k, d in enumerate(best) if d >= 0}
    looked = _looked_at(s_c, scores.s_r, ranker, list(place), how, theta, live.K2)
    most = looked.documents[np.argsort(-looked.rho, kind="stable")[:SHOWN]]
    rows = {int(d): n for n, d in enumerate(looked.documents)}
    found = tuple(
        Candidate(
            live.items[d], float(s_c[d]),
            int((s_c > s_c[d]).sum()) + 1, float(looked.s_r[rows[d]]), place.get(d), float(looked.rho[rows[d]]),
        )
        for d in dict.fromkeys([*place, *map(int, most)])
    )  # fmt: skip
    return Explained(live.digest, live.name, live.source(query, features), len(live.items), live.K2, found)


class _Looked(NamedTuple):
    """Items by their places in the generator's scores, what the re-ranker makes of them, and their exposure.  Shapes: [n]."""

    documents: NDArray[np.int64]
    s_r: NDArray[np.float32]
    rho: NDArray[np.float64]


def _looked_at(
    s_c: Row, s_r: Row | None, ranker: Ranker, best: list[int], how: Exploration, theta: Tensor, K2: int
) -> _Looked:
    """All items; or, where the re-ranker sees candidates alone, the generator's first ones and those of the best list."""
    if s_r is not None:
        both = [torch.from_numpy(s)[None] for s in (s_c, s_r)]
        rho, _ = how.exposure(both[0], both[1], theta, K2, samples=SAMPLES, seed=0)
        return _Looked(np.arange(len(rho)), s_r, rho)
    first = np.argsort(-s_c, kind="stable")[: min(SHOWN, K2)]
    documents = np.union1d(first, best).astype(np.int64)
    rho, _ = how.exposure_of(s_c, ranker, documents, theta, K2, samples=FEW, seed=0)
    return _Looked(documents, ranker(documents.astype(np.int32)), rho)
