"""A report as a value: sections of sentences, tables and figures; and its two forms, one self-contained page and Markdown.

The page (`templates/report.html`) needs no network, but for pictures of items where these were asked for, and no script; it
follows the reader's light or dark theme, fits a phone, and prints. What stands in `backquotes` is set as code.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemrank import __version__
from tandemrank._base.files import Kind, write_text
from tandemrank.reports import style
from tandemrank.reports.words import ABOUT, Best, Sheet, label, plain

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

GENERATOR = '<meta name="generator" content="TandemRank">'
REPORT = Kind("report", check=lambda path: GENERATOR in path.read_text(encoding="utf-8", errors="replace"))
# The colours of `style.THEME` on a dark page.
DARK = {
    "ink": "#e8eaed", "muted": "#9aa4b0", "grid": "#363d46", "page": "#15181c",
    "method-0": "#5ab4f0", "method-1": "#ff9a57", "method-2": "#3fd0a4",
    "method-3": "#f0a6cf", "method-4": "#e0c050",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A query or an item on a page: its words, where they lead, its picture, and what is said of it."""

    words: str
    url: str = ""
    image: str = ""
    note: str = ""


@dataclass(frozen=True)
class SideBySide:
    """The lists that two systems show to one query, top first."""

    query: Entry
    old: Sequence[Entry]
    new: Sequence[Entry]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report under its title: whatever it has of these, in this order. One that has nothing is left out.

    `tiles`: the few numbers to remember, each what it is, the number, and a word under it. `terms`: names, and what is said of
    each. `draw` gives the figure. `lists`: of two systems side by side, whose names are `sides`.
    """

    title: str
    tiles: Sequence[tuple[str, str, str]] = ()
    sentences: Sequence[str] = ()
    terms: Mapping[str, str] = field(default_factory=dict)
    sheet: Sheet | None = None
    draw: "Callable[[], Figure] | None" = None
    caption: str = ""
    lists: Sequence[SideBySide] = ()
    sides: tuple[str, str] = ("old list", "new list")
    code: str = ""

    def __bool__(self) -> bool:
        has_rows = self.sheet is not None and len(self.sheet.rows) > 0
        return bool(self.tiles or self.sentences or self.terms or has_rows or self.draw or self.lists or self.code)

    @property
    def svg(self) -> str:
        """Its figure."""
        return "" if self.draw is None else style.svg(self.draw(), f"{self.title}. {self.caption}")


@dataclass(frozen=True)
class Report:
    """What a report says. `colours`: names with a colour of the palette, wherever they stand alone. `period`: of the log."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    colours: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__
    period: str = ""
    made: str = field(default_factory=lambda: date.today().isoformat())

    def html(self) -> str:
        """One self-contained page."""
        return _template().render(
            report=self,
            sections=list(filter(None, self.sections)),
            themes=(style.THEME, DARK),
            generator=GENERATOR,
            zip=zip,
        )

    def markdown(self) -> str:
        """All of it but the figures."""
        parts = [f"# {plain(self.title)}", *map(plain, self.lead)]
        for section in filter(None, self.sections):
            terms = [f"{name}: {words}" for name, words in section.terms.items()]
            items = [f"- {plain(sentence)}" for sentence in (*section.sentences, *terms)]
            code = f"```\n{section.code}\n```" if section.code else ""
            sheet = "" if section.sheet is None else section.sheet.markdown()
            caption = "" if section.draw else plain(section.caption)  # of a figure it says nothing without it
            said = [part for part in ("\n".join(items), sheet, caption, code) if part]
            parts += [f"## {section.title}", *said] if said else []
        return "\n\n".join(parts) + "\n"

    def write(self, path: str | Path) -> Path:
        """Writes the page in one piece and returns its path."""
        return write_text(path, self.html(), REPORT)


@cache
def _template() -> "Template":
    import jinja2
    from markupsafe import Markup

    here = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=here, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["html"] = Markup  # our own, and not from outside
    environment.filters |= {"said": _said, "typed": _typed}
    environment.tests["best"] = lambda cell: isinstance(cell, Best)
    return environment.get_template("report.html")


def _said(text: str) -> str:
    """A sentence, escaped, with what stands in backquotes as code."""
    from markupsafe import Markup, escape

    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # one backquote without another is none of ours
        return escape(text)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(_typed(x)) if i % 2 else escape(x) for i, x in enumerate(parts))


def _typed(text: str) -> str:
    """A command, escaped; no line ends within the name of an option."""
    from markupsafe import Markup, escape

    parts = re.split(r"(--[\w-]+)", text)
    whole = Markup('<span class="whole">{}</span>')
    return Markup("").join(whole.format(x) if i % 2 else escape(x) for i, x in enumerate(parts))


def methods_of(methods: Sequence[str]) -> Section:
    """What each method does."""
    return Section(title="The methods", terms={label(method): ABOUT[method] for method in methods if method in ABOUT})


COLOURS = {label(method): f"method-{slot}" for method, slot in style.SLOTS.items()}  # by the name that a reader sees


def reproduce(command: str) -> Section:
    """The command that made the result."""
    return Section(title="To reproduce", code=command)


def figure(title: str, draw: "Callable[..., Figure]", *arguments: Any, caption: str) -> Section:
    """A figure with its caption."""
    return Section(title=title, draw=lambda: draw(*arguments), caption=caption)
