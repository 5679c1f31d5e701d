"""The figure and the page of a result that has no page of its own: its words, its figure, its table."""

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from tandemrank._base.results import Result
from tandemrank.clicks.examination import ExaminationCurve
from tandemrank.errors import InputError
from tandemrank.logs.sources import Log
from tandemrank.logs.validation import Validation, validate
from tandemrank.reports import figures, style
from tandemrank.reports.figures import Dot, Panel, Step
from tandemrank.reports.page import Report, Section
from tandemrank.reports.words import Sheet, decimal
from tandemrank.training.loop import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DOTS, MOST_ROWS = 40, 1000
LEAD = "method-0"


@singledispatch
def plot(result: Result) -> "Figure":
    """Every row that has a value and an interval, as a dot and a line."""
    rows = [row for row in result._rows() if None not in (row.get("value"), row.get("low"), row.get("high"))]
    found = [Dot(_name(row), row["value"], (row["low"], row["high"]), style.THEME[LEAD]) for row in rows]
    if not found:
        raise InputError("expected a result with numbers; got one that has none to draw.")
    return figures.dots(found[:MOST_DOTS], "value, with its interval", asked=None)


def _name(row: Mapping[str, Any]) -> str:
    """What a row is about: what stands before its value."""
    return " ".join(str(row[name]) for name in list(row)[: list(row).index("value")]) or "policy"


@plot.register(ExaminationCurve)
def _(result: ExaminationCurve) -> "Figure":
    return _by_rank(
        result.theta.tolist(), "examination", list(zip(result.low.tolist(), result.high.tolist(), strict=True))
    )


@plot.register(Validation)
def _(result: Validation) -> "Figure":
    rates = () if result.log is None else result.log.click_rate_by_rank
    return _by_rank([float("nan") if rate is None else rate for rate in rates], "clicks per shown item")


@plot.register(Log)
def _(result: Log) -> "Figure":
    return plot(validate(result))


@plot.register(Trained)
def _(result: Trained) -> "Figure":
    steps = [Step(epoch.phase, epoch.objective) for epoch in result.history]
    return figures.learning_curves([[Panel("training", style.THEME[LEAD], [steps])]], "objective")


@style.styled
def _by_rank(values: Sequence[float], ylabel: str, intervals: Sequence[tuple[float, float]] = ()) -> "Figure":
    """A number for each rank."""
    figure, axes = style.panels(1, 1, 2.8)
    axis, ranks = axes[0, 0], range(1, len(values) + 1)
    axis.plot(ranks, values, marker="o", color=style.THEME[LEAD])
    for rank, interval in zip(ranks, intervals, strict=False):
        style.interval_line(axis, rank, *interval, style.THEME[LEAD])
    axis.set(xlabel="rank", ylabel=ylabel, ylim=(0, None))
    axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def report(result: Result) -> Report:
    """Words, figure and table on one page."""
    title = type(result).__name__
    rows = result.to_frame().head(MOST_ROWS)
    sheet = Sheet(rows.columns, [[_cell(value) for value in row] for row in rows.iter_rows()])
    sections = [Section(title="Figure", draw=lambda: plot(result)), Section(title="Table", sheet=sheet)]
    return Report(title, result._lines(), sections)


def _cell(value: object) -> str:
    return "–" if value is None else decimal(value, 4) if isinstance(value, float) else str(value)
