"""The estimators against complete enumeration: the theorem itself, identities, edges."""

import itertools

import numpy as np
import polars as pl
import pytest

import enumeration
import item_rate
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import InputError, LogError
from tandemrank.logs import counting, feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import estimators
from tandemrank.offpolicy.estimators import fold_of_queries
from tandemrank.offpolicy.propensities import frequency_propensity
from tandemrank.training.weights import click_weights

THETA = [1.0, 0.5]
S, R_SCORES, K2 = [0.3, -0.5, 1.0], [0.8, 0.0, -0.7], 2
LOGGER = [0.2, 0.9, -0.4]
RELEVANCE = [0.9, 0.2, 0.6]


def log_of(lists: list[tuple[int, ...]], clicked: list[tuple[int, ...]], D: int = 3, Q: int = 1) -> feedback.Feedback:
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    n = len(lists)
    parts = [Impressions(np.zeros(n, np.int32), np.array(lists, np.int32), np.array(clicked, np.uint8))]
    return counting.from_impressions(parts, vocabulary)


def on_rows(rho: list[float], rows: feedback.Feedback) -> np.ndarray:
    return np.array(rho)[rows.item]


def two_impressions() -> list[tuple[feedback.Feedback, float]]:
    """Every log of two impressions of the tiny world, and its chance."""
    outcomes = []
    for y, p, _ in enumeration.rankings(LOGGER, range(3), 2):
        for c in itertools.product((0, 1), repeat=2):
            chance = p
            for k, d in enumerate(y):
                click = THETA[k] * RELEVANCE[d]
                chance *= click if c[k] else 1 - click
            outcomes.append((y, c, chance))
    assert abs(sum(chance for *_, chance in outcomes) - 1) < 1e-12
    return [
        (log_of([y1, y2], [c1, c2]), p1 * p2) for (y1, c1, p1), (y2, c2, p2) in itertools.product(outcomes, repeat=2)
    ]


RHO_CR = enumeration.exposure(S, R_SCORES, THETA, K2)
RHO_0 = enumeration.exposure(LOGGER, LOGGER, THETA, 3)
TRUTH = sum(p * r for p, r in zip(RHO_CR, RELEVANCE, strict=True))


def test_2s_unbiased_over_all_logs_of_a_tiny_world() -> None:
    """Theorem 2s-unbiased: the expectation of U_hat over *every* log of two impressions is the true utility."""
    expectation = sum(
        p * estimators.ips(on_rows(RHO_CR, log), on_rows(RHO_0, log), log).value for log, p in two_impressions()
    )
    assert expectation == pytest.approx(TRUTH, rel=1e-9)


@pytest.mark.parametrize("r_hat", [RELEVANCE, [0.1, 0.9, 0.0], [1.0, 1.0, 1.0]])
def test_doubly_robust_is_unbiased_whatever_the_reward_model(r_hat: list[float]) -> None:
    direct = np.array([sum(p * r for p, r in zip(RHO_CR, r_hat, strict=True))])
    logs = two_impressions()
    values = [
        estimators.doubly_robust(
            on_rows(RHO_CR, log),
            on_rows(RHO_0, log),
            log,
            theta=np.array(THETA),
            r_hat=on_rows(r_hat, log),
            direct=direct,
        ).value
        for log, _ in logs
    ]
    chances = [p for _, p in logs]
    assert np.dot(values, chances) == pytest.approx(TRUTH, rel=1e-9)
    if r_hat is RELEVANCE:  # the true model leaves only the noise of the clicks: less than IPS has
        plain = [estimators.ips(on_rows(RHO_CR, log), on_rows(RHO_0, log), log).value for log, _ in logs]
        errors = [np.dot(np.square(np.array(x) - TRUTH), chances) for x in (values, plain)]
        assert errors[0] < 0.85 * errors[1]


def test_doubly_robust_by_hand_and_its_edges() -> None:
    rho_cr, rho_0, r_hat = [0.5, 0.3, 0.7], [0.4, 0.8, 0.2], [0.1, 0.2, 0.3]
    log = log_of([(0, 1), (2, 0)], [(1, 0), (1, 0)])
    direct = 0.5 * 0.1 + 0.3 * 0.2 + 0.7 * 0.3
    first = 0.5 / 0.4 * (1 - 0.1) + 0.3 / 0.8 * (0 - 0.5 * 0.2)
    second = 0.7 / 0.2 * (1 - 0.3) + 0.5 / 0.4 * (0 - 0.5 * 0.1)
    arguments = {"theta": np.array(THETA), "direct": np.array([direct])}
    rho_cr, rho_0, r_hat = (on_rows(x, log) for x in (rho_cr, rho_0, r_hat))
    found = estimators.doubly_robust(rho_cr, rho_0, log, r_hat=r_hat, **arguments)
    assert found.value == pytest.approx(direct + (first + second) / 2)
    # Without a model it is IPS; and the parts of a log make the whole.
    nothing = estimators.doubly_robust(rho_cr, rho_0, log, r_hat=0 * r_hat, theta=np.array(THETA), direct=np.zeros(1))
    assert nothing.value == pytest.approx(estimators.ips(rho_cr, rho_0, log).value)


def counted(log: feedback.Feedback) -> np.ndarray:
    return frequency_propensity(log, np.array(THETA))


def completed(rho_cr: list[float], log: feedback.Feedback, r_hat: list[float]) -> estimators.Completed:
    direct = np.array([np.dot(rho_cr, r_hat)])
    return estimators.completed(
        on_rows(rho_cr, log), counted(log), log, theta=np.array(THETA), r_hat=on_rows(r_hat, log), direct=direct
    )


def test_what_was_shown_counts_by_its_clicks_and_what_was_not_by_beliefs_as_far_as_these_hold_by_hand() -> None:
    """Items 0 and 1 were examined 1.5 and .5 times, clicked once and never; item 2 was never shown."""
    rho_cr, r_hat = [0.6, 0.3, 0.5], [0.8, 0.4, 0.9]
    log = log_of([(0, 1), (0, -1), (-1, 0)], [(1, 0), (0, 0), (0, 0)])
    assert feedback.exposure(log, np.array(THETA)).sum() == pytest.approx(3.0)
    known, believed, missing = 0.6 * 1 / 2.5, 0.6 * 0.8 + 0.3 * 0.4, 0.5 * 0.9
    share = known / believed
    found = completed(rho_cr, log, r_hat)
    assert found.estimate.value == pytest.approx(known + share * missing)
    assert found.factor == pytest.approx((believed + missing) / believed)
    assert found.off == pytest.approx((1 - share) * share * missing)
    # Beliefs count beside each other alone.
    assert completed(rho_cr, log, [x / 2 for x in r_hat]).estimate.value == pytest.approx(found.estimate.value)


@pytest.mark.parametrize("by_chance", [0.0, 0.25, 1.0])
def test_what_chance_left_out_counts_beside_what_beliefs_say_of_pairs_without_a_showing_by_hand(by_chance) -> None:
    """As above; of items 0 and 1 beliefs would say less without their showings."""
    rho_cr, r_hat, unseen = [0.6, 0.3, 0.5], [0.8, 0.4, 0.9], [0.5, 0.2, 0.9]
    log = log_of([(0, 1), (0, -1), (-1, 0)], [(1, 0), (0, 0), (0, 0)])
    known, believed, before = 0.6 * 1 / 2.5, 0.6 * 0.8 + 0.3 * 0.4, 0.6 * 0.5 + 0.3 * 0.2
    share = (1 - by_chance) * known / believed + by_chance * known / before
    found = estimators.completed(
        on_rows(rho_cr, log), counted(log), log, theta=np.array(THETA), r_hat=on_rows(r_hat, log),
        direct=np.array([np.dot(rho_cr, r_hat)]), unseen=on_rows(unseen, log), by_chance=by_chance,
    )  # fmt: skip
    assert found.estimate.value == pytest.approx(known + share * 0.5 * 0.9)


@pytest.mark.parametrize("lists", [[(0, 1), (1, 0)], [(0, 1), (2, 0)], [(2, 1), (2, 0)]])
def test_given_what_was_shown_the_estimate_is_unbiased_if_beliefs_are_right_beside_each_other(lists) -> None:
    """Over all clicks on lists that anybody chose: no propensities, and beliefs that promise a half too much."""
    expectation = 0.0
    for clicked in itertools.product(itertools.product((0, 1), repeat=2), repeat=2):
        chance = 1.0
        for y, c in zip(lists, clicked, strict=True):
            for k, d in enumerate(y):
                click = THETA[k] * RELEVANCE[d]
                chance *= click if c[k] else 1 - click
        expectation += (
            chance * completed(RHO_CR, log_of(lists, list(clicked)), [1.5 * r for r in RELEVANCE]).estimate.value
        )
    assert expectation == pytest.approx(TRUTH, rel=1e-9)


def test_where_all_was_shown_or_nothing_is_asked_of_beliefs_it_is_ips_by_what_was_counted() -> None:
    log = log_of([(0, 1), (2, 0), (1, 2)], [(1, 0), (1, 1), (0, 1)])
    plain = estimators.ips(on_rows(RHO_CR, log), counted(log), log).value
    for r_hat in (RELEVANCE, [0.0, 0.0, 0.0]):
        found = completed(RHO_CR, log, r_hat)
        assert (found.estimate.value, found.factor, found.off) == (
            pytest.approx(plain),
            pytest.approx(1.0),
            pytest.approx(0.0),
        )
    assert completed(RHO_CR, log_of([(0, 1)], [(0, 0)]), RELEVANCE).estimate.value == 0.0


def test_the_reward_model_finds_rates_and_shrinks_what_it_hardly_saw() -> None:
    rng = np.random.default_rng(0)
    Q, D, n = 60, 20, 12_000
    by_item = rng.uniform(0.05, 0.6, D)
    query, items = rng.integers(Q, size=n), rng.permuted(np.tile(np.arange(D - 1), (n, 1)), axis=1)[:, :2]
    clicked = rng.random((n, 2)) < np.array(THETA) * by_item[items]
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    part = Impressions(query.astype(np.int32), items.astype(np.int32), clicked.astype(np.uint8))
    model = item_rate.reward_model(counting.from_impressions([part], vocabulary), np.array(THETA))
    whole = model.matrix(np.arange(Q))
    assert np.abs(whole[:, : D - 1].mean(0) - by_item[:-1]).max() < 0.05
    for column in (D - 1, D):  # never shown, not known
        assert whole[:, column] == pytest.approx(model.rate * model.query)
    assert model.at(query[:50], items[:50, 0]).mean == pytest.approx(whole[query[:50], items[:50, 0]])
    # Relevance here does not depend on the query, so pairs are pulled to their item almost wholly.
    assert np.abs(whole[:, : D - 1] - whole[:, : D - 1].mean(0)).mean() < 0.03


def test_a_factor_of_the_reward_model_is_pulled_to_1_as_far_as_chance_explains_it() -> None:
    """Counts scatter by their own mean, as Poisson's do; only what is beyond that says that the factors differ."""
    found = item_rate._factor(np.array([6.0, 1.0, 0.0, 5.0]), np.full(4, 3.0))
    beyond = (9 - 3) + (4 - 3) + (9 - 3) + (4 - 3)
    s = 4 * 3**2 / beyond
    assert found.value == pytest.approx([(c + s) / (3 + s) for c in (6, 1, 0, 5)])
    by_chance = item_rate._factor(np.array([4.0, 1.0, 5.0, 3.0]), np.full(4, 3.0))
    assert by_chance.value.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_cltr_obj_2s_is_the_sum_as_it_is_written() -> None:
    """U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d), in plain arithmetic."""
    rho_cr, rho_0 = [0.5, 0.3, 0.7], [0.4, 0.8, 0.2]
    log = log_of([(0, 1), (2, 0), (1, 2)], [(1, 0), (1, 1), (0, 1)])
    by_hand = (0.5 / 0.4 + (0.7 / 0.2 + 0.5 / 0.4) + 0.7 / 0.2) / 3
    found = estimators.ips(on_rows(rho_cr, log), on_rows(rho_0, log), log)
    assert found.value == pytest.approx(by_hand)
    weights = click_weights(on_rows(rho_0, log), log).toarray()
    assert weights[0] == pytest.approx([2 / 0.4, 0, 2 / 0.2])
    assert (weights[0] * rho_cr).sum() / 3 == pytest.approx(by_hand)


def test_identity_on_policy_every_weight_is_one() -> None:
    """With rho_cr = rho_0 the value is the clicks an impression."""
    log = log_of([(0, 1), (2, 0), (1, 2)], [(1, 0), (1, 1), (0, 1)])
    rho = on_rows([0.5, 0.6, 0.4], log)
    assert estimators.ips(rho, rho, log).value == pytest.approx(4 / 3)


def test_standard_error_is_that_of_a_mean_over_queries() -> None:
    numerator, denominator = np.array([3.0, 1.0, 2.0, 6.0]), np.ones(4)
    found = estimators.Estimate(numerator, denominator)
    assert found.value == pytest.approx(3.0)
    assert found.standard_error == pytest.approx(np.sqrt(((numerator - 3) ** 2).sum()) / 4)
    low, high = found.interval()
    assert (low + high) / 2 == pytest.approx(3.0)


def test_edges_no_clicks_and_propensity_zero() -> None:
    quiet = log_of([(0, 1)], [(0, 0)])
    zero = on_rows([0.0, 0.0, 0.0], quiet)
    assert estimators.ips(zero + 0.5, zero, quiet).value == 0
    loud = log_of([(0, 1)], [(1, 0)])
    with pytest.raises(LogError, match=r"1 clicked items have propensity 0 \(first: query 0, item 0\)"):
        estimators.ips(on_rows([0.5] * 3, loud), on_rows([0.0] * 3, loud), loud)
    with pytest.raises(InputError, match="one value per row"):
        estimators.ips(np.ones(5), np.ones(5), loud)
    with pytest.raises(InputError, match="finite and not negative"):
        estimators.ips(on_rows([np.nan] * 3, loud), on_rows([0.5] * 3, loud), loud)


# --- beta*-IPS --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.4, -2.0])
def test_2s_unbiased_beta_ips_for_every_fixed_beta_over_all_logs_of_a_tiny_world(beta: float) -> None:
    expectation = sum(
        p * estimators.beta_ips(on_rows(RHO_CR, log), on_rows(RHO_0, log), log, theta=np.array(THETA), beta=beta).value
        for log, p in two_impressions()
    )
    assert expectation == pytest.approx(TRUTH, rel=1e-9)


# A smaller world, of three queries that see one of two documents once or twice: every log of it can be listed.
SHOWN_FIRST, NEW_FIRST = np.array([0.3, 0.6, 0.8]), np.array([0.7, 0.5, 0.1])  # chances of document 0
SMALL_RELEVANCE = np.array([[0.9, 0.2], [0.4, 0.6], [0.1, 0.8]])
SMALL_IMPRESSIONS = (1, 2, 1)


def small_logs() -> list[tuple[feedback.Feedback, float]]:
    vocabulary = Vocabulary(pl.Series(range(3)), pl.Series(range(2)))
    query = np.repeat(np.arange(3, dtype=np.int32), SMALL_IMPRESSIONS)
    found = []
    for outcome in itertools.product(itertools.product((0, 1), (0, 1)), repeat=len(query)):
        chance = 1.0
        for q, (d, c) in zip(query, outcome, strict=True):
            chance *= (SHOWN_FIRST[q] if d == 0 else 1 - SHOWN_FIRST[q]) * (
                SMALL_RELEVANCE[q, d] if c else 1 - SMALL_RELEVANCE[q, d]
            )
        items, clicks = (np.array(x)[:, None] for x in zip(*outcome, strict=True))
        part = Impressions(query, items.astype(np.int32), clicks.astype(np.uint8))
        found.append((counting.from_impressions([part], vocabulary), chance))
    assert sum(p for _, p in found) == pytest.approx(1)
    return found


def of_rows(first: np.ndarray, log: feedback.Feedback) -> np.ndarray:
    return np.where(log.item == 0, first[log.query], 1 - first[log.query])


def test_2s_unbiased_when_beta_is_learnt_from_the_other_queries() -> None:
    """The mean over *every* log, with beta* cross-fitted, is the true value; and the betas are not all 0."""
    seed = next(s for s in range(100) if len(set(fold_of_queries(3, s))) == 3)
    new = np.stack([NEW_FIRST, 1 - NEW_FIRST], 1)
    truth = (np.array(SMALL_IMPRESSIONS) * (new * SMALL_RELEVANCE).sum(1)).sum() / 4
    mean, changed = 0.0, 0
    for log, p in small_logs():
        rho = of_rows(NEW_FIRST, log), of_rows(SHOWN_FIRST, log)
        value = estimators.beta_ips(*rho, log, theta=np.ones(1), seed=seed).value
        changed += value != estimators.ips(*rho, log).value
        mean += p * value
    assert mean == pytest.approx(truth, rel=1e-9)
    assert changed > 100


def test_beta_ips_by_hand() -> None:
    rho_cr, rho_0 = [0.5, 0.3, 0.7], [0.4, 0.8, 0.2]
    log = log_of([(0, 1), (2, 0)], [(1, 0), (1, 0)])
    clicked = 0.5 / 0.4 + 0.7 / 0.2
    seen = 0.5 / 0.4 * 1 + 0.3 / 0.8 * 0.5 + 0.7 / 0.2 * 1 + 0.5 / 0.4 * 0.5
    arguments = on_rows(rho_cr, log), on_rows(rho_0, log), log
    found = estimators.beta_ips(*arguments, theta=np.array(THETA), beta=0.25)
    assert found.value == pytest.approx((clicked + 0.25 * (2 * 1.5 - seen)) / 2)
    short = estimators.beta_ips(*arguments, theta=np.array(THETA), beta=0.25, total=np.array([1.1]))
    assert short.value == pytest.approx((clicked + 0.25 * (2 * 1.1 - seen)) / 2)


def test_identities_beta_ips_without_beta_and_on_policy_it_is_ips() -> None:
    log = log_of([(0, 1), (2, 0), (1, 2)], [(1, 0), (1, 1), (0, 1)])
    rho_cr, rho_0, theta = on_rows(RHO_CR, log), on_rows(RHO_0, log), np.array(THETA)
    plain = estimators.ips(rho_cr, rho_0, log).value
    assert estimators.beta_ips(rho_cr, rho_0, log, theta=theta, beta=0.0).value == plain
    assert estimators.beta_ips(rho_0, rho_0, log, theta=theta).value == pytest.approx(
        4 / 3
    )  # one query: no others to learn from


def moments_of(clicks, surplus, n, covariance=None, variance=None, Z: float = 2.0) -> estimators.Moments:
    zero = np.zeros(len(n))
    return estimators.Moments(
        np.array(clicks),
        np.array(surplus),
        np.array(n),
        zero + Z,
        *(zero if x is None else np.array(x) for x in (covariance, variance)),
    )


def test_the_best_beta_within_queries_is_the_regression_of_their_impressions() -> None:
    """One document each impression: the sums say all, so it is Cov / Var of the impressions as they are."""
    rng = np.random.default_rng(0)
    rho_cr, rho_0 = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    items, w = rng.choice(3, 500, p=rho_0), rho_cr / rho_0
    clicked = rng.random(500) < np.array([0.9, 0.3, 0.1])[items]
    log = log_of([(d,) for d in items], [(int(c),) for c in clicked])
    found = estimators._moments(w[log.item], log, np.ones(1), None)
    x, y = w[items] * clicked, w[items]
    assert found.covariance[0] == pytest.approx(500 * np.cov(x, y)[0, 1])
    assert found.variance[0] == pytest.approx(500 * np.var(y, ddof=1))
    assert found.surplus[0] == pytest.approx(y.sum() - 500)


def test_the_best_beta_by_hand() -> None:
    everything = np.ones(4, bool)
    # Twice or more: what varies within; all queries say 0.8, so there is no noise, and nothing is pulled.
    many = moments_of(
        [9.0, 1.0, 5.0, 5.0], [9.0, 9.0, 9.0, 9.0], [10.0] * 4, [0.8, 1.6, 0.8, 0.8], [1.0, 2.0, 1.0, 1.0]
    )
    assert estimators.best_beta(many, everything) == pytest.approx(0.8)
    # Once: a regression over queries; U = 1, slope (1 + 1 + 0 + 0) / 2 = 1, error sqrt(0) = 0.
    once = moments_of([2.0, 0.0, 1.0, 1.0], [1.0, -1.0, 0.0, 0.0], [1.0] * 4)
    assert estimators.best_beta(once, everything) == pytest.approx(1.0)
    # Noisy: slope 0.8 of 1.6, 0 and twice 0.8; error sqrt(0.8^2 + 0.8^2) / 4; U / Z = 0.5 / 2.
    noisy = moments_of([5.0] * 4, [9.0] * 4, [10.0] * 4, [1.6, 0.0, 0.8, 0.8], [1.0] * 4)
    assert estimators.best_beta(noisy, everything) == pytest.approx(0.25 + (1 - 2 * 0.8**2 / 16 / 0.55**2) * 0.55)
    # No more than noise: that of the self-normalised estimator. And nothing varies: none.
    wild = moments_of([5.0] * 4, [9.0] * 4, [10.0] * 4, [9.0, -9.0, 0.0, 0.9], [1.0] * 4)
    assert estimators.best_beta(wild, everything) == pytest.approx(0.25)
    assert estimators.best_beta(moments_of([1.0] * 4, [0.0] * 4, [1.0] * 4), everything) == 0.0
    assert estimators.best_beta(many, ~everything) == 0.0


def test_cross_fitted_it_is_unbiased_and_sharper_than_ips() -> None:
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
                estimators.ips(*rho, log).value,
                estimators.beta_ips(*rho, log, theta=np.ones(1)).value,
            ]
        )
    found = np.array(values)
    errors = np.sqrt(np.square(found - truth).mean(0))
    assert abs(found[:, 1].mean() - truth) < 5 * found[:, 1].std() / np.sqrt(runs)
    assert errors[1] < 0.9 * errors[0]


def test_edges_beta_ips_no_clicks_and_a_query_that_was_never_logged() -> None:
    quiet = log_of([(0, 1)], [(0, 0)], Q=4)
    rho = on_rows([0.5, 0.5, 0.5], quiet)
    assert estimators.beta_ips(rho, rho * 0.5, quiet, theta=np.array(THETA)).value == 0.0
