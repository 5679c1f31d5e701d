"""Random small worlds, and a mean within five standard errors."""

import math

import numpy as np
import torch


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def world(seed: int):
    """A random small world: sizes, scores (some not available), weights (some zero, some negative), a curve."""
    rng = np.random.default_rng(seed)
    D = int(rng.integers(1, 7))
    K2, K = int(rng.integers(1, D + 2)), int(rng.integers(1, 4))
    s, r = (rng.normal(size=(2, D)) * rng.choice([0.3, 1.0, 3.0])).tolist()
    w = (rng.normal(size=D) * (rng.random(D) < 0.7)).tolist()
    theta = np.sort(rng.random(K))[::-1].tolist()
    if D > 3 and rng.random() < 0.3:
        s[int(rng.integers(D))] = -math.inf
    if D > 3 and rng.random() < 0.3:
        r[int(rng.integers(D))] = -math.inf
    return s, r, w, theta, K2


def assert_mean(sample: torch.Tensor, exact, what: str) -> None:
    """The mean over the first axis is within five of its own standard errors of the exact value."""
    sample, exact = sample.double(), torch.tensor(exact, dtype=torch.float64)
    error = sample.std(0) / len(sample) ** 0.5
    assert torch.all((sample.mean(0) - exact).abs() <= 5 * error + 1e-6), f"{what}: {sample.mean(0)} against {exact}"
