"""The reasons of a decision, in words."""

import numpy as np

from tandemrank.decisions.planning import Canary
from tandemrank.decisions.segments import SegmentDifference
from tandemrank.offpolicy.values import Sample, Value


def canary_words(trial: Canary) -> str:
    """The plan of a canary as a sentence."""
    at_worst = f"at worst {trial.loss_at_worst:.2%} of all clicks are lost meanwhile"
    if not np.isfinite(trial.impressions):
        return f"a canary with {trial.share:.0%} of the traffic has no verdict in sight; {at_worst}"
    return (
        f"a canary with {trial.share:.0%} of the traffic can be expected to have a verdict after about "
        f"{_round(trial.impressions)} impressions; {at_worst}"
    )


def needed_words(needed: float, sample: Sample) -> str:
    if not np.isfinite(needed):
        return "no log of this kind would make it a yes"
    queries = ", with as many more queries," if sample.independent == "queries" else ""
    return f"a log of about {_round(needed)} impressions{queries} would make it a yes; this one has {sample.impressions:,.0f}"


def rests_on(new: Value) -> tuple[str, ...]:
    """What the numbers rest on: support by stage, balance, effective sample, propensities."""
    found = new.diagnostics
    if found is None:
        return ()
    return (
        f"support: {found.unsupported:.1%} of what it shows was never shown to the query{found.stages(1)}",
        f"balance of the weights {found.balance:.3f} ± {1.96 * found.balance_error:.3f} (1 is right); propensities: "
        f"{new.propensity}",
        f"effective sample: {found.effective_sample_size:,.0f} of {found.examined:,.0f} examined items, {found.queries:,} "
        "queries",
        *([] if new.behaviour is None else [f"clicks: {words}" for words in new.behaviour.sentences]),
    )


def segment_words(gaps: tuple[SegmentDifference, ...], unit: str) -> tuple[str, ...]:
    worse = [one for one in gaps if one.worse]
    return tuple(
        f"WORSE for {one.segment} ({one.impressions:,.0f} impressions): {one.difference:+.3g} "
        f"[{one.interval[0]:+.3g}, {one.interval[1]:+.3g}] {unit} per impression"
        for one in worse
    )


def _round(n: float) -> str:
    """Two digits are all that a plan has."""
    digits = max(len(f"{n:.0f}") - 2, 0)
    return f"{round(n, -digits):,.0f}"
