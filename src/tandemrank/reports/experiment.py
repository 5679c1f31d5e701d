"""The result of an experiment as one self-contained HTML page; its words, Markdown and terminal table are in `words`.

The page is made from the content of `table.json` alone and does without any part of it that is missing. It needs no
network and no script, follows the reader's light or dark theme, and prints.
"""

import math
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tandemrank._base import files
from tandemrank.reports import figures
from tandemrank.reports.page import REPORT, figure_of, line, page, reproduce, section, switches_of, table_of
from tandemrank.reports.words import (
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
    methods,
    number,
    paper_value,
    places,
    signed,
    what_was_run,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(table: Table, path: str | Path) -> Path:
    """Writes the page in one piece and returns its path."""
    return files.write_text(path, html(table), REPORT)


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
