"""Bounds that hold for any number of queries: how much is a policy worth at least, and how much better is it at least?

**Over queries** (`Terms`) a bound is about a ratio of expectations, estimated by  sum_q X_q / sum_q n_q  (X_q: a query's sum
of IPS terms or of differences, n_q: its impressions). Write Y_q = X_q + B n_q >= 0, v = u + B, n_max = max n_q,
delta = 1 - level. By mixture betting it is

    the smallest u with  sum_j p_j prod_q (1 + f_j (Y_q / v - n_q) / n_max) <= 1 / delta

Assumptions:
 1. Queries are independent, given how often each came. Impressions of one query may depend on each other in any way.
 2. The floor B is known before the clicks are: B = 0 for IPS, clipped or not; the most clicks an impression can get for a
    difference to production. Nothing is assumed of the largest weight.
 3. X_q has the right expectation or less: right propensities (a clip lowers the value of a policy, never raises it).
Then, whatever the value U_q of each query, the bound is about  U = sum_q n_q U_q / N: the log's queries, each as often as
it came. Why: at u = U the mean of log(1 + f n_q (U_q - u) / (v n_max)) is at most log(1 + 0), so the expected wealth is at
most 1 and exceeds 1 / delta with a chance of at most delta (Markov). Betting subtracts u n_q from each term, so that
different n_q are no noise, and it holds for the population's ratio E[X] / E[n] too if n_max bounds every n_q. If all terms
have the same expectation given the past, the wealth is a martingale: the bound then holds at *every* time at once (Ville),
and `sequential` uses the same code.

**Over impressions** (`ImpressionSums`) it rests on the logger's own draws, and needs sums of a log alone:

    X_i = sum_d v(d) c_i(d) >= -B,   E[X_i | all before it] = U_i,   U = 1/N sum_i U_i

v = rho_cr / rho_0 for a value (B = 0), w_new - w_old for a difference. U_i is what the policy would have got, or been ahead by,
in that very impression. With y = g X_i >= -f, f = g B < 1,

    1 + y >= exp(y - c(f) y^2),   c(f) = (-f - log(1 - f)) / f^2,  c(0) = 1/2                        (Fan et al. 2015)

so exp(g (X_i - U_i) - c g^2 X_i^2) has, given the past, expectation at most 1 (1 + g U_i <= exp(g U_i)): its product over the
log is a supermartingale, a mixture over stakes g that were fixed beforehand is one too, and by Markov's inequality

    U >= the smallest u with  sum_j p_j exp(g_j (sum X - N u) - c(f_j) g_j^2 S) <= 1 / delta,    S >= sum_i X_i^2

holds with probability 1 - delta. Sums of a log do not know X_i^2, but with m_i the clicks of impression i it is at most
m_i sum_d v(d)^2 c_i(d) (Cauchy and Schwarz), and `Feedback.others` has these; without it m_i is at most what a list can get.
It assumes that each list was drawn anew, with the propensities that are used; and B. Nothing about the users: what they like
may depend on the day, on each other, on what they saw before. That is in U, which is about the log's own impressions: these
users in their moods. The bound over queries is about others like them: where queries are a sample and a query's impressions
share a mood that will be another one tomorrow, or where one drawn list was shown several times, that is the one to use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tandemrank.errors import ConfigError, InputError
from tandemrank.logs.feedback import Feedback, click_moments
from tandemrank.offpolicy.estimators import Estimate

Floats = NDArray[np.float64]
Independent = Literal["impressions", "queries"]

MOST = 0.97  # the largest share of the wealth that is staked
FRACTIONS = 24
# Of the stakes of a planned sample, in multiples of sqrt(2 log(1/delta) / n):
CENTRE = 0.7
SPREAD = 1.0
SPAN = 30.0
BLOCK = 8  # factors that are multiplied before a logarithm is taken
CELLS = 2**19  # factors in memory at once
LONGEST = 35.0  # the logarithm of more terms than there ever will be
EXACT = 1e-9  # of the root; the bound is moved down by it


@dataclass(frozen=True)
class Terms:
    """Independent terms X_q with sizes n_q; `-floor n_q <= X_q <= ceiling n_q`, known before the data.

    `times`: how often each row came (equal terms need no rows of their own). A term of size 0 says nothing and is left out.
    Shapes: values, sizes, times [n].
    """

    values: Floats
    sizes: Floats
    floor: float = 0.0
    ceiling: float = np.inf
    times: Floats | None = None

    def __post_init__(self) -> None:
        """Refuses terms outside their limits, by number."""
        values, sizes = np.asarray(self.values, np.float64), np.asarray(self.sizes, np.float64)
        times = None if self.times is None else np.asarray(self.times, np.float64)
        if values.ndim != 1 or any(x.shape != values.shape for x in (sizes, times) if x is not None):
            raise InputError(f"terms need one size for each value; got values {values.shape} and sizes {sizes.shape}.")
        for name, x in (("values", values), ("sizes", sizes), ("times", times)):
            if x is not None and not (np.isfinite(x).all() and (name == "values" or (x >= 0).all())):
                raise InputError(f"{name} of terms must be finite, sizes and times not negative; got others.")
        slack = 1e-9 * (1 + np.abs(values))
        outside = (values < -_times(self.floor, sizes) - slack) | (values > _times(self.ceiling, sizes) + slack)
        if outside.any():
            row = int(np.argmax(outside))
            raise InputError(
                f"{int(outside.sum())} terms are outside [-{self.floor:g}, {self.ceiling:g}] times their size (first: term "
                f"{row}, {values[row]:g} of size {sizes[row]:g}). A bound needs limits that always hold; for a value give "
                f"the IPS estimate, for a difference a larger floor."
            )
        there = sizes > 0 if times is None else (sizes > 0) & (times > 0)
        for name, x in (("values", values), ("sizes", sizes), ("times", times)):
            object.__setattr__(self, name, None if x is None else x[there])

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """sum X / sum n; NaN of nothing."""
        total = self.total(self.sizes)
        return self.total(self.values) / total if total > 0 else float("nan")

    def total(self, x: Floats) -> float:
        """The sum over all terms of something each row has.  Shapes: x [n]."""
        return float(x.sum() if self.times is None else x @ self.times)

    def lower_bound(self, level: float = 0.95) -> float:
        """What the mean is at least, by betting."""
        return betting(self, level)

    def mirrored(self) -> "Terms":
        """The terms -X: a lower bound of theirs is minus an upper bound."""
        return Terms(-self.values, self.sizes, self.ceiling, self.floor, self.times)


# --- what is bounded --------------------------------------------------------------------------------------------------


def value_terms(estimate: Estimate) -> Terms:
    """The terms of a policy's value: its IPS estimate, query by query."""
    return Terms(estimate.numerator, estimate.denominator)


def production_terms(clicks: Floats, impressions: Floats, most: float) -> Terms:
    """The terms of production's own value: the clicks themselves. `most`: clicks that an impression can get, K or less.

    Shapes: clicks, impressions [Q], of each query.
    """
    return Terms(clicks, impressions, 0.0, most)


def difference_terms(new: Estimate, old: Estimate | Floats, floor: float) -> Terms:
    """The terms of U(new) - U(old) on one log; `old` is another pair's IPS, or production: the clicks of each query.

    `floor`: what the old side can be ahead by in one impression. Production gets at most K clicks: K. Of another pair: K
    times its largest weight, known from its propensities. Clip the new side if you like; clipping the old is not allowed,
    for it would lower what is subtracted.  Shapes: old [Q] if clicks.
    """
    numerator = old.numerator if isinstance(old, Estimate) else np.asarray(old, np.float64)
    if numerator.shape != new.numerator.shape:
        raise InputError(f"both sides need the same queries; got {new.numerator.shape} and {numerator.shape}.")
    if isinstance(old, Estimate) and not np.array_equal(old.denominator, new.denominator):
        raise InputError("both sides need the same impressions; give IPS estimates of one log.")
    return Terms(new.numerator - numerator, new.denominator, floor)


# --- mixture betting --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stakes:
    """The mixture: shares f of the wealth that are staked on every term, and how much of the start each gets.

    Shapes: fractions, shares [F]; the shares sum to 1.
    """

    fractions: Floats
    shares: Floats

    def log_mean(self, log_wealth: Floats) -> Floats:
        """The logarithm of the averaged wealth.  Shapes: log_wealth [F] or [F, n] -> [] or [n]."""
        top = log_wealth.max(axis=0)
        found: Floats = top + np.log(self.shares @ np.exp(log_wealth - top))
        return found


def spread_stakes() -> Stakes:
    """For a stream of unknown length: equal shares on fractions geometrically spaced from .001 to .97."""
    return Stakes(np.geomspace(1e-3, MOST, FRACTIONS), np.full(FRACTIONS, 1 / FRACTIONS))


def expected_stakes(fraction: float, *, share: float = 0.8) -> Stakes:
    """For a stream with an effect that is looked for: most of the start on the fraction that is best for it, the rest spread.

    Costs log(1 / (1 - share)) of the evidence for effects of another size. Valid for every choice without a look at the values.
    """
    spread = spread_stakes()
    fractions = np.append(spread.fractions, np.clip(fraction, spread.fractions[0], MOST))
    return Stakes(fractions, np.append((1 - share) * spread.shares, share))


def planned_stakes(n: float, level: float, *, floor: float = 0.0, largest: float = 1.0) -> Stakes:
    """For a sample whose size is known: most shares where the best fraction is likely to be.

    The best is about c / cv, with c = largest sqrt(2 log(1/delta) / n) and cv the coefficient of variation of the terms;
    shares 1 / (1 + log(f / f0)^2) around f0 = 0.7 c (1 + floor) lose little for cv from .2 to 10.
    `n`: sum of the squared sizes; `largest`: of the sizes. Valid for every choice that does not look at the values.
    """
    centre = CENTRE * (1 + floor) * largest * np.sqrt(2 * np.log(1 / (1 - level)) / n)
    low = min(centre / SPAN, MOST / 2)
    fractions = np.geomspace(low, min(centre * SPAN, MOST), FRACTIONS)
    shares = 1 / (1 + np.square(np.log(fractions / centre) / SPREAD))
    return Stakes(fractions, shares / shares.sum())


def log_wealth(terms: Terms, u: float, fractions: Floats) -> Floats:
    """log prod_q (1 + f (Y_q / v - n_q) / n_max) of each fraction: what betting against "the mean is u" has made of 1.

    Not increasing in u.  Shapes: fractions [F] -> [F].
    """
    v, largest = u + terms.floor, float(terms.sizes.max())
    gain = (np.maximum(terms.values + terms.floor * terms.sizes, 0.0) / v - terms.sizes) / largest
    found = np.zeros(len(fractions))
    step = max(BLOCK, CELLS // len(fractions))
    for first in range(0, len(gain), step):
        part = gain[first : first + step]
        if terms.times is not None:
            found += np.log1p(fractions[:, None] * part) @ terms.times[first : first + step]
            continue
        part = np.append(part, np.zeros(-len(part) % BLOCK))  # a factor of 1 each
        factors = (1 + fractions[:, None] * part).reshape(len(fractions), BLOCK, -1)
        found += np.log(factors.prod(axis=1)).sum(axis=1)
    return found


def betting(terms: Terms, level: float = 0.95, *, stakes: Stakes | None = None) -> float:
    """The lower bound (module docstring): the smallest u that the averaged wealth does not speak against.

    `stakes` must not depend on the values; by default those for a sample of these sizes. It is always below the mean.
    """
    check_level(level)
    if not len(terms) or not np.isfinite(terms.floor) or terms.mean + terms.floor <= 0:
        return -terms.floor
    squares, largest = terms.total(np.square(terms.sizes)), float(terms.sizes.max())
    bets = stakes or planned_stakes(squares, level, floor=terms.floor, largest=largest)
    return root(lambda u: float(bets.log_mean(log_wealth(terms, u, bets.fractions))), terms.mean, terms.floor, level)


def root(log_mean: Callable[[float], float], guess: float, floor: float, level: float) -> float:
    """The u above -floor at which a wealth that falls with u is 1 / delta; -floor where nothing speaks against any u."""

    def above(log_v: float) -> float:
        return log_mean(float(np.exp(log_v)) - floor) + float(np.log(1 - level))

    at, step = float(np.log(guess + floor)), 0.05
    found = above(at)
    sign = 1 if found > 0 else -1
    while (found > 0) == (sign > 0):
        before = at
        at += sign * step
        step *= 2
        if step > 2**9:  # v would be 0, or without end
            return -floor
        found = above(at)
    log_v = brentq(above, before, at, xtol=EXACT / 4, rtol=1e-14)
    return max(float(np.exp(log_v - EXACT)) - floor, -floor)


def terms_needed(
    mean: float, sd: float, *, null: float = 0.0, floor: float, level: float = 0.95, stakes: Stakes | None = None
) -> float:
    """About how many terms until the bound exceeds `null`, if they have this mean and sd; inf if it never will.

    By the growth of the wealth to second order, n (g m - g^2 (sd^2 + m^2) / 2) with m = mean - null, g = f / (null + floor):
    for plans (how long a log, how many impressions of a canary), not for verdicts. With `stakes` for a stream, else for a
    sample whose size is known.
    """
    m, v = mean - null, null + floor
    if m <= 0 or v <= 0 or not np.isfinite(v):
        return float("inf")

    def missing(log_n: float) -> float:
        n = float(np.exp(log_n))
        bets = stakes or planned_stakes(n, level, floor=floor)
        g = bets.fractions / v
        return float(bets.log_mean(n * (g * m - np.square(g) * (sd**2 + m**2) / 2))) + float(np.log(1 - level))

    if missing(LONGEST) < 0:
        return float("inf")
    return float(np.exp(brentq(missing, 0.0, LONGEST))) if missing(0.0) < 0 else 1.0


def upper(terms: Terms, level: float = 0.95, *, stakes: Stakes | None = None) -> float:
    """The upper bound by symmetry: infinite unless the terms have a ceiling, as production's clicks have."""
    return -betting(terms.mirrored(), level, stakes=stakes)


# --- over impressions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImpressionSums:
    """All that the bound over impressions needs: sum X, S, N, and the floor B. `scale`: what a click is worth, about."""

    total: float
    squares: float
    N: float
    floor: float
    scale: float = 1.0

    @property
    def mean(self) -> float:
        """sum X / N; NaN of nothing."""
        return self.total / self.N if self.N > 0 else float("nan")

    def times(self, longer: float) -> "ImpressionSums":
        """Those of a log so many times as long, if it goes on like this."""
        return ImpressionSums(longer * self.total, longer * self.squares, longer * self.N, self.floor, self.scale)

    def lower_bound(self, level: float = 0.95) -> float:
        """The smallest u that the averaged wealth does not speak against; -B where nothing speaks against any."""
        check_level(level)
        if not self.mean + self.floor > 0 or not np.isfinite(self.floor):
            return -self.floor
        return root(self.log_wealth(level), self.mean, self.floor, level)

    def log_wealth(self, level: float) -> Callable[[float], float]:
        """The logarithm of what the averaged bets against u have at least made of 1: it falls with u, below 0 at the mean."""
        stakes = planned_stakes(self.N, level, floor=self.floor / self.scale)
        g = stakes.fractions / max(self.floor, self.scale)
        f = g * self.floor
        c = np.divide(-f - np.log1p(-f), np.square(f), out=np.full_like(f, 0.5), where=f > 1e-6)
        at_0 = g * self.total - c * np.square(g) * self.squares
        return lambda u: float(stakes.log_mean(at_0 - g * self.N * u))


def value_sums(weights: Floats, log: Feedback, *, most: float) -> ImpressionSums:
    """The sums of a value. `most` clicks of an impression.  Shapes: weights [P] or [2, P] (`both_weights`)."""
    weights = both_weights(weights)
    return _sums(weights, np.zeros_like(weights), log, most, np.ones(log.Q, np.bool_))


def difference_sums(
    new: Floats, old: Floats, log: Feedback, *, most: float, queries: NDArray[np.bool_] | None = None
) -> ImpressionSums:
    """The sums of a difference. `most` clicks of an impression; each can cost what the old side's largest weight is.

    `queries`: those that count, by default all.
    Shapes: new, old [P] or [2, P] (`both_weights`); queries [Q].
    """
    new, old = both_weights(new), both_weights(old)
    if new.shape != old.shape:
        raise InputError(f"both sides need weights of the same rows; got {new.shape} and {old.shape}.")
    return _sums(new - old, old, log, most, np.ones(log.Q, np.bool_) if queries is None else queries)


def both_weights(weights: Floats, *, fixed: bool = False) -> Floats:
    """Weights of rows in two parts: rho / rho_0, which is as large as the propensity of a showing is small, and what every
    click counts whatever its propensity was, as production's 1.  Shapes: [P] or [2, P] -> [2, P]."""
    if weights.ndim == 2:
        return weights
    nothing = np.zeros_like(weights)
    return np.stack([nothing, weights] if fixed else [weights, nothing])


def weight_products(a: Floats, b: Floats, moments: Floats) -> Floats:
    """The sum over the clicks of every row of the product of two weights.  Shapes: a, b [2, P]; moments [3, P] -> [P]."""
    found: Floats = a[0] * b[0] * moments[2] + (a[0] * b[1] + a[1] * b[0]) * moments[1] + a[1] * b[1] * moments[0]
    return found


def _sums(v: Floats, lost: Floats, log: Feedback, most: float, queries: NDArray[np.bool_]) -> ImpressionSums:
    """`lost`: the most that a click on a row can cost.  Shapes: v, lost [2, P]."""
    if v.shape[1] != len(log.clicks):
        raise InputError(f"expected weights of each of {len(log.clicks)} rows; got {v.shape[1]}.")
    if log.weighted:
        raise InputError(
            "impressions with weights are not independent draws of equal size: use the bound over queries for this log."
        )
    inside = queries[log.query]
    each, together = click_moments(log, most)
    floor = most * float(lost.sum(0)[inside & (log.shown > 0)].max(initial=0.0))
    total = v[0] * each[1] + v[1] * each[0]
    squares = weight_products(v, v, together)
    return ImpressionSums(
        float(total[inside].sum()), float(squares[inside].sum()), float(log.impressions[queries].sum()), floor
    )


def _times(limit: float, sizes: Floats) -> Floats:
    """limit * sizes, where 0 of infinity is 0."""
    return np.multiply(limit, sizes, out=np.zeros_like(sizes), where=sizes > 0)


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level must be above 0 and below 1; got {level}.")
