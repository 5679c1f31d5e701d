"""The command learn."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from tandemrank.cli.app import app
from tandemrank.cli.options import (
    Config,
    Curve,
    Json,
    Out,
    Plugin,
    Resume,
    Seed,
    Switches,
    command_line,
    read_curve_option,
    resumable,
)
from tandemrank.cli.progress import load_first, training_progress
from tandemrank.cli.terminal import note, print_json, show


@app.command()
def learn(
    logs: Annotated[list[str], typer.Option("--logs", help="Click log: files, folders or globs. May be repeated.")],
    out: Out = Path("tandemrank-policy"),
    start: Annotated[
        Path | None,
        typer.Option(help="Saved policy to start from; by default the clicks alone."),
    ] = None,
    query_features: Annotated[
        Path | None, typer.Option(help="Features of the queries: Parquet with query_id and numbers or categories.")
    ] = None,
    item_features: Annotated[Path | None, typer.Option(help="The same for the items, with item_id.")] = None,
    query_embeddings: Annotated[
        Path | None, typer.Option(help="Start from embeddings: Parquet with query_id and embedding, a list of numbers.")
    ] = None,
    item_embeddings: Annotated[Path | None, typer.Option(help="The same for the items, with item_id.")] = None,
    logging_policy: Annotated[
        Path | None,
        typer.Option(help="Saved policy that drew the log; without it propensities are logged ones, or fitted."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="auto (the default: the generator is trained where that pays), beliefs (trains nothing), independent, "
            "baseline, stacking or joint; may be repeated."
        ),
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Number of candidates, K2; by default 500, or all items if fewer.", min=1)
    ] = None,
    propensity: Annotated[
        str | None,
        typer.Option(help="auto (the best that the log and the options allow), exact, logged, fitted or frequency."),
    ] = None,
    safe: Annotated[
        bool, typer.Option("--safe", help="Keep production unless what was learned is surely better.")
    ] = False,
    exclude: Annotated[
        str | None,
        typer.Option(
            help="For lists that must not repeat: clicked or shown, what of the log is not recommended again."
        ),
    ] = None,
    curve: Curve = None,
    config: Config = None,
    switches: Switches = None,
    seed: Seed = 0,
    resume: Resume = False,
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray: files are read by tasks and queries are shared out between the nodes (at RAY_ADDRESS, else "
            "local; every node must see the log and --out)."
        ),
    ] = "local",
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Learns both stages from a click log alone, and values them on impressions that nothing before has seen.

    The re-ranker is what the log is believed to say, the generator a product near it, trained where that pays.
    Writes OUT/METHOD/policy and history.json for each method, OUT/summary.json, OUT/report.html and OUT/config.json.
    """
    load_first("training.learning", "reports.training")
    from tandemrank._base.cluster import check_engine
    from tandemrank._base.config import resolve
    from tandemrank._base.files import claimed
    from tandemrank.policies.two_stage import load
    from tandemrank.reports import training
    from tandemrank.training import learning
    from tandemrank.training.config import LearningConfig
    from tandemrank.training.schedules import Method
    from tandemrank.training.start import Start

    flags = {
        "candidates": candidates,
        "propensity": propensity,
        "examination": read_curve_option(curve),
        "safe": safe or None,
        "exclude": exclude,
    }
    tables = {
        "query_features": query_features,
        "item_features": item_features,
        "query_embeddings": query_embeddings,
        "item_embeddings": item_embeddings,
    }
    resolved = resolve(LearningConfig, file=config, switches=switches or (), flags=flags)
    if not resume:
        training.check_free(out, get_args(Method))
    first, drew = (None if path is None else load(path) for path in (start, logging_policy))
    inputs = [*logs, start, logging_policy, *tables.values()]
    with resumable(), training_progress() as (stage, epoch), claimed(out, training.TRAINING, inputs=inputs):
        learned = learning.learn(
            logs,
            resolved,
            methods=method,
            start=Start(first, **tables),
            logging_policy=drew,
            seed=seed,
            checkpoints=out / "checkpoints",
            resume=resume,
            engine=check_engine(engine),
            listener=learning.Listener(stage=stage, epoch=epoch, note=note),
        )
    written = training.write(learned, out, command=command_line(), seed=seed)
    if as_json:
        print_json(written.summary)
        return
    show(training.text(learned))
    for sentence in (*training.sentences(learned), *training.gate_sentences(learned)):
        show(sentence)
    show(training.made(learned))
    show(f"propensities: {learned.propensity} ({learned.propensity_reason})")
    if learned.was_trained:
        show(f"training started from {learned.start.words}")
    show(f"policies: {', '.join(map(str, written.policies.values()))}")
    show(f"report: {written.report}")
