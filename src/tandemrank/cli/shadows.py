"""Shadow lists on the command line: their option, their table, and the table of their differences."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandemrank.cli.terminal import print_json, print_summary, rows_table, show
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from tandemrank.logs.details import Shadow
    from tandemrank.logs.sources import Source
    from tandemrank.offpolicy.comparison import Comparison
    from tandemrank.offpolicy.question import Question
    from tandemrank.offpolicy.values import Value

Shadows = Annotated[
    list[str] | None,
    typer.Option(
        "--shadow",
        help="Instead of a policy, the lists that another system would have shown: NAME=column of the log, or NAME=file with "
        "impression_id and items. May be repeated.",
    ),
]


def shadows_of(shadow: list[str], *others: object) -> "dict[str, Shadow]":
    """Shadow lists by their names."""
    from tandemrank.logs.details import Shadow

    if any(others):
        raise ConfigError("--shadow is compared with production or another --shadow: leave out --policy and --scores.")
    found: dict[str, Shadow] = {}
    for one in shadow:
        name, _, source = one.partition("=") if "=" in one else (one, "", one)
        if not name or not source or name in found:
            raise ConfigError(f"--shadow takes NAME=COLUMN or NAME=FILE, each name once; got {one!r}.")
        found[name] = Shadow(name, Path(source) if os.path.isfile(source) else source)
    return found


def print_systems(values: "dict[str, Value]", unit: str, as_json: bool) -> None:
    """The values of shadow lists, in clicks or a reward: all of one, of several a table."""
    if len(values) == 1:
        print_summary(next(iter(values.values())).summary(), as_json)
    elif as_json:
        print_json({name: value.summary() for name, value in values.items()})
    else:
        columns = ("value", "interval", "lower_bound", "verdict")
        rows = [{"system": name} | {c: getattr(value, c) for c in columns} for name, value in values.items()]
        show(rows_table(f"{unit} per impression", rows))
        supports = {name: value.support for name, value in values.items()}
        ranks = range(max(map(len, supports.values())))
        shares = {name: [f"{one.ever_shown:.0%}" for one in some] for name, some in supports.items()}
        support = [
            {"rank": k + 1} | {name: some[k] if k < len(some) else None for name, some in shares.items()} for k in ranks
        ]
        show(rows_table("support: share of the items at a rank that the query was ever shown", support))
        for name, value in values.items():
            show("\n".join(f"{name}: {reason}" for reason in value.reasons))


def differences(
    sides: "dict[str, Shadow]", against: str, log: "Source", question: "Question"
) -> "dict[str, Comparison]":
    """Every shadow list less the other side, on the same impressions, at a level at which all of them hold together."""
    from tandemrank.offpolicy.comparison import compare_values
    from tandemrank.offpolicy.valuation import estimate_all
    from tandemrank.offpolicy.values import PRODUCTION

    new = {name: side for name, side in sides.items() if name != against}
    if not new or against not in (PRODUCTION, *sides):
        raise ConfigError(f"--against takes production or the name of another --shadow; got {against!r}.")
    each = replace(question, level=1 - (1 - question.level) / len(new))
    *values, old = estimate_all([*new.values(), sides.get(against, PRODUCTION)], log, each)
    return {name: compare_values(value, old) for name, value in zip(new, values, strict=True)}


def print_differences(against: str, found: "dict[str, Comparison]", unit: str, as_json: bool) -> None:
    if as_json:
        print_json({"against": against, "systems": {name: one.summary() for name, one in found.items()}})
        return
    rows = [
        {"system": name, "new": one.new.value, "old": one.old.value, "difference": one.difference}
        | {column: getattr(one, column) for column in ("interval", "lower_bound", "verdict")}
        for name, one in found.items()
    ]
    show(rows_table(f"{unit} per impression above {against}, intervals and bounds of all together", rows))
    for name, one in found.items():
        show("\n".join(f"{name}: {reason}" for reason in one.reasons))
