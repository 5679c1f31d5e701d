"""The report of `learn`: sentences, a table for the terminal, one self-contained HTML page, and all the
files that `learn` leaves in its folder.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tandemrank import __version__
from tandemrank._base.config import switch_help, switch_values
from tandemrank._base.files import Kind, write_json, write_text
from tandemrank.errors import ConfigError
from tandemrank.offpolicy.comparison import FrequencyGroup
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.offpolicy.verdicts import CARE_QUERIES, Verdict
from tandemrank.reports import page, style
from tandemrank.reports.words import bracket, decimal, label, listed, signed, switches, terminal_table
from tandemrank.training.config import TrainingConfig
from tandemrank.training.history import Epoch, chosen_epochs
from tandemrank.training.results import Difference, Learned, are_same_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable

TRAINING = Kind("training")


# --- the files --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """What was written: the policies by method, the report, and the content of `summary.json`."""

    policies: dict[str, Path]
    report: Path
    summary: dict[str, object]


def check_free(out: Path, methods: Iterable[str]) -> None:
    """Refuses a folder that holds a policy of one of the methods already."""
    for method in methods:
        if os.path.exists(out / method / "policy"):
            raise ConfigError(
                f"{out / method / 'policy'} exists. Give another --out, or --resume to go on with an interrupted training."
            )


def write(learned: Learned, out: Path, *, command: str = "", seed: int = 0) -> Written:
    """`out/METHOD/policy` and its `history.json`, `out/config.json`, `out/report.html` and `out/summary.json`."""
    asked = _switches(learned, seed)
    write_json(out / "config.json", asked)
    policies = {}
    for method, trained in learned.trained.items():
        write_json(out / method / "history.json", trained.history)
        policies[str(method)] = trained.policy.save(out / method / "policy")
    report = write_text(out / "report.html", html(learned, command=command, seed=seed), page.REPORT)
    summary = {
        "command": command,
        "version": __version__,
        **learned.summary(),
        "switches": asked,
        "switch_help": switch_help(type(learned.config)),
        "report": str(report),
    }
    for entry in summary["methods"]:
        entry["policy"] = str(policies[entry["method"]])
    write_json(out / "summary.json", summary)
    return Written(policies, report, summary)


def _switches(learned: Learned, seed: int) -> dict[str, object]:
    """What was used: the switches of training only where something was trained."""
    found = switch_values(learned.config)
    if not learned.was_trained:
        of_training = {*TrainingConfig.model_fields, "objective", "clip", "propensity_samples"}
        found = {name: value for name, value in found.items() if name not in of_training}
    return {"seed": seed, **found}


# --- the words --------------------------------------------------------------------------------------------------------


def sentences(learned: Learned) -> list[str]:
    """What the log says of each policy against production and against the others; and where training failed."""
    notes = {
        "kept_start": "is what training started from: it found nothing better on held-out clicks.",
        "stays": "keeps the items that each query was shown and changes their order alone: the log shows too little variation "
        "to speak about other items.",
    }
    noted = [
        f"{label(method)} {words}"
        for fact, words in notes.items()
        for method, trained in learned.trained.items()
        if getattr(trained, fact)
    ]
    noted += [
        f"{label(a)} and {label(b)} are the same policy, to the bit."
        for a, b in combinations(learned.trained, 2)
        if are_same_policy(learned.trained[a].policy, learned.trained[b].policy)
    ]
    return [*_chosen(learned), *map(_sentence, learned.differences), *noted, *_harmed(learned)]


def _chosen(learned: Learned) -> list[str]:
    """What the beliefs expect of the generator, and what was trained for it; nothing where there is one stage."""
    choice, policy = learned.choice, learned.policy
    if choice is None or len(policy.vocabulary.item_ids) == policy.K2:
        return []
    first = choice.tried[0].expected
    lost = (
        f"The re-ranker alone, over all items, is expected to get {decimal(choice.everything)} clicks per impression; "
        f"behind the generator that was not trained {decimal(first)} ({first / max(choice.everything, 1e-12):.1%})"
    )
    if len(choice.tried) == 1:
        return [f"{lost}. So nothing was trained."]
    others = ", ".join(f"{label(one.method)} {decimal(one.expected)}" for one in choice.tried[1:])
    return [f"{lost}. Trained: {others}. {label(choice.method)} was kept."]


def _harmed(learned: Learned) -> list[str]:
    """For whom a policy is surely worse than production, by how often a query came; nothing of a value that is refused."""
    return [
        f"{label(method)} is worse than production for queries that came {_times(group)}: {signed(group.difference)} "
        f"{bracket(*group.interval, signed)} clicks per impression ({group.queries:,} queries)."
        for method, groups in learned.by_frequency.items()
        for group in groups
        if group.interval[1] < 0 and group.queries >= CARE_QUERIES and learned.values[method].verdict != Verdict.REFUSE
    ]


def _times(group: FrequencyGroup) -> str:
    return f"{group.least} times or more" if group.most is None else f"{group.least} to {group.most} times"


def deployment(learned: Learned) -> list[str]:
    """Which lists to show, drawn or most likely, and what the next log needs."""
    return [
        f"{label(method)}: lists that are drawn are worth {decimal(learned.values[method].value)} "
        f"{_interval(learned.values[method])}, the most likely ones, as `recommend` gives them, {decimal(fixed.value)} "
        f"{_interval(fixed)} ({fixed.verdict}). Drawn lists (`recommend(sample=True)`, `tandemrank serve`) are what the next "
        "log needs: with their propensities it can be learned from again, and the most likely ones alone say nothing of others."
        for method, fixed in learned.most_likely.items()
    ]


def _sentence(difference: Difference) -> str:
    a, b, found = label(difference.method), difference.against, difference.comparison
    low, high = found.interval
    gap = f"{signed(found.difference)} {bracket(low, high, signed)}"
    if found.verdict == Verdict.REFUSE:
        which = found.new if found.new.verdict == Verdict.REFUSE else found.old
        return f"{a} against {b} {Verdict.REFUSE}: {which.reasons[0]}."
    if low <= 0 <= high:
        words = f"{a} and {b} cannot be told apart: {gap} clicks per impression includes 0"
    else:
        words = f"{a} would get {'more' if low > 0 else 'fewer'} clicks than {b}: {gap} per impression"
    which = found.new if found.new.verdict == Verdict.CARE else found.old
    return f"{words}; use it with care: {which.reasons[0]}." if found.verdict == Verdict.CARE else f"{words}."


def _sides(learned: Learned) -> list[tuple[str, Value, Difference | None]]:
    """Production, then every method, each with its difference from production."""
    gaps = {d.method: d for d in learned.differences if d.against == PRODUCTION}
    live: list[tuple[str, Value, Difference | None]] = [(PRODUCTION, learned.production, None)]
    return live + [(str(method), value, gaps.get(method)) for method, value in learned.values.items()]


def _interval(found: Value, write: Callable[[float], str] = decimal) -> str:
    return bracket(*found.interval, write)


def text(learned: Learned) -> "RichTable":
    """The values for a terminal."""
    rows = []
    for name, value, gap in _sides(learned):
        above = ("–", "") if gap is None else _above(gap)
        bound = None if gap is None else gap.comparison.lower_bound
        surely = "" if bound is None else signed(bound)
        rows.append((label(name), decimal(value.value), _interval(value), *above, surely, str(value.verdict)))
    title = "clicks per impression, and the gain over production, on impressions that were kept for this"
    heads = ("", "clicks", "95% interval", "gain", "95% interval", "at least", "verdict")
    return terminal_table(heads, rows, title=title, left=("", "verdict"))


def _above(gap: Difference) -> tuple[str, str]:
    return signed(gap.comparison.difference), bracket(*gap.comparison.interval, signed)


def what_was_run(learned: Learned) -> str:
    """What was done, in plain words, with its sizes."""
    log, policy = learned.log, learned.policy
    stopping = f", {log.held_out:,.0f} chose or said when to stop," if log.held_out else ""
    return (
        f"A live system showed lists of up to {log.list_length} of {log.items:,} items to {log.queries:,} queries, "
        f"{log.impressions:,.0f} times, and {log.clicks:,.0f} clicks were logged. {made(learned)} The list has {policy.K} "
        f"places. {log.train:,.0f} impressions were learned from{stopping} and {'the last ' if log.by_time else ''}"
        f"{log.evaluation:,.0f} value the result."
    )


def made(learned: Learned) -> str:
    """What was made of the clicks: one stage or two, trained or not."""
    policy = learned.policy
    D = len(policy.vocabulary.item_ids)
    if policy.K2 == D:
        stages = f"one stage, since all {D:,} items are candidates"
    else:
        stages = f"two stages: a generator that picks {policy.K2:,} of {D:,} items and a re-ranker that orders them"
    trained = [label(method) for method, one in learned.trained.items() if one.history]
    rest = [label(method) for method, one in learned.trained.items() if not one.history]
    if trained and rest:
        return (
            f"From these clicks alone policies were made, of {stages}. Trained: {listed(trained)}; not: {listed(rest)}."
        )
    if trained:
        return f"From these clicks alone a policy was trained, of {stages}."
    return f"From these clicks alone a policy was made, of {stages}. Nothing was trained beyond the beliefs."


# --- the page ---------------------------------------------------------------------------------------------------------


def html(learned: Learned, *, command: str = "", seed: int = 0) -> str:
    """One self-contained page: what the log is, what each policy is worth, how training went, every switch."""
    methods = page.methods_of({str(method): _chip(method) for method in learned.trained})
    title = "Both stages, trained from a click log" if learned.was_trained else "What a click log says"
    by = ", ".join(dict.fromkeys(str(value.estimator).replace("_", " ") for value in learned.values.values()))
    sections = [
        f"<header><h1>{title}</h1><p>{escape(what_was_run(learned))}</p>{methods}</header>",
        page.section("What it is worth", _tiles(learned) + page.bullets(sentences(learned), ' class="headline"')),
        page.figure_of(
            "Clicks per impression",
            values_figure(learned),
            f"Off-policy estimates ({by}) with 95% intervals on {learned.log.evaluation:,.0f} impressions that nothing before "
            "has seen; production's is what these impressions show. Hollow: this log cannot answer for it.",
        ),
        page.section("Drawn lists or the most likely ones", page.bullets(deployment(learned))),
        page.section("For whom", _frequencies(learned)),
        page.section("Whether production is kept", page.bullets(gate_sentences(learned))),
        page.section("What the numbers rest on", _diagnostics(learned)),
        _curves(learned),
        page.section("The log", _log(learned)),
        page.switches_of(switches(_switches(learned, seed), switch_help(type(learned.config)))),
        page.reproduce(command),
    ]
    return page.document(title, sections, __version__)


def _curves(learned: Learned) -> str:
    """How training went; nothing where nothing was trained."""
    if not learned.was_trained:
        return ""
    return page.figure_of("Learning curves", curves_figure(learned), JUDGED if learned.log.held_out else NOT_JUDGED)


JUDGED = (
    "The judgement on held-out clicks by epoch. The ring is the epoch whose weights were kept: the last of those five whose "
    "mean was best."
)
NOT_JUDGED = (
    "The objective of training by epoch, as a share of the highest. Nothing was held out to stop it: the last weights of a "
    "phase were kept."
)


def gate_sentences(learned: Learned) -> list[str]:
    """Whether each method is surely better than production, in words; nothing where that was not asked."""
    found = []
    for method, gate in learned.gates.items():
        bound = "" if gate.lower_bound is None else f", by at least {signed(gate.lower_bound)} clicks per impression"
        if gate.worse:
            found.append(
                f"{label(method)} would get fewer clicks than production on impressions that nothing before has seen: "
                "production stays."
            )
        elif gate.kept_production:
            found.append(f"{label(method)} is not surely better than production{bound}: production is kept.")
        else:
            at_worst = decimal(gate.loss_at_worst)
            found.append(
                f"{label(method)} is surely better than production{bound}. Whatever clicks mean, it loses at most {at_worst} "
                "clicks per impression."
            )
    return found


def _frequencies(learned: Learned) -> str:
    """Every policy against production, by how often a query came in the log."""
    return page.bullets(
        f"{label(method)}, queries that came {_times(group)}: {signed(group.difference)} "
        f"{bracket(*group.interval, signed)} clicks per impression against production's {decimal(group.old)} "
        f"({group.impressions:,.0f} impressions of {group.queries:,} queries)."
        for method, groups in learned.by_frequency.items()
        for group in groups
    )


def _chip(method: str) -> str:
    return page.chip(method, style.SLOTS.get(method))


def _tiles(learned: Learned) -> str:
    boxes = [
        (label(name), decimal(value.value), "clicks per impression" if gap is None else " ".join(_above(gap)))
        for name, value, gap in _sides(learned)
    ]
    return page.tiles(boxes, "Clicks per impression; under each its distance from production with the 95% interval.")


RESTS_ON = (
    ("clicks", "per impression"), ("at least", "95% sure"), ("effective", "examined items"),
    ("largest weight", "of one pair"), ("unsupported", "share not in that part"), ("at the generator", "of that"),
    ("at the re-ranker", "of that"), ("balance", "1 is right"),
)  # fmt: skip


def _diagnostics(learned: Learned) -> str:
    """What every value rests on, and the verdict with its reasons."""
    heads = (f'<th scope="col">{name}<small>{words}</small></th>' for name, words in RESTS_ON)
    lines = [page.line(_chip(m), page.cells(_rests_on(value))) for m, value in learned.values.items()]
    verdicts = "".join(
        f"<li>{_chip(m)}: <strong>{escape(value.verdict)}</strong>: {escape('; '.join(value.reasons))}.</li>"
        for m, value in learned.values.items()
    )
    table = page.table_of([f'<tr><th scope="col">method</th>{"".join(heads)}</tr>'], lines, "Diagnostics")
    return f'{table}<ul class="methods">{verdicts}</ul>'


def _rests_on(value: Value) -> list[str]:
    sizes, found = [decimal(value.value), decimal(value.lower_bound)], value.diagnostics
    if found is None:
        return sizes + ["–"] * (len(RESTS_ON) - 2)
    effective = f"{found.effective_sample_size:,.0f}" if math.isfinite(found.effective_sample_size) else "–"
    shares = (found.unsupported, found.lost_at_generator, found.lost_at_ranker)
    of_exposure = [f"{share:.1%}" if math.isfinite(share) else "–" for share in shares]
    return [*sizes, effective, decimal(found.largest_weight), *of_exposure, decimal(found.balance)]


def _log(learned: Learned) -> str:
    """What the log is, which propensities were used and why, and what training started from."""
    log = learned.log
    facts = [
        ("impressions", f"{log.impressions:,.0f}"),
        ("queries", f"{log.queries:,}"),
        ("items shown", f"{log.items:,}"),
        ("(query, item) pairs shown", f"{log.pairs:,}"),
        ("clicks", f"{log.clicks:,.0f}"),
        ("propensities", f"{learned.propensity}: {learned.propensity_reason}"),
        *([("training started from", learned.start.words)] if learned.was_trained else []),
    ]
    lines = [page.line(escape(name), page.cells([value])) for name, value in facts]
    return f'<div class="words">{page.table_of([], lines, "The log")}</div>'


# --- the figures ------------------------------------------------------------------------------------------------------


@style.styled
def values_figure(learned: Learned) -> "Figure":
    """The value of production and of every method: a dot and an interval each."""
    sides = _sides(learned)[::-1]
    names = [label(name) for name, *_ in sides]
    figure, axis = style.lines_figure(names, 0.8 + 0.36 * len(sides), "clicks per impression")
    for y, (name, value, _) in enumerate(sides):
        look = style.look_of(name)
        style.interval_line(axis, y, *value.interval, look["color"], across=True)
        inside = style.THEME["page"] if value.verdict == Verdict.REFUSE else look["color"]
        axis.plot(value.value, y, **look, ms=7, mew=1.6, mfc=inside)
        style.beside(axis, y, f"{decimal(value.value)} {_interval(value)}")
    return figure


@style.styled
def curves_figure(learned: Learned) -> "Figure":
    """The judgement on held-out clicks by epoch, one panel per method, its phases one after another; a ring at the choice.

    Where nothing was held out, the objective of training.
    """
    curves = {method: trained for method, trained in learned.trained.items() if trained.history}
    figure, axes = style.panels(1, len(curves), 3.0, sharey=True)
    for axis, (method, trained) in zip(axes[0], curves.items(), strict=True):
        look = style.look_of(method)
        _phases(axis, trained.history, look["color"])
        axis.set_title(label(method), color=look["color"])
        axis.set_xlabel("epoch")
        axis.grid(False, axis="x")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set_ylabel("judged on held-out clicks" if learned.log.held_out else "objective, share of the highest")
    return figure


def _phases(axis: "Axes", history: tuple[Epoch, ...], colour: str) -> None:
    start = 0
    for phase, chosen in chosen_epochs(history).items():
        epochs = [epoch for epoch in history if epoch.phase == phase]
        judged = np.array([epoch.held_out for epoch in epochs])
        if np.isnan(judged).all():
            judged = np.array([epoch.objective for epoch in epochs])
            judged /= np.abs(judged).max() or 1.0
        axis.plot(np.arange(1, len(judged) + 1) + start, judged, color=colour, marker=".", ms=4)
        at = [epoch.epoch for epoch in epochs].index(chosen)
        axis.plot(start + at + 1, judged[at], color=colour, marker="o", ms=10, mew=1.6, mfc="none")
        style.mark_phase(axis, phase, start)
        start += len(judged)
    axis.set_xlim(0.5, max(start, 1) + 0.5)
    axis.margins(y=0.15)
