"""The estimators: what clicks of the past say about a policy that was not live. Arrays in, numbers out; no policies here.

    U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d)          (paper: cltr-obj-2s; one stage: cltr-obj; K = 1: opl-obj)

Every estimator takes `(rho_cr, rho_0, feedback)`, exposures aligned with the rows of the feedback, and returns an
`Estimate`. Clicks enter only through sums, so the cost does not depend on the length of the log. Beside them: the reward
model of the doubly robust estimator, the bootstrap over queries, a lower bound that holds for any number of queries, and
what training maximises: the same estimators as weights of the documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank import plackett_luce
from tandemrank.errors import InputError, LogError
from tandemrank.feedback import RANK_BITS, Feedback, exposure

Floats = NDArray[np.float64]
Judge = Callable[[NDArray[np.int64], NDArray[np.int32]], float]

TRUNCATIONS = 2.0 ** np.arange(-4, 8)  # of a query's term in the lower bound, in multiples of its scale
RESAMPLED = 2**22  # queries drawn at once by the bootstrap: 32 MB
QUERY_FOLDS, FOLD_STREAM = 5, 5


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums over queries, sum_q numerator[q] / sum_q denominator[q]: every estimator here is one.

    Shapes: numerator, denominator [Q].
    """

    numerator: Floats
    denominator: Floats

    @property
    def value(self) -> float:
        """The estimate itself; NaN where the log says nothing at all."""
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else float("nan")

    @property
    def standard_error(self) -> float:
        """By the residuals of the ratio (delta method), queries independent."""
        return float(np.sqrt(np.square(self.influence).sum()))

    @property
    def influence(self) -> Floats:
        """What each query adds to the error of the ratio, to first order.  Shapes: -> [Q]."""
        residual: Floats = self.numerator - self.value * self.denominator
        total = float(self.denominator.sum())
        return residual / total if total > 0 else np.full_like(residual, np.nan)

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """The normal interval value +- z standard errors."""
        return self.value - z * self.standard_error, self.value + z * self.standard_error


def ips(rho_cr: Floats, rho_0: Floats, feedback: Feedback) -> Estimate:
    """Inverse propensity scoring: U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d)   (paper: cltr-obj-2s).

    Unbiased where rho_0 > 0 wherever rho_cr R > 0 (theorem 2s-unbiased); with a clipped rho_0 it is clipped IPS.
    Shapes: rho_cr, rho_0 [P], one for each row of the feedback.
    """
    _check(rho_cr, rho_0, feedback)
    clicks = feedback.clicks * _ratio(rho_cr, rho_0, feedback.clicks)
    return Estimate(_by_query(clicks, feedback), feedback.impressions.astype(np.float64))


def clipped(rho_cr: Floats, rho_0: Floats, feedback: Feedback, *, minimum: float) -> Estimate:
    """IPS with propensities raised to a minimum: 1/N sum_i sum_d rho_cr(d) / max(rho_0(d), minimum) c_i(d).

    Never above IPS: less noise for a value that is too small where the clip bites.  Shapes: rho_cr, rho_0 [P].
    """
    return ips(rho_cr, np.maximum(rho_0, minimum), feedback)


def self_normalised(rho_cr: Floats, rho_0: Floats, feedback: Feedback, *, theta: Floats) -> Estimate:
    """IPS over the same sum for the exposure, whose expectation is known: U_hat = sum(theta) * sum(w c) / sum(w e).

    w = rho_cr / rho_0, e the examination theta_k of what was shown. Consistent, and bounded by sum(theta) whatever the
    weights: less noise for a little bias. It extends what the log supports to what it does not.
    Shapes: rho_cr, rho_0 [P]; theta [K].
    """
    _check(rho_cr, rho_0, feedback)
    w = _ratio(rho_cr, rho_0, feedback.shown)
    clicks, seen = (_by_query(w * x, feedback) for x in (feedback.clicks, exposure(feedback, theta)))
    return Estimate(clicks * float(theta.sum()), seen)


def direct_method(rho_cr: Floats, rho_0: Floats, feedback: Feedback, *, direct: Floats) -> Estimate:
    """What a reward model promises: U_hat = 1/N sum_i sum_d rho_cr(d) r_hat(q_i, d), over *all* documents.

    No weights, so little noise; as wrong as the model, and the interval does not know it.
    Shapes: rho_cr, rho_0 [P], not used; direct [Q], sum_d rho_cr(d) r_hat(q, d) of each query.
    """
    _check_direct(direct, feedback)
    return Estimate(direct * feedback.impressions, feedback.impressions.astype(np.float64))


def doubly_robust(
    rho_cr: Floats, rho_0: Floats, feedback: Feedback, *, theta: Floats, r_hat: Floats, direct: Floats
) -> Estimate:
    """The direct method, corrected by IPS on what the model gets wrong.

        U_hat = 1/N sum_i [ sum_d rho_cr(d) r_hat(q_i, d)
                            + sum_{d shown} rho_cr(d) / rho_0(d) (c_i(d) - theta_{k(d)} r_hat(q_i, d)) ]

    Unbiased for *any* r_hat that was not fitted to these impressions, where IPS is; less noise the better r_hat is.
    Shapes: rho_cr, rho_0, r_hat [P]; theta [K]; direct [Q], sum_d rho_cr(d) r_hat(q, d) of each query.
    """
    _check(rho_cr, rho_0, feedback)
    _check_direct(direct, feedback)
    w = _ratio(rho_cr, rho_0, feedback.shown)
    residual = _by_query(w * (feedback.clicks - exposure(feedback, theta) * r_hat), feedback)
    return Estimate(direct * feedback.impressions + residual, feedback.impressions.astype(np.float64))


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """One estimate of several parts of a log, query by query: what cross-fitting ends with."""
    return Estimate(
        np.sum([part.numerator for part in estimates], axis=0), np.sum([part.denominator for part in estimates], axis=0)
    )


# --- how sure ---------------------------------------------------------------------------------------------------------


def bootstrap(estimates: Sequence[Estimate], *, replicates: int = 1000, seed: int = 0) -> Floats:
    """The values that other samples of queries would have given: queries drawn with replacement, whole.

    All estimates, of one log, see the same draws: their differences are paired. Only queries that were logged are drawn.
    Shapes: m estimates of [Q] -> [replicates, m], NaN where a draw says nothing.
    """
    logged = np.any([part.denominator > 0 for part in estimates], axis=0)
    columns = np.stack([x[logged] for part in estimates for x in (part.numerator, part.denominator)], axis=1)
    n, rng = len(columns), np.random.default_rng(seed)
    sums = np.empty((replicates, columns.shape[1]))
    step = max(1, RESAMPLED // max(n, 1))
    for first in range(0, replicates, step):
        rows = min(step, replicates - first)
        drawn = rng.integers(n, size=(rows, n)) + np.arange(rows)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        sums[first : first + rows] = times @ columns
    top, bottom = sums[:, ::2], sums[:, 1::2]
    values: Floats = np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)
    return values


def lower_bound(estimate: Estimate, scale: float, *, level: float = 0.95) -> float:
    """A number that the expectation of IPS (clipped or not) exceeds with the given probability, however few the queries.

    Empirical Bernstein bound (Maurer and Pontil 2009, theorem 4) on the mean of the terms x_q = min(numerator_q, b) / b:
        mean(x) - sqrt(2 var(x) log(2 J / delta) / n) - 7 log(2 J / delta) / (3 (n - 1)),    delta = 1 - level
    Cutting a term that is not negative at b only lowers its mean, so no largest weight need be known; the best of J
    fixed cuts b, multiples of `scale` clicks an impression, is taken, at the price of the J in the logarithm.
    Assumes independent queries, given how often each came, and terms that are not negative: IPS or clipped, no other.
    """
    logged = estimate.denominator > 0
    numerator, n, N = estimate.numerator[logged], int(logged.sum()), float(estimate.denominator.sum())
    if n < 2:
        return 0.0
    if (numerator < 0).any():
        raise InputError("the lower bound needs terms that are not negative; give it the IPS or the clipped estimate.")
    log_term = np.log(2 * len(TRUNCATIONS) / (1 - level))
    bounds = []
    for b in scale * N / n * TRUNCATIONS:
        x = np.minimum(numerator, b) / b
        below = x.mean() - np.sqrt(2 * x.var(ddof=1) * log_term / n) - 7 * log_term / (3 * (n - 1))
        bounds.append(b * n / N * below)
    return max(0.0, float(max(bounds)))


# --- the reward model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reward:
    """r_hat(q, d) = min(1, rate f_d f_q f_qd): the click rate of what is examined, by item, by query, and by pair.

    Each factor is (c + s) / (x + s) with c the clicks and x those expected without it (Gamma prior with mean 1, empirical
    Bayes: s from the spread of c around x), so it is 1 where there is no data, and of items the log never showed.
    Shapes: item [D], with the rate; query [Q]; pair sparse [Q, D], the factor - 1 of logged pairs.
    """

    rate: float
    item: Floats
    query: Floats
    pair: csr_matrix

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Floats:
        """r_hat of pairs.  Shapes: q, d [n] -> [n]."""
        pair = np.asarray(self.pair[q, d], np.float64).ravel() if len(q) else np.zeros(0)
        r_hat: Floats = np.minimum(self.item[d] * self.query[q] * (1 + pair), 1.0)
        return r_hat

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        """r_hat of every item for some queries; the last column is for items that the log does not know.

        Shapes: q [B] -> [B, D + 1].
        """
        plain = np.append(self.item, self.rate) * self.query[q, None]
        plain[:, :-1] *= 1 + self.pair[q].toarray()
        return np.minimum(plain, 1.0)


def reward_model(feedback: Feedback, theta: Floats) -> Reward:
    """The reward model of a log. Cross-fit it: an estimator must not see a model of its own impressions.

    Shapes: theta [K].
    """
    seen, clicks, Q, D = exposure(feedback, theta), feedback.clicks, feedback.Q, feedback.D
    query, item = feedback.query, feedback.item
    rate = float(clicks.sum() / seen.sum()) if seen.sum() > 0 else 0.0
    by_item = rate * _factor(_sums(item, clicks, D), rate * _sums(item, seen, D))
    by_query = _factor(_sums(query, clicks, Q), _sums(query, seen * by_item[item], Q))
    key, pair = np.unique(query.astype(np.int64) * D + item, return_inverse=True)
    expected = _sums(pair, seen * by_item[item] * by_query[query], len(key))
    by_pair = _factor(_sums(pair, clicks, len(key)), expected) - 1
    return Reward(rate, by_item, by_query, csr_matrix((by_pair, (key // D, key % D)), shape=(Q, D)))


def query_folds(log: Feedback, seed: int) -> list[tuple[Feedback, Feedback]]:
    """Parts of a log by query, each with the rest: sums cannot be parted by impression."""
    keys = plackett_luce.random_keys(seed, FOLD_STREAM, np.arange(log.Q))
    fold_of = (plackett_luce.uniforms(keys) * QUERY_FOLDS).astype(np.int64)
    return [(_of_queries(log, fold_of == fold), _of_queries(log, fold_of != fold)) for fold in range(QUERY_FOLDS)]


def _of_queries(log: Feedback, chosen: NDArray[np.bool_]) -> Feedback:
    """The sums of some queries alone.  Shapes: chosen [Q]."""
    rows = chosen[log.query]
    columns = {name: getattr(log, name)[rows] for name in ("query", "item", "rank", "shown", "clicks")}
    logged = None if log.logged is None else log.logged[rows]
    return replace(log, **columns, logged=logged, impressions=np.where(chosen, log.impressions, 0.0))


def rows_of(part: Feedback, log: Feedback) -> NDArray[np.int64]:
    """Where the rows of a part are among those of the whole log.  Shapes: -> [P of the part]."""
    part_key, log_key = (
        (x.query.astype(np.int64) * x.D + x.item) * 2**RANK_BITS + x.rank  # in the order of the rows
        for x in (part, log)
    )
    at: NDArray[np.int64] = np.searchsorted(log_key, part_key)
    return at


def _factor(clicks: Floats, expected: Floats) -> Floats:
    """(c + s) / (x + s), where 1/s is the variance of the factor beyond that of Poisson counts.  Shapes: [n], [n] -> [n]."""
    excess, spread = float((np.square(clicks - expected) - expected).sum()), float(np.square(expected).sum())
    if excess <= 0 or spread <= 0:
        return np.ones(len(clicks))
    s = spread / excess
    return (clicks + s) / (expected + s)


# --- for training -----------------------------------------------------------------------------------------------------


def click_weights(rho_0: Floats, feedback: Feedback) -> csr_matrix:
    """What training sees: w[q, d] = sum_i c_i(d) / rho_0(d), so that N U_hat = sum_q sum_d w[q, d] rho_cr(d).

    Shapes: rho_0 [P] -> sparse [Q, D], clicked pairs only.
    """
    _check(rho_0, rho_0, feedback)
    clicked = feedback.clicks > 0
    values = feedback.clicks[clicked] * _ratio(np.ones(int(clicked.sum())), rho_0[clicked], feedback.clicks[clicked])
    pairs = (feedback.query[clicked], feedback.item[clicked])
    weights = csr_matrix((values.astype(np.float32), pairs), shape=(feedback.Q, feedback.D))
    weights.sum_duplicates()
    return weights


@dataclass(frozen=True)
class DoublyRobustWeights:
    """What training sees with the doubly robust objective, for every document, a minibatch of rows at a time.

        w[q, d] = n_q r_hat(q, d) + (clicks(q, d) - exposure(q, d) r_hat(q, d)) / rho_0(d)

    so that N U_hat = sum_q sum_d w[q, d] rho_cr(d) is the estimator `doubly_robust` (r_hat = 0: IPS, paper: cltr-obj-2s),
    and E[w[q, d]] = n_q R: its gradient is unbiased where that of IPS is. r_hat is cross-fitted: `parts` are the n_q of a
    part of the log and a reward model that never saw that part. Rows cost O(minibatch x D); nothing has the size Q x D.
    Shapes: parts of [Q] each; residual sparse [Q, D], logged pairs only.
    """

    parts: tuple[tuple[Floats, Reward], ...]
    residual: csr_matrix
    clicked: int

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and items."""
        return int(self.residual.shape[0]), int(self.residual.shape[1])

    @property
    def queries(self) -> NDArray[np.int64]:
        """Every logged query: one without a click has a gradient too."""
        return np.flatnonzero(np.sum([n for n, _ in self.parts], axis=0)).astype(np.int64)

    def rows(self, q: NDArray[np.int64]) -> csr_matrix:
        """Shapes: q [B] -> [B, D]."""
        w = self.residual[q].toarray()
        for n, reward in self.parts:
            own = np.flatnonzero(n[q])
            w[own] += n[q[own], None] * reward.matrix(q[own])[:, :-1]
        B, D = w.shape
        every = np.tile(np.arange(D, dtype=np.int32), B)
        return csr_matrix((w.ravel().astype(np.float32), every, np.arange(B + 1) * D), shape=(B, D))

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Everything they are made of."""
        models = [x for n, r in self.parts for x in (n, r.item, r.query, r.pair.indptr, r.pair.indices, r.pair.data)]
        return [self.residual.indptr, self.residual.indices, self.residual.data, *models]


def doubly_robust_weights(
    rho_0: Floats, feedback: Feedback, theta: Floats, folds: Sequence[tuple[Feedback, Feedback]]
) -> DoublyRobustWeights:
    """The weights of the doubly robust objective. `folds`: parts that make up the log, each with what its model learns from.

    Shapes: rho_0 [P], of the rows of the whole log; theta [K].
    """
    _check(rho_0, rho_0, feedback)
    parts, residual = [], csr_matrix((feedback.Q, feedback.D))
    for part, rest in folds:
        reward = reward_model(rest, theta)
        left = part.clicks - exposure(part, theta) * reward.at(part.query, part.item)
        left *= _ratio(np.ones(len(left)), rho_0[rows_of(part, feedback)], part.shown)
        residual = residual + csr_matrix((left, (part.query, part.item)), shape=residual.shape)
        parts.append((part.impressions, reward))
    pairs = feedback.query[feedback.clicks > 0] * np.int64(feedback.D) + feedback.item[feedback.clicks > 0]
    return DoublyRobustWeights(tuple(parts), residual, len(np.unique(pairs)))


def held_out_dcg(rho_0: Floats, feedback: Feedback, theta: Floats) -> Judge:
    """A judge of lists: their self-normalised DCG on held-out clicks, which follows the true NDCG closely.

        sum_{q, d in list} disc_k c(q, d) / rho_0(d)  /  sum_{q, d in list} disc_k e(q, d) / rho_0(d)

    with disc_k = 1 / log2(k + 1), c the clicks and e the exposure of the held-out log. NaN where no list meets the log.
    Shapes: rho_0 [P], theta [K]; the judge takes queries [n] and lists [n, K].
    """
    _check(rho_0, rho_0, feedback)
    w = _ratio(np.ones(len(rho_0)), rho_0, feedback.shown)
    key, first = np.unique(feedback.query.astype(np.int64) * feedback.D + feedback.item, return_index=True)
    clicks, seen = (np.add.reduceat(w * x, first) for x in (feedback.clicks, exposure(feedback, theta)))

    def judge(q: NDArray[np.int64], lists: NDArray[np.int32]) -> float:
        wanted = q[:, None] * np.int64(feedback.D) + lists
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        discount = np.where((key[at] == wanted) & (lists >= 0), 1 / np.log2(np.arange(2, lists.shape[1] + 2)), 0.0)
        total = float((discount * seen[at]).sum())
        return float((discount * clicks[at]).sum()) / total if total > 0 else float("nan")

    return judge


def _by_query(values: Floats, feedback: Feedback) -> Floats:
    """Sums over the rows of each query.  Shapes: [P] -> [Q]."""
    return _sums(feedback.query, values, feedback.Q)


def _sums(index: NDArray[np.integer], values: Floats, n: int) -> Floats:
    """Sums of values by their index.  Shapes: [P], [P] -> [n]."""
    return np.bincount(index, weights=values, minlength=n).astype(np.float64)


def _ratio(rho_cr: Floats, rho_0: Floats, matters: Floats) -> Floats:
    """rho_cr / rho_0 where a row matters, 0 elsewhere: a propensity of 0 is no harm where nothing was clicked."""
    return np.divide(rho_cr, rho_0, out=np.zeros(len(rho_0)), where=(matters > 0) & (rho_0 > 0))


def _check_direct(direct: Floats, feedback: Feedback) -> None:
    if direct.shape != feedback.impressions.shape or not np.isfinite(direct).all():
        raise InputError(f"direct must have one finite value a query, {feedback.Q}; the shape {direct.shape} came.")


def _check(rho_cr: Floats, rho_0: Floats, feedback: Feedback) -> None:
    for name, rho in (("rho_cr", rho_cr), ("rho_0", rho_0)):
        if rho.shape != feedback.query.shape:
            raise InputError(
                f"{name} must have one value a row of the feedback, {len(feedback.query)}, not {rho.shape}."
            )
        if not np.isfinite(rho).all() or (rho < 0).any():
            raise InputError(
                f"{name} must be finite and not negative; {int((~np.isfinite(rho) | (rho < 0)).sum())} are not."
            )
    bad = (feedback.clicks > 0) & (rho_0 <= 0)
    if bad.any():
        row = int(np.argmax(bad))
        query, item = (
            feedback.vocabulary.query_ids[int(feedback.query[row])],
            feedback.vocabulary.item_ids[int(feedback.item[row])],
        )
        raise LogError(
            f"{int(bad.sum())} clicked items have propensity 0 (first: query {query}, item {item}). "
            f"The log was not drawn from this policy; use frequency propensities or check the ids."
        )
