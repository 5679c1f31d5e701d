"""Puts a finished table where the docs show it: table.json, table.md and figures; no ratings, nothing per user.

python benchmarks/results.py runs/ml-1m docs/results/ml-1m
"""

import json
import sys
from pathlib import Path
from typing import Any

from tandemrank._base.files import as_json, write_text
from tandemrank.experiments.results import read_table
from tandemrank.reports import experiment, style, text


def main() -> None:
    """From the folder of a grid to a folder of the docs."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    table = read_table(source / "table.json")
    # The report is a result too, but a heavy one: the figures and the figures' data, to six digits, are kept.
    write_text(target / "table.json", json.dumps(_rounded(json.loads(as_json(table))), separators=(",", ":")) + "\n")
    write_text(target / "table.md", text.markdown(table))
    for _, draw, _ in experiment.figures_of(table):
        write_text(target / f"{draw.__name__}.svg", style.svg(draw(table)))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(x) for name, x in value.items()}
    return [_rounded(x) for x in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
