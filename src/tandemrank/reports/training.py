"""The report of `learn`: sentences, a table for the terminal, one self-contained HTML page, and all the
files that `learn` leaves in its folder.
"""

import math
import os
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemrank import __version__
from tandemrank._base.config import switch_help, switch_values
from tandemrank._base.files import Kind, write_json
from tandemrank.clicks.models import CellCurve
from tandemrank.decisions.decision import call_of, guessed
from tandemrank.errors import ConfigError
from tandemrank.logs.sources import days_of
from tandemrank.offpolicy.comparison import FrequencyGroup
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.offpolicy.verdicts import CARE_QUERIES, Verdict
from tandemrank.reports import figures, page, sections
from tandemrank.reports.figures import Dot, Panel, Step
from tandemrank.reports.page import Report, Section
from tandemrank.reports.sections import BY_ID, Named
from tandemrank.reports.style import look_of
from tandemrank.reports.words import Sheet, bracket, decimal, label, listed, signed, switch_sheet
from tandemrank.training.config import TrainingConfig
from tandemrank.training.methods import ENOUGH
from tandemrank.training.results import Difference, Learned, are_same_policy
from tandemrank.training.schedules import UNTRAINED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING = Kind("training")
TITLE = "{} per impression, and the gain over production, on impressions that were kept for this"


# --- the files --------------------------------------------------------------------------------------------------------


def check_free(out: Path, methods: Iterable[str]) -> None:
    """Refuses a folder that holds a policy of one of the methods already."""
    for method in methods:
        if os.path.exists(out / method / "policy"):
            raise ConfigError(
                f"{out / method / 'policy'} exists. Give another --out, or --resume to go on with an interrupted training."
            )


def write(learned: Learned, out: Path, *, command: str = "", seed: int = 0, named: Named = BY_ID) -> dict[str, Any]:
    """`out/METHOD/policy` and its `history.json`, `out/config.json`, `out/report.html` and `out/summary.json`, which is
    returned."""
    asked, found = _switches(learned, seed), learned.summary()
    write_json(out / "config.json", asked)
    for entry in found["methods"]:
        trained = learned.trained[entry["method"]]
        write_json(out / entry["method"] / "history.json", trained.history)
        entry["policy"] = str(trained.policy.save(out / entry["method"] / "policy"))
    page_file = report(learned, command=command, seed=seed, named=named).write(out / "report.html")
    summary = {"command": command, "version": __version__, **found, "switches": asked, "report": str(page_file)}
    write_json(out / "summary.json", summary)
    return summary


def _switches(learned: Learned, seed: int) -> dict[str, object]:
    """What was used: the switches of training only where something was trained."""
    found = switch_values(learned.config)
    if not learned.was_trained:
        of_training = {*TrainingConfig.model_fields, "objective", "clip"}
        found = {name: value for name, value in found.items() if name not in of_training}
    return {"seed": seed, **found}


# --- the words --------------------------------------------------------------------------------------------------------


def sentences(learned: Learned) -> list[str]:
    """What the log says of each policy against production and against the others; and where training failed."""
    noted = [
        f"{label(method)} keeps the items that each query was shown and changes their order alone: the log shows too little "
        "variation to speak about other items."
        for method, trained in learned.trained.items()
        if trained.stays
    ]
    noted += [
        f"{label(a)} and {label(b)} are the same policy, to the bit."
        for a, b in combinations(learned.trained, 2)
        if are_same_policy(learned.trained[a].policy, learned.trained[b].policy)
    ]
    return [*map(_sentence, learned.differences), *noted, *_harmed(learned), *_calls(learned)]


def _calls(learned: Learned) -> list[str]:
    """What `decide` says of every method that may replace production, by the same values."""
    kept = {method for method, gate in learned.gates.items() if gate.kept_production}
    gaps = [one for one in learned.differences if one.against == PRODUCTION and one.method not in kept]
    found = [(one.method, *call_of(one.comparison)) for one in gaps]
    return [f"Decision on {label(method)}: {call}. {label(why)}." for method, call, why in found]


def believed(learned: Learned) -> list[str]:
    """What the beliefs are made of; nothing where none were fitted."""
    if learned.beliefs is None:
        return []
    found = learned.beliefs.constants()
    levels, source = found["levels"], {"log": "the clicks of the log", "production": "production's lists"}
    relevance = "is a bit: clicked or not" if found["relevance"] == "a bit" else "is graded"
    words = [
        f"What an item is to a query {relevance}, from {min(levels):.0%} to {max(levels):.0%} clicks when it is looked at.",
        f"Queries and items have vectors of {found['rank']} numbers, from {source[found['directions']]}.",
    ]
    if found["features"] != "none":
        of = "counts and features" if learned.start.has_features else "counts of the log"
        words.append(f"Beside the vectors a model of {of} was kept: {found['features']}.")
    if found["half_life"] is not None:
        words.append(f"What is {found['half_life']:g} eighths of the log older counts half.")
    return [*words, *learned.notes]


def chosen(learned: Learned) -> list[str]:
    """What the beliefs expect of the generator, and what was trained for it; nothing where there is one stage."""
    choice, policy = learned.choice, learned.policy
    if choice is None or len(policy.vocabulary.item_ids) == policy.K2:
        return []
    first = choice.tried[0].expected
    lost = (
        f"The re-ranker alone, over all items, is expected to get {decimal(choice.everything)} clicks per impression; "
        f"behind the generator that was not trained {decimal(first)} ({first / max(choice.everything, 1e-12):.1%})"
    )
    if len(choice.tried) == 1 and first < ENOUGH * choice.everything:
        return [
            f"{lost}. For so many queries and items that would take hours, so nothing was trained: --method independent does."
        ]
    if len(choice.tried) == 1:
        return [f"{lost}. So nothing was trained."]
    others = ", ".join(f"{label(one.method)} {decimal(one.expected)}" for one in choice.tried[1:])
    return [f"{lost}. Trained: {others}. {label(choice.method)} was kept."]


def _harmed(learned: Learned) -> list[str]:
    """For whom a policy is surely worse than production, by how often a query came; nothing of a value that is refused."""
    return [
        f"{label(method)} is worse than production for queries seen {_times(group)}: {signed(group.difference)} "
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
        if Verdict.REFUSE not in (fixed.verdict, learned.values[method].verdict)
    ]


def _sentence(difference: Difference) -> str:
    a, b, found = label(difference.method), difference.against, difference.comparison
    unit = "clicks" if found.new.reward is None else found.new.reward.name
    low, high = found.interval
    gap = f"{signed(found.difference)} {bracket(low, high, signed)}"
    if found.verdict == Verdict.REFUSE:
        which = found.new if found.new.verdict == Verdict.REFUSE else found.old
        return f"{a} against {b} {Verdict.REFUSE}: {which.reasons[0]}."
    if low <= 0 and (found.lower_bound or 0) > 0:
        sure = f"{found.new.sample.level:.0%}"
        words = (
            f"{a} would get more {unit} than {b}, at least {signed(found.lower_bound or 0)} per impression ({sure} sure); how "
            f"much more is hardly known: {gap}"
        )
    elif low <= 0 <= high:
        words = f"{a} and {b} cannot be told apart: {gap} {unit} per impression includes 0"
    else:
        than = "more" if low > 0 else "fewer" if unit == "clicks" else "less"
        words = f"{a} would get {than} {unit} than {b}: {gap} per impression"
    which = found.new if found.new.verdict == Verdict.CARE else found.old
    return f"{words}; use it with care: {which.reasons[0]}." if found.verdict == Verdict.CARE else f"{words}."


def _sides(learned: Learned) -> list[tuple[str, Value, Difference | None]]:
    """Production, then every method, each with its difference from production."""
    gaps = {d.method: d for d in learned.differences if d.against == PRODUCTION}
    live: list[tuple[str, Value, Difference | None]] = [(PRODUCTION, learned.production, None)]
    return live + [(str(method), value, gaps.get(method)) for method, value in learned.values.items()]


def _interval(found: Value) -> str:
    return bracket(*found.interval)


def values(learned: Learned) -> Sheet:
    """Production and every method in a line: what it is worth, and its gain over production."""
    rows = []
    for name, value, gap in _sides(learned):
        if value.verdict == Verdict.REFUSE:
            rows.append((label(name), *["–"] * 5, str(value.verdict)))
            continue
        above = ("–", "") if gap is None else _above(gap)
        bound = None if gap is None else gap.comparison.lower_bound
        surely = "" if bound is None else signed(bound)
        rows.append((label(name), decimal(value.value), _interval(value), *above, surely, str(value.verdict)))
    heads = ("", learned.reward, "95% interval", "gain", "95% interval", "at least", "verdict")
    return Sheet(heads, rows, ("", "verdict"))


def _above(gap: Difference) -> tuple[str, str]:
    return signed(gap.comparison.difference), bracket(*gap.comparison.interval, signed)


def what_was_run(learned: Learned) -> str:
    """What was done, in plain words, with its sizes."""
    log, policy = learned.log, learned.policy
    return (
        f"A live system showed lists of up to {log.list_length} of {log.items:,} items to {log.queries:,} queries, "
        f"{log.impressions:,.0f} times, and {log.clicks:,.0f} clicks were logged. The list has {policy.K} "
        f"places. {log.train:,.0f} impressions were learned from and {'the last ' if log.by_time else ''}"
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
    besides = learned.start.besides
    source = f"From {listed(['these clicks', *besides])}" if besides else "From these clicks alone"
    trained = [label(method) for method, one in learned.trained.items() if one.history]
    rest = [label(method) for method, one in learned.trained.items() if not one.history]
    if trained and rest:
        return f"{source} policies were made, of {stages}. Trained: {listed(trained)}; not: {listed(rest)}."
    if trained:
        return f"{source} a policy was trained, of {stages}."
    return f"{source} a policy was made, of {stages}. Nothing was trained beyond the beliefs."


# --- the page ---------------------------------------------------------------------------------------------------------


def plot(learned: Learned) -> "Figure":
    """Production and every method with their intervals."""
    return figures.dots(_dots(learned), f"{learned.reward} per impression", asked=None)


def report(learned: Learned, *, command: str = "", seed: int = 0, named: Named = BY_ID) -> Report:
    """What each policy is worth, what was learned, what it changes and for whom, and what the numbers rest on."""
    title = "Both stages, trained from a click log" if learned.was_trained else "What a click log says"
    by = ", ".join(dict.fromkeys(str(value.estimator).replace("_", " ") for value in learned.values.values()))
    log, first, used = learned.log, label(next(iter(learned.trained))), learned.config.examination
    worth = Section(
        title=f"{label(learned.reward)} per impression",
        sheet=values(learned),
        draw=lambda: plot(learned),
        caption=f"Off-policy estimates ({by}) with 95% intervals on {log.evaluation:,.0f} impressions that nothing "
        "before has seen; production's is what these impressions show.",
    )
    explained = {"seed": "of everything random"} | switch_help(type(learned.config))
    parts = [
        Section(title="What it is worth", tiles=_tiles(learned), sentences=sentences(learned)),
        worth,
        Section(title="What was learned", sentences=[made(learned), *believed(learned), *chosen(learned)]),
        page.methods_of([str(method) for method in learned.trained]),
        sections.changes(learned.production.log, learned.policy, named, sides=("production, today", f"{first}, new")),
        _frequencies(learned),
        _candidates(learned),
        Section(title="Drawn lists or the most likely ones", sentences=deployment(learned)),
        Section(title="Whether production is kept", sentences=gate_sentences(learned)),
        Section(title="What the numbers rest on", terms=_verdicts(learned), sheet=_diagnostics(learned)),
        sections.weights(next(iter(learned.values.values()))),
        _curves(learned),
        sections.examination(learned.production.log, used if isinstance(used, CellCurve) else learned.config.theta),
        sections.reading(learned.behaviour),
        Section(title="The log", terms=_log(learned)),
        Section(title="Every switch", sheet=switch_sheet(_switches(learned, seed), explained)),
        page.reproduce(command),
    ]
    return Report(title, [what_was_run(learned)], parts, page.COLOURS, period=days_of(log.period))


def _tiles(learned: Learned) -> list[tuple[str, str, str]]:
    """Production, the first policy, and what it surely gains."""
    method, value = next(iter(learned.values.items()))
    gain = next((one.comparison for one in learned.differences if one.against == PRODUCTION), None)
    unit = f"{learned.reward} per impression"
    tiles = [("Production, now", decimal(learned.production.value), unit)]
    if gain is None or gain.verdict == Verdict.REFUSE:
        return [*tiles, (label(method), "–", str(value.verdict))]
    tiles.append((f"{label(method)}, estimated", decimal(value.value), str(value.verdict)))
    tiles.append(("Gain", signed(gain.difference), bracket(*gain.interval, signed)))
    if gain.lower_bound is None:
        return tiles
    sure = "if the propensities are right" if guessed(value, varies=True) else unit
    return [*tiles, ("Gain, at least", signed(gain.lower_bound), sure)]


def _candidates(learned: Learned) -> Section:
    """Which stage loses what, and what fewer or more candidates would keep, as the beliefs expect it."""
    title, choice = "Which stage loses what", learned.choice
    if choice is None or len({one.candidates for one in choice.by_candidates}) < 2:
        return Section(title=title)
    K2 = learned.policy.K2
    kept = {one.candidates: one.kept for one in choice.by_candidates}
    lost, shares = max(1 - kept[K2], 0.0), [100 * share for share in kept.values()]
    said = [
        f"The generator loses {lost:.1%} of what the re-ranker would get by ranking all items itself, with {K2:,} candidates.",
        "The re-ranker is the belief itself, and by its own expectation loses nothing."
        if choice.method == UNTRAINED
        else "The re-ranker is measured by the beliefs, which have the last word on what an item is worth.",
    ]
    return Section(
        title=title,
        sentences=said,
        draw=lambda: figures.by_candidates(list(kept), shares, 100.0, ylabel=KEPT, least=10.0),
        caption="Clicks that the policy is expected to get with other numbers of candidates, as a share of those of the "
        "re-ranker over all items (dashed). It is what the beliefs expect, no estimate by clicks: "
        "`tandemrank estimate --candidates` has that, with intervals and the re-ranker's cost.",
    )


KEPT = "% of the re-ranker over all items"


def _curves(learned: Learned) -> Section:
    """How training went; nothing where nothing was trained."""
    found = _panels(learned)
    if not found:
        return Section(title="Learning curves")
    caption = "The objective of training by epoch."
    return page.figure("Learning curves", figures.learning_curves, [found], "objective", caption=caption)


def gate_sentences(learned: Learned) -> list[str]:
    """Whether each method is surely better than production, in words; nothing where that was not asked."""
    found = []
    for method, gate in learned.gates.items():
        bound = (
            ""
            if gate.lower_bound is None
            else f", by at least {signed(gate.lower_bound)} {learned.reward} per impression"
        )
        if gate.worse:
            found.append(
                f"{label(method)} would get fewer {learned.reward} than production on impressions that nothing before has "
                "seen: production stays."
            )
        elif gate.kept_production:
            found.append(f"{label(method)} is not surely better than production{bound}: production is kept.")
        else:
            found.append(f"{label(method)} is surely better than production{bound}.")
    return found


def _frequencies(learned: Learned) -> Section:
    """Every policy against production, by how often a query came in the log."""
    found = [
        (method, group)
        for method, groups in learned.by_frequency.items()
        for group in groups
        if learned.values[method].verdict != Verdict.REFUSE
    ]
    rows = [
        (
            label(method), _times(group), f"{group.queries:,}", f"{group.impressions:,.0f}", decimal(group.old),
            signed(group.difference), bracket(*group.interval, signed),
        )
        for method, group in found
    ]  # fmt: skip
    several = len({method for method, _ in found}) > 1
    dots = [
        Dot(
            f"{label(method)}, {_times(group)}" if several else _times(group),
            group.difference,
            group.interval,
            look_of(method)["color"],
        )
        for method, group in found
    ]
    heads = ("", "queries seen", "queries", "impressions", "production", "difference", "95% interval")
    return Section(
        title="For whom",
        sheet=Sheet(heads, rows, heads[:2]),
        draw=(lambda: figures.dots(dots, f"{learned.reward} per impression above production")) if dots else None,
        caption="By how often a query was seen in the log. Left of the dashed line production is better."
        if dots
        else "",
    )


RESTS_ON = (
    "clicks", "at least", "effective sample", "largest weight", "unsupported", "at the generator", "at the re-ranker",
    "balance",
)  # fmt: skip


def _diagnostics(learned: Learned) -> Sheet:
    """What every value rests on."""
    rows = [(label(method), *_rests_on(value)) for method, value in learned.values.items()]
    return Sheet(("", *RESTS_ON), rows, ("",))


def _verdicts(learned: Learned) -> dict[str, str]:
    return {label(m): f"{value.verdict}: {'; '.join(value.reasons)}." for m, value in learned.values.items()}


def _rests_on(value: Value) -> list[str]:
    refused, found = value.verdict == Verdict.REFUSE, value.diagnostics
    sizes = ["–", "–"] if refused else [decimal(value.value), decimal(value.lower_bound)]
    if found is None:
        return sizes + ["–"] * (len(RESTS_ON) - 2)
    effective = f"{found.effective_sample_size:,.0f}" if math.isfinite(found.effective_sample_size) else "–"
    shares = (found.unsupported, found.lost_at_generator, found.lost_at_ranker)
    of_exposure = [f"{share:.1%}" if math.isfinite(share) else "–" for share in shares]
    return [*sizes, effective, decimal(found.largest_weight), *of_exposure, decimal(found.balance)]


def _log(learned: Learned) -> dict[str, str]:
    """What the log is, which propensities were used and why, and what training started from."""
    log = learned.log
    facts = {
        "impressions": f"{log.impressions:,.0f}",
        "queries": f"{log.queries:,}",
        "items shown": f"{log.items:,}",
        "(query, item) pairs shown": f"{log.pairs:,}",
        "clicks": f"{log.clicks:,.0f}",
        "propensities": f"{learned.propensity}: {learned.propensity_reason}",
    }
    return facts | ({"training started from": learned.start.words} if learned.was_trained else {})


# --- the figures ------------------------------------------------------------------------------------------------------


def _dots(learned: Learned) -> list[Dot]:
    """The value of production and of every method that the log can answer for."""
    return [
        Dot(label(name), value.value, value.interval, look_of(name)["color"])
        for name, value, _ in _sides(learned)
        if value.verdict != Verdict.REFUSE
    ]


def _panels(learned: Learned) -> list[Panel]:
    """The objective of training by epoch."""
    return [
        Panel(label(method), look_of(method)["color"], [[Step(epoch.phase, epoch.objective) for epoch in one.history]])
        for method, one in learned.trained.items()
        if one.history
    ]
