"""Commands about a log itself: import, validate, examine, judge."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandemrank._base.progress import working
from tandemrank._base.results import within
from tandemrank.cli.options import BareLogs, Curve, Engine, Json, Logs, Seed, app, given_logs, read_curve_option
from tandemrank.cli.terminal import print_json, print_summary, rows_table, show, two_columns
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from tandemrank.clicks.examination import ExaminationCurve
    from tandemrank.logs.validation import Fixed, Validation


@app.command("import")
def import_(
    sources: Annotated[list[Path], typer.Argument(help="Files of the other system: JSON lines, JSON, CSV or Parquet.")],
    kind: Annotated[
        str,
        typer.Option(
            "--from", help="ubi, metarank, obd, ga4, clax, long (one row per shown item) or wide (one per impression)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the click log.")],
    click_name: Annotated[
        list[str] | None, typer.Option(help="Name of an event that is a click. May be repeated.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Our name of a column of a table and its name in the files, as query_id=user or items=results.id. "
            "May be repeated."
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            help="Event (ubi, metarank, ga4: by default add_to_cart and purchase) or column (long, wide) that is a reward of "
            "an item beside its click. May be repeated."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Columns, separated by commas, that the log keeps for learn --context (a device, an hour); long and wide."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Turns the log of another system into a click log, and says what it kept, what it left out and why.

    OpenSearch UBI (give its queries and its events), Metarank, Open Bandit, Google Analytics 4, CLAX, or any table.
    """
    from tandemrank.logs.importers import run

    names = dict(pair.split("=", 1) for pair in column or [] if "=" in pair)
    if wrong := [pair for pair in column or [] if "=" not in pair]:
        raise ConfigError(f"--column takes OURS=THEIRS, as in query_id=user; got {wrong[0]!r}.")
    with working("importing"):
        found = run.import_log(
            kind, sources, out, click_names=click_name, columns=names, rewards=reward,
            context=() if context is None else [part.strip() for part in context.split(",")],
        )  # fmt: skip
    if as_json:
        print_json(vars(found))
        return
    rewards = f", rewards: {', '.join(found.rewards)}" if found.rewards else ""
    show(f"{found.path}: {found.impressions:,} impressions, {found.clicks:,} clicks{rewards}")
    for count in found.counts:
        once = f"; {count.repeats:,} of them repeat another and count once" if count.repeats else ""
        show(f"{count.what}: {count.kept:,} of {count.given:,} kept{once}")
        for why, number in count.left_out.items():
            show(f"  left out: {number:,} {why}")
    for note in found.notes:
        show(f"note: {note}")


@app.command()
def validate(
    bare: BareLogs = None,
    logs: Logs = None,
    list_length: Annotated[
        int | None, typer.Option(help="Length of the shown list, K; longer lists are problems.", min=1)
    ] = None,
    fix: Annotated[Path | None, typer.Option(help="Write a cleaned copy of the log to this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Checks a click log: lists all its problems at once, describes it, and says which questions it can answer.

    Exit code 0: no problems; 1: it has problems (they are listed); 2: it cannot be read at all.
    """
    from tandemrank.logs import validation

    asked = given_logs(bare, logs)
    with working("reading the log"):
        found = validation.validate(asked, K=list_length)
        mended = None if fix is None else validation.fix(asked, fix, K=list_length)
    if as_json:
        print_json({**vars(found), **({} if mended is None else {"fixed": mended})})
    else:
        print_validation(found, mended)
    if not found.fit:
        sys.exit(1)


@app.command()
def examine(
    bare: BareLogs = None,
    logs: Logs = None,
    list_length: Annotated[
        int | None, typer.Option(help="Ranks of the curve, K; by default all of the log's.", min=2)
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Column of the log on which examination depends beside the rank, as a device.")
    ] = None,
    engine: Engine = "local",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Estimates the examination curve from the log itself, with intervals: how much users look at each rank.

    Refused where the log cannot identify it: an item must have been shown at several ranks for the same query. Where readers
    stop after a click, or trust what stands high, that is estimated, too, and used by the commands that take the curve.
    """
    from tandemrank._base.cluster import check_engine
    from tandemrank.clicks import examination

    asked = given_logs(bare, logs)
    with working("reading the log and comparing ranks"):
        found = examination.examine(asked, list_length, by=by, seed=seed, engine=check_engine(engine))
    if as_json:
        print_json(found)
    else:
        show(two_columns({name: getattr(found, name) for name in ("level", "pairs_compared", "clicks")}))
        show(rows_table("curve", found.to_frame().to_dicts()))
        for part in (found.dependence, found.trust):
            if part is not None:
                show(part.words)
        if found.cells is not None and found.cells.states is not None:
            show(_cells(found))


def _cells(found: "ExaminationCurve") -> "Table":
    """Examination by rank and state: by the last click above, its rank, or by the values of a column, with intervals."""
    assert found.cells is not None
    low, high, values = found.cells_low, found.cells_high, found.cells.values
    names = values or ("no click above", *(f"click at {k}" for k in range(1, len(found.theta))))
    first: list[dict[str, object]] = [{"position": name} for name in found.positions] or [
        {"rank": k + 1} for k in range(len(found.theta))
    ]
    rows = []
    for k, row in enumerate(found.cells.theta):
        there = [f"{theta:.4g}" for theta in (row if values else row[: k + 1])]
        if low is not None and high is not None:
            there = [f"{one} {within(low[k, s], high[k, s])}" for s, one in enumerate(there)]
        rows.append(first[k] | dict(zip(names, [*there, *[""] * (len(row) - len(there))], strict=True)))
    return rows_table(f"examination by {found.cells.by if values else 'the last click'}", rows)


@app.command()
def judge(
    out: Annotated[
        Path,
        typer.Option(
            help="File for the judgements: .qrels (TREC), .json (OpenSearch Search Relevance Workbench), .csv (Quepid) or "
            ".parquet (relevance with its interval)."
        ),
    ],
    bare: BareLogs = None,
    logs: Logs = None,
    curve: Curve = None,
    grades: Annotated[int, typer.Option(help="Grades of a judgement, 0 among them.", min=2, max=101)] = 4,
    level: Annotated[float, typer.Option(help="Of the intervals of relevance.")] = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Writes judgements: the believed relevance of every item that the log showed to a query, freed of its rank, as grades."""
    from tandemrank.beliefs import judgements

    theta, asked = read_curve_option(curve) or "reciprocal", given_logs(bare, logs)
    with working("reading the log and fitting beliefs"):
        found = judgements.judge(asked, examination=theta, grades=grades, level=level, seed=seed)
    judgements.write(found, out, inputs=asked)
    print_summary(found.summary() | {"file": out}, as_json)


# What a person sees of it.

MOST_PROBLEMS, MOST_RANKS, MOST_POLICIES = 8, 10, 5  # so that what is said of a log fits on a screen


def print_validation(found: "Validation", mended: "Fixed | None") -> None:
    """What is wrong with a log, what it is and can answer, on a screen."""
    if found.problems:
        problems = [
            {"file": p.file, "column": p.column, "rows": p.rows or "all", "count": p.count or "", "problem": p.message}
            for p in found.problems[:MOST_PROBLEMS]
        ]
        show(rows_table("problems", problems))
        if (more := len(found.problems) - MOST_PROBLEMS) > 0:
            show(f"and {more} more: --json lists all")
    show(two_columns(dict(_described(found))))
    if found.answers:
        answers = [{"question": a.question, "": a.possible, "why": a.why} for a in found.answers]
        show(rows_table("what this log can answer", answers))
    if mended is not None:
        show(f"cleaned copy: {mended.path}, {mended.kept:,} of {mended.impressions:,} impressions")
        for reason in mended.dropped:
            show(f"left out: {reason.impressions:,} impressions, column {reason.column or 'any'}: {reason.reason}")


def _described(found: "Validation") -> Iterator[tuple[str, str]]:
    """What a log is, in words and numbers."""
    yield "fit", "yes" if found.fit else "no"
    files = "one file" if found.files == 1 else f"{found.files:,} files"
    yield "impressions", f"{found.impressions:,} in {files}, {found.usable:,} of them without a problem"
    log = found.log
    if log is None:
        return
    yield "queries", f"{log.queries:,}, of which {log.repeated_queries:,} were seen twice or more"
    yield "items", f"{log.items:,}"
    yield "clicks", f"{log.clicks:,}, {log.clicks / log.impressions:.3g} per impression"
    yield "pairs of query and item", f"{log.pairs:,}, of which {_share(log.pairs_shown_once)} were shown once"
    yield "queries with a single list", f"{_share(log.queries_with_a_single_list)} of those seen twice or more"
    yield "items in common", f"{_share(log.items_in_common)} of a list, with another list of its query"
    for name, limits in (("propensities", log.propensity_range), ("weights", log.weight_range)):
        yield name, "none" if limits is None else f"from {limits[0]:.3g} to {limits[1]:.3g}"
    if log.policies:
        names = [f"{p.policy or '(not named)'}: {p.impressions:,}" for p in log.policies[:MOST_POLICIES]]
        more = len(log.policies) - MOST_POLICIES
        yield "policies", ", ".join([*names, *([f"and {more} more"] if more > 0 else [])])
    if found.sessions is not None:
        yield "sessions", found.sessions.words
    rates = ["-" if rate is None else f"{rate:.3f}" for rate in log.click_rate_by_rank]
    last = min(len(rates), MOST_RANKS)
    yield f"click rates at ranks 1 to {last}" if last > 1 else "click rate", "  ".join(rates[:last])


def _share(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"
