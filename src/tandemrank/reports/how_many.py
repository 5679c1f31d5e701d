"""How many candidates: the curve of value against K2 with the re-ranker's cost, as a table and as a page."""

from typing import TYPE_CHECKING

from tandemrank.offpolicy.how_many import CandidateCurve, Loss
from tandemrank.reports import figures, page, style
from tandemrank.reports.page import Report, Section
from tandemrank.reports.words import Sheet, bracket, decimal, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = "candidates", "clicks", "95% interval", "kept", "s per 1,000", "generator loses", "re-ranker loses"
CAPTION = (
    "Clicks per impression against the number of candidates, with intervals; the dashed line is the re-ranker over all items. "
    "Grey, by the right axis: seconds in which the re-ranker scores the candidates of 1,000 requests, here and one at a time."
)


def counts(found: CandidateCurve) -> Sheet:
    """Every number of candidates in a line."""
    rows = [
        (
            f"{one.candidates:,}",
            decimal(one.value),
            bracket(*one.interval),
            f"{one.kept:.1%}",
            decimal(one.seconds, 2),
            _loss(one.generator_loss),
            _loss(one.ranker_loss),
        )
        for one in found.counts
    ]
    return Sheet(HEADS, rows)


def _loss(found: Loss | None) -> str:
    """With half its interval."""
    if found is None:
        return "–"
    low, high = found.interval
    return f"{signed(found.value)} ± {decimal((high - low) / 2)}"


def notes(found: CandidateCurve) -> list[str]:
    """What the table means, and whether to believe it."""
    return [
        "kept: of the clicks of the most candidates. The generator loses what the re-ranker would get over all items; the "
        "re-ranker what the belief's own order of the same candidates would get (--belief).",
        f"{found.verdict}: {'; '.join(found.reasons)}",
    ]


def report(found: CandidateCurve, *, command: str = "") -> Report:
    """One page."""
    sections = [
        page.figure("Value and cost", plot, found, caption=CAPTION),
        Section(title="Every number of candidates", sentences=notes(found), sheet=counts(found)),
        page.reproduce(command),
    ]
    return Report("How many candidates?", [found.sentence], sections)


@style.styled
def plot(found: CandidateCurve) -> "Figure":
    """The value with its intervals, and the seconds of the re-ranker."""
    x, values = [one.candidates for one in found.counts], [one.value for one in found.counts]
    figure = figures.by_candidates(x, values, found.everything, ylabel="clicks per impression")
    for one in found.counts:
        style.interval_line(figure.axes[0], one.candidates, *one.interval, style.THEME["method-0"])
    cost = figure.axes[0].twinx()
    cost.plot(x, [one.seconds for one in found.counts], marker="s", ms=4, lw=1, color=style.THEME["muted"])
    cost.set(ylabel="re-ranker, s per 1,000 requests", ylim=(0, None))
    cost.grid(False)
    return figure
