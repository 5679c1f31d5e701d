"""What each live pair makes of a query, for people: the generator's candidates, the re-ranker's order, the exposure."""

from dataclasses import dataclass

import numpy as np
import torch

from tandemrank._base.ids import Id
from tandemrank.clicks.models import examination_curve
from tandemrank.policies.features import FeatureValues
from tandemrank.serving.exploration import Exploration
from tandemrank.serving.live import LivePair, Source, as_kind
from tandemrank.serving.records import Traffic

SHOWN, SAMPLES = 20, 50


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
    """One pair's view of a query: the items with the most exposure, and those of its most likely list."""

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
    s_c, s_r = live.rows(query, features=features)
    theta = torch.as_tensor(examination_curve(live.K), dtype=torch.float32)
    rho, _ = how.exposure(
        torch.from_numpy(s_c)[None], torch.from_numpy(s_r)[None], theta, live.K2, samples=SAMPLES, seed=0
    )
    best = Exploration("deterministic").draw_one(s_c, s_r.__getitem__, live.K2, live.K, 0)
    place = {int(d): k + 1 for k, d in enumerate(best) if d >= 0}
    most = [int(d) for d in np.argsort(-rho, kind="stable")[:SHOWN]]
    chosen = list(dict.fromkeys([*place, *most]))
    found = tuple(
        Candidate(
            live.items[d], float(s_c[d]), int((s_c > s_c[d]).sum()) + 1, float(s_r[d]), place.get(d), float(rho[d])
        )
        for d in chosen
    )
    return Explained(live.digest, live.name, live.source(query, features), len(live.items), live.K2, found)
