"""The result of an experiment as one self-contained HTML page; Markdown and the terminal are in `text`.

The page does without any part of the table that is missing. It needs no network and no script, follows the reader's light or
dark theme, and prints.
"""

import math
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tandemrank._base import files
from tandemrank.experiments.results import Mean, Setting, Table
from tandemrank.reports import figures, page
from tandemrank.reports.style import slots
from tandemrank.reports.text import MEASURES, headline, interval_note, what_was_run
from tandemrank.reports.words import bracket, closely, count, decimal, label, signed, switches

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(table: Table, path: str | Path) -> Path:
    """Writes the page in one piece and returns its path."""
    return files.write_text(path, html(table), page.REPORT)


def html(table: Table) -> str:
    """One self-contained page: figures inside, no script, no request, readable in light, in dark and on paper."""
    title = escape(table.title)
    methods = page.methods_of({method: _chip(table, method) for method in table.methods})
    grid = _grid(table) if len(table.settings) > 1 else ""
    sections = [
        f"<header><h1>{title}</h1><p>{escape(what_was_run(table))}</p>{methods}</header>",
        page.section("Who is ahead", _tiles(table) + page.bullets(headline(table), ' class="headline"')),
        page.section(f"NDCG@{table.K} of every method", grid + _measures(table)),
        *_figures(table),
        _seconds(table),
        page.switches_of(switches(table.switches, table.switch_help)),
        page.reproduce(table.command),
    ]
    return page.document(title, sections, table.version)


def _chip(table: Table, method: str) -> str:
    """A method's name in its colour."""
    return page.chip(method, slots(table.methods)[method])


def _tiles(table: Table) -> str:
    """The few numbers to remember, from the setting with the longest log."""
    setting = max(table.settings, key=lambda s: (s[1], -s[0]), default=(0, 0))
    own = [entry for entry in table.differences if entry.setting == setting]
    method = own[0].method if own else table.leader(setting)
    if method is None:
        return ""
    ndcg = table.ndcg(method, setting)
    boxes = [(f"NDCG@{table.K}", decimal(ndcg.mean), bracket(ndcg.low, ndcg.high))]
    boxes += [(f"− {label(d.against)}", closely(d.mean), bracket(d.low, d.high, closely)) for d in own]
    for reference in table.references:
        if reference.name == "production" and all(d.against != "production" for d in own):
            boxes.append(("− Production", signed(ndcg.mean - reference.ndcg.mean), "difference of the means"))
    where = f"K2 = {setting[0]:,} candidates, N = {setting[1]:,} impressions; in brackets the 95% interval."
    return page.tiles([(f"{label(method)} {name}", size, words or "no interval") for name, size, words in boxes], where)


def _td(value: Mean, more: str = "", kind: str = "", digits: int = 3) -> str:
    """A cell of a table: a value, under it its interval, if it has one."""
    bounds = bracket(value.low, value.high)
    return f"<td{kind}>{decimal(value.mean, digits)}{f'<small>{bounds}</small>' if bounds else ''}{more}</td>"


def _ndcg(table: Table, method: str, setting: Setting) -> str:
    """NDCG of a method in a setting with its interval, bold where it is the highest, the paper's under it."""
    paper = table.paper_ndcg(method, setting)
    more = f'<small class="paper">paper {decimal(paper)}</small>' if math.isfinite(paper) else ""
    return _td(table.ndcg(method, setting), more, ' class="best"' if table.leader(setting) == method else "")


def _setting_heads(table: Table) -> list[str]:
    """K2 over N."""
    widths = Counter(K2 for K2, _ in table.settings)
    over = (f'<th colspan="{width}" scope="colgroup">K2 = {K2:,}</th>' for K2, width in widths.items())
    under = (f'<th scope="col">{count(N)}</th>' for _, N in table.settings)
    return [f"<tr><td></td>{''.join(over)}</tr>", f'<tr><th scope="col">N</th>{"".join(under)}</tr>']


def _grid(table: Table) -> str:
    """Methods by settings, as the paper prints it."""
    lines = [
        page.line(_chip(table, m), (_ndcg(table, m, setting) for setting in table.settings)) for m in table.methods
    ]
    for reference in table.references:
        value = _td(reference.ndcg, kind=f' colspan="{len(table.settings)}"')
        lines.append(page.line(escape(label(reference.name)), [value], ' class="reference"'))
    beside = " In italics, what the paper prints." if table.paper else ""
    note = f'<p class="note">In brackets the 95% interval; the highest of each column is bold.{beside}</p>'
    return f'<div class="dense">{page.table_of(_setting_heads(table), lines, "NDCG by method and setting")}</div>{note}'


def _measures(table: Table) -> str:
    """Every measure of every row and reference; folded away where the settings are many."""
    several = len(table.settings) > 1
    names = (
        f'<th scope="col">{name.format(K=table.K)}<small>{words}</small></th>' for name, words in MEASURES.values()
    )
    where = '<th scope="col">K2</th><th scope="col">N</th>' if several else ""
    heads = [f'<tr><th scope="col">method</th>{where}{"".join(names)}</tr>']
    lines = []
    for row in table.rows:
        where = f"<td>{row.K2:,}</td><td>{count(row.N)}</td>" if several else ""
        others = (_td(Mean(row.mean(figure))) for figure in list(MEASURES)[1:])
        lines.append(page.line(_chip(table, row.method), [where, _ndcg(table, row.method, row.setting), *others]))
    for reference in table.references:
        values = (_td(reference.of(figure)) for figure in MEASURES)
        where = "<td></td><td></td>" if several else ""
        lines.append(page.line(escape(label(reference.name)), [where, *values], ' class="reference"'))
    body = page.table_of(heads, lines, "All measures")
    body = f"<details><summary>All measures of every setting</summary>{body}</details>" if several else body
    full = any(reference.name == "full information" for reference in table.references)
    return body + (f'<p class="note">{FULL_INFORMATION}</p>' if full else "") if lines else ""


FULL_INFORMATION = (
    "Full information: a plain factorisation trained on the true relevance. It remembers no single pair, so that a policy "
    "with a memory may be ahead."
)


def _seconds(table: Table) -> str:
    if not any(math.isfinite(row.seconds_mean) for row in table.rows):
        return ""
    lines = []
    for method in table.methods:
        rows = (table.row(method, setting) for setting in table.settings)
        values = (_td(Mean() if row is None else Mean(row.seconds_mean), digits=1) for row in rows)
        lines.append(page.line(_chip(table, method), values))
    body = page.table_of(_setting_heads(table), lines, "Seconds per training")
    note = "<p>The first training on a machine also compiles its kernels, which are kept on disk from then on.</p>"
    return page.section("Seconds per training", f'{note}<div class="narrow">{body}</div>')


def figures_of(table: Table) -> "list[tuple[str, Callable[[Table], Figure], str]]":
    """The figures that the table has something for: title, what draws it, caption."""
    K, judged, chosen = table.K, figures.judged_epochs(table), figures.chosen_curves(table)
    gap = sum(abs(point.held_out - point.true) for point in judged) / max(len(judged), 1)
    recall = any(math.isfinite(row.recall_at_K2_mean) for row in table.rows)
    drawn: list[tuple[object, str, Callable[[Table], Figure], str]] = [
        (table.differences, "Paired differences", figures.differences,
         "A dot is the mean of the paired differences, its line the 95% interval. A hollow dot: 0 is inside the interval, "
         f"so neither is shown to be ahead. {interval_note(table)}"),
        (len(table.settings) == 1, "From random to full information", figures.levels,
         f"NDCG@{K} with 95% intervals; in grey what to compare with."),
        (len({N for _, N in table.settings}) > 1, "More clicks", figures.against_N,
         f"NDCG@{K} against the length of the log, with 95% intervals; dashed: references."),
        (len({K2 for K2, _ in table.settings}) > 1, "More candidates", figures.against_K2,
         f"NDCG@{K} against the number of candidates, with 95% intervals; dashed: references."),
        (chosen, "Learning curves", figures.learning_curves,
         f"K2 = {chosen.K2 if chosen else 0}, up to five runs, the first one strong. Solid: true NDCG@{K}, which no training "
         "sees." + (" Dotted: the judgement on held-out clicks, which decides when to stop." if judged else "")),
        (judged, "Predicted and true", figures.predicted,
         f"NDCG@{K} as predicted from held-out clicks alone, against the truth, epoch by epoch. The mean distance is "
         f"{gap:.3f} over {len(judged):,} epochs; a perfect prediction is on the diagonal."),
        (recall, "How the two stages share the work", figures.stages,
         f"Left: NDCG@{K} of the generator's own {K} best, of the re-ranker choosing from all items, and of the policy. Right: "
         f"the share of the relevant items among the candidates, and of the {K} items that both stages alone would show."),
    ]  # fmt: skip
    return [(title, draw, caption) for wanted, title, draw, caption in drawn if wanted]


def _figures(table: Table) -> list[str]:
    return [page.figure_of(title, draw(table), caption) for title, draw, caption in figures_of(table)]
