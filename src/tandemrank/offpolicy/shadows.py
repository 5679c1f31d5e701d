"""What another system is worth by the lists that it would have shown beside those that were: its shadow lists.

    U_hat = 1/N sum_i sum_d c_i(d) theta[k'_i(d)] / rho_0(d),     k'_i(d) the rank of d in the shadow list of impression i

Neither scores nor a model are needed. rho_0(d) is the logger's expected examination of d: logged with the row, exact by the
policy that drew it, or counted in the log. Unbiased where the logger gave d exposure, and where the shadow list does not know
which list the logger drew (it may know all that the logger knew before): then E[c_i(d)] = rho_0(d) R(d), whatever the shadow
list is. What the logger never showed to the query is worth nothing here, and its share is said (support).

A list that is another order of the one that was shown does know it. Then rho_0 is theta[k_i(d)], the chance that the rank where
d was shown is looked at: E[c_i(d) | list] = theta[k_i(d)] R(d), whatever the logger is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandemrank.clicks.models import SMALLEST, CellCurve, examination_curve
from tandemrank.errors import ConfigError
from tandemrank.logs.details import Details, Shadow, read_details
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.pairs import Contradiction, contradiction
from tandemrank.logs.sources import Source
from tandemrank.offpolicy.estimators import Exposure, Floats, by_query
from tandemrank.offpolicy.logger import FittedLogger
from tandemrank.offpolicy.propensities import Resolved, pairs_of, resolve
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.values import RankSupport

REORDERED = "its lists are the shown ones in another order, so that only the ranks count, by the curve"
COUNTED = "the log has none, nor is the policy given that drew it: they are counted in the log, which needs no model"


@dataclass(frozen=True)
class ShadowEvidence:
    """What a log says of shadow lists: its split rows, and each list's propensities, exposure and support.

    `left_out`: how many impressions have no list of some system, in words. `reward`: what a click on each row was worth, if
    that is asked.  Shapes: theta [K]; reward [P].
    """

    whole: Feedback
    rows: Feedback
    theta: Floats
    propensities: tuple[Resolved, ...]
    against_curve: Contradiction | None
    exposures: tuple[Exposure, ...]
    support: tuple[tuple[RankSupport, ...], ...]
    left_out: str | None
    reward: Floats | None


def shadow_evidence(shadows: Sequence[Shadow], log: Source | Feedback, asked: Question) -> ShadowEvidence:
    """Reads a log with the lists of other systems. Lists count as far as the longest that the log shows."""
    if isinstance(log, Feedback):
        raise ConfigError("sums of a log have no shadow lists: give the log itself.")
    if asked.estimator not in ("auto", "ips") or asked.other_log is not None or asked.reward is not None:
        raise ConfigError("shadow lists are valued by ips alone: leave out estimator, other_log and reward.")
    if asked.propensity == "fitted" or isinstance(asked.logging_policy, FittedLogger) or asked.engine != "local":
        raise ConfigError("shadow lists need no model: propensity is logged, exact or frequency, and engine is local.")
    found = read_details(log, shadows=shadows, reward=asked.reward_column)
    theta = _curve(found.whole, asked)
    left = f"{found.left_out:,} impressions have no list of some system, and are left out" if found.left_out else None
    systems = range(len(shadows))
    return ShadowEvidence(
        whole=found.whole,
        rows=found.rows,
        theta=theta,
        propensities=_each(found, theta, asked),
        against_curve=None if found.whole.weighted else contradiction(found.whole, theta),
        exposures=tuple(_exposure(found, number, theta) for number in systems),
        support=tuple(_support(found, number, len(theta)) for number in systems),
        left_out=left,
        reward=found.reward,
    )


def _curve(log: Feedback, asked: Question) -> Floats:
    """The examination curve of the ranks that the log shows.  Shapes: -> [K]."""
    K = int(log.rank.max(initial=0)) + 1
    given = asked.examination
    if isinstance(given, CellCurve):
        if given.states is not None:
            raise ConfigError(
                "shadow lists are valued by the rank alone: give a curve of ranks, not of ranks and more."
            )
        given = given.array
    return examination_curve(K, given if isinstance(given, str) else np.asarray(given, np.float64).tolist())


def _each(found: Details, theta: Floats, asked: Question) -> tuple[Resolved, ...]:
    """The propensities for each shadow list: those of the ranks where its lists are all of the shown items and no others."""
    given = asked.propensity != "auto" or asked.logging_policy is not None
    other = [given or bool((found.beside[n] < found.listed[n]).any()) for n in range(len(found.lists))]
    of_pairs = _propensities(found, theta, asked) if any(other) else None
    of_ranks = Resolved(np.maximum(theta[found.rows.rank], SMALLEST), 0.0, "exact", REORDERED)
    return tuple(of_pairs if of_pairs is not None and alone else of_ranks for alone in other)


def _propensities(found: Details, theta: Floats, asked: Question) -> Resolved:
    """Of every row: that of its own impressions where they are logged, else that of its pair."""
    known = asked.logging_policy is not None or found.whole.logged is not None
    kind = "frequency" if asked.propensity == "auto" and not known else asked.propensity
    used = resolve(found.whole, theta, kind=kind, logging_policy=asked.logging_policy, seed=asked.seed)
    used = replace(used, reason=COUNTED) if kind != asked.propensity else used
    own = found.propensity if used.kind == "logged" else used.unclipped[found.of]
    assert own is not None  # a log without propensities is refused
    return replace(used, unclipped=own)


def _exposure(found: Details, number: int, theta: Floats) -> Exposure:
    """theta[k'] of the items that were shown, and sums over all that a system would have shown.  Shapes: theta [K]."""
    place, K = found.places[number], len(theta)
    rho = np.where((place >= 0) & (place < K), theta[np.clip(place, 0, K - 1)], 0.0)
    lists, n = found.lists[number], np.maximum(found.whole.impressions, np.finfo(float).tiny)
    examined = np.where(lists.rank < K, theta[np.minimum(lists.rank, K - 1)], 0.0) * lists.shown
    ever = np.isin(pairs_of(lists), pairs_of(found.whole))
    total, supported = (by_query(np.where(some, examined, 0.0), lists) / n for some in (True, ever))
    return Exposure(rho=rho, total=total, supported=supported, random=None, direct=np.zeros(lists.Q))


def _support(found: Details, number: int, K: int) -> tuple[RankSupport, ...]:
    """Rank by rank."""
    lists, listed = found.lists[number], found.listed[number][:K]
    ever = np.isin(pairs_of(lists), pairs_of(found.whole))
    shown, known = (np.bincount(lists.rank, np.where(some, lists.shown, 0.0), K)[:K] for some in (True, ever))
    return tuple(
        RankSupport(k + 1, float(found.beside[number][k] / listed[k]), float(known[k] / shown[k]))
        for k in range(K)
        if listed[k] > 0
    )
