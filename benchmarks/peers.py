"""What a practitioner would do instead, on a plain log: each peer sees lists, clicks, theta and features, never the truth.

    counting       (C + a r_d) / (E + a), r_d the item's rate, shrunk to the mean of all
    popularity     r_d alone
    EASE           Steck 2019, on clicked pairs
    ALS            implicit feedback (Hu et al. 2008), library `implicit`
    Bayesian       regression per query in the space of the clicks' singular vectors, clicks and examined non-clicks
    LightGBM       lambdarank with weights 1 / theta_k for clicks: shown, examined, clicked, shrunk rate, item rate, ALS score,
                   counted on 70% of the log and trained on the lists of the rest; `shown` ranks shown items before all others
    with features  the same with the features of query and item, for queries that the log has not seen without counts

Settings are chosen on clicks of the last 15% of the log: the peer is fitted to the rest, and the setting kept whose order of
the held-out lists has the most clicks, sum c theta_new / theta_old.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import lightgbm
import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Scores = Callable[[Whole], Floats]
Setting = Mapping[str, float]
HELD_OUT, COUNTED = 0.15, 0.7
LISTS = 40_000  # that trees are grown on, at most
ROWS = 256  # queries that trees score at once


@dataclass(frozen=True)
class Evidence:
    """A log in the order of time.  Shapes: query [n]; items, clicks [n, K]; theta [K]; features [Q, J], [D, J]."""

    query: Whole
    items: Whole
    clicks: Whole
    theta: Floats
    Q: int
    D: int
    query_features: Floats | None = None
    item_features: Floats | None = None

    def part(self, rows: slice) -> "Evidence":
        """Some impressions."""
        return replace(self, query=self.query[rows], items=self.items[rows], clicks=self.clicks[rows])

    def sums(self, values: Floats) -> csr_matrix:
        """Values of shown places summed by pair.  Shapes: [n, K] -> [Q, D]."""
        row = np.repeat(self.query, self.items.shape[1])
        found = csr_matrix((values.ravel().astype(np.float64), (row, self.items.ravel())), shape=(self.Q, self.D))
        found.sum_duplicates()
        return found

    @cached_property
    def C(self) -> csr_matrix:
        """Clicks of shown pairs, zeros too."""
        return self.sums(self.clicks.astype(np.float64))

    @cached_property
    def E(self) -> csr_matrix:
        """Examinations of shown pairs."""
        return self.sums(np.tile(self.theta, (len(self.query), 1)))

    @cached_property
    def N(self) -> csr_matrix:
        """Showings of shown pairs."""
        return self.sums(np.ones(self.items.shape))

    @cached_property
    def clicked(self) -> csr_matrix:
        """1 where a pair was clicked."""
        found = csr_matrix((self.C > 0).astype(np.float32))
        found.eliminate_zeros()
        return found

    def item_rate(self, prior: float) -> Floats:
        """Clicks per examination of items, with `prior` examinations of the mean.  Shapes: -> [D]."""
        C, E = (np.asarray(m.sum(0)).ravel() for m in (self.C, self.E))
        return (C + prior * C.sum() / max(E.sum(), 1e-9)) / (E + prior)


def popularity(e: Evidence, s: Setting) -> Scores:
    """Rates of items."""
    r = e.item_rate(s["prior"])
    return lambda q: np.tile(r, (len(q), 1))


def counting(e: Evidence, s: Setting) -> Scores:
    """Rates of pairs, shrunk to the item's."""
    r, a = e.item_rate(s["prior"]), s["own"]
    return lambda q: (e.C[q].toarray() + a * r) / (e.E[q].toarray() + a)


def ease(e: Evidence, s: Setting) -> Scores:
    """The linear item-to-item model with a zero diagonal."""
    X = e.clicked
    P = np.linalg.inv((X.T @ X).toarray().astype(np.float64) + s["ridge"] * np.eye(e.D))
    B = -P / np.diag(P)[None, :]
    np.fill_diagonal(B, 0)
    rate = e.item_rate(10.0)
    return lambda q: np.asarray(X[q] @ B) + 1e-6 * rate


def als(e: Evidence, s: Setting) -> Scores:
    """Implicit-feedback factorisation."""
    F = max(1, min(int(s["factors"]), min(e.Q, e.D) - 1))
    model = AlternatingLeastSquares(
        factors=F, regularization=s["ridge"], iterations=12, random_state=0, num_threads=1, alpha=1.0
    )
    model.fit(csr_matrix(e.clicked * np.float32(s["alpha"])), show_progress=False)
    U, V, rate = np.asarray(model.user_factors), np.asarray(model.item_factors), e.item_rate(10.0)
    return lambda q: U[q] @ V.T + 1e-6 * rate


def bayesian(e: Evidence, s: Setting) -> Scores:
    """Per query, y = level_d + <x, v_d> + noise with weights E; v the singular vectors of shrunk clicks."""
    rate = e.item_rate(10.0)
    C, E = e.C.tocsr(), e.E.tocsr()
    residual = C - E.multiply(rate[None, :])
    scaled = csr_matrix(residual / np.sqrt(np.asarray(E.sum(0)).ravel() + 1.0)[None, :])
    F = max(1, min(int(s["factors"]), min(e.Q, e.D) - 2))
    _, S, Vt = svds(scaled, F, random_state=0)
    V = Vt.T * S / S.max()
    V = np.column_stack([V / max(np.sqrt(np.square(V).sum(1).mean()), 1e-12), 0.3 * np.ones(e.D)])
    noise = s["noise"]

    def scores(q: Whole) -> Floats:
        found = np.zeros((len(q), e.D))
        for place, one in enumerate(q.tolist()):
            own = slice(E.indptr[one], E.indptr[one + 1])
            v = V[E.indices[own]]
            A = np.eye(F + 1) / s["scale"] ** 2 + (v * E.data[own, None]).T @ v / noise
            b = (C.data[C.indptr[one] : C.indptr[one + 1]] - E.data[own] * rate[E.indices[own]]) @ v / noise
            found[place] = rate + V @ np.linalg.solve(A, b)
        return found

    return scores


def table(e: Evidence, latent: Scores, q: Whole, row: Whole, item: Whole, *, features: bool) -> Floats:
    """The six counts of pairs, and the features.  Shapes: q [B]; row, item [n] -> [n, J]."""
    N, E, C = (m[q].toarray()[row, item] for m in (e.N, e.E, e.C))
    rate = e.item_rate(10.0)[item]
    columns = [N, E, C, (C + 5 * rate) / (E + 5), rate, np.asarray(latent(q))[row, item]]
    if features and e.query_features is not None and e.item_features is not None:
        columns += [*e.query_features[q[row]].T, *e.item_features[item].T]
        columns.append((e.query_features[q[row]][:, :8] * e.item_features[item][:, :8]).sum(1))
    return np.column_stack(columns)


def trees(e: Evidence, s: Setting, *, features: bool = False, shown_only: bool = True) -> Scores:
    """LightGBM lambdarank; what the log has not seen of a query is 0."""
    cut = int(len(e.query) * COUNTED)
    early, late = e.part(slice(0, cut)), e.part(slice(max(cut, len(e.query) - LISTS), None))
    small = {"factors": 16, "ridge": 1.0, "alpha": 10.0}
    K = e.items.shape[1]
    latent = als(early, small)
    order = np.argsort(late.query, kind="stable")
    blocks = []
    for first in range(0, len(order), 20_000):
        rows = order[first : first + 20_000]
        q, inverse = np.unique(late.query[rows], return_inverse=True)
        blocks.append(table(early, latent, q, np.repeat(inverse, K), late.items[rows].ravel(), features=features))
    X = np.concatenate(blocks)
    label = late.clicks[order].ravel()
    weight = np.where(label > 0, np.tile(1 / late.theta, len(order)), 1.0)
    booster = lightgbm.train(
        {"objective": "lambdarank", "learning_rate": 0.08, "num_leaves": int(s["leaves"]), "verbose": -1, "num_threads": 1,
         "seed": 0, "deterministic": True, "min_data_in_leaf": 50, "lambdarank_truncation_level": K},
        lightgbm.Dataset(X, label, weight=weight, group=np.full(len(order), K)), num_boost_round=int(s["rounds"]),
    )  # fmt: skip
    final = als(e, small)
    seen = np.asarray(e.N.sum(1)).ravel() > 0

    def scores(q: Whole) -> Floats:
        found = np.full((len(q), e.D), -1e9)
        for first in range(0, len(q), ROWS):
            part = q[first : first + ROWS]
            wanted = (e.N[part].toarray() > 0) if shown_only else np.ones((len(part), e.D), np.bool_)
            wanted[~seen[part]] = True
            row, item = np.nonzero(wanted)
            predicted: Any = booster.predict(table(e, final, part, row, item, features=features), num_threads=1)
            found[first + row, item] = predicted
        return found

    return scores


def _grid(**choices: Sequence[float]) -> tuple[Setting, ...]:
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


@dataclass(frozen=True)
class Peer:
    """A learner with the settings to choose from."""

    name: str
    settings: tuple[Setting, ...]
    fit: Callable[[Evidence, Setting], Scores]
    features: bool = False


TREES = _grid(leaves=(7, 31), rounds=(60,))
PEERS = (
    Peer("popularity", _grid(prior=(10, 100)), popularity),
    Peer("counting", _grid(prior=(10, 100), own=(1, 3, 10, 30, 100)), counting),
    Peer("EASE", _grid(ridge=(10, 100, 1000)), ease),
    Peer("ALS", _grid(factors=(8, 32), ridge=(1.0,), alpha=(3, 20)), als),
    Peer("Bayesian", _grid(factors=(16,), noise=(0.1, 0.3, 1.0), scale=(0.05, 0.15)), bayesian),
    Peer("LightGBM, shown", TREES, trees),
    Peer("LightGBM, all", TREES, lambda e, s: trees(e, s, shown_only=False)),
    Peer("LightGBM, features", TREES, lambda e, s: trees(e, s, features=True), True),
    Peer("LightGBM, features, all", TREES, lambda e, s: trees(e, s, features=True, shown_only=False), True),
)


def held_out_clicks(e: Evidence, scores: Scores) -> float:
    """Clicks of held-out lists in the order of the scores, sum c theta_new / theta_old."""
    q, row = np.unique(e.query, return_inverse=True)
    total = 0.0
    for first in range(0, len(q), ROWS):
        mine = np.flatnonzero((row >= first) & (row < first + ROWS))
        s = np.asarray(scores(q[first : first + ROWS]))
        own = s[(row[mine] - first)[:, None], e.items[mine]]
        rank = np.argsort(np.argsort(-own, axis=1, kind="stable"), axis=1)
        total += float((e.clicks[mine] * e.theta[rank] / e.theta).sum())
    return total


def tuned(peer: Peer, e: Evidence) -> Scores:
    """The peer on all of the log, with the setting that orders its last part best."""
    setting = peer.settings[0]
    if len(peer.settings) > 1:
        cut = int(len(e.query) * (1 - HELD_OUT))
        train, last = e.part(slice(0, cut)), e.part(slice(cut, None))
        setting = max(peer.settings, key=lambda s: held_out_clicks(last, peer.fit(train, s)))
    return peer.fit(e, setting)
