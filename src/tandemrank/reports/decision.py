"""The decision for the meeting: a table for the terminal, and one self-contained page with the picture that people look at."""

import math
import re
from typing import TYPE_CHECKING

from tandemrank.decisions.decision import Call, Decision, PolicyDecision, guessed
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.reports import figures, page, sections
from tandemrank.reports.figures import Dot
from tandemrank.reports.page import Report, Section
from tandemrank.reports.sections import BY_ID, Named
from tandemrank.reports.style import THEME
from tandemrank.reports.words import Sheet, bracket, decimal, label, listed, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {Call.SHIP: "method-2", Call.CANARY: "method-4", Call.DO_NOT: "method-1"}
WORDS = {
    Call.SHIP: "Ship it",
    Call.CANARY: "Not sure enough to ship; try it on some of the traffic",
    Call.DO_NOT: "Do not ship",
}
INDEPENDENT = {
    "impressions": "The old system drew every list anew, by chance. The bound is about the users of this log as they were, had "
    "they seen the new lists. Where one drawn list was shown several times, or the queries are a few of very many, decide by "
    "queries (--independent queries).",
    "queries": "What one query's users do does not depend on another's. The same query may behave alike day after day. The "
    "bound is about other queries like these.",
}
ASSUMPTIONS = (
    "The propensities are right: we know how often the old system showed each item. The balance above is 1 if so.",
    "The examination curve is right: how much less people look at lower ranks. The command examine measures it.",
    "Tomorrow is like the log: the same queries, as often; the same users; a click is still something good.",
    "No policy was trained on this log, and it is asked once: one that is looked at later should have been in the list.",
)


def assumptions(decision: Decision) -> tuple[str, ...]:
    """What has to be believed for the bound to hold, in words."""
    return (INDEPENDENT[decision.independent], *ASSUMPTIONS)


def headline(decision: Decision) -> str:
    """The decision in a line."""
    if decision.chosen is None:
        return f"{WORDS[decision.call]}."
    return f"{WORDS[decision.call]}: {decision.chosen}."


def warning(decision: Decision) -> str:
    """For whom the chosen policy is worse, in a line; empty where for nobody."""
    worse = [gap for one in decision.candidates if one.name == decision.chosen for gap in one.worse_segments]
    named = [f"{gap.segment} ({signed(gap.difference)} {decision.reward} per impression)" for gap in worse]
    return f"Better on average, but worse for {listed(named)}." if worse else ""


def policies(decision: Decision) -> Sheet:
    """Every policy in a line."""
    heads = "", "estimate", f"{decision.level:.0%} interval", "at least", "call"
    return Sheet(heads, [(one.name, *_numbers(one), str(one.call)) for one in decision.candidates], ("", "call"))


def segments(candidate: PolicyDecision) -> Sheet:
    """The segments of one policy, each in a line."""
    heads = "segment", "queries", "impressions", "new", "old", "difference", "interval, all together", ""
    rows = [
        (
            one.segment,
            f"{one.queries:,}",
            f"{one.impressions:,.0f}",
            decimal(one.new),
            decimal(one.old),
            signed(one.difference),
            bracket(*one.interval, signed),
            "worse" if one.worse else "",
        )
        for one in candidate.segments
    ]
    return Sheet(heads, rows, ("segment", ""))


def _numbers(one: PolicyDecision) -> tuple[str, str, str]:
    found = one.comparison
    if found.verdict == Verdict.REFUSE:
        return "–", "–", "–"
    bound = "–" if one.lower_bound is None else signed(one.lower_bound)
    return signed(found.difference), bracket(*found.interval, signed), bound


def plot(decision: Decision) -> "Figure":
    """Every policy's difference with its interval and bound."""
    above = f"{decision.reward} per impression above {decision.against}"
    return figures.dots(_policy_dots(decision), above, asked=decision.at_least)


def report(decision: Decision, *, command: str = "", period: str = "", named: Named = BY_ID) -> Report:
    """The decision, the picture, the segments, every policy with its reasons, what changes, what has to be believed."""
    chosen = next((one for one in decision.candidates if one.name == decision.chosen), decision.candidates[0])
    above = f"{decision.reward} per impression above {decision.against}"
    caption = (
        f"{label(above)}. Dot and line: the estimate with its {decision.level:.0%} interval, "
        "which is about other queries like these too; upright bar: what it is at least, all policies together; dashed: what "
        f"was asked, {decision.at_least:g}."
    )
    parts = [
        Section(title="What it is worth", tiles=_tiles(decision, chosen)),
        Section(
            title="The difference",
            sheet=policies(decision),
            draw=(lambda: figures.dots(dots, above, asked=decision.at_least))
            if (dots := _policy_dots(decision))
            else None,
            caption=caption,
        ),
        Section(
            title=f"{chosen.name} by {decision.segment_column}",
            sheet=segments(chosen),
            draw=(lambda: figures.dots(_segment_dots(chosen), above)) if chosen.segments else None,
        ),
        *(
            Section(title=f"{one.name}: {one.call}", sentences=[f"{label(_minus(words))}." for words in one.reasons])
            for one in decision.candidates
        ),
        sections.of_sides(
            chosen.comparison.new.log,
            decision.sides.get(chosen.name),
            decision.sides.get(decision.against),
            named,
            sides=(decision.against, chosen.name),
        ),
        sections.weights(chosen.comparison.new),
        Section(title=f"What you have to believe for the {decision.level:.0%}", sentences=assumptions(decision)),
        page.reproduce(command),
    ]
    lead = [*filter(None, [warning(decision)]), f"{_minus(decision.why)}."]
    colours = {one.name: COLOURS[one.call] for one in decision.candidates}
    return Report(headline(decision).removesuffix("."), lead, parts, colours, period=period)


def _tiles(decision: Decision, one: PolicyDecision) -> list[tuple[str, str, str]]:
    """Today, what is promised, and what is sure: the three numbers that a meeting remembers."""
    new, old = one.comparison.new.value, one.comparison.old.value
    boxes = [(f"{label(decision.against)}, now", decimal(old), f"{decision.reward} per impression")]
    if one.comparison.verdict == Verdict.REFUSE:
        return boxes
    boxes.append((f"{one.name}, estimated", decimal(new), _more(new - old, old)))
    if one.lower_bound is not None:
        known = not guessed(one.comparison.new, varies=True)
        sure = f"{decision.level:.0%} sure" if known else "at least, if the propensities are right"
        at_least = decimal(max(old + one.lower_bound, 0.0))
        boxes.append((f"{one.name}, {sure}", at_least, _more(one.lower_bound, old)))
    return boxes


def _more(gap: float, old: float) -> str:
    share = f", {gap / old:+.0%}" if old > 0 else ""
    return _minus(f"{signed(gap)}{share}")


def _minus(text: str) -> str:
    """Numbers with the sign that a page has for them."""
    return re.sub(r"(?<![\w-])-(?=\d)", "−", text)


def _segment_dots(candidate: PolicyDecision) -> list[Dot]:
    """Those that are surely worse in their own colour."""
    calls = [Call.DO_NOT if x.worse else Call.SHIP if x.interval[0] > 0 else Call.CANARY for x in candidate.segments]
    return [
        Dot(one.segment, one.difference, one.interval, THEME[COLOURS[call]])
        for one, call in zip(candidate.segments, calls, strict=True)
    ]


def _policy_dots(decision: Decision) -> list[Dot]:
    """Filled: the one that is chosen."""
    return [
        Dot(
            name=f"{one.name}: {one.call}",
            value=one.comparison.difference,
            interval=one.comparison.interval,
            colour=THEME[COLOURS[one.call]],
            hollow=one.name != decision.chosen,
            bound=math.nan if one.lower_bound is None else one.lower_bound,
        )
        for one in decision.candidates
        if one.comparison.verdict != Verdict.REFUSE
    ]
