"""Production's choice: its sharpness is recovered, and the opinion is the nearest product of the whole matrix."""

from dataclasses import replace

import numpy as np
import pytest

from tandemrank.beliefs.choice import Choice
from tandemrank.beliefs.counts import Counts


def shown(alpha: float, Q: int = 300, D: int = 60) -> Counts:
    rng = np.random.default_rng(1)
    places, share = rng.gamma(3.0, 40.0, Q), rng.dirichlet(np.full(D, 2.0))
    n = rng.poisson(places[:, None] * share * rng.gamma(alpha, 1 / alpha, (Q, D)))
    query, item = np.nonzero(n)
    return Counts.of_rows(
        query, item, np.ones(len(query)), n[query, item].astype(float), np.zeros(len(query)), impressions=places, D=D
    )


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_sharpness_is_recovered(alpha: float) -> None:
    assert Choice.of(shown(alpha)).alpha == pytest.approx(alpha, rel=0.15)


def test_more_chances_without_a_showing_say_more_against_a_pair() -> None:
    choice = Choice.of(shown(1.0))
    few, many = np.argmin(choice.places), np.argmax(choice.places)
    assert choice.at(np.array([many]), np.array([0]), 0.0) < choice.at(np.array([few]), np.array([0]), 0.0)
    assert choice.at(np.array([few]), np.array([0]), 0.0) < choice.at(np.array([few]), np.array([0]), 1.0)


@pytest.mark.parametrize("never", [0, 25], ids=["all shown", "some never shown"])
def test_the_opinion_is_the_nearest_product_of_the_whole_matrix(never: int) -> None:
    counts = shown(0.5, 120, 40)
    D = 40 + never
    among = np.sort(np.random.default_rng(2).permutation(D)[:40]).astype(np.int32)
    counts = replace(counts, item=among[counts.item], D=D)
    choice = Choice.of(counts)
    T = choice.at(np.arange(120)[:, None], np.arange(D)[None, :], 0.0)
    T[counts.query, counts.item] = choice.at(counts.query, counts.item, counts.n)
    T -= T.mean(1, keepdims=True)
    weight = np.sqrt(choice.places / (choice.places + np.median(choice.places)))
    T -= weight @ T / weight.sum()
    _, S, V = np.linalg.svd(T * weight[:, None], full_matrices=False)
    shrunk = np.sqrt(np.maximum(1 - (S[12] / S[:12]) ** 2, 0))
    expected = (T @ V[:12].T * shrunk) @ V[:12]
    a, b = choice.opinion
    assert np.corrcoef((a @ b.T).ravel(), expected.ravel())[0, 1] > 0.98
    out = np.setdiff1d(np.arange(D), among)
    assert np.linalg.norm(a @ b[out].T) == pytest.approx(np.linalg.norm(expected[:, out]), rel=0.1)
