"""The result of an experiment as one self-contained HTML page; its words, Markdown and terminal table are in report_text.

The page is made from the content of `table.json` alone and does without any part of it that is missing. It needs no
network and no script, follows the reader's light or dark theme, and prints.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tandemrank import figures, files
from tandemrank.report_text import (
    ABOUT,
    MEASURES,
    Cell,
    Table,
    bracket,
    cells,
    closely,
    count,
    decimal,
    find,
    headline,
    interval_note,
    label,
    leader,
    markdown,
    methods,
    number,
    paper_value,
    places,
    signed,
    switches,
    text,
    what_was_run,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["html", "markdown", "text", "write"]


def write(table: Table, path: str | Path) -> Path:
    """Writes the page in one piece and returns its path."""
    return files.write_text(path, html(table))


def html(table: Table) -> str:
    """One self-contained page: figures inside, no script, no request, readable in light, in dark and on paper."""
    title = escape(str(table.get("title") or "TandemRank report"))
    grid = _grid(table) if len(cells(table)) > 1 else ""
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in headline(table))
    sections = [
        f"<header><h1>{title}</h1><p>{escape(what_was_run(table))}</p>{_methods(table)}</header>",
        section("Who is ahead", _tiles(table) + (f'<ul class="headline">{sentences}</ul>' if sentences else "")),
        section(f"NDCG@{places(table)} of every method", grid + _measures(table)),
        *_figures(table),
        _seconds(table),
        switches_of(table),
        reproduce(table),
    ]
    return page(title, sections, table.get("version"))


def page(title: str, sections: Iterable[str], version: object) -> str:
    """Sections, HTML already, as a page in our look."""
    body = "\n".join(filter(None, sections))
    return PAGE.format(title=title, css=_css(), body=body, version=escape(str(version or "")))


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
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


def reproduce(table: Table) -> str:
    """The command that made the result."""
    command = escape(str(table.get("command") or ""))
    return section("To reproduce", f"<pre><code>{command}</code></pre>" if command else "")


def section(title: str, body: str) -> str:
    """A part of the page under its heading; nothing where there is nothing to say."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _chip(table: Table, method: str) -> str:
    """A method's name in its colour."""
    return (
        f'<span class="chip" style="--c: var(--method-{figures.slots(table)[method]})">{escape(label(method))}</span>'
    )


def _methods(table: Table) -> str:
    known = [method for method in methods(table) if method in ABOUT]
    lines = (f"<li>{_chip(table, method)}: {escape(ABOUT[method])}.</li>" for method in known)
    return f'<ul class="methods">{"".join(lines)}</ul>' if known else ""


def _tiles(table: Table) -> str:
    """The few numbers to remember, from the setting with the longest log."""
    cell = max(cells(table), key=lambda c: (c[1], -c[0]), default=(0, 0))
    own = [d for d in table.get("differences") or [] if (d["K2"], d["N"]) == cell]
    method = str(own[0]["method"]) if own else leader(table, cell)
    if method is None:
        return ""
    row = find(table, method, cell)
    tiles = [
        (f"NDCG@{places(table)}", decimal(row.get("ndcg_mean")), bracket(row.get("ndcg_low"), row.get("ndcg_high")))
    ]
    for d in own:
        tiles.append(
            (f"− {label(d['against'])}", closely(number(d.get("mean"))), bracket(d.get("low"), d.get("high"), closely))
        )
    for reference in table.get("references") or []:
        if reference["name"] == "production" and all(d["against"] != "production" for d in own):
            gain = number(row.get("ndcg_mean")) - number((reference.get("ndcg") or {}).get("mean"))
            tiles.append(("− Production", signed(gain), "difference of the means"))
    boxes = (
        f"<div><dt>{escape(label(method))} {escape(name)}</dt><dd>{size}<small>{bounds or 'no interval'}</small></dd></div>"
        for name, size, bounds in tiles
    )
    where = f"K2 = {cell[0]:,} candidates, N = {cell[1]:,} impressions; in brackets the 95% interval."
    return f'<dl class="tiles">{"".join(boxes)}</dl><p class="note">{where}</p>'


# Tables. The pieces of a line are HTML already; whatever comes from outside was escaped on the way.


def table_of(heads: Iterable[str], lines: Iterable[str], name: str) -> str:
    """A table in a box that scrolls where the screen is narrow."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}"><table>'
        f"<thead>{''.join(heads)}</thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def line(first: str, rest: Iterable[str], kind: str = "") -> str:
    """A line of a table."""
    return f'<tr{kind}><th scope="row">{first}</th>{"".join(rest)}</tr>'


def _td(value: object, low: object = None, high: object = None, more: str = "", kind: str = "", digits: int = 3) -> str:
    bounds = bracket(low, high)
    return f"<td{kind}>{decimal(value, digits)}{f'<small>{bounds}</small>' if bounds else ''}{more}</td>"


def _ndcg(table: Table, method: str, cell: Cell) -> str:
    """NDCG of a method in a setting with its interval, bold where it is the highest, the paper's under it."""
    row, paper = find(table, method, cell), paper_value(table, method, cell)
    more = f'<small class="paper">paper {decimal(paper)}</small>' if math.isfinite(paper) else ""
    kind = ' class="best"' if leader(table, cell) == method else ""
    return _td(row.get("ndcg_mean"), row.get("ndcg_low"), row.get("ndcg_high"), more, kind)


def _setting_heads(table: Table) -> list[str]:
    """K2 over N."""
    columns = cells(table)
    widths = Counter(K2 for K2, _ in columns)
    over = (f'<th colspan="{width}" scope="colgroup">K2 = {K2:,}</th>' for K2, width in widths.items())
    under = (f'<th scope="col">{count(N)}</th>' for _, N in columns)
    return [f"<tr><td></td>{''.join(over)}</tr>", f'<tr><th scope="col">N</th>{"".join(under)}</tr>']


def _grid(table: Table) -> str:
    """Methods by settings, as the paper prints it."""
    columns = cells(table)
    lines = [line(_chip(table, m), (_ndcg(table, m, cell) for cell in columns)) for m in methods(table)]
    for reference in table.get("references") or []:
        found, kind = reference.get("ndcg") or {}, f' colspan="{len(columns)}"'
        value = _td(found.get("mean"), found.get("low"), found.get("high"), kind=kind)
        lines.append(line(escape(label(reference["name"])), [value], ' class="reference"'))
    beside = " In italics, what the paper prints." if table.get("paper") else ""
    note = f'<p class="note">In brackets the 95% interval; the highest of each column is bold.{beside}</p>'
    return f'<div class="dense">{table_of(_setting_heads(table), lines, "NDCG by method and setting")}</div>{note}'


def _measures(table: Table) -> str:
    """Every measure of every row and reference; folded away where the settings are many."""
    several, K = len(cells(table)) > 1, places(table)
    names = (f'<th scope="col">{name.format(K=K)}<small>{words}</small></th>' for name, words in MEASURES.values())
    where = '<th scope="col">K2</th><th scope="col">N</th>' if several else ""
    heads = [f'<tr><th scope="col">method</th>{where}{"".join(names)}</tr>']
    lines = []
    for row in table.get("rows") or []:
        method, cell = str(row["method"]), (row["K2"], row["N"])
        where = f"<td>{cell[0]:,}</td><td>{count(cell[1])}</td>" if several else ""
        others = (_td(row.get(f"{key}_mean")) for key in list(MEASURES)[1:])
        lines.append(line(_chip(table, method), [where, _ndcg(table, method, cell), *others]))
    for reference in table.get("references") or []:
        found = (reference.get(key) or {} for key in MEASURES)
        values = (_td(part.get("mean"), part.get("low"), part.get("high")) for part in found)
        where = "<td></td><td></td>" if several else ""
        lines.append(line(escape(label(reference["name"])), [where, *values], ' class="reference"'))
    body = table_of(heads, lines, "All measures")
    body = f"<details><summary>All measures of every setting</summary>{body}</details>" if several else body
    full = any(reference["name"] == "full information" for reference in table.get("references") or [])
    return body + (f'<p class="note">{FULL_INFORMATION}</p>' if full else "") if lines else ""


FULL_INFORMATION = "Full information: the same model trained on the true relevance, as a mark of what could be learned."


def _seconds(table: Table) -> str:
    if not any(math.isfinite(number(row.get("seconds_mean"))) for row in table.get("rows") or []):
        return ""
    lines = [
        line(_chip(table, m), (_td(find(table, m, cell).get("seconds_mean"), digits=1) for cell in cells(table)))
        for m in methods(table)
    ]
    body = table_of(_setting_heads(table), lines, "Seconds a training")
    return section("Seconds a training", f'<div class="narrow">{body}</div>')


def switches_of(table: Table) -> str:
    """Every switch with its value and what it is."""
    heads = ['<tr><th scope="col">switch</th><th scope="col">value</th><th scope="col">what it is</th></tr>']
    lines = [
        line(f"<code>{escape(name)}</code>", [f"<td><code>{escape(value)}</code></td><td>{escape(words)}</td>"])
        for name, value, words in switches(table)
    ]
    return section("Every switch", f'<div class="words">{table_of(heads, lines, "Switches")}</div>') if lines else ""


def figure_of(title: str, draw: "Callable[[Table], Figure]", table: Table, caption: str) -> str:
    """A figure with its caption under a heading."""
    picture = figures.svg(draw(table), f"{title}. {caption}")
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">{picture}</div>'
    return section(title, f"<figure>{box}<figcaption>{escape(caption)}</figcaption></figure>")


def figures_of(table: Table) -> "list[tuple[str, Callable[[Table], Figure], str]]":
    """The figures that the table has something for: title, what draws it, caption."""
    columns, K, found = cells(table), places(table), figures.points(table)
    K2, Ns, _ = figures.shown_curves(table)
    gap = sum(abs(judged - true) for *_, judged, true in found) / max(len(found), 1)
    recall = any(math.isfinite(number(row.get("recall_at_K2_mean"))) for row in table.get("rows") or [])
    drawn: list[tuple[object, str, Callable[[Table], Figure], str]] = [
        (table.get("differences"), "Paired differences", figures.differences,
         "A dot is the mean of the paired differences, its line the 95% interval. A hollow dot: 0 is inside the interval, "
         f"so neither is shown to be ahead. {interval_note(table)}"),
        (len(columns) == 1, "From random to full information", figures.levels,
         f"NDCG@{K} with 95% intervals; in grey what to compare with."),
        (len({N for _, N in columns}) > 1, "More clicks", figures.against_N,
         f"NDCG@{K} against the length of the log, with 95% intervals; dashed: references."),
        (len({K2 for K2, _ in columns}) > 1, "More candidates", figures.against_K2,
         f"NDCG@{K} against the number of candidates, with 95% intervals; dashed: references."),
        (Ns, "Learning curves", figures.learning_curves,
         f"K2 = {K2}, up to five runs, the first one strong. Solid: true NDCG@{K}, which no training sees."
         + (" Dotted: the judgement on held-out clicks, which decides when to stop." if found else "")),
        (found and figures.in_ndcg(table), "Predicted and true", figures.predicted,
         f"NDCG@{K} as predicted from held-out clicks alone, against the truth, epoch by epoch. The mean distance is "
         f"{gap:.3f} over {len(found):,} epochs; a perfect prediction is on the diagonal."),
        (recall, "How the two stages share the work", figures.stages,
         f"Left: NDCG@{K} of the generator's own {K} best, of the ranker choosing from all items, and of the pair. Right: the "
         f"share of the relevant items among the candidates, and of the {K} items that both stages alone would show."),
    ]  # fmt: skip
    return [(title, draw, caption) for wanted, title, draw, caption in drawn if wanted]


def _figures(table: Table) -> list[str]:
    return [figure_of(title, draw, table, caption) for title, draw, caption in figures_of(table)]


DARK = {
    "ink": "#e8eaed", "muted": "#9aa4b0", "grid": "#363d46", "page": "#15181c",
    "method-0": "#5ab4f0", "method-1": "#ff9a57", "method-2": "#3fd0a4",
    "method-3": "#f0a6cf", "method-4": "#e0c050", "method-5": "#aab4be",
}  # fmt: skip


def _css() -> str:
    light, dark = (" ".join(f"--{n}: {c};" for n, c in theme.items()) for theme in (figures.THEME, DARK))
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
