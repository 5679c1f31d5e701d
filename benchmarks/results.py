"""Finished grids as the docs show them: table.json, table.md and figures of each, and one page that compares them.

    python benchmarks/results.py runs/ml-1m docs/results/ml-1m
    python benchmarks/results.py --compare docs/results/compared.md main=docs/results/ml-1m noisy=docs/results/noisy \
        previous=docs/results/previous paper=runs/paper

The first puts one grid where the docs show it; no ratings, nothing per user. The second writes the page: the main table with
its peers, the same with noisy clicks, the previous default as a row, and the paper read literally beside the paper's numbers. A
grid that is not finished gives what it has: its cells are read where there is no table yet.
"""

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tandemrank._base.files import as_json, write_text
from tandemrank.experiments import paper
from tandemrank.experiments.cells import GridConfig
from tandemrank.experiments.results import Mean, PeerRow, Row, Setting, Table, read_table
from tandemrank.experiments.store import Store
from tandemrank.experiments.table import peer_differences, peer_rows_of, rows_of
from tandemrank.reports import experiment, style, text
from tandemrank.reports.words import bracket, closely, count, decimal, label

HEADS = {
    "main": "The default",
    "noisy": "Noisy clicks",
    "previous": "The previous default",
    "paper": "The paper read literally",
}


def main() -> None:
    """One grid into a folder of the docs, or several into one page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, metavar="PAGE", help="the page to write, from several grids")
    parser.add_argument("folders", nargs="+", help="a grid and where it goes; with --compare NAME=FOLDER of each grid")
    asked = parser.parse_args()
    if asked.compare is None:
        if len(asked.folders) != 2:
            parser.error(f"expected two folders, a grid and where it goes; got {len(asked.folders)}")
        put(*map(Path, asked.folders))
        return
    if wrong := [one for one in asked.folders if "=" not in one]:
        parser.error(f"expected NAME=FOLDER of each grid; got {wrong[0]}")
    given = dict(one.split("=", 1) for one in asked.folders)
    write_text(asked.compare, page({name: table_in(Path(folder)) for name, folder in given.items()}))


def put(source: Path, target: Path) -> None:
    """From the folder of a grid to a folder of the docs."""
    table = read_table(source / "table.json")
    # The report is a result too, but a heavy one: the figures and the figures' data, to six digits, are kept.
    write_text(target / "table.json", json.dumps(_rounded(json.loads(as_json(table))), separators=(",", ":")) + "\n")
    write_text(target / "table.md", text.markdown(table))
    for _, draw, _ in experiment.figures_of(table):
        write_text(target / f"{draw.__name__}.svg", style.svg(draw(table)))


def table_in(folder: Path) -> Table:
    """The table of a grid; where it is not finished, that of its finished cells."""
    if (folder / "table.json").exists():
        return read_table(folder / "table.json")
    config = GridConfig.model_validate_json((folder / "config.json").read_text(encoding="utf-8"))
    mine = Store(config, folder)
    return Table(
        title=f"not finished: {len(mine.records())} cells",
        rows=rows_of(mine.records().values()),
        peers=peer_rows_of(mine.peers().values()),
        peer_differences=peer_differences(config, mine.records(), mine.peers(), mine.users),
    )


def page(tables: dict[str, Table]) -> str:
    """The page: a section for each grid that is given."""
    parts = [
        "# Grids compared",
        "NDCG@10 with 95% intervals over runs; of all items, and of items that the user has not clicked.",
    ]
    for name, table in tables.items():
        parts.append(f"## {HEADS.get(name, label(name))}")
        parts.append(f"`{table.command}`" if table.command else table.title)
        if name == "paper":
            parts.append(beside_the_paper(table))
            continue
        more = {"the previous default": tables["previous"]} if name == "main" and "previous" in tables else {}
        for setting in table.settings:
            parts.append(f"**K2 = {setting[0]:,}, N = {count(setting[1])}**")
            parts.append(one_setting(table, setting, more))
            parts += gaps(table, setting)
    return "\n\n".join(parts) + "\n"


def one_setting(table: Table, setting: Setting, more: dict[str, Table]) -> str:
    """Methods, other grids' Joint, peers and references in one setting."""
    lines = [method_line(label(m), row) for m in table.methods if (row := table.row(m, setting)) is not None]
    for words, other in more.items():
        if (row := other.row("joint", setting)) is not None:
            lines.append(method_line(f"Joint, {words}", row))
    lines += [peer_line(row) for row in table.peers if setting[1] == row.N]
    lines += [[label(one.name), interval(one.ndcg), "–", "–", "–"] for one in table.references]
    return block(["", "all items", "new items", "seconds", "runs"], lines)


def method_line(name: str, row: Row) -> list[str]:
    """A method's row of the page."""
    return [f"**{name}**", interval(row.ndcg), interval(row.ndcg_new), decimal(row.seconds_mean, 1), f"{row.runs}"]


def peer_line(row: PeerRow) -> list[str]:
    """A peer's: seconds are those of its fit and of its tuning."""
    seconds = f"{decimal(row.seconds_mean, 1)} + {decimal(row.tuning_seconds, 1)}"
    return [label(row.peer), interval(row.of("ndcg")), interval(row.of("ndcg_new")), seconds, f"{row.runs}"]


def gaps(table: Table, setting: Setting) -> list[str]:
    """Joint less the best peer, in words."""
    found = [d for d in table.peer_differences if d.setting == setting]
    return [
        f"Joint − {label(d.against)}, {'new' if d.figure == 'ndcg_new' else 'all'} items: {closely(d.mean)} "
        f"{bracket(d.low, d.high, closely)}: {d.verdict}."
        for d in found
    ]


def beside_the_paper(table: Table) -> str:
    """The literal reading beside what the paper prints."""
    known = {(row.method, row.K2, row.N): row.ndcg_mean for row in paper.ROWS}
    lines = [
        [
            label(row.method), f"{row.K2:,}", count(row.N), interval(row.ndcg),
            decimal(known.get((row.method, row.K2, row.N), math.nan)), decimal(row.seconds_mean, 0), f"{row.runs}",
        ]
        for row in table.rows
    ]  # fmt: skip
    return block(["method", "K2", "N", "ours, read literally", "the paper", "seconds", "runs"], lines)


def interval(value: Mean) -> str:
    """A mean with its interval."""
    return f"{decimal(value.mean)} {bracket(value.low, value.high)}".strip()


def block(heads: list[str], lines: Iterable[list[str]]) -> str:
    """A table of Markdown."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(x) for name, x in value.items()}
    return [_rounded(x) for x in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
