"""What a practitioner would pick instead: known recommenders on the same log, tuned on held-out clicks with equal care.

Each peer sees the clicks of a log (and, where it can use them, the examined non-clicks and production's embeddings), and
gives every item a score. Whether clicked items are put first is part of every peer's tuning. None sees the truth.

    popularity         clicks of the item per examination
    EASE               B = I - P / diag(P),  P = (X^T X + lambda I)^-1,  scores X B           (Steck, WWW 2019)
    ridge autoencoder  scores X (X^T X + lambda I)^-1 X^T X
    item-kNN           cosine of the items' clicks, the k nearest, scores X S
    ALS                implicit-feedback factorisation (Hu et al., ICDM 2008), library `implicit`
    ALS + LightGBM     trees on ALS scores and counts, grown on the other half of the log, library `lightgbm`
    Bayesian           regression per query in production's item space, clicks and examined non-clicks
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix

from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback, exposure

Floats = NDArray[np.float64]
Scores = Callable[[NDArray[np.int64]], NDArray[np.float32]]
Setting = Mapping[str, float]
Judge = Callable[[NDArray[np.int64], NDArray[np.int32]], float]

CANDIDATES = 500  # items by ALS that the trees rank again
ROWS = 512  # queries whose scores are in memory at once
FIRST = np.float32(1e6)  # lifts a clicked item above all others


@dataclass(frozen=True)
class Evidence:
    """A log as peers see it. Embeddings are production's: of all items, and of the queries that it knows.

    Shapes: theta [K]; items [D, F]; queries [n, F].
    """

    log: Feedback
    halves: tuple[Feedback, Feedback]
    theta: Floats
    items: NDArray[np.float32] | None = None
    queries: NDArray[np.float32] | None = None

    @cached_property
    def clicks(self) -> csr_matrix:
        """Clicks of every pair that has one.  Shapes: -> [Q, D]."""
        return _matrix(self.log, self.log.clicks)

    @cached_property
    def examined(self) -> csr_matrix:
        """Examinations of every pair that was shown.  Shapes: -> [Q, D]."""
        return _matrix(self.log, exposure(self.log, self.theta))

    @cached_property
    def binary(self) -> csr_matrix:
        """1 where a pair was clicked.  Shapes: -> [Q, D]."""
        X = self.clicks.astype(np.float32)
        X.data[:] = 1
        return X


def _matrix(log: Feedback, values: Floats) -> csr_matrix:
    """Values of rows summed by pair, zeros left out.  Shapes: [P] -> [Q, D]."""
    matrix = csr_matrix((values, (log.query, log.item)), shape=(log.Q, log.D))
    matrix.eliminate_zeros()
    return matrix


@dataclass(frozen=True)
class Peer:
    """A known recommender: the settings to choose from, and how it learns."""

    name: str
    settings: tuple[Setting, ...]
    fit: Callable[[Evidence, Setting], Scores]


@dataclass(frozen=True)
class Tuned:
    """A peer after its tuning: the lists it shows, the setting that was chosen, and the seconds of the last fit."""

    name: str
    setting: dict[str, float]
    lists: NDArray[np.int32]
    new_lists: NDArray[np.int32]
    seconds: float
    tuning_seconds: float


def run(peer: Peer, part: Evidence, whole: Evidence, judge: Judge, q: NDArray[np.int64], K: int) -> Tuned:
    """Chooses a setting on held-out clicks (`part` is the rest), then learns from the whole log.

    `lists` are the best K of all items, `new_lists` of those the query has not clicked.  Shapes: q [n] -> [n, K] each.
    """
    start = time.perf_counter()
    found: list[tuple[float, int, bool]] = []
    for number, setting in enumerate(peer.settings):
        scores = peer.fit(part, setting)
        for first in (False, True):
            value = judge(q, best(scores, q, K, part.binary if first else None, FIRST))
            found.append((-np.inf if np.isnan(value) else value, -number, first))
    _, number, first = max(found)
    setting = peer.settings[-number]
    middle = time.perf_counter()
    scores = peer.fit(whole, setting)
    lists = best(scores, q, K, whole.binary if first else None, FIRST)
    end = time.perf_counter()
    new = best(scores, q, K, whole.binary, -FIRST)
    return Tuned(
        peer.name, {**setting, "clicked_first": float(first)}, lists, new, end - middle, middle - start
    )  # fmt: skip


def best(
    scores: Scores, q: NDArray[np.int64], K: int, lifted: csr_matrix | None, lift: np.float32
) -> NDArray[np.int32]:
    """The K items of the highest scores, after `lift` is added to the pairs of `lifted`.  Shapes: q [n] -> [n, K]."""
    lists = np.empty((len(q), K), np.int32)
    for start in range(0, len(q), ROWS):
        rows = q[start : start + ROWS]
        s = np.asarray(scores(rows), np.float32)
        if lifted is not None:
            chosen = lifted[rows].tocoo()
            s[chosen.row, chosen.col] += lift
        top = np.argpartition(-s, K - 1, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(s, top, 1), axis=1, kind="stable")
        lists[start : start + ROWS] = np.take_along_axis(top, order, 1)
    return lists


# --- the peers --------------------------------------------------------------------------------------------------------


def popularity(evidence: Evidence, setting: Setting) -> Scores:
    """Clicks per examination of every item, with `prior` examinations of the mean rate."""
    clicks, examined = (np.asarray(m.sum(0), np.float64).ravel() for m in (evidence.clicks, evidence.examined))
    rate = clicks.sum() / max(examined.sum(), 1e-12)
    value = ((clicks + setting["prior"] * rate) / (examined + setting["prior"])).astype(np.float32)
    return lambda q: np.tile(value, (len(q), 1))


def ease(evidence: Evidence, setting: Setting) -> Scores:
    """EASE: the linear item-to-item model with a zero diagonal."""
    X = evidence.binary
    P = _ridge_inverse(X, setting["ridge"])
    B = (-P / np.diag(P)[None, :]).astype(np.float32)
    np.fill_diagonal(B, 0)
    return lambda q: np.asarray(X[q] @ B)


def ridge_autoencoder(evidence: Evidence, setting: Setting) -> Scores:
    """The linear autoencoder with a ridge, the diagonal free."""
    X = evidence.binary
    P = _ridge_inverse(X, setting["ridge"])
    B = (np.eye(len(P)) - setting["ridge"] * P).astype(np.float32)  # (G + l I)^-1 G = I - l (G + l I)^-1
    return lambda q: np.asarray(X[q] @ B)


def _ridge_inverse(X: csr_matrix, ridge: float) -> Floats:
    """(X^T X + ridge I)^-1.  Shapes: X [Q, D] -> [D, D]."""
    G = (X.T @ X).toarray().astype(np.float64)
    G[np.diag_indices_from(G)] += ridge
    inverse: Floats = cho_solve(cho_factor(G, overwrite_a=True), np.eye(len(G)), overwrite_b=True)
    return inverse


def item_knn(evidence: Evidence, setting: Setting) -> Scores:
    """Cosine similarity of the items' clicks with shrinkage; the `neighbours` nearest of every item."""
    X = evidence.binary
    G = (X.T @ X).toarray().astype(np.float32)
    norm = np.sqrt(np.diag(G))
    S = G / (norm[:, None] * norm[None, :] + setting["shrink"])
    np.fill_diagonal(S, 0)
    k = min(int(setting["neighbours"]), len(S) - 1)
    edge = np.partition(S, len(S) - k, axis=1)[:, len(S) - k][:, None]
    S[edge > S] = 0
    near = csr_matrix(S)
    return lambda q: (X[q] @ near).toarray()


def als(evidence: Evidence, setting: Setting) -> Scores:
    """Weighted implicit-feedback factorisation by alternating least squares."""
    try:
        from implicit.cpu.als import AlternatingLeastSquares
    except ImportError as error:
        raise ConfigError("the peer ALS needs the extra `peers`: pip install 'tandemrank[peers]'.") from error
    X = evidence.binary * np.float32(setting["alpha"])
    model = AlternatingLeastSquares(
        factors=min(int(setting["factors"]), min(X.shape) - 1), regularization=setting["ridge"], iterations=12,
        random_state=0, num_threads=1,
    )  # fmt: skip
    model.fit(csr_matrix(X), show_progress=False)
    queries, items = np.asarray(model.user_factors), np.asarray(model.item_factors)
    return lambda q: queries[q] @ items.T


def als_trees(evidence: Evidence, setting: Setting) -> Scores:
    """LightGBM on ALS scores and counts: ALS of one half of the log, trees on what was examined in the other."""
    try:
        import lightgbm
    except ImportError as error:
        raise ConfigError(
            "the peer ALS + LightGBM needs the extra `peers`: pip install 'tandemrank[peers]'."
        ) from error
    early, late = (
        Evidence(half, evidence.halves, evidence.theta, evidence.items, evidence.queries) for half in evidence.halves
    )
    target = late.examined.tocoo()
    rate = np.minimum(np.asarray(late.clicks[target.row, target.col]).ravel() / target.data, 1.0)
    features = _counts(early, als(early, setting))
    table = np.concatenate([features(np.array([q]))[0][d] for q, d in _by_query(target.row, target.col)])
    booster = lightgbm.train(
        {"objective": "cross_entropy", "learning_rate": 0.1, "num_leaves": int(setting["leaves"]), "verbose": -1,
         "num_threads": 1, "seed": 0, "deterministic": True},
        lightgbm.Dataset(table, rate, weight=target.data), num_boost_round=100,
    )  # fmt: skip
    final = _counts(evidence, als(evidence, setting))

    def scores(q: NDArray[np.int64]) -> NDArray[np.float32]:
        rows = final(q)
        candidates = np.argpartition(-rows[..., 0], min(CANDIDATES, rows.shape[1]) - 1, axis=1)[:, :CANDIDATES]
        chosen = np.take_along_axis(rows, candidates[..., None], 1)
        found: Any = booster.predict(chosen.reshape(-1, rows.shape[-1]), num_threads=1)
        s = np.full(rows.shape[:2], -1.0, np.float32)  # below every rate
        np.put_along_axis(s, candidates, np.asarray(found, np.float32).reshape(candidates.shape), 1)
        return s

    return scores


def _by_query(row: NDArray[np.integer], column: NDArray[np.integer]) -> Sequence[tuple[int, NDArray[np.integer]]]:
    """The columns of every row that has some, in order."""
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    return list(zip(row[starts].tolist(), np.split(column, starts[1:]), strict=True))


def _counts(evidence: Evidence, scores: Scores) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
    """Features of every pair: ALS score and its rank share, the item's rate and count, the pair's own clicks and misses.

    Shapes: q [B] -> [B, D, 6].
    """
    clicks, examined = (np.asarray(m.sum(0), np.float64).ravel() for m in (evidence.clicks, evidence.examined))
    rate = (clicks / np.maximum(examined, 1e-9)).astype(np.float32)
    count = np.log1p(clicks).astype(np.float32)
    active = np.log1p(np.asarray(evidence.clicks.sum(1)).ravel()).astype(np.float32)

    def features(q: NDArray[np.int64]) -> NDArray[np.float32]:
        s = np.asarray(scores(q), np.float32)
        own, seen = (m[q].toarray().astype(np.float32) for m in (evidence.clicks, evidence.examined))
        D = s.shape[1]
        return np.stack(
            [s, np.tile(rate, (len(q), 1)), np.tile(count, (len(q), 1)), np.repeat(active[q, None], D, 1), own, seen],
            -1,
        )

    return features


def bayesian_regression(evidence: Evidence, setting: Setting) -> Scores:
    """Per query, y = <x, v_d> + noise in production's item space, clicks and examined non-clicks; x ~ N(m, S).

        A = S^-1 + sum_d e_d v_d v_d^T / noise,     x = A^-1 (S^-1 m + sum_d c_d v_d / noise)

    with c the clicks and e the examinations of a pair; m and S are the moments of the queries that production knows.
    """
    if evidence.items is None or evidence.queries is None:
        raise ConfigError("the Bayesian regression needs production's embeddings; this world has none.")
    V = np.column_stack([evidence.items, np.ones(len(evidence.items))]).astype(np.float64)
    known = np.column_stack([evidence.queries, np.zeros(len(evidence.queries))])
    known = known * (1 / max(float((known @ V.T).std()), 1e-12)) * setting["scale"]
    m, S = known.mean(0), np.cov(known.T) + np.diag(np.append(np.full(V.shape[1] - 1, 1e-6), setting["scale"] ** 2))
    precision, noise = np.linalg.inv(S), setting["noise"]
    clicks, examined = evidence.clicks, evidence.examined

    def scores(q: NDArray[np.int64]) -> NDArray[np.float32]:
        E = examined[q]
        A = np.broadcast_to(precision, (len(q), *precision.shape)).copy()
        for place in range(len(q)):
            own = slice(E.indptr[place], E.indptr[place + 1])
            v = V[E.indices[own]]
            A[place] += (v * E.data[own, None]).T @ v / noise
        x = np.linalg.solve(A, (precision @ m + clicks[q] @ V / noise)[..., None])[..., 0]
        return np.asarray(x @ V.T, np.float32)

    return scores


def _grid(**choices: Sequence[float]) -> tuple[Setting, ...]:
    """Every combination of the choices."""
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


PEERS = (
    Peer("popularity", _grid(prior=(10, 100)), popularity),
    Peer("EASE", _grid(ridge=(30, 100, 300, 1000)), ease),
    Peer("ridge autoencoder", _grid(ridge=(3, 10, 30, 100)), ridge_autoencoder),
    Peer("item-kNN", _grid(neighbours=(50, 200), shrink=(10, 50)), item_knn),
    Peer("ALS", _grid(factors=(32, 64), ridge=(0.1, 1.0), alpha=(5, 20)), als),
    Peer("ALS + LightGBM", _grid(factors=(32,), ridge=(0.1,), alpha=(5, 20), leaves=(15, 31)), als_trees),
    Peer("Bayesian regression", _grid(noise=(0.03, 0.1, 0.3), scale=(0.05, 0.1, 0.2)), bayesian_regression),
)
