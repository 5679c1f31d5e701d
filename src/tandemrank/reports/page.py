"""The parts of a self-contained HTML page in our look."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

from tandemrank._base.files import Kind
from tandemrank.reports import style
from tandemrank.reports.words import ABOUT, Switch, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


GENERATOR = '<meta name="generator" content="TandemRank">'
REPORT = Kind("report", check=lambda path: GENERATOR in path.read_text(encoding="utf-8", errors="replace"))


def document(title: str, sections: Iterable[str], version: str) -> str:
    """Sections, HTML already, as a page in our look."""
    body = "\n".join(filter(None, sections))
    return PAGE.format(title=title, css=stylesheet(), body=body, version=escape(version))


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<meta name="generator" content="TandemRank">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<main>
{body}
</main>
<footer>TandemRank {version}</footer>
</body>
</html>
"""


def reproduce(command: str) -> str:
    """The command that made the result."""
    return section("To reproduce", f"<pre><code>{escape(command)}</code></pre>" if command else "")


def chip(name: str, slot: int | None) -> str:
    """A name in the colour of its place in the palette, grey without one."""
    colour = "muted" if slot is None else f"method-{slot}"
    return f'<span class="chip" style="--c: var(--{colour})">{escape(label(name))}</span>'


def section(title: str, body: str) -> str:
    """A part of the page under its heading; nothing where there is nothing to say."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def table_of(heads: Iterable[str], lines: Iterable[str], name: str) -> str:
    """A table in a box that scrolls where the screen is narrow."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}"><table>'
        f"<thead>{''.join(heads)}</thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def heads_of(names: Iterable[str]) -> list[str]:
    """The line of names over a table."""
    heads = (f'<th scope="col">{escape(name)}</th>' for name in names)
    return [f"<tr>{''.join(heads)}</tr>"]


def cells(values: Iterable[str]) -> list[str]:
    """Text as cells of a line."""
    return [f"<td>{escape(value)}</td>" for value in values]


def bullets(sentences: Iterable[str], kind: str = "") -> str:
    """Sentences as a list; nothing where there are none."""
    lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul{kind}>{lines}</ul>" if lines else ""


def methods_of(chips: Mapping[str, str]) -> str:
    """What each method does, after its name in its colour; nothing where no method is known."""
    lines = "".join(f"<li>{chip}: {escape(ABOUT[method])}.</li>" for method, chip in chips.items() if method in ABOUT)
    return f'<ul class="methods">{lines}</ul>' if lines else ""


def tiles(boxes: Iterable[tuple[str, str, str]], note: str = "") -> str:
    """The few numbers to remember: what each is, the number, and a word under it."""
    divs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(number)}<small>{escape(words)}</small></dd></div>"
        for name, number, words in boxes
    )
    return f'<dl class="tiles">{divs}</dl>' + (f'<p class="note">{escape(note)}</p>' if note else "")


def line(first: str, rest: Iterable[str], kind: str = "") -> str:
    """A line of a table."""
    return f'<tr{kind}><th scope="row">{first}</th>{"".join(rest)}</tr>'


def switches_of(switches: Iterable[Switch]) -> str:
    """Every switch with its value and what it is."""
    heads = heads_of(("switch", "value", "what it is"))
    lines = [
        line(f"<code>{escape(name)}</code>", [f"<td><code>{escape(value)}</code></td><td>{escape(words)}</td>"])
        for name, value, words in switches
    ]
    return section("Every switch", f'<div class="words">{table_of(heads, lines, "Switches")}</div>') if lines else ""


def figure_of(title: str, figure: "Figure", caption: str) -> str:
    """A figure with its caption under a heading."""
    picture = style.svg(figure, f"{title}. {caption}")
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">{picture}</div>'
    return section(title, f"<figure>{box}<figcaption>{escape(caption)}</figcaption></figure>")


DARK = {
    "ink": "#e8eaed", "muted": "#9aa4b0", "grid": "#363d46", "page": "#15181c",
    "method-0": "#5ab4f0", "method-1": "#ff9a57", "method-2": "#3fd0a4",
    "method-3": "#f0a6cf", "method-4": "#e0c050", "method-5": "#aab4be",
}  # fmt: skip


def stylesheet() -> str:
    """Both themes and the look of everything."""
    light, dark = (" ".join(f"--{n}: {c};" for n, c in theme.items()) for theme in (style.THEME, DARK))
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{CSS}"


CSS = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
main, footer { max-width: 60rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 3rem; }
header p { max-width: 44rem; }
h1 { font-size: 2.1rem; line-height: 1.2; letter-spacing: -.02em; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.3; letter-spacing: -.01em; margin: 0 0 .9rem; }
section { margin-top: 3.2rem; }
ul { padding-left: 1.1rem; }
.methods { list-style: none; padding: 0; }
li { margin: .25rem 0; max-width: 46rem; }
.chip { font-weight: 600; color: var(--c); white-space: nowrap; }
.chip::before { content: ""; display: inline-block; width: .62em; height: .62em; border-radius: 50%;
  background: var(--c); margin-right: .45em; }
.headline { font-size: 1.08rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(12.5rem, 1fr)); gap: .9rem; margin: 0; }
.tiles div { border: 1px solid var(--grid); border-radius: .6rem; padding: .8rem 1rem; }
.tiles dt { color: var(--muted); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.75rem; font-weight: 600; line-height: 1.35; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; line-height: 1.35; }
th, td { padding: .45rem .55rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); font-weight: 400; }
th:first-child { text-align: left; }
thead th { color: var(--muted); vertical-align: bottom; }
th[scope=colgroup] { text-align: center; }
.best { font-weight: 700; }
small { display: block; font-size: .76rem; font-weight: 400; color: var(--muted); white-space: nowrap; }
thead small { white-space: normal; }  td[colspan] small { display: inline; margin-left: .5em; }
.narrow table { width: auto; }
.narrow td, .narrow th { min-width: 4.5rem; }
.dense table { font-size: .88rem; }
.dense th, .dense td { padding: .4rem .22rem; }
.dense small { font-size: .68rem; }
.paper { font-style: italic; }
.reference th, .reference td { color: var(--muted); }
.reference td[colspan] { text-align: center; }
.words th, .words td { text-align: left; }
.words td:last-child { color: var(--muted); }
.words code { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
figure { margin: 0; }
figure svg { display: block; width: 100%; min-width: 40rem; height: auto; }
figcaption, .note, footer { color: var(--muted); font-size: .88rem; max-width: 46rem; }
figcaption { margin-top: .5rem; }
summary { cursor: pointer; color: var(--muted); }
details { margin: .6rem 0; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; font-size: .88em; }
pre { border: 1px solid var(--grid); border-radius: .6rem; padding: .9rem 1rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
footer { padding-top: 3rem; padding-bottom: 3rem; }
@media print { html { font-size: 12px; } body { font-size: 1rem; } section { break-inside: avoid; margin-top: 1.6rem; }
  .scroll { overflow: visible; } figure svg { min-width: 0; } header { padding-top: 0; } }
"""
