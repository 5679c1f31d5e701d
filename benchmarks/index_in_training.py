"""What an index can do for the draws of training: how much it brings, what is lost, what it costs (docs/scale.md).

    python benchmarks/index_in_training.py

Two ways. Cells of items are opened for the head, and what they miss is left to the tail, where a rate is at most exp(b).
Or, as `race = indexed` does, each cell's items are proposed at a rate of their own: that of its mean's score and z standard
deviations of the scores within the cell. *Lost*: arrivals before the horizon that a cap keeps away, of all; from all scores.
"""

import time

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank.bench.scale import _world
from tandemrank.gradients import _products_kernel, cells, lazy_race
from tandemrank.gradients.products import Source

K2, QUERIES = 1000, 8
OPENED, DEVIATIONS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6), (2.5, 3.0, 3.5, 4.0)
Floats = NDArray[np.float32]


def main() -> None:
    """Both ways at two sizes, and what reading items costs."""
    torch.set_num_threads(1)
    for D in (100_000, 1_000_000):
        pair = _world(D, K2, QUERIES, 0).pair
        factors = pair.generator.factors(torch.arange(QUERIES))
        assert factors is not None
        X, Y = factors.queries.detach().numpy(), factors.items.detach().numpy()
        say(f"{D:,} items")
        lost_by(X, Y, int(D**0.5))
        costs(X, Y)


def lost_by(X: Floats, Y: Floats, lists: int) -> None:
    """What either way loses.  Shapes: X [B, F]; Y [D, F]."""
    horizons = lazy_race.horizons(Source(X, Y, np.empty((len(X), 0), np.float32)), K2, 2, 2.0)
    known = cells.partition(torch.from_numpy(Y), cells=lists)
    lists, size, own = known.count, np.diff(known.start), np.empty(len(Y), np.int64)
    own[known.members] = np.repeat(np.arange(lists), size)
    left = np.square(Y - known.mean[own]).sum() / np.square(Y - Y.mean(0)).sum()
    say(f"  {lists} cells: variance left {left:.2f}")
    opened, capped = np.zeros((len(OPENED), 2)), np.zeros((len(DEVIATIONS), 2))
    for x, b, log_T in zip(X, horizons.b, horizons.log_T[:, 0], strict=True):
        s, centre, T = (Y @ x).astype(np.float64), known.mean @ x, np.exp(np.float64(log_T))
        arrivals, order = -np.expm1(-np.exp(s) * T), np.argsort(-centre)
        for i, share in enumerate(OPENED):
            is_open = np.zeros(lists, bool)
            is_open[order[: np.searchsorted(np.cumsum(size[order]), share * len(Y)) + 1]] = True
            missed = (s > b) & ~is_open[own]
            lost = arrivals[missed] + np.expm1(-np.exp(np.float64(b)) * T)
            opened[i] += 1 - missed.sum() / (s > b).sum(), lost.sum() / arrivals.sum()
        rest = s - centre[own]
        mean = np.bincount(own, rest, lists) / np.maximum(size, 1)
        spread = np.sqrt(np.bincount(own, np.square(rest), lists) / np.maximum(size, 1))
        for i, z in enumerate(DEVIATIONS):
            cap = np.exp(centre + mean + z * spread)
            lost = arrivals + np.expm1(-np.minimum(np.exp(s), cap[own]) * T)
            capped[i] += (size * cap).sum() * T, lost.sum() / arrivals.sum()
    for share, (head, lost) in zip(OPENED, opened / len(X), strict=True):
        say(f"  opened {share:.2f} of the items: {head:.3f} of the head, {lost:.4f} lost")
    for z, (proposals, lost) in zip(DEVIATIONS, capped / len(X), strict=True):
        say(f"  a cap per cell, z = {z}: {proposals:,.0f} proposals per race, {lost:.4f} lost")


def costs(X: Floats, Y: Floats) -> None:
    """Reading items at random places, and a tenth of them for one query alone.  Shapes: X [B, F]; Y [D, F]."""
    rng = np.random.default_rng(0)
    documents, tenth = rng.integers(0, len(Y), (len(X), 100_000)), Y[: len(Y) // 10]
    scores = np.empty(documents.shape, np.float32)
    read = cpu(lambda: _products_kernel.scores_at(X, Y, documents, 1, scores))
    alone = cpu(lambda: [np.dot(tenth, x) for x in X])
    say(
        f"  an item at a random place {1e9 * read / documents.size:.0f} ns; a tenth of all {1e3 * alone / len(X):.2f} ms"
    )


def cpu(job: object) -> float:
    """The seconds of a second call."""
    assert callable(job)
    job()
    start = time.process_time()
    job()
    return time.process_time() - start


def say(text: str) -> None:
    """One line."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
