"""What a practitioner would pick instead: known recommenders on the same log, tuned on held-out clicks with equal care.

Each peer sees the clicks of a log (and, where it can use them, the examined non-clicks and production's embeddings), and
gives every item a score; `tuning` chooses its setting. None sees the truth.

    production         the scores of the policy that drew the log
    popularity         clicks of the item per examination
    EASE               B = I - P / diag(P),  P = (X^T X + lambda I)^-1,  scores X B           (Steck, WWW 2019)
    ridge autoencoder  scores X (X^T X + lambda I)^-1 X^T X
    item-kNN           cosine of the items' clicks, the k nearest, scores X S
    ALS                implicit-feedback factorisation (Hu et al., ICDM 2008), library `implicit`
    ALS + LightGBM     trees on ALS scores and counts, grown on the other half of the log, library `lightgbm`
    Bayesian           regression per query in production's item space, clicks and examined non-clicks
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.sparse import csr_matrix

from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback, exposure

Floats = NDArray[np.float64]
Scores = Callable[[NDArray[np.int64]], NDArray[np.float32]]
Setting = Mapping[str, float]

CANDIDATES = 500  # items by ALS that the trees rank again
ROWS = 512  # queries whose scores are in memory at once


@dataclass(frozen=True)
class Evidence:
    """A log as peers see it. Embeddings are production's: of all items, of the queries that it knows, and of all queries
    as it serves them.

    Shapes: theta [K]; items [D, F]; queries [n, F]; served [Q, F].
    """

    log: Feedback
    halves: tuple[Feedback, Feedback]
    theta: Floats
    items: NDArray[np.float32] | None = None
    queries: NDArray[np.float32] | None = None
    served: NDArray[np.float32] | None = None

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

    @cached_property
    def together(self) -> Floats:
        """Queries that clicked both of two items, X^T X.  Shapes: -> [D, D]."""
        found: Floats = (self.binary.T @ self.binary).toarray().astype(np.float64)
        return found


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


def production(evidence: Evidence, setting: Setting) -> Scores:
    """The policy that drew the log: what it would have learned is whether clicked items come first."""
    if evidence.items is None or evidence.served is None:
        raise ConfigError("the peer production needs production's embeddings; this world has none.")
    served, items = evidence.served, evidence.items
    return lambda q: served[q] @ items.T


def popularity(evidence: Evidence, setting: Setting) -> Scores:
    """Clicks per examination of every item, with `prior` examinations of the mean rate."""
    clicks, examined = (np.asarray(m.sum(0), np.float64).ravel() for m in (evidence.clicks, evidence.examined))
    rate = clicks.sum() / max(examined.sum(), 1e-12)
    value = ((clicks + setting["prior"] * rate) / (examined + setting["prior"])).astype(np.float32)
    return lambda q: np.tile(value, (len(q), 1))


def ease(evidence: Evidence, setting: Setting) -> Scores:
    """EASE: the linear item-to-item model with a zero diagonal."""
    X = evidence.binary
    P = _ridge_inverse(evidence.together, setting["ridge"])
    B = (-P / np.diag(P)[None, :]).astype(np.float32)
    np.fill_diagonal(B, 0)
    return lambda q: np.asarray(X[q] @ B)


def ridge_autoencoder(evidence: Evidence, setting: Setting) -> Scores:
    """The linear autoencoder with a ridge, the diagonal free."""
    X = evidence.binary
    P = _ridge_inverse(evidence.together, setting["ridge"])
    B = (np.eye(len(P)) - setting["ridge"] * P).astype(np.float32)  # (G + l I)^-1 G = I - l (G + l I)^-1
    return lambda q: np.asarray(X[q] @ B)


def _ridge_inverse(G: Floats, ridge: float) -> Floats:
    """(X^T X + ridge I)^-1, by its Cholesky factor.  Shapes: G [D, D] -> [D, D]."""
    A = G.copy()
    A[np.diag_indices_from(A)] += ridge
    factor, wrong = dpotrf(A, lower=1, overwrite_a=1)
    inverse, wrong_too = dpotri(factor, lower=1, overwrite_c=1)
    if wrong or wrong_too:
        raise ConfigError(f"clicks with the ridge {ridge} cannot be inverted. Take a larger one.")
    lower = np.tril(inverse)
    found: Floats = lower + np.tril(lower, -1).T
    return found


def item_knn(evidence: Evidence, setting: Setting) -> Scores:
    """Cosine similarity of the items' clicks with shrinkage; the `neighbours` nearest of every item."""
    X = evidence.binary
    G = evidence.together.astype(np.float32)
    norm = np.sqrt(np.diag(G))
    S = G / (norm[:, None] * norm[None, :] + setting["shrink"])
    np.fill_diagonal(S, 0)
    k = min(int(setting["neighbours"]), len(S) - 1)
    edge = np.partition(S, len(S) - k, axis=1)[:, len(S) - k][:, None]
    S[edge > S] = 0
    near = csr_matrix(S)
    return lambda q: (X[q] @ near).toarray()


def check_libraries() -> None:
    """Refuses, before anything is run, to go on without the libraries that two of the peers are made with."""
    if missing := [name for name in ("implicit", "lightgbm") if find_spec(name) is None]:
        raise ConfigError(
            f"peers need the extra `peers` ({' and '.join(missing)} not found): pip install 'tandemrank[peers]'."
        )


def als(evidence: Evidence, setting: Setting) -> Scores:
    """Weighted implicit-feedback factorisation by alternating least squares."""
    check_libraries()
    from implicit.cpu.als import AlternatingLeastSquares

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
    check_libraries()
    import lightgbm

    early, late = (
        Evidence(half, evidence.halves, evidence.theta, evidence.items, evidence.queries) for half in evidence.halves
    )
    target = late.examined.tocoo()
    rate = np.minimum(np.asarray(late.clicks[target.row, target.col]).ravel() / target.data, 1.0)
    first = als(evidence, setting)
    features, final = _features(early, als(early, setting)), _features(evidence, first)
    bounds = np.searchsorted(target.row, np.arange(0, evidence.log.Q + ROWS, ROWS))
    parts = [slice(a, b) for a, b in pairwise(bounds.tolist())]
    table = np.concatenate([features(*np.unique(target.row[p], return_inverse=True), target.col[p]) for p in parts])
    booster = lightgbm.train(
        {"objective": "cross_entropy", "learning_rate": 0.1, "num_leaves": int(setting["leaves"]), "verbose": -1,
         "num_threads": 1, "seed": 0, "deterministic": True},
        lightgbm.Dataset(table, rate, weight=target.data), num_boost_round=100,
    )  # fmt: skip

    def scores(q: NDArray[np.int64]) -> NDArray[np.float32]:
        s = np.asarray(first(q), np.float32)
        n = min(CANDIDATES, s.shape[1])
        candidates = np.argpartition(-s, n - 1, axis=1)[:, :n]
        chosen = final(q, np.repeat(np.arange(len(q)), n), candidates.ravel())
        found: Any = booster.predict(chosen, num_threads=1)
        s = np.full(s.shape, -1.0, np.float32)  # below every rate
        np.put_along_axis(s, candidates, np.asarray(found, np.float32).reshape(candidates.shape), 1)
        return s

    return scores


Features = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.integer]], NDArray[np.float32]]


def _features(evidence: Evidence, scores: Scores) -> Features:
    """Features of pairs: the ALS score, the item's rate and count, the query's clicks, the pair's own clicks and examinations.

    Shapes: q [B], and the place in q and the item of every pair [n] -> [n, 6].
    """
    clicks, examined = (np.asarray(m.sum(0), np.float64).ravel() for m in (evidence.clicks, evidence.examined))
    rate = (clicks / np.maximum(examined, 1e-9)).astype(np.float32)
    count = np.log1p(clicks).astype(np.float32)
    active = np.log1p(np.asarray(evidence.clicks.sum(1)).ravel()).astype(np.float32)

    def features(q: NDArray[np.int64], row: NDArray[np.int64], item: NDArray[np.integer]) -> NDArray[np.float32]:
        s = np.asarray(scores(q), np.float32)[row, item]
        own, seen = (m[q].toarray()[row, item].astype(np.float32) for m in (evidence.clicks, evidence.examined))
        return np.column_stack([s, rate[item], count[item], active[q[row]], own, seen])

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
    Peer("production", ({},), production),
    Peer("popularity", _grid(prior=(10, 100, 1000)), popularity),
    Peer("EASE", _grid(ridge=(30, 100, 300, 1000, 3000)), ease),
    Peer("ridge autoencoder", _grid(ridge=(10, 30, 100, 300, 1000)), ridge_autoencoder),
    Peer("item-kNN", _grid(neighbours=(50, 200), shrink=(10, 50, 200)), item_knn),
    Peer("ALS", _grid(factors=(16, 48), ridge=(0.3, 3.0), alpha=(5, 20, 80)), als),
    Peer("ALS + LightGBM", _grid(factors=(32,), ridge=(1.0,), alpha=(5, 20), leaves=(15, 31)), als_trees),
    Peer("Bayesian regression", _grid(noise=(0.1, 0.3, 1.0), scale=(0.1, 0.2, 0.4)), bayesian_regression),
)
