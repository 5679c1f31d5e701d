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
        typer.Option(help="Saved policy to start from; by default a factorisation of the clicks."),
    ] = None,
    query_features: Annotated[
        Path | None, typer.Option(help="Start from two towers: Parquet with query_id and numbers or categories.")
    ] = None,
    item_features: Annotated[Path | None, typer.Option(help="The same for the items, with item_id.")] = None,
    query_embeddings: Annotated[
        Path | None, typer.Option(help="Start from embeddings: Parquet with query_id and embedding, a list of numbers.")
    ] = None,
    item_embeddings: Annotated[Path | None, typer.Option(help="The same for the items, with item_id.")] = None,
    logging_policy: Annotated[
        Path | None,
        typer.Option(help="Saved policy that drew the log; by default --start, unless the log has propensities."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="joint (the default), independent, baseline or stacking, may be repeated; or auto."),
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Number of candidates, K2; by default 500, or all items if fewer.", min=1)
    ] = None,
    list_length: Annotated[
        int | None, typer.Option(help="Length of the shown list, K; by default that of the log's longest list.", min=1)
    ] = None,
    propensity: Annotated[
        str | None,
        typer.Option(help="auto (the best that the log and the options allow), exact, logged, fitted or frequency."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="posterior, doubly-robust or ips (inverse propensity scoring).")
    ] = None,
    safe: Annotated[
        str | None,
        typer.Option(
            help="Careful training, which keeps production unless a pair is surely better: exposure, prpo or smoothing."
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(
            help="For pairs that must not repeat: clicked or shown, what of the log is not recommended again."
        ),
    ] = None,
    curve: Curve = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs per phase, at most.", min=1)] = None,
    rank: Annotated[int | None, typer.Option(help="Dimension of the factorisation of the clicks.", min=1)] = None,
    generator_width: Annotated[int | None, typer.Option(help="Hidden units of the generator's towers.", min=1)] = None,
    generator_dimension: Annotated[int | None, typer.Option(help="Dimension of its embeddings.", min=1)] = None,
    generator: Annotated[
        str | None, typer.Option(help="Model of the generator: factorisation, towers, features or popularity.")
    ] = None,
    ranker: Annotated[
        str | None, typer.Option(help="Model of the re-ranker: factorisation, towers, features, cross or trees.")
    ] = None,
    generator_rank: Annotated[
        int | None, typer.Option(help="Dimension of the generator, where it is a factorisation.", min=1)
    ] = None,
    generator_score: Annotated[
        str | None,
        typer.Option(help="The generator's score handed to the re-ranker: off (the default), sum, stacked, or auto."),
    ] = None,
    pair_features: Annotated[
        Path | None,
        typer.Option(help="For a cross network or trees: Parquet with query_id, item_id and numbers."),
    ] = None,
    missing_pairs: Annotated[
        str | None, typer.Option(help="A candidate without pair features: impute (the default) or refuse.")
    ] = None,
    ranker_width: Annotated[int | None, typer.Option(help="Hidden units of the re-ranker's towers.", min=1)] = None,
    ranker_dimension: Annotated[int | None, typer.Option(help="Dimension of its embeddings.", min=1)] = None,
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
    as_json: Json = False,
) -> None:
    """Learns both stages from a click log alone, and values them on impressions that no training saw.

    Writes OUT/METHOD/policy and history.json for each method, OUT/summary.json, OUT/report.html and OUT/config.json.
    """
    load_first("training.learning", "reports.training")
    from tandemrank._base.cluster import check_engine
    from tandemrank._base.config import resolve
    from tandemrank._base.files import claimed
    from tandemrank.policies.two_stage import load
    from tandemrank.reports import training
    from tandemrank.training import learning
    from tandemrank.training.choice import AUTO
    from tandemrank.training.driver import check_methods
    from tandemrank.training.schedules import Method
    from tandemrank.training.start import Start

    flags = {
        "candidates": candidates, "list_length": list_length, "propensity": propensity, "objective": objective,
        "examination": read_curve_option(curve), "epochs": epochs, "safe_objective": safe,
        "exclude": exclude,
    }  # fmt: skip
    sizes = {
        "rank": rank, "generator_width": generator_width, "generator_dimension": generator_dimension,
        "ranker_width": ranker_width, "ranker_dimension": ranker_dimension,
        "generator": generator, "ranker": ranker, "generator_rank": generator_rank, "generator_score": generator_score,
        "missing_pairs": missing_pairs,
    }  # fmt: skip
    tables = {
        "query_features": query_features, "item_features": item_features,
        "query_embeddings": query_embeddings, "item_embeddings": item_embeddings, "pair_features": pair_features,
    }  # fmt: skip
    resolved = resolve(learning.LearnSwitches, file=config, switches=switches or (), flags={**flags, **sizes})
    methods = method or ["joint"]
    known = list(get_args(Method)) if AUTO in methods else check_methods(methods)
    if not resume:
        training.check_free(out, known)
    first, drew = (None if path is None else load(path) for path in (start, logging_policy))
    begin = Start(first, **tables, sizes=resolved.start, stages=resolved.stages)
    inputs = [*logs, start, logging_policy, *tables.values()]
    with resumable(), training_progress() as (stage, progress), claimed(out, training.TRAINING, inputs=inputs):
        learned = learning.learn(
            logs, resolved.learning, methods=methods, start=begin, logging_policy=drew, seed=seed,
            checkpoints=out / "checkpoints", resume=resume, engine=check_engine(engine), progress=progress, stage=stage,
            say=note,
        )  # fmt: skip
    written = training.write(learned, out, command=command_line(), seed=seed)
    if as_json:
        print_json(written.summary)
        return
    show(training.text(learned))
    for sentence in training.sentences(learned):
        show(sentence)
    for sentence in training.caution_sentences(learned):
        show(sentence)
    show(f"propensities: {learned.propensity} ({learned.propensity_reason})")
    show(f"start: {learned.start.words}")
    if learned.posterior is not None:
        show(f"click noise: {learned.posterior.chosen.noise.words}")
    show(f"pairs: {', '.join(map(str, written.policies.values()))}")
    show(f"report: {written.report}")
