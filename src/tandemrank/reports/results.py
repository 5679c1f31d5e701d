"""The figure and the page of a result that has no page of its own: its words, its figure, its table."""

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from tandemrank._base.results import Result
from tandemrank.clicks.examination import Behaviour, ExaminationCurve
from tandemrank.errors import InputError
from tandemrank.logs.sources import Log
from tandemrank.logs.validation import Validation, validate
from tandemrank.offpolicy.comparison import Comparison
from tandemrank.offpolicy.values import Value
from tandemrank.reports import figures, sections, style
from tandemrank.reports.figures import Dot, Panel, Step
from tandemrank.reports.page import Report, Section
from tandemrank.reports.sections import BY_ID, Named
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
    return figures.by_rank(
        result.theta.tolist(),
        "examination",
        intervals=list(zip(result.low.tolist(), result.high.tolist(), strict=True)),
    )


@plot.register(Validation)
def _(result: Validation) -> "Figure":
    rates = () if result.log is None else result.log.click_rate_by_rank
    return figures.by_rank([float("nan") if rate is None else rate for rate in rates], "clicks per shown item")


@plot.register(Log)
def _(result: Log) -> "Figure":
    return plot(validate(result))


@plot.register(Trained)
def _(result: Trained) -> "Figure":
    steps = [Step(epoch.phase, epoch.objective) for epoch in result.history]
    return figures.learning_curves([[Panel("training", style.THEME[LEAD], [steps])]], "objective")


def report(result: Result, *, named: Named = BY_ID) -> Report:
    """Words, figure and table on one page, and what else is known."""
    title = type(result).__name__
    rows = result.to_frame().head(MOST_ROWS)
    sheet = Sheet(rows.columns, [[_cell(value) for value in row] for row in rows.iter_rows()])
    parts = [
        Section(title="Figure", draw=lambda: plot(result)),
        *_more(result, named),
        Section(title="Table", sheet=sheet),
    ]
    return Report(title, result._lines(), parts)


@singledispatch
def _more(result: Result, named: Named) -> Sequence[Section]:
    """What a page has beside the figure and the table."""
    return ()


@_more.register
def _(result: Value, named: Named) -> Sequence[Section]:
    return sections.weights(result), sections.reading(result.behaviour)


@_more.register
def _(result: Comparison, named: Named) -> Sequence[Section]:
    new, old = result.sides
    changes = sections.of_sides(result.new.log, new, old, named, sides=("old list", "new list"))
    return changes, sections.weights(result.new), sections.reading(result.new.behaviour)


@_more.register
def _(result: ExaminationCurve, named: Named) -> Sequence[Section]:
    return (sections.reading(Behaviour(result.dependence, result.trust, result.cells)),)


def _cell(value: object) -> str:
    return "–" if value is None else decimal(value, 4) if isinstance(value, float) else str(value)
