"""beta*-IPS against complete enumeration of all logs of a tiny world; identities; the cross-fitted one by simulation."""

import itertools

import numpy as np
import polars as pl
import pytest

from tandemrank import feedback, objectives
from tandemrank.clicks import Impressions
from tandemrank.offpolicy.beta_ips import best_beta, beta_ips, fold_of_queries
from tandemrank.vocabulary import Vocabulary
from test_objectives import RHO_0, RHO_CR, THETA, TRUTH, log_of, on_rows, two_impressions


@pytest.mark.parametrize("beta", [0.0, 0.4, -2.0])
def test_2s_unbiased_for_every_fixed_beta_over_all_logs_of_a_tiny_world(beta: float) -> None:
    expectation = sum(
        p * beta_ips(on_rows(RHO_CR, log), on_rows(RHO_0, log), log, theta=np.array(THETA), beta=beta).value
        for log, p in two_impressions()
    )
    assert expectation == pytest.approx(TRUTH, rel=1e-9)


# A smaller world, of three queries that see one of two documents once or twice: every log of it can be listed.
SHOWN_FIRST, NEW_FIRST = np.array([0.3, 0.6, 0.8]), np.array([0.7, 0.5, 0.1])  # chances of document 0
RELEVANCE = np.array([[0.9, 0.2], [0.4, 0.6], [0.1, 0.8]])
IMPRESSIONS = (1, 2, 1)


def small_logs() -> list[tuple[feedback.Feedback, float]]:
    vocabulary = Vocabulary(pl.Series(range(3)), pl.Series(range(2)))
    query = np.repeat(np.arange(3, dtype=np.int32), IMPRESSIONS)
    found = []
    for outcome in itertools.product(itertools.product((0, 1), (0, 1)), repeat=len(query)):
        chance = 1.0
        for q, (d, c) in zip(query, outcome, strict=True):
            chance *= (SHOWN_FIRST[q] if d == 0 else 1 - SHOWN_FIRST[q]) * (
                RELEVANCE[q, d] if c else 1 - RELEVANCE[q, d]
            )
        items, clicks = (np.array(x)[:, None] for x in zip(*outcome, strict=True))
        part = Impressions(query, items.astype(np.int32), clicks.astype(np.uint8))
        found.append((feedback.from_impressions([part], vocabulary), chance))
    assert sum(p for _, p in found) == pytest.approx(1)
    return found


def of_rows(first: np.ndarray, log: feedback.Feedback) -> np.ndarray:
    return np.where(log.item == 0, first[log.query], 1 - first[log.query])


def test_2s_unbiased_when_beta_is_learnt_from_the_other_queries() -> None:
    """The mean over *every* log, with beta* cross-fitted, is the true value; and the betas are not all 0."""
    seed = next(s for s in range(100) if len(set(fold_of_queries(3, s))) == 3)
    new = np.stack([NEW_FIRST, 1 - NEW_FIRST], 1)
    truth = (np.array(IMPRESSIONS) * (new * RELEVANCE).sum(1)).sum() / 4
    mean, changed = 0.0, 0
    for log, p in small_logs():
        rho = of_rows(NEW_FIRST, log), of_rows(SHOWN_FIRST, log)
        value = beta_ips(*rho, log, theta=np.ones(1), seed=seed).value
        changed += value != objectives.ips(*rho, log).value
        mean += p * value
    assert mean == pytest.approx(truth, rel=1e-9)
    assert changed > 100


def test_by_hand() -> None:
    rho_cr, rho_0 = [0.5, 0.3, 0.7], [0.4, 0.8, 0.2]
    log = log_of([(0, 1), (2, 0)], [(1, 0), (1, 0)])
    clicked = 0.5 / 0.4 + 0.7 / 0.2
    seen = 0.5 / 0.4 * 1 + 0.3 / 0.8 * 0.5 + 0.7 / 0.2 * 1 + 0.5 / 0.4 * 0.5
    arguments = on_rows(rho_cr, log), on_rows(rho_0, log), log
    found = beta_ips(*arguments, theta=np.array(THETA), beta=0.25)
    assert found.value == pytest.approx((clicked + 0.25 * (2 * 1.5 - seen)) / 2)
    short = beta_ips(*arguments, theta=np.array(THETA), beta=0.25, total=np.array([1.1]))
    assert short.value == pytest.approx((clicked + 0.25 * (2 * 1.1 - seen)) / 2)


def test_identities_without_beta_and_on_policy_it_is_ips() -> None:
    log = log_of([(0, 1), (2, 0), (1, 2)], [(1, 0), (1, 1), (0, 1)])
    rho_cr, rho_0, theta = on_rows(RHO_CR, log), on_rows(RHO_0, log), np.array(THETA)
    plain = objectives.ips(rho_cr, rho_0, log).value
    assert beta_ips(rho_cr, rho_0, log, theta=theta, beta=0.0).value == plain
    assert beta_ips(rho_0, rho_0, log, theta=theta).value == pytest.approx(4 / 3)  # one query: no others to learn from
    assert best_beta(np.ones(4), np.zeros(4), np.ones(4), np.ones(4, bool)) == 0.0


def test_the_best_beta_is_a_regression_and_its_estimate_has_the_least_variance() -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(1, 9, 300).astype(float)
    surplus = rng.normal(size=300) * n
    clicks = 0.5 * n + 0.7 * surplus + rng.normal(size=300)
    use = np.ones(300, bool)
    beta = best_beta(clicks, surplus, n, use)

    def spread(b: float) -> float:
        return objectives.Estimate(clicks - b * surplus, n).standard_error

    assert beta == pytest.approx(0.7, abs=0.05)
    assert spread(beta) <= min(spread(b) for b in np.linspace(beta - 0.5, beta + 0.5, 41)) * 1.001
    assert beta == best_beta(clicks * 2, surplus * 2, n * 2, use)


def test_cross_fitted_it_is_unbiased_and_sharper_than_ips_and_not_worse_than_self_normalised() -> None:
    """1,000 logs of 60 queries in plain NumPy: one of four documents each impression, a new pair far from the logger."""
    rng = np.random.default_rng(3)
    Q, D, n, runs = 60, 4, 12, 1000
    rho_0, rho_cr = rng.dirichlet(np.full(D, 1.5), Q), rng.dirichlet(np.full(D, 1.0), Q)
    rho_0 = 0.8 * rho_0 + 0.2 / D
    relevance = np.clip(0.5 + 0.2 * rng.normal(size=(Q, D)), 0, 1)
    truth = (rho_cr * relevance).sum() / Q
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    query, item = (x.ravel().astype(np.int32) for x in np.indices((Q, D)))
    values = []
    for _ in range(runs):
        shown = np.stack([rng.multinomial(n, p) for p in rho_0])
        clicks = rng.binomial(shown, relevance)
        there = shown.ravel() > 0
        columns = [x.ravel()[there] for x in (query, item, np.zeros(Q * D, np.int16), shown, clicks)]
        log = feedback.Feedback(
            vocabulary, *columns[:3], *(x.astype(float) for x in columns[3:]), None, np.full(Q, float(n))
        )
        rho = rho_cr.ravel()[there], rho_0.ravel()[there]
        values.append(
            [
                objectives.ips(*rho, log).value,
                objectives.self_normalised(*rho, log, theta=np.ones(1)).value,
                beta_ips(*rho, log, theta=np.ones(1)).value,
            ]
        )
    found = np.array(values)
    errors = np.sqrt(np.square(found - truth).mean(0))
    assert abs(found[:, 2].mean() - truth) < 5 * found[:, 2].std() / np.sqrt(runs)
    assert errors[2] < 0.9 * errors[0]
    assert errors[2] < 1.05 * errors[1]


def test_edges_no_clicks_and_a_query_that_was_never_logged() -> None:
    quiet = log_of([(0, 1)], [(0, 0)], Q=4)
    rho = on_rows([0.5, 0.5, 0.5], quiet)
    assert beta_ips(rho, rho * 0.5, quiet, theta=np.array(THETA)).value == 0.0
