"""The command decide."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandemrank.cli.app import app
from tandemrank.cli.offpolicy import (
    Against,
    Candidates,
    ListLength,
    Log,
    QuestionOptions,
    ScoredSizes,
    asks,
    other_side,
    pair_of,
)
from tandemrank.cli.options import Json, command_line
from tandemrank.cli.progress import load_first, working
from tandemrank.cli.terminal import print_json, show
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from tandemrank.decisions.decision import Decision
    from tandemrank.policies.two_stage import TwoStagePolicy

Policies = Annotated[list[Path] | None, typer.Option("--policy", help="Saved pair that may ship. May be repeated.")]
AllScores = Annotated[
    list[Path] | None,
    typer.Option(
        "--scores",
        help="Any system by its scores: Parquet with query_id, item_id, candidate_score, ranker_score. May be repeated.",
    ),
]


@app.command()
@asks
def decide(
    asked: QuestionOptions,
    logs: Log,
    policy: Policies = None,
    scores: AllScores = None,
    against: Against = "production",
    at_least: Annotated[
        float, typer.Option(help="Ship only if the difference is surely above this many clicks per impression.")
    ] = 0.0,
    level: Annotated[
        float, typer.Option(help="Confidence level: the chance that nothing worse is called ship.")
    ] = 0.95,
    segment: Annotated[
        str | None,
        typer.Option(
            help="Column of the log, or of --query-features: the difference is given for each of its values, too."
        ),
    ] = None,
    query_features: Annotated[Path | None, typer.Option(help="Parquet with query_id and the segment's column.")] = None,
    most_clicks: Annotated[
        float | None,
        typer.Option(
            help="Most clicks that one impression can get, if fewer than the places of its list: tighter bounds."
        ),
    ] = None,
    risk: Annotated[float, typer.Option(help="Share of production's clicks that a canary may lose at worst.")] = 0.01,
    list_length: ListLength = None,
    candidates: Candidates = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page for the meeting to this path.")] = None,
    as_json: Json = False,
) -> None:
    """Decides whether a pair is surely better than production; exit code 0: ship, 3: canary, 4: do not ship.

    With several pairs every bound is corrected for their number, so the best of them may be taken. Give a log that no pair
    was trained on.
    """
    load_first("decisions.decision")
    from tandemrank.decisions import decision

    sizes = ScoredSizes(candidates, list_length, logs)
    sizes.refuse_unused(*(scores or []), against)
    sides = _sides(policy or [], scores or [], sizes)
    question = asked.question(level=level)
    with working("reading the log and deciding"):
        found = decision.decide(
            sides,
            logs,
            question,
            against=other_side(against, sizes),
            at_least=at_least,
            segment=segment,
            query_features=query_features,
            most_clicks=most_clicks,
            risk=risk,
        )
    if report is not None:
        from tandemrank.reports import decision as pages

        pages.write(found, report, command=command_line())
    if as_json:
        print_json(found.summary())
    else:
        _print(found, report)
    raise typer.Exit(found.exit_code)


def _print(found: "Decision", report: Path | None) -> None:
    from tandemrank.reports import decision as pages

    show(pages.headline(found))
    if warning := pages.warning(found):
        show(warning)
    show(f"clicks per impression above {found.against}; asked: more than {found.at_least:+g}")
    show(pages.text(found))
    for one in found.candidates:
        show(f"{one.name}: {one.call}")
        for reason in one.reasons:
            show(f"  - {reason}")
        if one.segments:
            show(pages.segment_table(found, one))
    if report is not None:
        show(f"report: {report}")


def _sides(policies: list[Path], scores: list[Path], sizes: ScoredSizes) -> "dict[str, TwoStagePolicy]":
    """The pairs by their paths."""
    if not policies and not scores:
        raise ConfigError("give at least one pair: --policy, a saved pair, or --scores, a Parquet of scores.")
    names = [str(path) for path in (*policies, *scores)]
    if len(set(names)) < len(names):
        raise ConfigError(f"expected every pair once; got {max(names, key=names.count)} twice.")
    saved = {str(path): pair_of(path, None, sizes) for path in policies}
    return saved | {str(path): pair_of(None, path, sizes) for path in scores}
