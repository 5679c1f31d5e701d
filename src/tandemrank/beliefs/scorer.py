"""The beliefs of a log as the scores of a stage (`policies.believed`)."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank.beliefs.belief import Beliefs
from tandemrank.policies.believed import FLAT, SHARPNESS, Believed, Retrieval, Spread
from tandemrank.policies.memory import Memory, memory_from

REMEMBERED = 20_000_000  # shown pairs that a stage remembers at most, those that say most; one takes 8 bytes
SOME = 500  # queries that tell which items matter
LEAST = 1e-9  # of a chance, whose log-odds are taken


def ranker_of(beliefs: Beliefs) -> Believed:
    """The re-ranker: the log-odds of the expected relevance.  Shapes: queries [Q, F + 1], items [D, F + 1]."""
    x, y, level = beliefs.product()
    grades = beliefs.chosen.grades
    spread = Spread(
        grades.spread, beliefs.query_spread.astype(np.float32), beliefs.item_spread.astype(np.float32)
    )
    queries = np.column_stack([x, np.ones(len(x), np.float32)])
    return Believed(queries, np.column_stack([y, level]), spread, memory_of(beliefs))


def memory_of(beliefs: Beliefs) -> Memory:
    """The log-odds of what the showings of each pair say, of a bit those of its being relevant."""
    counts, (low, high) = beliefs.counts, (0.0, 1.0)
    if beliefs.chosen.grades.is_bit:
        low, high = beliefs.chosen.grades.R
    p = np.clip((beliefs.remembered[0] - low) / max(high - low, LEAST), LEAST, 1 - LEAST)
    value: NDArray[np.float32] = np.log(p / (1 - p)).astype(np.float32)
    return memory_from(counts.query, counts.item, value, counts.Q, counts.D).limited(REMEMBERED)


def generator_of(ranker: Believed, rank: int) -> Retrieval:
    """The generator nearest to a re-ranker, of so many dimensions, with what the re-ranker remembers as its lists.

        X (Y - m)' C^(1/2) = U S V'   ->   queries U S^(1/2), items C^(-1/2) V S^(1/2), their first `rank` columns

    with C how much an item matters: near the top of a list, where relevant items are. A constant of each query changes no list
    of a product, so it is left out, of the lists too.  Shapes: queries [Q, rank], items [D, rank].
    """
    X = ranker.queries.double().numpy()
    v = ranker.item_spread.double().numpy()
    flat = 1 / np.sqrt(1 + FLAT * (ranker.around**2 + v))
    Y = ranker.items.double().numpy() * (SHARPNESS * flat / flat.mean())[:, None]
    scores = X[:: max(1, len(X) // SOME)] @ Y.T
    top = np.exp(scores - scores.max(1, keepdims=True))
    matters = (top / top.sum(1, keepdims=True)).mean(0) * len(Y) + 0.1
    middle = matters @ Y / matters.sum()
    root = np.sqrt(matters)[:, None]
    (Qx, Rx), (Qy, Ry) = np.linalg.qr(X), np.linalg.qr((Y - middle) * root)
    U, S, Vt = np.linalg.svd(Rx @ Ry.T)
    n = min(rank, len(S))
    half = np.sqrt(S[:n])
    queries, items = Qx @ U[:, :n] * half, (Qy @ Vt[:n].T) * half / root
    memory = ranker.memory
    scale = ranker.scale(torch.from_numpy(memory.query)).numpy()
    value = SHARPNESS * memory.value * scale - (X @ middle)[memory.query]
    return Retrieval(queries, items, replace(memory, value=value.astype(np.float32)))
