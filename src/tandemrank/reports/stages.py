"""The study of two models in words and as a figure: Joint less its best rival, setting by setting.

A single stage that scores everything is a rival too; beside it stands the best pair of the same two stages, since what two
stages are there for is that the better model cannot score everything.
"""

from typing import TYPE_CHECKING

from tandemrank.experiments.study import SettingResult, StudyTable
from tandemrank.reports.style import THEME, interval_line, panels, styled
from tandemrank.reports.words import bracket, closely, count, decimal, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"joint": THEME["method-0"], "joint with the score": THEME["method-3"]}


def markdown(table: StudyTable) -> str:
    """The whole study: a row per setting, NDCG@10 of every line (and its runs), and what Joint gains over its best rival."""
    if not table.settings:
        return "No setting has a finished run of Joint and a rival yet.\n"
    names = list(dict.fromkeys(line.name for setting in table.settings for line in setting.lines))
    head = ["generator, then re-ranker", "K2", "N", "clicked items", *map(label, names)]
    head += ["Joint less the best other pair", "less its best rival"]
    rows = [_row(head), _row(["---"] * len(head))]
    for setting in table.settings:
        found = {line.name: f"{decimal(line.ndcg.mean)} ({line.ndcg.n})" for line in setting.lines}
        facts = [setting.name, str(setting.K2), count(setting.N), f"{setting.clicked_per_query:.0f}"]
        gained = ["; ".join(_gains(setting, pairs_only)) or "–" for pairs_only in (True, False)]
        rows.append(_row([*facts, *(found.get(name, "–") for name in names), *gained]))
    return "\n".join(rows) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _gains(setting: SettingResult, pairs_only: bool) -> list[str]:
    found = []
    for gain in filter(None, (setting.best(method, pairs_only=pairs_only) for method in COLOURS)):
        d = gain.difference
        who = "" if gain.method == "joint" else "with the score "
        found.append(f"{who}{closely(d.mean)} {bracket(d.low, d.high, closely)} over {gain.rival}, n = {d.n}")
    return found


@styled
def gains(table: StudyTable) -> "Figure":
    """Joint less the best other pair: a dot per run, the mean with its interval, a row per setting."""
    found = ((one, one.best(method, pairs_only=True)) for one in table.settings for method in COLOURS)
    rows = [(setting, gain) for setting, gain in found if gain is not None]
    figure, axes = panels(1, 1, 1.2 + 0.42 * max(len(rows), 1))
    axis = axes[0, 0]
    for y, (_, gain) in enumerate(rows):
        colour, each = COLOURS[gain.method], list(gain.difference_runs.values())
        axis.plot(each, [y] * len(each), "o", color=colour, alpha=0.3, markersize=4)
        interval_line(axis, y, gain.difference.low, gain.difference.high, colour, across=True)
        axis.plot([gain.difference.mean], [y], "o", color=colour)
    axis.axvline(0, color=THEME["muted"], lw=1)
    words = [f"{s.name}{'' if g.method == 'joint' else ', with the score'} (n = {g.difference.n})" for s, g in rows]
    axis.set_yticks(range(len(rows)), words)
    axis.invert_yaxis()
    axis.set_xlabel("NDCG@10 of Joint less that of the best other pair")
    return figure
