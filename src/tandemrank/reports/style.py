"""The look of all figures: colours, markers, and a figure as SVG.

A method has one colour and one marker in all figures. The colours are written as CSS variables with a fallback, so a
figure inside the page follows its light or dark theme and stands alone as well. matplotlib is imported only when a figure
is drawn.
"""

import functools
import io
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")

# Okabe and Ito's palette, darkened where it would be too faint for words; the report has the dark theme's values.
THEME = {
    "ink": "#1d2329", "muted": "#66707b", "grid": "#dfe3e8", "page": "#fffffe",
    "method-0": "#0072b2", "method-1": "#c65300", "method-2": "#00805d",
    "method-3": "#b0568a", "method-4": "#8a6d00",
}  # fmt: skip
SLOTS = {"joint": 0, "independent": 1, "baseline": 2, "beliefs": 3, "stacking": 4}
MARKERS = "osDv^"
NARROW, WIDE = 6.4, 10.0  # of one axis, which a phone shows whole; of several beside each other, or with long names
STYLE: dict[str, Any] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10, "text.parse_math": False,
    "text.color": THEME["ink"], "axes.labelcolor": THEME["muted"], "axes.titlesize": 10, "axes.titlecolor": THEME["ink"],
    "axes.edgecolor": THEME["grid"], "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": THEME["grid"], "grid.linewidth": 0.8, "xtick.color": THEME["grid"],
    "ytick.color": THEME["grid"], "xtick.labelcolor": THEME["muted"], "ytick.labelcolor": THEME["muted"],
    "lines.linewidth": 1.8, "lines.markersize": 6, "axes.facecolor": "none", "figure.facecolor": "none",
    "axes.titlelocation": "left", "axes.unicode_minus": True, "svg.fonttype": "none", "figure.dpi": 72,
}  # fmt: skip


@contextmanager
def _style(**more: Any) -> Iterator[None]:
    """Our style, whatever the user's matplotlib settings are; those are as they were afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE | more)  # type: ignore[arg-type]
        yield


def styled(draw: "Callable[Arguments, Figure]") -> "Callable[Arguments, Figure]":
    """A figure in our style."""

    @functools.wraps(draw)
    def drawn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> "Figure":
        with _style():
            return draw(*args, **kwargs)

    return drawn


def panels(
    rows: int, columns: int, height: float, *, width: float | None = None, **options: Any
) -> "tuple[Figure, Any]":
    """A figure with rows x columns axes; a notebook shows it as SVG."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_svg_(self) -> str:
            return svg(self)

    width = width or (WIDE if columns > 1 else NARROW)
    figure = Shown(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def svg(figure: "Figure", alt: str = "") -> str:
    """The figure as SVG for a page: the same bytes every time, no ids that a figure of another `alt` has, words as words."""
    out = io.StringIO()
    with _style(**{"svg.hashsalt": f"tandemrank {alt}"}):  # ticks are made only now
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"(?s)<metadata>.*?</metadata>|<!--.*?-->", "", out.getvalue())
    width, height = (72 * inches for inches in figure.get_size_inches())
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    # A page may make it larger by half, and smaller while its words can still be read.
    limits = f"max-width: {1.5 * width:.0f}px; min-width: {0.75 * width:.0f}px"
    head = f'<svg {names} viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}" style="{limits}">'
    text = re.sub(r"(?s)^.*?<svg[^>]*>", lambda _: head, text, count=1)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1; font-family: inherit, sans-serif", text)
    for name, colour in THEME.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    return re.sub(r"\n\s*", "\n", text).strip()


class Look(TypedDict):
    """Colour and marker, as matplotlib takes them."""

    color: str
    marker: str


def look_of(method: str) -> Look:
    """Colour and marker of a method; grey for what is none of the methods."""
    slot = SLOTS.get(method)
    return {"color": THEME["muted" if slot is None else f"method-{slot}"], "marker": MARKERS[slot or 0]}


def interval_line(axis: "Axes", at: float, low: float, high: float, colour: str, *, across: bool = False) -> None:
    """A 95% interval as a line, where there is one."""
    if math.isfinite(low) and math.isfinite(high):
        ends, place = [low, high], [at, at]
        axis.plot(
            *((ends, place) if across else (place, ends)), color=colour, lw=1.6, alpha=0.65, solid_capstyle="butt"
        )
