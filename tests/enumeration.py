"""Complete enumeration in plain Python: the oracle of the tests. For a handful of documents only."""

import itertools
import math
from collections.abc import Iterator, Sequence

Scores = Sequence[float]
INF = math.inf


def rankings(scores: Scores, docs: Sequence[int], n: int) -> Iterator[tuple[tuple[int, ...], float, list[float]]]:
    """Every Plackett-Luce ranking of n of `docs` (fewer if fewer have a score above -inf): list, probability, and the
    gradient of its log-probability by each score."""
    docs = [d for d in docs if scores[d] > -INF]
    for y in itertools.permutations(docs, min(n, len(docs))):
        probability, gradient, left = 1.0, [0.0] * len(scores), list(docs)
        for d in y:
            top = max(scores[e] for e in left)
            total = sum(math.exp(scores[e] - top) for e in left)
            probability *= math.exp(scores[d] - top) / total
            gradient[d] += 1.0
            for e in left:
                gradient[e] -= math.exp(scores[e] - top) / total
            left.remove(d)
        yield y, probability, gradient


def two_stage(
    s: Scores, r: Scores, theta: Sequence[float], K2: int
) -> Iterator[tuple[tuple[int, ...], float, list, list]]:
    """Every (y_c, y_r): the shown list, its probability, gradients of its log-probability by both stages' scores."""
    for y_c, p_c, grad_c in rankings(s, range(len(s)), K2):
        for y_r, p_r, grad_r in rankings(r, y_c, len(theta)):
            yield y_r, p_c * p_r, grad_c, grad_r


def exposure(s: Scores, r: Scores, theta: Sequence[float], K2: int) -> list[float]:
    """rho_cr(d) = E_{y_c} E_{y_r} [theta_{k(d)}]  (2stage-true-utility)."""
    rho = [0.0] * len(s)
    for y, p, _, _ in two_stage(s, r, theta, K2):
        for k, d in enumerate(y):
            rho[d] += p * theta[k]
    return rho


def utility(s: Scores, r: Scores, w: Sequence[float], theta: Sequence[float], K2: int) -> tuple[float, list, list]:
    """U = sum_d rho_cr(d) w_d and its gradients (cand-grad, ranker-grad)."""
    D = len(s)
    value, by_s, by_r = 0.0, [0.0] * D, [0.0] * D
    for y, p, grad_c, grad_r in two_stage(s, r, theta, K2):
        reward = p * sum(theta[k] * w[d] for k, d in enumerate(y))
        value += reward
        for d in range(D):
            by_s[d] += reward * grad_c[d]
            by_r[d] += reward * grad_r[d]
    return value, by_s, by_r
