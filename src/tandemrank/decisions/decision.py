"""The decision: is the new policy surely not worse, may it have some live traffic, or none?

    ship      the lower bound of the difference is above `at_least`, so is its interval, and nothing speaks against the
              propensities
    canary    the log is not enough for that, but promises more than `at_least`: some traffic, and how much of it
    do not    no promise, or the log cannot tell

The bound (`planning`, `offpolicy.bounds`) is about the log's own impressions, where every list was drawn anew; else, or if it
is asked for, it is over queries, by the paired terms of new and old: about other queries like these, and far less tight. What
the first cannot know, whether other queries would say the same, the interval over queries is asked. Of m policies each gets
1 - (1 - level) / m, so all m bounds hold together and any choice among them is safe: with probability `level` nothing that is
called "ship" is worse than asked. A bound rests on right propensities. Where the weights find more exposure than there is
(balance above 1 beyond three standard errors), the new side is divided by that; and propensities that were fitted to the
log, or counted in a log that varies, are guesses: then a canary is the most that is said. Where a log hardly varies, what
another order is worth hangs on the examination curve alone: one that is only assumed is asked steeper and flatter, too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from typing import Any

import numpy as np

from tandemrank._base.arguments import checked
from tandemrank._base.ids import Vocabulary
from tandemrank._base.results import Result, within
from tandemrank.clicks.examination import as_read
from tandemrank.clicks.models import examination_curve
from tandemrank.decisions import guardrails, planning
from tandemrank.decisions.guardrails import (
    CLICKS,
    Guardrail,
    SegmentDifference,
    Segments,
    check_guardrails,
    check_limits,
    guardrail,
    segment_rails,
)
from tandemrank.decisions.planning import Canary, Rules, needed_words
from tandemrank.errors import ConfigError
from tandemrank.logs.description import drawn_anew
from tandemrank.logs.details import Shadow
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.sources import Source
from tandemrank.offpolicy.bounds import Independent
from tandemrank.offpolicy.comparison import Comparison, compare_values, excess_exposure
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.rewards import by_reward
from tandemrank.offpolicy.uncertainty import steeper
from tandemrank.offpolicy.valuation import Side, estimate_all
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.offpolicy.values import most_clicks as places_of
from tandemrank.offpolicy.verdicts import CARE_MISSING, CONTRADICTS, SEEN, Verdict, misfit_words
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.two_stage import TwoStagePolicy

ABOUT: dict[Independent, str] = {"impressions": "on this log's impressions", "queries": "for queries like these"}
STEEPNESS = (0.5, 1.5)  # of the curves that a log is asked by which cannot tell which is right
UNCHECKED = (
    "the examination curve is assumed, and a log without variety cannot check it: the bound is the least by this curve, one "
    "half as steep and one half as steep again. Give a curve that was measured (--curve) for a tighter one"
)
SEEN_WORDS = (
    "it was trained on this very log, which cannot judge it: ask one that it has not seen (`learn --until`, `decide --since`), "
    "or take what `learn` said"
)
MOST_ASKED = 1e6  # clicks per impression: no list has as many places
RISK = 0.01  # of production's clicks that a canary may lose at worst


class Call(StrEnum):
    """What to do; the words of every table, page and JSON document."""

    SHIP = "ship"
    CANARY = "canary"
    DO_NOT = "do not"

    @property
    def exit_code(self) -> int:
        """For pipelines; 1 and 2 are errors."""
        return {Call.SHIP: 0, Call.CANARY: 3, Call.DO_NOT: 4}[self]


@dataclass(frozen=True, kw_only=True)
class PolicyDecision:
    """One policy before the meeting: the call, the reasons, the most decisive first, and what they rest on.

    `lower_bound` of the difference at `bound_level`, which counts how many policies were looked at; None without one.
    `log_needed`: about how many impressions of as many more queries would make it a yes; infinite if none would.
    """

    name: str
    call: Call
    reasons: tuple[str, ...]
    comparison: Comparison
    lower_bound: float | None
    bound_level: float
    log_needed: float
    canary: Canary | None
    segments: tuple[SegmentDifference, ...]
    guardrails: tuple[Guardrail, ...] = ()

    @property
    def worse_segments(self) -> tuple[SegmentDifference, ...]:
        """Where it is surely worse, whatever it is on average."""
        return tuple(one for one in self.segments if one.worse)

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        worse = [one.segment for one in self.worse_segments]
        return vars(self) | {"worse_segments": worse, "comparison": self.comparison.summary()}


@dataclass(frozen=True, kw_only=True, repr=False)
class Decision(Result):
    """What to do, with which policy (None: with none), why, and every policy that was looked at.

    `sides`: the policies by name, and the other one by `against`, where it is none of production: they have the lists.
    """

    drawn_by, has_lists = "decision", True

    call: Call
    chosen: str | None
    why: str
    against: str
    at_least: float
    level: float
    independent: Independent
    segment_column: str | None
    no_segment_below: float | None
    candidates: tuple[PolicyDecision, ...]
    reward: str = CLICKS
    sides: Mapping[str, Side] = field(default_factory=dict, compare=False)

    @property
    def exit_code(self) -> int:
        """0 ship, 3 canary, 4 do not."""
        return self.call.exit_code

    def _lines(self) -> list[str]:
        each = [
            f"{row['policy']}: {row['call']}, {row['value']:+.3f} {within(row['low'], row['high'], '+')}"
            for row in self._rows()
        ]
        return [f"{self.call}: {self.why}", f"{self.reward} per impression above {self.against}:", *each]

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "policy": one.name, "call": one.call, "value": one.comparison.difference, "low": one.comparison.interval[0],
                "high": one.comparison.interval[1], "lower_bound": one.lower_bound,
            }
            for one in self.candidates
        ]  # fmt: skip

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        plain = {name: value for name, value in vars(self).items() if name != "sides"}
        return plain | {"exit_code": self.exit_code, "candidates": [one.summary() for one in self.candidates]}


@checked
def decide(
    policies: TwoStagePolicy | Shadow | Mapping[str, TwoStagePolicy | Shadow],
    log: Source | Feedback,
    question: Question | None = None,
    *,
    against: Side = PRODUCTION,
    at_least: float = 0.0,
    segment: str | None = None,
    query_features: FeatureSource | None = None,
    no_segment_below: float | None = None,
    most_clicks: float | None = None,
    risk: float = RISK,
    guardrails: Mapping[str, float | None] | None = None,
    **switches: Any,
) -> Decision:
    """Ship, canary or do not: a policy, or the best of several by name, against production or another policy.

    In place of policies there may be shadow lists (`Shadow`), what other systems would have shown.
    `at_least`: clicks per impression that the new policy must be better by. `segment`: a column of `query_features`, or of the
    log, by whose values the difference is told too; `no_segment_below`: the limit of each of these differences, a guardrail.
    `most_clicks` that an impression can get, if it is less than the list is long: the smaller, the tighter the bound; it must
    be known, not read off the log. `risk`: the share of production's clicks
    that a canary may lose at worst. `guardrails`: other rewards, columns of the log or "clicks", and the least difference per
    impression that is good, by default minus 1% of what the old side has: one that surely falls below is a no, one that may a
    canary. What decides is clicks, or `reward_column`, whose bound needs `most_clicks`, the most of it that an impression gets.
    How to ask the log is a `Question`, or its fields as keywords, as in `estimate`: `level` is the chance that nothing worse is
    called ship. Ask a log that no policy was trained on.
    """
    asked = Question.of(question, switches)
    sides = {"new": policies} if isinstance(policies, TwoStagePolicy | Shadow) else dict(policies)
    _check(sides, at_least, most_clicks, risk)
    if no_segment_below is not None and (segment is None or not abs(no_segment_below) <= MOST_ASKED):
        raise ConfigError(
            f"no_segment_below: expected a number of clicks per impression, and segment, a column; got {no_segment_below!r} "
            f"and {segment!r}."
        )
    everybody: list[Side] = [*sides.values(), against, PRODUCTION]
    reward = asked.reward_column or CLICKS
    rails = dict(guardrails or {})
    check_guardrails(rails, reward)
    values = estimate_all(everybody, log, asked)
    others_of = {name: _by(name, everybody, values, log, asked) for name in rails}
    *new, old, live = values
    varies = drawn_anew(live.log)
    if not varies and isinstance(asked.examination, str):
        again = log if asked.reward_column or any(isinstance(side, Shadow) for side in everybody) else live.log
        others = [_under(everybody, again, int(places_of(live.log)), asked, steepness) for steepness in STEEPNESS]
    else:
        others = []
    named = PRODUCTION if against == PRODUCTION else "the other policy"
    rules = Rules(
        at_least=at_least,
        level=asked.level,
        policies=len(sides),
        most_clicks=most_clicks,
        risk=risk,
        against=named,
        varies=varies,
        unit=reward,
        no_segment_below=no_segment_below,
    )
    parts = _segments(segment, query_features, log, live.log.vocabulary)
    if parts is not None and no_segment_below is not None:
        check_limits(parts, live.log.impressions)
    candidates = tuple(
        _candidate(
            name,
            value,
            old,
            live,
            rules,
            parts,
            [(curve[n], curve[-2]) for curve in others],
            tuple(
                guardrail(what, some[n], some[-2], rails[what], 1 - (1 - rules.each) / len(rails))
                for what, some in others_of.items()
            ),
        )
        for n, (name, value) in enumerate(zip(sides, new, strict=True))
    )
    call, chosen = _choice(candidates)
    return Decision(
        call=call,
        chosen=None if call == Call.DO_NOT else chosen.name,
        why=f"{chosen.name}: {chosen.reasons[0]}",
        against=rules.against,
        at_least=at_least,
        level=asked.level,
        independent=live.sample.independent,
        segment_column=None if parts is None else parts.column,
        no_segment_below=no_segment_below,
        candidates=candidates,
        reward=reward,
        sides={rules.against: against, **sides},
    )


def _by(
    name: str, sides: list[Side], values: tuple[Value, ...], log: Source | Feedback, asked: Question
) -> tuple[Value, ...]:
    """The values by another reward; weights of policies are known, so the log alone is read again."""
    by_clicks = asked.reward_column is None
    if name == CLICKS or not by_clicks or any(isinstance(side, Shadow) for side in sides):
        return estimate_all(sides, log, replace(asked, reward_column=None if name == CLICKS else name))
    return by_reward(values, log if isinstance(log, Feedback) else as_read(log, asked.examination), name)


def call_of(found: Comparison) -> tuple[Call, str]:
    """What `decide` says of one policy against production, and why, of values that are there already."""
    new, production = found.new, found.old
    rules = Rules(
        at_least=0.0,
        level=new.sample.level,
        policies=1,
        most_clicks=None,
        risk=RISK,
        against=PRODUCTION,
        varies=drawn_anew(new.log),
    )
    return _call(found, planning.at_least(new, production, rules).bound, rules)


def _check(
    sides: Mapping[str, TwoStagePolicy | Shadow], at_least: float, most_clicks: float | None, risk: float
) -> None:
    if not sides:
        raise ConfigError("expected at least one policy to decide about; got none.")
    for name, policy in sides.items():
        if not isinstance(policy, TwoStagePolicy | Shadow):
            raise ConfigError(f"expected a TwoStagePolicy as {name}; got {policy!r}. Load a saved policy first.")
    if not isinstance(at_least, Real) or not abs(at_least) <= MOST_ASKED:
        raise ConfigError(
            f"at_least must be a number of clicks per impression, at most {MOST_ASKED:,.0f} either way; got {at_least!r}."
        )
    if most_clicks is not None and not (isinstance(most_clicks, Real) and 0 < most_clicks < math.inf):
        raise ConfigError(f"most_clicks must be a finite number above 0; got {most_clicks!r}.")
    if not isinstance(risk, Real) or not 0 < risk < 1:
        raise ConfigError(f"risk must be above 0 and below 1, a share of production's clicks; got {risk!r}.")


def _segments(
    column: str | None, table: FeatureSource | None, log: Source | Feedback, vocabulary: Vocabulary
) -> Segments | None:
    if column is None:
        if table is not None:
            raise ConfigError("query_features has the column of the segments: give segment, its name, too.")
        return None
    if table is not None:
        return guardrails.segments_of_table(table, column, vocabulary)
    if isinstance(log, Feedback):
        raise ConfigError("sums of a log have no columns: give query_features for the segments, or the log itself.")
    return guardrails.segments_of_log(log, column, vocabulary)


def _choice(candidates: tuple[PolicyDecision, ...]) -> tuple[Call, PolicyDecision]:
    """The best call; of the policies with it one that harms no segment, if there is one, and of these the largest estimate."""
    call = min((one.call for one in candidates), key=list(Call).index)
    of_call = [one for one in candidates if one.call == call]
    harmless = [one for one in of_call if not one.worse_segments]
    return call, max(harmless or of_call, key=lambda one: np.nan_to_num(one.comparison.difference, nan=-np.inf))


def _under(sides: list[Side], log: Source | Feedback, K: int, asked: Question, steepness: float) -> tuple[Value, ...]:
    """The same values by a steeper or flatter curve; the log shows K places."""
    longest = max([K, *(side.K for side in sides if isinstance(side, TwoStagePolicy))])
    theta = steeper(examination_curve(longest, str(asked.examination)), steepness)
    return estimate_all(sides, log, replace(asked, examination=theta))


def _candidate(
    name: str,
    new: Value,
    old: Value,
    live: Value,
    rules: Rules,
    parts: Segments | None,
    others: list[tuple[Value, Value]],
    rails: tuple[Guardrail, ...],
) -> PolicyDecision:
    """`others`: both sides by other curves, where the log cannot tell which is right: the least of the bounds is the bound."""
    comparison, sure = compare_values(new, old), planning.at_least(new, old, rules)
    for one in others:
        sure = min(sure, planning.at_least(*one, rules), key=lambda x: -np.inf if x.bound is None else x.bound)
    call, reason = _call(comparison, sure.bound, rules)
    gaps = () if parts is None else guardrails.differences(new, old, parts, rules.level)
    rails = (*rails, *segment_rails(gaps, rules.no_segment_below))
    call, guarded = _guarded(call, rails)
    told = [words for words in (rail.words for rail in rails) if words != guarded]
    reasons = [*([guarded] if guarded else []), reason, *told]
    reasons += [*([UNCHECKED] if others else []), *(one.words(rules.unit) for one in gaps if one.worse)]
    trial = None
    if call == Call.CANARY:
        trial = _trial(comparison, sure.bound, live, rules)
        reasons.append(trial.words)
    if sure.bound is None or not sure.bound > rules.at_least:
        reasons.append(needed_words(sure.log_needed, new.sample))
    reasons += _rests_on(new)
    return PolicyDecision(
        name=name,
        call=call,
        reasons=tuple(reasons),
        comparison=comparison,
        lower_bound=None if comparison.verdict == Verdict.REFUSE else sure.bound,
        bound_level=rules.each,
        log_needed=sure.log_needed,
        canary=trial,
        segments=gaps,
        guardrails=rails,
    )


def _guarded(call: Call, rails: tuple[Guardrail, ...]) -> tuple[Call, str]:
    """The call that the guardrails leave, and the one that decides, in words; empty where none does."""
    if call == Call.DO_NOT:
        return call, ""
    if broken := next((rail for rail in rails if rail.broken), None):
        return Call.DO_NOT, broken.words
    if call == Call.SHIP and (doubtful := next((rail for rail in rails if rail.doubtful), None)):
        return Call.CANARY, doubtful.words
    return call, ""


def _trial(comparison: Comparison, bound: float | None, live: Value, rules: Rules) -> Canary:
    """The canary of a policy; a bound that is not believed limits nothing."""
    worst = -live.value if bound is None or guessed(comparison.new, varies=rules.varies) else bound
    return planning.plan_canary(
        comparison.difference,
        worst,
        live.estimate,
        at_least=rules.at_least,
        most=rules.most_clicks or (places_of(live.log) if live.reward is None else math.inf),
        level=rules.level,
        risk=rules.risk,
    )


def _call(comparison: Comparison, bound: float | None, rules: Rules) -> tuple[Call, str]:
    """The call and the reason that decided it."""
    new, gap = comparison.new, comparison.difference
    low, high = comparison.over_queries
    least = f"{rules.at_least:+.3g}" if rules.at_least else "0"
    by = f" by {least}" if rules.at_least else ""
    promise = f"it promises {gap:+.3g} {rules.unit} per impression over {rules.against}"
    sure = (
        "no bound of it is known"
        if bound is None
        else f"it is at least {bound:+.3g} {ABOUT[new.sample.independent]} with {rules.level:.0%} certainty"
    )
    if rules.policies > 1:
        sure += f", all {rules.policies} policies together"
    if SEEN in new.reasons:
        tried = comparison.verdict != Verdict.REFUSE and gap > rules.at_least
        return Call.CANARY if tried else Call.DO_NOT, SEEN_WORDS
    if new.diagnostics is not None and excess_exposure(new.diagnostics) - 1 > CARE_MISSING:
        return Call.DO_NOT, (f"{misfit_words(new.diagnostics)}. Neither value nor bound can be believed")
    if comparison.verdict == Verdict.REFUSE:
        if (case := _best_case(comparison)) is not None and case <= rules.at_least:
            even = f"it is no better{by}: at most {case:+.3g}"
            return Call.DO_NOT, f"even if all that was never shown were clicked, {even}"
        return Call.DO_NOT, f"{Verdict.REFUSE}: {_worst_reason(comparison)}"
    if bound is not None and bound > rules.at_least:
        if guess := guessed(new, varies=rules.varies):
            return Call.CANARY, f"{promise}, and {sure}, but {guess}"
        if not low > rules.at_least:
            return Call.CANARY, f"{promise}, and {sure}, but for other queries like these it may be {low:+.3g}"
        return Call.SHIP, f"{promise}, and {sure}; asked was more than {least}"
    if high <= rules.at_least:
        return Call.DO_NOT, f"it is no better{by}: {promise}, at most {high:+.3g}"
    if not gap > rules.at_least:
        return Call.DO_NOT, f"nothing says that it is better{by}: {promise}"
    return Call.CANARY, f"{promise}, more than {least}, but {sure}"


def _worst_reason(comparison: Comparison) -> str:
    """Why the log cannot tell, and what it says nevertheless."""
    reasons = [reason.removeprefix("new: ") for reason in comparison.reasons or comparison.new.reasons]
    return "; ".join([reasons[0], *[reason for reason in reasons[1:] if "never shown are worth" in reason]])


def _best_case(comparison: Comparison) -> float | None:
    """The most that the new side can be ahead by, all that was never shown counted as clicked; None without a range."""
    if comparison.new.identified is None or comparison.old.verdict != Verdict.OBSERVED:
        return None
    return comparison.new.identified.interval[1] - comparison.old.interval[0]


def guessed(new: Value, *, varies: bool) -> str:
    """Why neither value nor bound can be believed; empty where propensities are known and the log is a new one."""
    if SEEN in new.reasons:
        return SEEN_WORDS
    if curve := next((reason for reason in new.reasons if reason.startswith(CONTRADICTS)), None):
        return f"both rest on the examination curve, and {curve}"
    if new.propensity == "fitted":
        return "its propensities were fitted to the log, and no bound contains their error"
    if new.propensity == "frequency" and varies:
        return "its propensities are counted in a log that varies, and no bound contains their error"
    return ""


def _rests_on(new: Value) -> tuple[str, ...]:
    """What the numbers rest on: support by stage, balance, effective sample, propensities."""
    found = new.diagnostics
    if found is None:
        return ()
    return (
        f"support: {found.unsupported:.1%} of what it shows was never shown to the query{found.stages(1)}",
        "what a query was never shown counts as it is believed; propensities: counted"
        if new.estimator == "completed"
        else f"balance of the weights {found.balance:.3f} ± {1.96 * found.balance_error:.3f} (1 is right); propensities: "
        f"{new.propensity}",
        f"effective sample: {found.effective_sample_size:,.0f} of {found.examined:,.0f} examined items, {found.queries:,} "
        "queries",
        *([] if new.behaviour is None else [f"clicks: {words}" for words in new.behaviour.sentences]),
    )
