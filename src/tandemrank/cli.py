"""The command line: parses, calls, prints. A table for a person, `--json` for a program; progress only on a terminal.

Exit codes: 0 fine, 1 the job failed or was interrupted, 2 bad usage or input.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tandemrank.errors import ConfigError, InputError, JobError, TandemRankError
from tandemrank.terminal import (
    counter,
    grid_progress,
    print_json,
    print_summary,
    print_validation,
    show,
    training_progress,
)

app = typer.Typer(
    name="tandemrank",
    help="Learn and judge both stages of a ranking system, the candidate generator and the re-ranker, from click logs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(
    help="Measurements: speed and accuracy of the gradients, a training epoch, reading a log.", no_args_is_help=True
)
app.add_typer(bench_app, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Seed = Annotated[int, typer.Option(help="The seed of everything random.", min=0)]
Data = Annotated[
    str | None,
    typer.Option(
        help="synthetic, ml-1m or ml-100k (downloaded), a MovieLens zip or folder, or a CSV or Parquet ratings file."
    ),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with switches; flags override it.")]
Switches = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any switch, as name=value (docs/experiment.md lists them). May be repeated."),
]
Preset = Annotated[str, typer.Option(help="tandem (our reading) or paper (the paper's, literally).")]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted job stopped.")]


def main() -> None:
    """The entry point: errors become one message and an exit code."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        _fail(str(error), 2)
    except TandemRankError as error:
        _fail(str(error), 1)


def _fail(message: str, code: int) -> None:
    print(f"tandemrank: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


@contextmanager
def _resumable() -> Iterator[None]:
    """Around a job that can go on later: Ctrl-C becomes a message that says how."""
    try:
        yield
    except KeyboardInterrupt:
        raise JobError(
            "interrupted. What was finished is kept; the same command with --resume goes on from there."
        ) from None


def _command() -> str:
    """The command as it was typed, for the report."""
    return shlex.join(["tandemrank", *sys.argv[1:]])


def _experiment(preset: str, config: Path | None, switches: list[str] | None, **flags: Any) -> Any:
    from tandemrank.config import resolve
    from tandemrank.experiments import PRESETS, ExperimentConfig

    if preset not in PRESETS:
        raise ConfigError(f"--preset takes {' or '.join(PRESETS)}; got {preset!r}.")
    return resolve(ExperimentConfig, preset=PRESETS[preset], file=config, switches=switches or (), flags=flags)


def _grid(config: Any, out: Path, engine: Any, jobs: int | None, resume: bool, as_json: bool) -> None:
    """Runs a grid, writes its reports, prints its table: what `demo` and `table` have in common."""
    from tandemrank import grid, report
    from tandemrank.cluster import check_engine
    from tandemrank.files import write_text

    check_engine(engine)
    with _resumable(), grid_progress() as progress:
        table = grid.run(
            config,
            out,
            command=_command(),
            engine=engine,
            jobs=jobs,
            resume=resume,
            progress=progress,
        )
    write_text(out / "table.md", report.markdown(table))
    path = report.write(table, out / "report.html")
    if as_json:
        print_json(table)
    else:
        show(report.text(table))
        show(f"report: {path.resolve()}")


@app.command()
def demo(
    out: Out = Path("tandemrank-demo"),
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes; by default one a core.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """The whole method on a small synthetic world: simulate clicks, train three ways, compare with the truth."""
    import shutil

    from tandemrank.config import validated
    from tandemrank.grid import GridConfig

    config = validated(GridConfig, {**DEMO, "seed": seed})
    # The demo always starts anew, but only a folder of its own is cleared for it.
    own = out / "config.json"
    if own.exists() and own.read_text(encoding="utf-8") == config.model_dump_json(indent=2) + "\n":
        shutil.rmtree(out)
    _grid(config, out, "local", jobs, resume=False, as_json=as_json)


DEMO: dict[str, Any] = {
    "experiment": {"queries": 1000, "items": 800, "rank": 30},
    "candidates": [100],
    "impressions": [20_000, 60_000, 200_000],
    "runs": 3,
}


@app.command()
def table(
    out: Out = Path("tandemrank-table"),
    data: Data = None,
    preset: Preset = "tandem",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "baseline,independent,joint",
    candidates: Annotated[str | None, typer.Option(help="Numbers of candidates K2, separated by commas.")] = None,
    impressions: Annotated[str | None, typer.Option(help="Lengths of the log N, separated by commas.")] = None,
    runs: Annotated[int | None, typer.Option(help="Independent runs.", min=1)] = None,
    references: Annotated[
        bool, typer.Option(help="Rows to compare with: random, popularity, production, full information.")
    ] = True,
    jobs: Annotated[int | None, typer.Option(help="Processes; by default one a core.", min=1)] = None,
    engine: Annotated[
        str, typer.Option(help="local (processes) or ray (RAY_ADDRESS, else a local cluster).")
    ] = "local",
    resume: Resume = False,
    config: Config = None,
    switches: Switches = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The paper's table: a grid of methods, K2 and N, over independent runs. Small by default; give --data for the whole.

    The whole table: tandemrank table --data ml-1m.zip --candidates 500,1000,1500 --impressions 100000,320000,1000000 --runs 25
    """
    from tandemrank.config import validated
    from tandemrank.grid import GridConfig

    experiment = _experiment(preset, config, switches, data=data)
    whole = experiment.data != "synthetic"
    small = {} if whole else {"queries": 1500, "items": 1000}
    if not whole and experiment.queries is None and experiment.items is None:
        experiment = experiment.model_copy(update=small)
    values = {
        "experiment": experiment.model_dump(),
        "methods": _list(methods, str),
        "candidates": _list(candidates or ("500,1000,1500" if whole else "100,300"), int),
        "impressions": _list(impressions or ("100000,320000,1000000" if whole else "30000,100000"), int),
        "runs": runs or (25 if whole else 3),
        "references": references,
        "seed": seed,
    }
    _grid(validated(GridConfig, values), out, engine, jobs, resume, as_json)


def _list(text: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"expected whole numbers separated by commas; got {text!r}.") from error


@app.command()
def simulate(
    out: Out = Path("tandemrank-log"),
    data: Data = None,
    impressions: Annotated[int | None, typer.Option(help="Length of the log, N.", min=1)] = None,
    propensities: Annotated[bool, typer.Option(help="Log the exact propensity of every shown item.")] = False,
    preset: Preset = "tandem",
    config: Config = None,
    switches: Switches = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Draws a click log of the experiment's production policy: OUT/log (Parquet) and OUT/production (the policy)."""
    from tandemrank import workflows

    experiment = _experiment(preset, config, switches, data=data, impressions=impressions)
    with counter("impressions", experiment.impressions) as progress:
        summary = workflows.simulate(experiment, out, seed=seed, propensities=propensities, progress=progress)
    print_summary(summary, as_json)


Curve = Annotated[
    str | None,
    typer.Option(
        help="Examination curve: reciprocal (1/k, the default), dcg (1/log2(k+1)), or a JSON file with theta, as "
        "`tandemrank examination --json` prints it."
    ),
]


def _curve(curve: str | None) -> Any:
    from tandemrank.clicks import read_curve

    return curve if curve in (None, "reciprocal", "dcg") else read_curve(curve)


@app.command()
def train(
    logs: Annotated[list[str], typer.Option("--logs", help="Click log: files, folders or globs. May be repeated.")],
    out: Out = Path("tandemrank-policy"),
    start: Annotated[
        Path | None,
        typer.Option(help="Saved policy to start from. Without any start: a factorisation of the clicks themselves."),
    ] = None,
    query_features: Annotated[
        Path | None, typer.Option(help="Start from two towers: Parquet with query_id and numbers or categories.")
    ] = None,
    item_features: Annotated[Path | None, typer.Option(help="The same of the items, with item_id.")] = None,
    query_embeddings: Annotated[
        Path | None, typer.Option(help="Start from embeddings: Parquet with query_id and embedding, a list of numbers.")
    ] = None,
    item_embeddings: Annotated[Path | None, typer.Option(help="The same of the items, with item_id.")] = None,
    logging_policy: Annotated[
        Path | None,
        typer.Option(help="Saved policy that drew the log; by default --start, unless the log has propensities."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="joint (the default), independent or baseline. May be repeated.")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Candidates of the generator, K2; by default 500, or all items.", min=1)
    ] = None,
    shown: Annotated[
        int | None, typer.Option(help="Places of a shown list, K; by default the log's longest list.", min=1)
    ] = None,
    propensity: Annotated[
        str | None, typer.Option(help="auto (the best there is a source for), exact, logged, fitted or frequency.")
    ] = None,
    objective: Annotated[str | None, typer.Option(help="ips or doubly-robust.")] = None,
    curve: Curve = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of a phase, at most.", min=1)] = None,
    rank: Annotated[int | None, typer.Option(help="Dimension of the factorisation of the clicks.", min=1)] = None,
    generator_width: Annotated[int | None, typer.Option(help="Hidden units of the generator's towers.", min=1)] = None,
    generator_dimension: Annotated[int | None, typer.Option(help="Dimension of its embeddings.", min=1)] = None,
    ranker_width: Annotated[int | None, typer.Option(help="Hidden units of the re-ranker's towers.", min=1)] = None,
    ranker_dimension: Annotated[int | None, typer.Option(help="Dimension of its embeddings.", min=1)] = None,
    config: Config = None,
    switches: Switches = None,
    seed: Seed = 0,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Trains both stages from a click log alone, and values them on impressions that no training saw.

    Writes OUT/METHOD/policy and history.json for each method, OUT/summary.json, OUT/report.html and OUT/config.json.
    """
    from tandemrank import training_report, workflows
    from tandemrank.config import resolve
    from tandemrank.learning import LearningConfig
    from tandemrank.own_logs import StartConfig

    flags = {
        "candidates": candidates, "shown": shown, "propensity": propensity, "objective": objective,
        "examination": _curve(curve), "training.epochs": epochs,
    }  # fmt: skip
    sizes = {
        "rank": rank, "generator_width": generator_width, "generator_dimension": generator_dimension,
        "ranker_width": ranker_width, "ranker_dimension": ranker_dimension,
    }  # fmt: skip
    tables = {
        "query_features": query_features, "item_features": item_features,
        "query_embeddings": query_embeddings, "item_embeddings": item_embeddings,
    }  # fmt: skip
    resolved = resolve(LearningConfig, file=config, switches=switches or (), flags=flags)
    with _resumable(), training_progress() as progress:
        summary = workflows.learn(
            logs, out, resolved, methods=method or (), start=start, logging_policy=logging_policy, tables=tables,
            sizes=resolve(StartConfig, flags=sizes), seed=seed, resume=resume, command=_command(), progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(summary)
        return
    show(training_report.text(summary))
    for sentence in training_report.sentences(summary):
        show(sentence)
    show(f"propensities: {summary['propensities']} ({summary['why']})")
    show(f"start: {summary['start']}")
    show(f"pairs: {', '.join(found['policy'] for found in summary['methods'])}")
    show(f"report: {summary['report']}")


@app.command()
def evaluate(
    policies: Annotated[list[Path], typer.Option("--policy", help="Saved policy; more are compared with the first.")],
    data: Data = None,
    logs: Annotated[list[str] | None, typer.Option("--logs", help="Only queries of this log are evaluated.")] = None,
    samples: Annotated[int, typer.Option(help="Sampled lists a query for the expected figures.", min=1)] = 20,
    config: Config = None,
    switches: Switches = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How good saved policies truly are, on ratings: NDCG, recall of the generator, expected clicks, with intervals."""
    from tandemrank import workflows

    experiment = _experiment("tandem", config, switches, data=data)
    found = workflows.judge(policies, experiment, logs_of=logs, samples=samples, seed=seed)
    if as_json:
        print_json(found)
    else:
        show(workflows.judge_table(found))


Engine = Annotated[
    str,
    typer.Option(
        help="What reads the log: local, or ray, a task a file (RAY_ADDRESS, else a local cluster; all nodes see the files)."
    ),
]
Logs = Annotated[list[str], typer.Argument(help="Click log: Parquet, CSV or JSON lines; files, folders or globs.")]


@app.command()
def validate(
    logs: Logs,
    shown: Annotated[
        int | None, typer.Option(help="Places of a shown list, K; longer lists are problems.", min=1)
    ] = None,
    fix: Annotated[Path | None, typer.Option(help="Write a cleaned copy of the log to this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Is this log fit? All its problems at once, what it is, and which questions it can answer.

    Exit code 0: fit; 1: it has problems (they are listed); 2: it cannot be read at all.
    """
    from dataclasses import asdict

    from tandemrank import validation

    found = validation.validate(logs, K=shown)
    answer = asdict(found)
    if fix is not None:
        mended = validation.fix(logs, fix, K=shown)
        answer["fixed"] = {**asdict(mended), "path": str(mended.path)}
    if as_json:
        print_json(answer)
    else:
        print_validation(answer)
    if not found.fit:
        sys.exit(1)


@app.command()
def examination(
    logs: Logs,
    shown: Annotated[int, typer.Option(help="Places of a shown list, K.", min=2)] = 10,
    method: Annotated[
        str, typer.Option(help="harvest (an item against itself at other ranks), em, or trust.")
    ] = "harvest",
    engine: Engine = "local",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The examination curve from the log itself, with intervals; refused where the log cannot identify it."""
    from dataclasses import asdict

    import numpy as np

    from tandemrank import examination as curves
    from tandemrank.cluster import check_engine
    from tandemrank.logs import read

    if method not in ("harvest", "em", "trust"):
        raise ConfigError(f"--method takes harvest, em or trust; got {method!r}.")
    rows = read(logs, K=shown, engine=check_engine(engine))
    found: Any = (
        curves.estimate_trust(rows, shown, seed=seed)
        if method == "trust"
        else curves.estimate(rows, shown, method=method, seed=seed)
    )
    answer = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(found).items()}
    if as_json:
        print_json(answer)
        return
    columns = [k for k, v in answer.items() if isinstance(v, list) and len(v) == shown]
    ranks = [{"rank": k + 1, **{c: answer[c][k] for c in columns}} for k in range(shown)]
    print_summary({**{k: v for k, v in answer.items() if k not in columns}, "curve": ranks}, as_json=False)


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
        str, typer.Option(help="logged, exact (with --logging-policy), frequency or fitted.")
    ] = "logged",
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
    from tandemrank import clicks, estimation, policies
    from tandemrank.cluster import check_engine

    check_engine(engine)
    pairs = [policies.load(path) for path in policy or []]
    pairs += [estimation.policy_from_scores(path, K2=candidates, K=shown) for path in scores or []]
    if len(pairs) not in (1, 2):
        raise ConfigError(f"give one pair, or two to compare, by --policy or --scores; got {len(pairs)}.")
    question: dict[str, Any] = {
        "theta": clicks.examination(shown, _curve(curve) or "reciprocal"), "propensity": propensity,
        "estimator": estimator, "seed": seed,
        "logging_policy": None if logging_policy is None else policies.load(logging_policy), "engine": engine,
    }  # fmt: skip
    if len(pairs) == 1:
        print_summary(_answer(estimation.estimate(pairs[0], logs, **question)), as_json)
        return
    found = estimation.compare(pairs[0], pairs[1], logs, **question)
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


@bench_app.command("gradient")
def bench_gradient(
    as_json: Json = False,
) -> None:
    """Noise and time of the gradients: race against REINFORCE and PL-Rank-3, one thread, the paper's sizes."""
    from tandemrank import bench

    print_summary(bench.gradient(), as_json)


@bench_app.command("epoch")
def bench_epoch(as_json: Json = False) -> None:
    """A joint training epoch on the paper's sizes over its floor, the matrix products and optimiser steps alone."""
    from tandemrank import bench

    print_summary(bench.epoch(), as_json)


@bench_app.command("logs")
def bench_logs(
    impressions: Annotated[int, typer.Option(help="Length of the log, N.", min=1)] = 10_000_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time and memory of reading a log, checks and all, over the bare polars group-by of the same files."""
    from tandemrank import bench_logs

    with counter("the log is written, then read", impressions) as progress:
        found = bench_logs.reading(impressions, seed=seed, progress=progress)
    print_summary(found, as_json)
