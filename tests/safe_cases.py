"""Two queries, a logger and a pair, and the safe objectives as the papers write them, in plain Python."""

import itertools
import math
from collections.abc import Callable

import numpy as np

import enumeration
from tandemrank.training import safe

THETA = [1.0, 0.5]
K2, Z, N, DELTA = 3, 1.5, 40.0, 0.1
S = [[0.3, -0.5, 1.0, 0.1, -1.2], [1.5, 0.2, -0.3, 0.4, 0.0]]  # two queries
R = [[0.8, 0.0, -0.7, 0.4, 0.9], [-0.2, 0.6, 0.1, -1.0, 0.3]]
LOGGER = [[0.2, 0.9, -0.4, 0.0, 0.5], [0.0, -0.6, 0.3, 0.8, -0.1]]
IMPRESSIONS = np.array([10.0, 30.0])
CLICKED = np.array([[3.0, 0.0, 1.0, 0.0, 2.0], [0.0, 7.0, 2.0, 5.0, 0.0]])
SIGNED = np.array([[3.0, -1.5, 1.0, 0.0, -2.0], [-0.5, 7.0, -2.0, 5.0, 0.3]])

RHO_0 = np.array([enumeration.exposure(x, x, THETA, 5) for x in LOGGER])


def exposures(s: list[list[float]], r: list[list[float]]) -> np.ndarray:
    return np.array([enumeration.exposure(a, b, THETA, K2) for a, b in zip(s, r, strict=True)])


# The objectives once more, as the papers write them, in plain Python.


def exposure_risk(rho: np.ndarray, w: np.ndarray) -> float:
    d2 = sum(n / N * sum((rho[q, d] / Z) ** 2 / (RHO_0[q, d] / Z) for d in range(5)) for q, n in enumerate(IMPRESSIONS))
    value = sum(w[q, d] * rho[q, d] for q in range(2) for d in range(5)) / N
    return N * (value - math.sqrt(Z / N * (1 - DELTA) / DELTA * d2))


def clipped(rho: np.ndarray, w: np.ndarray, eps: float = 0.7) -> float:
    total = 0.0
    for q in range(2):
        for d in range(5):
            x, reward = rho[q, d] / RHO_0[q, d], w[q, d] * RHO_0[q, d]
            total += reward * (min(x, 1 / eps) if reward >= 0 else max(x, eps))
    return total


def smoothed(rho: np.ndarray, w: np.ndarray, L: float = 2.0) -> float:
    total = 0.0
    for q in range(2):
        for d in range(5):
            x, reward = rho[q, d] / RHO_0[q, d], w[q, d] * RHO_0[q, d]
            total += reward * (L * math.log(1 + x / L) if reward >= 0 else x)
    return total


def smoothed_queries(rho: np.ndarray, w: np.ndarray, L: float = 2.0) -> float:
    terms = [2 / N * sum(w[q, d] * rho[q, d] for d in range(5)) for q in range(2)]
    return N / 2 * sum(L * math.log(1 + x / L) for x in terms)


CASES: dict[str, tuple[Callable[..., float], Callable[..., safe.Safe], np.ndarray]] = {
    "exposure": (
        exposure_risk,
        lambda w, rho: safe.exposure(w, rho, RHO_0, IMPRESSIONS, Z=Z, N=N, delta=DELTA),
        CLICKED,
    ),
    "exposure, signed": (
        exposure_risk,
        lambda w, rho: safe.exposure(w, rho, RHO_0, IMPRESSIONS, Z=Z, N=N, delta=DELTA),
        SIGNED,
    ),
    "prpo": (clipped, lambda w, rho: safe.prpo(w, rho, RHO_0, eps=0.7), SIGNED),
    "smoothing": (smoothed, lambda w, rho: safe.smoothing(w, rho, RHO_0, L=2.0), SIGNED),
    "bound": (smoothed_queries, lambda w, rho: safe.bound(w, rho, L=2.0, queries=2, N=N), CLICKED),
}


def slope(f: Callable[[float], float]) -> float:
    """f'(0) by central differences and two Richardson steps: exact to about 1e-12."""
    d = [(f(h) - f(-h)) / (2 * h) for h in (0.04, 0.02, 0.01, 0.005)]
    for power in (4, 16, 64):
        d = [(power * b - a) / (power - 1) for a, b in itertools.pairwise(d)]
    return d[0]


def moved(x: list[list[float]], q: int, d: int, h: float) -> list[list[float]]:
    return [[v + h * (i == q and j == d) for j, v in enumerate(row)] for i, row in enumerate(x)]
