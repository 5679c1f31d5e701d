"""Numbers, names and tables as a reader sees them; the same in every form of a report."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

ABOUT = {
    "beliefs": "the re-ranker is what the log is believed to say; the generator, unless all items are candidates, the product "
    "nearest to it; nothing is trained",
    "joint": "both stages learn together, each from what the other does",
    "independent": "each stage learns alone, as if it showed its lists itself; then they are stacked",
    "stacking": "the generator learns first and alone, then the re-ranker for its candidates",
    "baseline": "the re-ranker learns first and alone, then the generator for the frozen re-ranker (Ma et al. 2020)",
}


def count(n: float) -> str:
    """30000 as 30k, 316228 as 316k, 1000000 as 1M."""
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return f"{n:g}"


def label(name: str) -> str:
    """A name as a reader sees it: 'joint' as 'Joint'."""
    return name[:1].upper() + name[1:]


def decimal(value: float, digits: int = 3) -> str:
    """A value to some digits, a dash where there is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign and a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def closely(value: float) -> str:
    """A difference of NDCG: methods may be closer than a thousandth."""
    return signed(value, 4)


def bracket(low: float, high: float, write: Callable[[float], str] = decimal) -> str:
    """An interval in brackets, nothing where there is none."""
    return f"[{write(low)}, {write(high)}]" if math.isfinite(low) and math.isfinite(high) else ""


def duration(seconds: float) -> str:
    """A time in the unit that a person would use."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def listed(words: Sequence[str], last: str = "and") -> str:
    """One, two and three."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0] if words else ""


class Best(str):
    """A cell that stands out: the highest of its line."""

    __slots__ = ()


@dataclass(frozen=True)
class Sheet:
    """A table of text, the same for a page, for Markdown and for a terminal. Columns in `left` stand left, others right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[str] = ()

    def terminal(self, title: str = "", caption: str = "") -> "Table":
        """For a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        look: Any = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "collapse_padding": True}
        table = Table(title=title or None, title_justify="left", caption_justify="left", **look)
        for head in self.heads:
            table.add_column(Text(head), justify="left" if head in self.left else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell, "bold" if isinstance(cell, Best) else "") for cell in row))
        table.caption = Text(caption) if caption else None
        return table

    def markdown(self) -> str:
        """As a table of Markdown."""
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        return "\n".join("| " + " | ".join(map(plain, line)) + " |" for line in lines)


def plain(text: str) -> str:
    """Text that Markdown takes as text, in one line."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", ", ")


def switch_sheet(values: Mapping[str, object], explained: Mapping[str, str]) -> Sheet:
    """Every switch with its value, and what it is."""
    heads = ("switch", "value", "what it is")
    rows = [(f"`{name}`", _of_switch(value), explained.get(name, "")) for name, value in values.items()]
    return Sheet(heads, rows, heads)


def _of_switch(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_of_switch, value)) or "–"
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)
