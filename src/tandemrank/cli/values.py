"""The command estimate."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tandemrank.cli.app import app
from tandemrank.cli.options import Curve, Engine, Json, Seed, read_curve_option
from tandemrank.cli.terminal import print_json, print_summary
from tandemrank.errors import ConfigError


@app.command()
def estimate(
    logs: Annotated[list[str], typer.Option("--logs", help="Click log: files, folders or globs. May be repeated.")],
    policy: Annotated[
        list[Path] | None, typer.Option(help="Saved pair to value; a second one is compared with it.")
    ] = None,
    scores: Annotated[
        list[Path] | None,
        typer.Option(help="Like --policy, from scores: Parquet with query_id, item_id, candidate_score, ranker_score."),
    ] = None,
    propensity: Annotated[
        str,
        typer.Option(help="auto (the best there is a source for), logged, exact, fitted or frequency."),
    ] = "auto",
    logging_policy: Annotated[Path | None, typer.Option(help="Saved policy that drew the log.")] = None,
    estimator: Annotated[
        str, typer.Option(help="doubly_robust, ips, clipped, self_normalised or direct.")
    ] = "doubly_robust",
    shown: Annotated[int, typer.Option(help="Places of a shown list, K.", min=1)] = 10,
    candidates: Annotated[int, typer.Option(help="Candidates K2 of a system given by --scores.", min=1)] = 500,
    curve: Curve = None,
    engine: Engine = "local",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """What a pair would be worth if it were live, by the clicks of the past: value, interval, diagnostics, a verdict.

    Two pairs (--policy or --scores, in this order) are compared by their paired difference, first less second.
    Ask a log that the pair was not trained on: on its own training log every pair looks better than it is.
    """
    from tandemrank._base.cluster import check_engine
    from tandemrank.clicks import models
    from tandemrank.offpolicy import valuation
    from tandemrank.policies import outside, two_stage

    check_engine(engine)
    pairs = [two_stage.load(path) for path in policy or []]
    pairs += [outside.policy_from_scores(path, K2=candidates, K=shown) for path in scores or []]
    if len(pairs) not in (1, 2):
        raise ConfigError(f"give one pair, or two to compare, by --policy or --scores; got {len(pairs)}.")
    question: dict[str, Any] = {
        "theta": models.examination_curve(shown, read_curve_option(curve) or "reciprocal"), "propensity": propensity,
        "estimator": estimator, "seed": seed,
        "logging_policy": None if logging_policy is None else two_stage.load(logging_policy), "engine": engine,
    }  # fmt: skip
    if len(pairs) == 1:
        print_summary(_answer(valuation.estimate(pairs[0], logs, **question)), as_json)
        return
    found = valuation.compare(pairs[0], pairs[1], logs, **question)
    names = ("difference", "standard_error", "interval", "wins", "verdict", "reasons")
    summary = {name: getattr(found, name) for name in names}
    if as_json:
        print_json({**summary, "new": _answer(found.new), "old": _answer(found.old)})
    else:
        print_summary({"first": _answer(found.new)["value"], "second": _answer(found.old)["value"], **summary}, as_json)


def _answer(answer: Any) -> dict[str, Any]:
    """An off-policy value as plain names and values."""
    names = ("value", "standard_error", "interval", "lower_bound", "verdict", "reasons")
    return {**{name: getattr(answer, name) for name in names}, **vars(answer.diagnostics)}
