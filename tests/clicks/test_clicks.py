"""Examination, click models and simulation, against exact values of small worlds."""

import math

import numpy as np
import pytest
from scipy.sparse import coo_matrix, csc_matrix, csr_array, csr_matrix

from tandemrank.clicks import models, simulation
from tandemrank.errors import ConfigError, DataError

SCORES = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
RELEVANCE = csr_matrix(np.array([[1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0], [0.5, 0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1]]))


def simulate(N, *, seed=0, part=1000, model=None, K=3, queries=(0, 1, 3)):
    model = model or models.position_based(models.examination_curve(K))
    draw = simulation.one_stage(lambda q: SCORES[q], K, chunk=2)
    return list(simulation.simulate(draw, RELEVANCE, np.array(queries), N, model, seed=seed, part=part))


def columns(parts):
    return [np.concatenate([getattr(part, name) for part in parts]) for name in ("query", "items", "clicks")]


def test_examination_curves():
    assert models.examination_curve(4).tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert models.examination_curve(3, "dcg").tolist() == [1 / math.log2(2), 1 / math.log2(3), 1 / math.log2(4)]
    assert len(models.examination_curve()) == 10


@pytest.mark.parametrize(
    ("theta", "message"),
    [
        ([1.0, 1.5], "rank 2 has 1.5"),
        ([1.0, -0.1], "rank 2 has -0.1"),
        ([1.0, float("nan")], "rank 2 has nan"),
        ([0.0, 0.5], "above 0 at rank 1"),
        ([1.0, 1e-9], "0, or at least 1e-06; rank 2 has 1e-09"),
        (["a"], "one number per rank"),
        ({"theta": 1}, "one number per rank"),
        ([], "one number per rank"),
        ([[1.0]], "one number per rank"),
    ],
)
def test_examination_that_is_not_a_curve_is_refused(theta, message):
    with pytest.raises(ConfigError, match=message):
        models.position_based(theta)


def test_zeros_after_the_first_rank_are_allowed():
    assert models.check_examination([0.9, 0.0]).tolist() == [0.9, 0.0]


@pytest.mark.parametrize("arguments", [{"K": 0}, {"curve": "linear"}])
def test_unknown_curves_are_refused(arguments):
    with pytest.raises(ConfigError, match="expected"):
        models.examination_curve(**arguments)


@pytest.mark.parametrize("beta", [[-0.1, 0.0], [0.1, 0.0], [0.0], [float("nan"), 0.0]])
def test_trust_bias_must_leave_probabilities(beta):
    with pytest.raises(ConfigError, match="trust bias"):
        models.ClickModel(np.array([1.0, 0.5]), np.array(beta))


def test_click_probability_is_the_equation():
    model = models.ClickModel(np.array([0.8, 0.5, 0.1]), np.array([0.2, 0.1, 0.0]))
    R = np.array([[1.0, 0.0], [0.5, 1.0]])
    assert models.click_probability(model, R) == pytest.approx(np.array([[1.0, 0.1], [0.6, 0.6]]))


def test_relevance_of_shown_documents_equals_a_loop():
    query, items = np.array([3, 0, 2]), np.array([[1, 0, -1], [2, 1, 5], [4, 0, 3]])
    R = RELEVANCE.toarray()
    expected = [[R[q, d] if d >= 0 else 0 for d in row] for q, row in zip(query, items, strict=True)]
    assert simulation.relevance_of(RELEVANCE, query, items).tolist() == expected


def test_the_same_impressions_whatever_the_parts():
    whole = columns(simulate(1000, seed=7, part=1000))
    for part in (1, 77, 5000):
        assert all(map(np.array_equal, whole, columns(simulate(1000, seed=7, part=part))))
    # a shorter log is the beginning of a longer one, another seed another log
    assert all(np.array_equal(a[:300], b) for a, b in zip(whole, columns(simulate(300, seed=7)), strict=True))
    assert not np.array_equal(whole[1], columns(simulate(1000, seed=8))[1])


@pytest.mark.parametrize("form", [csc_matrix, csr_array, coo_matrix])
def test_the_same_impressions_whatever_the_form_of_the_relevance(form):
    model = models.position_based(models.examination_curve(3))
    draw = simulation.one_stage(lambda q: SCORES[q], 3)
    found = simulation.simulate(draw, form(RELEVANCE), np.array([0, 1, 3]), 500, model, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(columns(list(found)), columns(simulate(500)), strict=True))


def test_users_are_uniform_and_only_those_logged():
    query, items, clicked = columns(simulate(30_000))
    assert (query.dtype, items.dtype, clicked.dtype) == (np.int32, np.int32, np.uint8)
    counts = np.bincount(query, minlength=4)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3]] - 10_000).max() < 5 * math.sqrt(30_000 * 1 / 3 * 2 / 3)


@pytest.mark.parametrize(
    "model",
    [
        models.position_based([0.9, 0.5, 0.0]),
        models.ClickModel(np.array([0.5, 0.4, 0.2]), np.array([0.3, 0.2, 0.05])),
    ],
)
def test_click_rates_by_position_follow_the_model(model):
    query, items, clicked = columns(simulate(60_000, model=model, queries=(0, 1, 2, 3)))
    R = RELEVANCE.toarray()[query[:, None], items]
    for k in range(3):
        for relevance in (0.0, 0.5, 1.0):
            chosen = clicked[R[:, k] == relevance, k]
            p = model.alpha[k] * relevance + model.beta[k]
            assert abs(chosen.mean() - p) <= 5 * math.sqrt(p * (1 - p) / len(chosen)), (k, relevance)
    # clicks at different ranks are independent, given the relevance
    both = (R[:, 0] == 1) & (R[:, 1] == 1)
    p = (model.alpha + model.beta)[0] * (model.alpha + model.beta)[1]
    joint = (clicked[both, 0] & clicked[both, 1]).mean()
    assert abs(joint - p) <= 5 * math.sqrt(p * (1 - p) / both.sum())


def test_any_sampler_can_be_the_logging_policy_and_padding_is_never_clicked():
    def draw(queries, keys):
        return np.tile(np.array([5, -1, -1], dtype=np.int32), (len(queries), 1))

    model = models.ClickModel(np.zeros(3) + 0.5, np.zeros(3) + 0.5)
    (part,) = simulation.simulate(draw, RELEVANCE, np.array([0, 3]), 500, model, seed=0)
    assert part.clicks.sum(0).tolist() == [500, 0, 0]


def test_more_ranks_than_the_click_model_are_refused():
    with pytest.raises(ConfigError, match="3 ranks shown; got 2"):
        simulate(10, model=models.position_based([1.0, 0.5]))


@pytest.mark.parametrize(
    "arguments", [{"N": 0}, {"N": 5, "part": 0}, {"N": 5, "queries": (4,)}, {"N": 5, "queries": ()}]
)
def test_impossible_simulations_are_refused(arguments):
    with pytest.raises(ConfigError, match="expected N >= 1"):
        simulate(**arguments)


def test_ratings_are_refused_as_relevance():
    with pytest.raises(DataError, match="from 0 to 1"):
        simulation.simulate(
            simulation.one_stage(lambda q: SCORES[q], 2),
            RELEVANCE * 5,
            np.arange(4),
            5,
            models.position_based([1.0, 0.5]),
            seed=0,
        )


def test_a_curve_of_ones_own(tmp_path) -> None:
    assert models.examination_curve(2, [1.0, 0.4, 0.3]).tolist() == [1.0, 0.4]
    with pytest.raises(ConfigError, match="curve of 4 ranks or more; got 3"):
        models.examination_curve(4, [1.0, 0.4, 0.3])
    path = tmp_path / "curve.json"
    for text in ('{"theta": [1, 0.4], "low": [1, 0.3]}', "[1, 0.4]"):
        path.write_text(text)
        assert models.read_curve(path) == (1.0, 0.4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it cannot be read"),
        ("{}", "got something else"),
        ("[1, null]", "got something else"),
        ("1", "got something else"),
        ("[1, 2]", "rank 2 has 2.0"),
    ],
)
def test_a_file_that_is_no_curve_is_refused(text, message, tmp_path) -> None:
    path = tmp_path / "curve.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        models.read_curve(path)


def test_noisy_users_click_as_the_formula_says() -> None:
    theta = np.array([1.0, 0.5, 0.25])
    model = models.noisy(theta, 0.9, 0.1, 0.3)
    for k, rank in enumerate((1, 2, 3)):
        r0 = 0.1 + 0.3 / rank
        for R in (0.0, 0.5, 1.0):
            found = models.click_probability(model, np.full(3, R))[k]
            assert found == pytest.approx(theta[k] * (r0 + (0.9 - r0) * R))
    plain = models.noisy(theta)
    assert np.array_equal(plain.alpha, models.position_based(theta).alpha)
    assert not plain.beta.any()


@pytest.mark.parametrize("wrong", [(0.1, 0.9, 0), (1.2, 0, 0), (0.9, -0.1, 0), (0.9, 0.1, -1), (0.9, 0.5, 0.5)])
def test_users_who_prefer_the_irrelevant_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match="irrelevant \\+ trust_bias < relevant"):
        models.noisy(np.ones(2), *wrong)
