"""What the table of an experiment says, in sentences that every form of the report shares."""

import math

from tandemrank.experiments.results import Figure, NdcgDifference, Table
from tandemrank.reports.words import bracket, closely, duration, label, listed

MEASURES: dict[Figure, tuple[str, str]] = {
    "ndcg": ("NDCG@{K}", "of the most likely list"),
    "ndcg_new": ("NDCG@{K}, new items", "of those the user has not clicked"),
    "ndcg_expected": ("expected NDCG@{K}", "over lists drawn from the policy"),
    "recall_at_K2": ("recall@K2", "relevant items among the candidates"),
    "utility": ("clicks", "expected per list"),
    "overlap": ("overlap", "of what both stages alone would show"),
}


def what_was_run(table: Table) -> str:
    """The experiment in plain words, with its sizes."""
    world, K = table.world, table.K
    data = "the embedded synthetic world" if world.data == "synthetic" else world.data
    kinds = ((world.queries, "users"), (world.items, "items"), (world.positives, "relevant pairs"))
    sizes = listed([f"{size:,} {word}" for size, word in kinds if size is not None])
    logged = "users" if world.logged_users is None else f"{world.logged_users:,} users"
    K2s, Ns = (listed([f"{x:,}" for x in sorted({s[i] for s in table.settings})], "or") for i in (0, 1))
    runs = sorted({row.runs for row in table.rows if row.runs})
    times = "once" if runs in ([], [1]) else f"{listed([str(n) for n in runs], 'or')} times"
    ways = {1: "one way", 2: "two ways", 3: "three ways"}.get(len(table.methods), f"{len(table.methods)} ways")
    took = f" All of it took {duration(world.seconds)}" if world.seconds > 0 else ""
    took += (f" on {world.machine}." if world.machine else ".") if took else ""
    return (
        f"On {data}{f' ({sizes})' if sizes else ''}, a production ranker showed lists of {K} items to {logged}, and its clicks "
        f"were logged: {Ns} lists. From these clicks alone a two-stage system was trained, a generator that picks {K2s} "
        f"candidates and a re-ranker that chooses the {K} to show. It was trained in {ways}, {times} each, and judged on "
        f"the true relevance, which no training saw.{took}"
    )


def headline(table: Table) -> list[str]:
    """Who is ahead, by how much and how surely: a sentence for each comparison."""
    return _methods(table)


SAME = 1e-9  # of NDCG: below it two methods gave the same lists, and what is left is rounding


def _methods(table: Table) -> list[str]:
    if len(table.methods) > 1 and table.differences and all(abs(d.mean) < SAME for d in table.differences):
        return [
            f"{listed([label(method) for method in table.methods])} are one and the same pair here: both stages are one model, "
            "start from all that the log says, and nothing was trained on top."
        ]
    pairs = dict.fromkeys((entry.method, entry.against) for entry in table.differences)
    sentences = []
    for method, against in pairs:
        entries = [d for d in table.differences if (d.method, d.against) == (method, against) and math.isfinite(d.mean)]
        if entries:
            sentences.append(_one_setting(entries[0]) if len(entries) == 1 else _many_settings(entries))
    if not sentences and table.settings and (first := table.leader(table.settings[-1])):
        sentences = [
            f"{label(first)} has the highest NDCG; without paired differences nothing is said about how surely it is ahead."
        ]
    return sentences


def _one_setting(entry: NdcgDifference) -> str:
    a, b, bounds = label(entry.method), label(entry.against), bracket(entry.low, entry.high, closely)
    return {
        "ahead": f"{a} is ahead of {b} by {abs(entry.mean):.4f} NDCG {bounds}.",
        "behind": f"{a} is behind {b} by {abs(entry.mean):.4f} NDCG {bounds}.",
        "level": f"{a} and {b} cannot be told apart: the difference {closely(entry.mean)} {bounds} includes 0.",
        "unknown": f"{a} differs from {b} by {closely(entry.mean)}, without an interval: it may be chance.",
    }[entry.verdict]


def _many_settings(entries: list[NdcgDifference]) -> str:
    verdicts, values = [entry.verdict for entry in entries], [entry.mean for entry in entries]
    others = {"behind": "behind in", "level": "not to be told apart in", "unknown": "without an interval in"}
    rest = "".join(f", {words} {verdicts.count(name)}" for name, words in others.items() if name in verdicts)
    against = entries[0].against if " " in entries[0].against else label(entries[0].against)
    return (
        f"{label(entries[0].method)} is ahead of {against} in {verdicts.count('ahead')} of {len(entries)} "
        f"settings{rest}; the differences go from {closely(min(values))} to {closely(max(values))}."
    )


def interval_note(table: Table) -> str:
    """What the intervals of the differences are over."""
    kinds = {entry.kind for entry in table.differences}
    over_runs = "Intervals are over runs: other logs, other starts."
    over_users = "Intervals are over the users of one run: the chance of another log or another start is not in them."
    return " ".join(text for kind, text in (("runs", over_runs), ("users", over_users)) if kind in kinds)
