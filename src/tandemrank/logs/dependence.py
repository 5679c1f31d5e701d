"""Is the click model true? Under the position-based model, given the list, clicks at different ranks are independent.

    r_ik = c_ik - theta_k R_ik,      E[ r_ij r_ik ] = 0   for two ranks j < k of one impression i

R_ik is the click rate of the pair in *other* impressions, so that it owes nothing to this one; weighed down where they are few,
by what was shown alone. Readers who stop after a click make the products negative; users in moods, who click more or less on
everything, make them positive. The second do no harm to an estimate: clicks of all ranks rise and fall together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.logs.impressions import Impressions

Floats = NDArray[np.float64]
TESTED = 200_000  # lists that are looked at, the first of a log
SURELY, FAR = 5.0, 0.8  # standard errors, and the share of the clicks below another that are left, where readers stop
FEW = 2.0  # examinations elsewhere for which a pair's rate counts half
ROUNDS = 30  # of scaling the curve


@dataclass(frozen=True)
class Dependence:
    """How the clicks of a list depend on each other.

    `ratio`: clicks below another click over what they would be if they had nothing to do with each other; `z`: how surely that
    is not 1, in standard errors, of all products and by rank pair.  Shapes: by_ranks [K, K], above the diagonal.
    """

    ratio: float
    z: float
    by_ranks: tuple[tuple[float, ...], ...]
    lists: int

    @property
    def stops(self) -> bool:
        """Whether readers surely click less below a click, and by much."""
        return self.z < -SURELY and self.ratio < FAR

    @property
    def words(self) -> str:
        """As a sentence."""
        said = f"below a click there are {self.ratio:.2f} of the clicks that a position-based model expects (z = {self.z:+.1f})"
        if self.stops:
            return f"{said}: readers stop after a click"
        if self.z > SURELY:
            return f"{said}: who clicks once clicks more, which does no harm to estimates"
        return f"{said}: nothing speaks against it"


def dependence(lists: Impressions, theta: Floats | None = None) -> Dependence | None:
    """By lists and their clicks; None where no pair of two ranks came back.

    `theta` by which they were examined; without it how often the ranks are clicked, each pair compared with itself, has to do.
    Shapes: theta [K].
    """
    n, K = lists.items.shape
    if n == 0 or K < 2:
        return None
    row, rank = np.nonzero(lists.items >= 0)
    pair = np.unique(
        lists.query[row] * np.int64(lists.items.max(initial=0) + 1) + lists.items[row, rank], return_inverse=True
    )[1]
    click = lists.clicks[row, rank].astype(np.float64)
    theta = _curve(pair, rank, click, K) if theta is None else theta
    seen = theta[rank]
    rest = np.bincount(pair, seen)[pair] - seen
    R = np.divide(np.bincount(pair, click)[pair] - click, rest, out=np.zeros_like(rest), where=rest > 1e-9)
    weight, expected = np.zeros((n, K)), np.zeros((n, K))
    weight[row, rank], expected[row, rank] = rest / (rest + FEW) * (rest > 1e-9), np.minimum(seen * R, 1.0)
    clicks = np.where(weight > 0, lists.clicks, 0)
    products = np.zeros(n)
    z, observed, hoped = np.zeros((K, K)), 0.0, 0.0
    for j in range(K):
        for k in range(j + 1, K):
            w = weight[:, j] * weight[:, k]
            own = w * (clicks[:, j] - expected[:, j]) * (clicks[:, k] - expected[:, k])
            error = float(np.sqrt(np.square(own).sum()))
            z[j, k] = own.sum() / error if error > 0 else 0.0
            products += own
            observed += float(w @ (clicks[:, j] * clicks[:, k]))
            hoped += float(w @ (clicks[:, j] * expected[:, k]))
    error = float(np.sqrt(np.square(products).sum()))
    if not hoped > 0 or not error > 0:
        return None
    return Dependence(observed / hoped, float(products.sum()) / error, tuple(map(tuple, z.tolist())), n)


def _curve(pair: NDArray[np.int64], rank: NDArray[np.int64], click: Floats, K: int) -> Floats:
    """theta_k that makes the clicks of every rank what the pairs' own rates expect:  c_k = sum_p c_p n_pk theta_k / sum_j n_pj
    theta_j, by repeated scaling.  Shapes: pair, rank, click [m] -> [K]."""
    theta, total = np.ones(K), np.bincount(rank, click, K)
    of_pair = np.bincount(pair, click)[pair]
    for _ in range(ROUNDS):
        share = theta[rank] / np.bincount(pair, theta[rank])[pair]
        hoped = np.bincount(rank, of_pair * share, K)
        theta = theta * np.divide(total + 1, hoped + 1)
        theta /= theta[0]
    return np.maximum(theta, 1e-6)
