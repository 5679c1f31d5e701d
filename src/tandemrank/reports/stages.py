"""The study of two models in words and as a figure: Joint less its best rival, setting by setting.

A single stage that scores everything is a rival too; beside it stands the best policy of the same two stages, since what two
stages are there for is that the better model cannot score everything.
"""

from typing import TYPE_CHECKING

from tandemrank.experiments.study import SettingResult, StudyTable
from tandemrank.reports.style import THEME, interval_line, panels, styled
from tandemrank.reports.words import bracket, closely, count, decimal, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"joint": THEME["method-0"], "joint with the score": THEME["method-3"]}
ASIDE = {"joint": -0.14, "joint with the score": 0.14}  # where both stand in a setting's row


def markdown(table: StudyTable) -> str:
    """The whole study: a row per setting, NDCG@10 of every line (and its runs), and what Joint gains over its best rival."""
    if not table.settings:
        return "No setting has a finished run of Joint and a rival yet.\n"
    names = list(dict.fromkeys(line.name for setting in table.settings for line in setting.lines))
    head = ["generator, then re-ranker", "K2", "N", "clicked items", *map(label, names)]
    head += ["Joint less the best other policy", "less its best rival"]
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
    """Joint less the best other policy, without and with the generator's score: a row per setting, with its rival's name.

    A dot per run, the mean with its interval.
    """
    rows = [setting for setting in table.settings if setting.best(pairs_only=True) is not None]
    figure, axes = panels(1, 1, 1.2 + 0.52 * max(len(rows), 1))
    axis = axes[0, 0]
    axis.axvline(0, color=THEME["muted"], lw=1)
    for method, colour in COLOURS.items():
        found = [(y, gain) for y, one in enumerate(rows) if (gain := one.best(method, pairs_only=True)) is not None]
        for place, gain in ((y + ASIDE[method], gain) for y, gain in found):
            each = list(gain.difference_runs.values())
            axis.plot(each, [place] * len(each), "o", color=colour, alpha=0.3, markersize=4)
            interval_line(axis, place, gain.difference.low, gain.difference.high, colour, across=True)
        means = [(gain.difference.mean, y + ASIDE[method]) for y, gain in found]
        if means:
            axis.plot(*zip(*means, strict=True), "o", color=colour, label=label(method))
    axis.set_yticks(range(len(rows)), [_words(one) for one in rows])
    axis.invert_yaxis()
    axis.legend(frameon=False, loc="best")
    axis.set_xlabel("NDCG@10 of Joint less that of the best other policy")
    return figure


def _words(setting: SettingResult) -> str:
    """A row's name, over whom Joint is compared, and the runs."""
    plain, scored = (setting.best(method, pairs_only=True) for method in COLOURS)
    if plain is None:
        return setting.name
    runs = f"n = {plain.difference.n}"
    if scored is not None and scored.difference.n != plain.difference.n:
        runs += f" ({scored.difference.n} with the score)"
    return f"{setting.name}\nover {plain.rival}, {runs}"
