"""The live loop on a page: clicks per impression over time, and every round with what the gate and live traffic said."""

from pathlib import Path
from typing import TYPE_CHECKING

from tandemrank._base.files import write_json
from tandemrank.experiments.live_loop import LiveResult, Round
from tandemrank.reports import page, style
from tandemrank.reports.page import Report, Section
from tandemrank.reports.words import Sheet, bracket, decimal, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("round", "old policy", "gate", "share", "new policy", "new minus old, live", "always-valid interval", "stays")
CAPTION = (
    "Clicks per impression as the users counted them, a dot for about 1,000 impressions. Shaded: both policies are live, and "
    "the diamonds are the new one's own. Each round learns from the log that the rounds before it wrote."
)


def of_round(one: Round) -> list[str]:
    """A round as words."""
    canary = ["–"] * 4
    if one.clicks_new is not None and one.difference is not None and one.low is not None and one.high is not None:
        interval = bracket(one.low, one.high, signed)
        canary = [f"{one.share:.0%}", decimal(one.clicks_new), signed(one.difference), interval]
    return [str(one.number), decimal(one.clicks_before), one.call, *canary, one.stayed]


def headline(found: LiveResult) -> str:
    """The live loop in a line."""
    kept = sum(one.stayed == "new" for one in found.rounds)
    return (
        f"{found.first:.3f} clicks per impression became {found.last:.3f} in {len(found.rounds)} rounds; "
        f"{kept} new policies stayed"
    )


def rounds(found: LiveResult) -> Sheet:
    """Every round in a line."""
    return Sheet(HEADS, [of_round(one) for one in found.rounds], HEADS)


def write(found: LiveResult, folder: Path, *, command: str = "") -> None:
    """`report.html` and `summary.json`."""
    reasons = [f"Round {one.number}: {one.call}: {one.why}." for one in found.rounds]
    sections = [
        page.figure("Clicks over time", clicks_over_time, found, caption=CAPTION),
        Section(title="Every round", sentences=reasons, sheet=rounds(found)),
        page.reproduce(command),
    ]
    Report("The live loop", [f"{headline(found)}."], sections).write(folder / "report.html")
    write_json(folder / "summary.json", found.summary())


@style.styled
def clicks_over_time(found: LiveResult) -> "Figure":
    """Clicks per impression against impressions; canaries shaded."""
    figure, axes = style.panels(1, 1, 3.2)
    axis = axes[0, 0]
    last = 0
    for moment in found.moments:
        if moment.stage == "canary":
            axis.axvspan(last, moment.impressions, color=style.THEME["method-4"], alpha=0.12, lw=0)
        last = moment.impressions
    x = [m.impressions for m in found.moments]
    axis.plot(x, [m.clicks_per_impression for m in found.moments], marker="o", ms=4, color=style.THEME["method-2"])
    new = [(m.impressions, m.new) for m in found.moments if m.new is not None]
    axis.plot(*zip(*new, strict=True) if new else ([], []), ls="", marker="D", ms=5, color=style.THEME["method-4"])
    axis.set(xlabel="impressions", ylabel="clicks per impression", ylim=(0, None))
    return figure
