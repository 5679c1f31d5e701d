"""The decision for the meeting: a table for the terminal, and one self-contained page with the picture that people look at."""

import math
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tandemrank import __version__
from tandemrank._base.files import write_text
from tandemrank.decisions.decision import Call, Decision, PolicyDecision, guessed
from tandemrank.decisions.segments import SegmentDifference
from tandemrank.reports import page, style
from tandemrank.reports.words import bracket, decimal, label, listed, signed, terminal_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable

COLOURS = {Call.SHIP: "method-2", Call.CANARY: "method-4", Call.DO_NOT: "method-1"}
MARKERS = {Call.SHIP: "o", Call.CANARY: "D", Call.DO_NOT: "s"}
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
    named = [f"{gap.segment} ({signed(gap.difference)} clicks per impression)" for gap in worse]
    return f"Better on average, but worse for {listed(named)}." if worse else ""


def text(decision: Decision) -> "RichTable":
    """Every policy in a table for a terminal."""
    rows = [(one.name, *_numbers(one), str(one.call)) for one in decision.candidates]
    return terminal_table(_heads(decision, ""), rows, left=("", "call"))


def _heads(decision: Decision, first: str) -> tuple[str, ...]:
    return first, "estimate", f"{decision.level:.0%} interval", "at least", "call"


def segment_table(decision: Decision, candidate: PolicyDecision) -> "RichTable":
    """The segments of one policy for a terminal."""
    title = f"{candidate.name} by {decision.segment_column}"
    return terminal_table(SEGMENT_HEADS, map(_segment_cells, candidate.segments), title=title, left=("segment", ""))


SEGMENT_HEADS = ("segment", "queries", "impressions", "new", "old", "difference", "interval, all together", "")


def _segment_cells(one: SegmentDifference) -> list[str]:
    return [
        one.segment,
        f"{one.queries:,}",
        f"{one.impressions:,.0f}",
        decimal(one.new),
        decimal(one.old),
        signed(one.difference),
        bracket(*one.interval, signed),
        "worse" if one.worse else "",
    ]


def _numbers(one: PolicyDecision) -> tuple[str, str, str]:
    found = one.comparison
    bound = "–" if one.lower_bound is None else signed(one.lower_bound)
    return signed(found.difference), bracket(*found.interval, signed), bound


def write(decision: Decision, path: Path, *, command: str = "") -> Path:
    """The page as a file."""
    return write_text(path, html(decision, command=command), page.REPORT)


def html(decision: Decision, *, command: str = "") -> str:
    """One page: the decision, the picture, every policy with its reasons, the segments, what has to be believed."""
    title = headline(decision)
    chosen = [one for one in decision.candidates if one.name == decision.chosen] or list(decision.candidates[:1])
    caption = (
        f"Clicks per impression above {decision.against}. Dot and line: the estimate with its {decision.level:.0%} interval, "
        "which is about other queries like these too; upright bar: what it is at least, all policies together; dashed: what "
        f"was asked, {decision.at_least:g}."
    )
    worse = f'<p class="headline"><strong>{escape(warning(decision))}</strong></p>' if warning(decision) else ""
    sections = [
        f"<header><h1>{escape(title)}</h1>{worse}<p>{escape(_minus(decision.why))}.</p>{_tiles(decision, chosen[0])}</header>",
        page.figure_of("The difference", differences_figure(decision), caption),
        *(_segments(decision, one) for one in chosen if one.segments),
        page.section("Every policy", _pairs(decision)),
        page.section(f"What you have to believe for the {decision.level:.0%}", page.bullets(assumptions(decision))),
        page.reproduce(command),
    ]
    return page.document(escape(title), sections, __version__)


def _tiles(decision: Decision, one: PolicyDecision) -> str:
    """Today, what is promised, and what is sure: the three numbers that a meeting remembers."""
    new, old = one.comparison.new.value, one.comparison.old.value
    boxes = [(f"{label(decision.against)}, now", decimal(old), "clicks per impression")]
    boxes.append((f"{one.name}, estimated", decimal(new), _more(new - old, old)))
    if one.lower_bound is not None:
        known = not guessed(one.comparison.new, varies=True)
        sure = f"{decision.level:.0%} sure" if known else "at least, if the propensities are right"
        at_least = decimal(max(old + one.lower_bound, 0.0))
        boxes.append((f"{one.name}, {sure}", at_least, _more(one.lower_bound, old)))
    return page.tiles(boxes)


def _more(gap: float, old: float) -> str:
    share = f", {gap / old:+.0%}" if old > 0 else ""
    return _minus(f"{signed(gap)}{share}")


def _minus(text: str) -> str:
    """Numbers with the sign that a page has for them."""
    return re.sub(r"(?<![\w-])-(?=\d)", "−", text)


def _pairs(decision: Decision) -> str:
    lines = [page.line(_chip(one), page.cells((*_numbers(one), str(one.call)))) for one in decision.candidates]
    reasons = "".join(
        f"<li>{_chip(one)}: <strong>{escape(one.call)}</strong>"
        + page.bullets(f"{label(_minus(reason))}." for reason in one.reasons)
        + "</li>"
        for one in decision.candidates
    )
    table = page.table_of(page.heads_of(_heads(decision, "policy")), lines, "Every policy")
    return f'{table}<ul class="methods">{reasons}</ul>'


def _chip(one: PolicyDecision) -> str:
    return f'<span class="chip" style="--c: var(--{COLOURS[one.call]})">{escape(one.name)}</span>'


def _segments(decision: Decision, candidate: PolicyDecision) -> str:
    lines = [page.line(escape(first), page.cells(rest)) for first, *rest in map(_segment_cells, candidate.segments)]
    title = f"{candidate.name} by {decision.segment_column}"
    picture = style.svg(segments_figure(decision, candidate), f"{title}: difference and interval of each segment.")
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">{picture}</div>'
    return page.section(title, f"<figure>{box}</figure>{page.table_of(page.heads_of(SEGMENT_HEADS), lines, title)}")


@style.styled
def segments_figure(decision: Decision, candidate: PolicyDecision) -> "Figure":
    """The difference in every segment of a policy: a dot and its interval; those that are surely worse in their own colour."""
    found = candidate.segments[::-1]
    names, above = [one.segment for one in found], f"clicks per impression above {decision.against}"
    figure, axis = style.lines_figure(names, 0.9 + 0.3 * len(found), above)
    axis.axvline(0.0, color=style.THEME["ink"], lw=1.2)
    for y, one in enumerate(found):
        colour = style.THEME[COLOURS[Call.DO_NOT if one.worse else Call.SHIP if one.interval[0] > 0 else Call.CANARY]]
        style.interval_line(axis, y, *one.interval, colour, across=True)
        axis.plot(one.difference, y, marker="s" if one.worse else "o", color=colour, ms=7)
    return figure


@style.styled
def differences_figure(decision: Decision) -> "Figure":
    """Every policy's difference: a dot, its interval, its bound, and the line that it has to be right of."""
    candidates = decision.candidates[::-1]
    names, above = [one.name for one in candidates], f"clicks per impression above {decision.against}"
    figure, axis = style.lines_figure(names, 1.0 + 0.42 * len(candidates), above)
    axis.axvline(decision.at_least, color=style.THEME["ink"], lw=1.2, ls="--")
    for y, one in enumerate(candidates):
        colour = style.THEME[COLOURS[one.call]]
        style.interval_line(axis, y, *one.comparison.interval, colour, across=True)
        if one.lower_bound is not None and math.isfinite(one.lower_bound):
            axis.plot(one.lower_bound, y, marker="|", ms=15, mew=2.4, color=colour)
            axis.plot([one.lower_bound, one.comparison.difference], [y, y], color=colour, lw=0.8, alpha=0.65)
        inside = colour if one.name == decision.chosen else style.THEME["page"]
        axis.plot(one.comparison.difference, y, marker=MARKERS[one.call], color=colour, ms=8, mew=1.6, mfc=inside)
        estimate, _, bound = _numbers(one)
        style.beside(axis, y, f"{one.call}: {estimate}, at least {bound}")
    return figure
