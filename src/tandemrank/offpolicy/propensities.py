"""Propensities of a log and their clipping: the only place that chooses either.

    rho_0(d | q) = E[theta_{k(d)}]     how much attention the logging policy gave to (q, d)        (paper: propensity_def)

`resolve` is the door: estimation, comparison and training all come through it. Clicks are divided by rho_0, so a small one
makes a click count for much; clipping raises all below a minimum to it, for less noise and a value that is a little too low.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.cluster import Engine
from tandemrank._base.ids import Vocabulary, positions_of
from tandemrank.beliefs.model import RewardModel
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.description import fixed_queries, hardly_varies, shows_nothing_else
from tandemrank.logs.feedback import Feedback, by_rank, examination, exposure
from tandemrank.offpolicy.examined import Curves, curves_of
from tandemrank.offpolicy.logger import Asked, FittedLogger, Kind, Lists, fit
from tandemrank.offpolicy.uncertainty import FEW_QUERIES
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Clip = Literal["paper", "quantile", "none"]
Wanted = Literal["all", "clicked", "none"]

# One clicked row in a thousand counts for less than it says. Training's results rest on this share; and of a value, over six
# simulated worlds, it never raised the error, where one in a hundred made it up to 0.8% too low and the error 10% larger.
CLIP_QUANTILE = 0.001
SAMPLES = 50  # of the race, for propensities that come from a policy
# Races of all queries together, where there are many: the noise of each averages out. Clicks are divided by what they find, so
# a few are not enough: with 16 that makes a value some 0.5% too high.
RACES, LEAST = 320_000, 16
OFTEN = 50.0  # showings per pair from which on frequencies of few queries are better known than any model of the logger
FITTED_LEAST = 1e-9  # of a fitted propensity: what was shown can be, though its fitted chance be 0 in single precision


@dataclass(frozen=True)
class Resolved:
    """The propensities of a log and the minimum to which they are raised.

    `kind` is the source, `reason` says why it was taken, `logger` is the policy they come from (exact, fitted), with the
    `curves` by which its ranks are examined, `fitted_lists` how many lists per query it was fitted to, None where it is known.
    `only_shown`: nothing is known of what a query was never shown, since lists hardly vary and these are frequencies, or since
    the lists never left their items, whatever the propensities.
    Shapes: unclipped [P], of every row; empty where none were wanted.
    """

    unclipped: Floats
    clip: float
    kind: Kind
    reason: str
    logger: TwoStagePolicy | None = None
    curves: Curves | None = None
    only_shown: bool = False
    fitted_lists: float | None = None

    @cached_property
    def rho_0(self) -> Floats:
        """max(rho_0, clip).  Shapes: -> [P]."""
        return np.maximum(self.unclipped, self.clip)


def resolve(
    log: Feedback,
    theta: Floats,
    *,
    kind: Asked = "auto",
    clip: Clip = "none",
    logging_policy: TwoStagePolicy | FittedLogger | None = None,
    lists: Callable[[], Lists] | None = None,
    samples: int | None = None,
    seed: int = 0,
    wanted: Wanted = "all",
    beside: Feedback | None = None,
    relevance: RewardModel | None = None,
    engine: Engine = "local",
) -> Resolved:
    """Propensities of every row, by the kind that is asked for; `auto` takes the best there is a source for.

    `lists` reads the shown lists of the log, by queries whatever their context; it is called only if a logging policy has to
    be fitted to them, and none was before. `wanted`: of all rows, of those with clicks, or none: the source alone, where
    beliefs are learned from. `beside`: other impressions of the same vocabulary, among which frequencies are counted where
    lists hardly vary. `relevance`: a model of it, where examination depends on the clicks above. The engine ray shares races
    of queries out over a cluster.  Shapes: theta [K] or [K, states].
    """
    check_curve(log, theta)
    chosen, reason = choose_propensity(kind, log, logging_policy)
    logger = logging_policy if chosen == "exact" and isinstance(logging_policy, TwoStagePolicy) else None
    fitted_lists = None
    if chosen == "fitted":
        found = logging_policy if isinstance(logging_policy, FittedLogger) else _fitted_now(log, lists, kind, seed)
        logger, fitted_lists = found.policy, found.lists
    only_shown = knows_only_shown(chosen, log)
    curves = None
    if logger is not None and wanted != "none":
        curves = curves_of(logger, log, theta, relevance, seed=seed)
    rho_0, minimum = np.zeros(0), 0.0
    if wanted != "none":
        rho_0 = row_propensities(
            log,
            theta,
            chosen,
            logger,
            samples=samples,
            seed=seed,
            only_clicked=wanted == "clicked",
            curves=curves,
            beside=beside if only_shown and chosen == "frequency" else None,
            engine=engine,
        )
        minimum = clip_minimum(clip, rho_0[log.clicks > 0], log.N)
    minimum = max(minimum, FITTED_LEAST) if chosen == "fitted" else minimum
    return Resolved(
        unclipped=rho_0,
        clip=minimum,
        kind=chosen,
        reason=reason,
        logger=logger,
        curves=curves,
        only_shown=only_shown,
        fitted_lists=fitted_lists,
    )


def _fitted_now(log: Feedback, lists: Callable[[], Lists] | None, kind: Asked, seed: int) -> FittedLogger:
    if lists is None:
        raise ConfigError(
            f"fitted propensities need the lists of the log, and sums of it have none (propensity = {kind}). Give the "
            "log itself, or the policy that drew it, or propensity = frequency."
        )
    asked, contexts = np.flatnonzero(log.impressions > 0), Contexts.within(log.vocabulary)
    if contexts is None:
        return FittedLogger(
            fitted_policy(lists(), log.vocabulary, seed=seed), log.N / log.heaviest / max(len(asked), 1)
        )
    # A query has more lists than a query in its context.
    found = fitted_policy(lists(), contexts.vocabulary, seed=seed)
    found = found.in_contexts(contexts.base, contexts.table, log.vocabulary.query_ids)
    return FittedLogger(found, log.N / log.heaviest / max(len(np.unique(contexts.base[asked])), 1))


def fitted_policy(lists: Lists, vocabulary: Vocabulary, *, seed: int = 0) -> TwoStagePolicy:
    """The one-stage policy that is likeliest to have shown these lists: see `logger.fit`."""
    found = fit(lists, vocabulary, seed=seed)
    return TwoStagePolicy(found.scorer, found.scorer, len(vocabulary.item_ids), found.K, vocabulary)


def check_curve(log: Feedback, theta: Floats) -> None:
    """Refuses a curve by which nobody looks at a rank that was clicked.  Shapes: theta [K]."""
    blind = (examination(log, theta) == 0) & (log.clicks > 0)
    if blind.any():
        rank = int(log.rank[blind].min()) + 1
        raise ConfigError(
            f"the examination curve is 0 at rank {rank}, so nobody looks there, but the log has clicks at that rank "
            f"({int(blind.sum())} clicked pairs where it is 0). Give a curve that is above 0 wherever there are clicks."
        )


def choose_propensity(
    wanted: Asked, log: Feedback, logging_policy: TwoStagePolicy | FittedLogger | None
) -> tuple[Kind, str]:
    """Which propensities to use, and why: for `auto` the best that there is a source for."""
    if wanted not in ("auto", *get_args(Kind)):
        raise ConfigError(f"propensity must be one of auto, {', '.join(get_args(Kind))}; got {wanted!r}.")
    if isinstance(logging_policy, FittedLogger) and wanted in ("auto", "fitted"):
        return "fitted", "the policy that drew the log was fitted to its lists before"
    if wanted != "auto":
        return wanted, "as asked"
    if logging_policy is not None:
        return "exact", "the policy that drew the log is given"
    if log.logged is not None:
        return "logged", "the log has a column of them"
    if fixed := hardly_varies(log):
        return "frequency", f"{fixed}, so what was shown is all that is known"
    if often := shown_often(log):
        return "frequency", f"queries are few and each of their items was shown {often:,.0f} times in the mean"
    known = "the log has none, nor is the policy given that drew it"
    if fixed_queries(log) is None:
        return (
            "fitted",
            f"{known}; no query comes twice, so nobody can see whether its lists vary, and a policy is fitted",
        )
    return "fitted", f"{known}; its lists vary, so a policy can be fitted"


def knows_only_shown(kind: Kind, log: Feedback) -> bool:
    """Whether the log says nothing of what a query was never shown, by propensities of this kind."""
    if kind == "fitted":
        return False  # as asked for: by itself it is not taken where lists hardly vary
    return (hardly_varies(log) if kind == "frequency" else shows_nothing_else(log)) is not None


def shown_often(log: Feedback) -> float | None:
    """Showings per pair of query and item where queries are few and their frequencies well known, else None."""
    queries, pairs = int((log.impressions > 0).sum()), len(np.unique(log.query * np.int64(log.D) + log.item))
    each = float(log.shown.sum()) / log.heaviest / max(pairs, 1)
    return each if 0 < queries < FEW_QUERIES and each >= OFTEN else None


def row_propensities(
    rows: Feedback,
    theta: Floats,
    kind: Kind,
    logger: TwoStagePolicy | None = None,
    *,
    samples: int | None = None,
    seed: int = 0,
    only_clicked: bool = False,
    curves: Curves | None = None,
    beside: Feedback | None = None,
    engine: Engine = "local",
) -> Floats:
    """rho_0 of every row of a log (paper: propensity_def), unclipped.

    As logged; the frequency in the log, or `beside` it; or by the race over `logger`, the policy that drew the log (exact) or
    the one that `logger.fit` found (fitted), which may know other ids too. Of an item that the logger does not know it is 0.
    `samples` of the race, by default as many as the number of queries asks for. `only_clicked`: rows without a click are of
    no interest, and where items are many, so that a query costs a pass over all of them, they stay 0. `curves`: by which the
    logger's ranks are examined, by default the mean curve of the log.
    Shapes: theta [K] or [K, states] -> [P].
    """
    if kind == "frequency":
        return frequency_propensity(rows, theta, beside)
    if kind == "logged":
        if rows.propensity is None:
            raise LogError(
                "the log has no column `propensities`. Use exact (with the logging policy), fitted, or frequency."
            )
        return rows.propensity
    if logger is None:
        raise ConfigError(
            f"{kind} propensities need the policy that drew the log: give logging_policy, or use fitted propensities, which "
            "need the lists of the log."
        )
    logged = np.flatnonzero(rows.impressions)
    q = np.zeros(rows.Q, np.int64)
    q[logged] = logger.vocabulary.queries(rows.vocabulary.query_ids.gather(logged), "the policy that drew the log")
    item = positions_of(logger.vocabulary.item_ids, rows.vocabulary.item_ids, "item", missing="mark")[rows.item]
    rho_0, known = np.zeros(len(item)), item >= 0
    if only_clicked and logger.exposes_sparsely:
        known &= rows.clicks > 0
    samples = samples or races_for(len(logged))
    curves, query = curves or Curves.same(by_rank(rows, theta), rows.Q), rows.query[known]
    each = [
        logger.exposure(q[query], item[known], one[: logger.K], samples=samples, seed=seed, engine=engine)[0]
        for one in curves.few
    ]
    rho_0[known] = np.maximum(curves.mixed(query, each), 0.0)
    return rho_0


def races_for(queries: int) -> int:
    """Samples of the race for the propensities of each of so many queries."""
    return int(np.clip(RACES // max(queries, 1), LEAST, SAMPLES))


def frequency_propensity(feedback: Feedback, theta: Floats, beside: Feedback | None = None) -> Floats:
    """rho_0(d | q) by its frequency in the log (paper: propensity_def), the same for all ranks of a pair.

    With other impressions `beside` it by that among them, which owes nothing to what this log happened to be shown, and in both
    together of a pair that they do not have.
    Shapes: theta [K] -> [P].
    """
    if not len(feedback.query):
        return np.zeros(0)
    (pairs, exposed), n = _exposed_pairs(feedback, theta), feedback.impressions
    if beside is not None and len(beside.query):
        others, more = _exposed_pairs(beside, theta)
        at = np.minimum(np.searchsorted(others, pairs), len(others) - 1)
        known = others[at] == pairs
        exposed = np.where(known, more[at], exposed)
        times = np.where(known, beside.impressions[pairs // feedback.D], (n + beside.impressions)[pairs // feedback.D])
    else:
        times = n[pairs // feedback.D]
    rho_0: Floats = (exposed / times)[np.cumsum(np.diff(pairs_of(feedback), prepend=-1) != 0) - 1]
    return rho_0


def _exposed_pairs(log: Feedback, theta: Floats) -> tuple[NDArray[np.int64], Floats]:
    """The pairs of a log, by their number, and the exposure that each got, over all ranks."""
    pairs = pairs_of(log)
    first = np.flatnonzero(np.diff(pairs, prepend=-1) != 0)
    return pairs[first], np.add.reduceat(exposure(log, theta), first)


def pairs_of(log: Feedback) -> NDArray[np.int64]:
    """The number of every row's pair of query and item, in order.  Shapes: -> [P]."""
    return log.query * np.int64(log.D) + log.item


def clip_minimum(asked: Clip, clicked: Floats, N: float) -> float:
    """The number to which smaller propensities are raised.

    "paper": min(10 / sqrt(N), 1), which the authors use; "quantile": so that a small share of the clicked rows is touched;
    "none".  Shapes: clicked [n], the propensities of the clicked rows.
    """
    if asked not in get_args(Clip):
        raise ConfigError(f"clip must be one of {', '.join(get_args(Clip))}; got {asked!r}.")
    if asked == "paper":
        return min(10 / float(np.sqrt(N)), 1.0)
    positive = clicked[clicked > 0]
    return float(np.quantile(positive, CLIP_QUANTILE)) if asked == "quantile" and len(positive) else 0.0
