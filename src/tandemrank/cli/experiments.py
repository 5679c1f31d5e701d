"""Commands where the truth is known: demo, table, simulate, evaluate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandemrank.cli.app import app
from tandemrank.cli.options import (
    Config,
    Data,
    Json,
    Out,
    Plugin,
    Preset,
    Resume,
    Seed,
    Switches,
    command_line,
    experiment_config,
    listed,
    resumable,
)
from tandemrank.cli.progress import grid_progress, working
from tandemrank.cli.terminal import print_json, print_summary, show
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from tandemrank.experiments.results import Evaluated, Figure


def _grid(
    config: Any,
    out: Path,
    as_json: bool,
    *,
    engine: str = "local",
    jobs: int | None,
    resume: bool = False,
    anew: bool = False,
) -> None:
    """Runs a grid, writes its reports, prints its table: what `demo` and `table` have in common."""
    from tandemrank._base.cluster import check_engine
    from tandemrank._base.files import write_text
    from tandemrank.experiments import grid
    from tandemrank.reports import experiment, text

    with resumable(), grid_progress() as progress:
        table = grid.run(
            config,
            out,
            command=command_line(),
            engine=check_engine(engine),
            jobs=jobs,
            resume=resume,
            anew=anew,
            progress=progress,
        )
    write_text(out / "table.md", text.markdown(table))
    path = experiment.write(table, out / "report.html")
    if as_json:
        print_json(table)
    else:
        show(text.text(table))
        show(f"report: {path.resolve()}")


@app.command()
def demo(
    out: Out = Path("tandemrank-demo"),
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes; by default one per core.", min=1)] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="The live loop: a server, users over HTTP, training, the gate, a live verdict."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Runs the whole method on a small synthetic world: simulates clicks, trains two different stages by four methods,
    compares with the truth.

    With --live: three rounds of serving, clicking, learning, deciding and testing live, in about three minutes.
    """
    from tandemrank._base.config import validated
    from tandemrank.experiments.config import GridConfig

    if live:
        if jobs is not None:
            raise ConfigError("--jobs is for the demonstration without --live, which has one server and its users.")
        _live_demo(Path(f"{out}-live") if out == Path("tandemrank-demo") else out, seed, as_json)
        return
    _grid(validated(GridConfig, {**DEMO, "seed": seed}), out, as_json, jobs=jobs, anew=True)


def _live_demo(out: Path, seed: int, as_json: bool) -> None:
    """The live demo: its folder, its figure, its report."""
    from tandemrank._base.files import replacing
    from tandemrank.experiments import live_loop
    from tandemrank.reports import live_loop as pages

    with working("the live loop"), replacing(out, live_loop.LIVE_DEMO) as folder:
        found = live_loop.run(folder, seed=seed, say=lambda words: None if as_json else show(words))
        pages.write(found, folder, command=command_line())
    if as_json:
        print_json(found.summary())
    else:
        show(pages.text(found))
        show(f"report: {(out / 'report.html').resolve()}")


# Two stages that know different things: who clicked what, in few dimensions, and what is known of the items. Trained as in the
# paper, by steps as in the study of two models (`PRESETS`).
DEMO: dict[str, Any] = {
    "experiment": {
        "queries": 1000,
        "items": 800,
        "rank": 30,
        "learning": {"objective": "ips", "training": {"learning_rate": 0.4}},
        "stages": {"generator": "factorisation", "generator_rank": 8, "ranker": "features"},
    },
    "methods": ["independent", "baseline", "stacking", "joint"],
    "candidates": [50],
    "impressions": [20_000, 60_000, 200_000],
    "runs": 3,
}


METHODS = "beliefs,baseline,independent,joint"


def _study(
    experiment: Any, out: Path, as_json: bool, *, impressions: str | None, runs: int | None, resume: bool, seed: int
) -> None:
    """The study of two models: its table, its figure."""
    from tandemrank._base.files import write_text
    from tandemrank.experiments import study
    from tandemrank.reports import stages, style

    whole = experiment.data != "synthetic"
    lengths = _sizes(impressions, "1000000" if whole else "100000")
    if len(lengths) != 1 or lengths[0] < 1:
        raise ConfigError(f"--preset stages takes one length of the log, at least 1; got {impressions!r}.")
    config = study.study_config(experiment, impressions=lengths[0], runs=runs or (10 if whole else 3), seed=seed)
    with resumable(), working("trainings that are finished", len(study.cells(config))) as progress:
        table = study.run(config, out, command=command_line(), resume=resume, progress=progress)
    write_text(out / "table.md", stages.markdown(table))
    write_text(out / "gains.svg", style.svg(stages.gains(table), "Joint less the best other pair, by setting"))
    if as_json:
        print_json(table)
    else:
        show(stages.markdown(table))
        show(f"figure: {(out / 'gains.svg').resolve()}")


@app.command()
def table(
    out: Out = Path("tandemrank-table"),
    data: Data = None,
    preset: Preset = "tandem",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = METHODS,
    candidates: Annotated[str | None, typer.Option(help="Numbers of candidates K2, separated by commas.")] = None,
    impressions: Annotated[str | None, typer.Option(help="Lengths of the log N, separated by commas.")] = None,
    runs: Annotated[int | None, typer.Option(help="Independent runs.", min=1)] = None,
    references: Annotated[
        bool, typer.Option(help="Rows to compare with: random, popularity, production, full information.")
    ] = True,
    jobs: Annotated[int | None, typer.Option(help="Processes; by default one per core.", min=1)] = None,
    engine: Annotated[
        str, typer.Option(help="local (processes) or ray (RAY_ADDRESS, else a local cluster).")
    ] = "local",
    resume: Resume = False,
    config: Config = None,
    switches: Switches = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The paper's table: a grid of methods, K2 and N, over independent runs; small and synthetic unless --data is given.

    With --preset stages: the study of when training the stages for each other pays (docs/results).
    The whole table: tandemrank table --data ml-1m.zip --candidates 500,1000,1500 --impressions 100000,320000,1000000 --runs 25
    """
    from tandemrank._base.config import validated
    from tandemrank.experiments.config import GridConfig

    experiment = experiment_config(preset, config, switches, data=data)
    whole = experiment.data != "synthetic"
    if not whole and experiment.queries is None and experiment.items is None:
        experiment = experiment.model_copy(update={"queries": 1500, "items": 1000})
    if preset == "stages":
        elsewhere = engine != "local" or jobs is not None
        if methods != METHODS or candidates is not None or not references or elsewhere:
            raise ConfigError(
                "--preset stages has its own methods, candidates and rivals, and runs in one process: leave --methods, "
                "--candidates, --no-references, --jobs and --engine out."
            )
        _study(experiment, out, as_json, impressions=impressions, runs=runs, resume=resume, seed=seed)
        return
    values = {
        "experiment": experiment.model_dump(),
        "methods": listed(methods, str),
        "candidates": _sizes(candidates, "500,1000,1500" if whole else "100,300"),
        "impressions": _sizes(impressions, "100000,320000,1000000" if whole else "30000,100000"),
        "runs": runs or (25 if whole else 3),
        "references": references,
        "seed": seed,
    }
    _grid(validated(GridConfig, values), out, as_json, engine=engine, jobs=jobs, resume=resume)


def _sizes(given: str | None, default: str) -> list[int]:
    return listed(default if given is None else given, int)


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
    from tandemrank.experiments.world import write_simulated_log

    experiment = experiment_config(preset, config, switches, data=data, impressions=impressions)
    with working("impressions drawn", experiment.impressions) as progress:
        summary = write_simulated_log(experiment, out, seed=seed, propensities=propensities, progress=progress)
    print_summary(summary, as_json)


@app.command()
def evaluate(
    policies: Annotated[
        list[Path], typer.Option("--policy", help="Saved policy; further ones are compared with the first.")
    ],
    data: Data = None,
    logs: Annotated[
        list[str] | None,
        typer.Option(
            "--logs", help="Only queries of this log are evaluated, and on items they have not clicked in it too."
        ),
    ] = None,
    sample_queries: Annotated[
        int | None, typer.Option(help="So many of the queries, drawn at random, where all would take long.", min=1)
    ] = None,
    samples: Annotated[int, typer.Option(help="Sampled lists per query for the expected figures.", min=1)] = 20,
    config: Config = None,
    switches: Switches = None,
    seed: Seed = 0,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Evaluates saved policies on ratings, the truth: NDCG, recall of the generator, expected clicks, with intervals."""
    import numpy as np

    from tandemrank.experiments.evaluation import judge
    from tandemrank.experiments.world import load_task
    from tandemrank.logs.pairs import pairs_of
    from tandemrank.logs.reading import read
    from tandemrank.policies.two_stage import load

    experiment = experiment_config("tandem", config, switches, data=data)
    pairs = {str(path): load(path) for path in policies}
    with working("reading the truth"):
        task = load_task(experiment)
        log = read(logs, vocabulary=task.vocabulary) if logs else None
        q = np.arange(task.Q) if log is None else np.flatnonzero(log.impressions)
        clicked = None if log is None else pairs_of(log, "clicked")
    if sample_queries is not None and sample_queries < len(q):
        q = np.sort(np.random.default_rng(seed).choice(q, sample_queries, replace=False))
    with working("queries evaluated", len(pairs) * len(q)) as progress:
        found = judge(
            pairs, task, experiment.learning.theta, q, samples=samples, seed=seed, clicked=clicked, progress=progress
        )
    if as_json:
        print_json(found)
    else:
        show(_evaluation_table(found))


def _evaluation_table(found: "Evaluated") -> "Table":
    """The evaluation as a table for a terminal."""
    from rich.table import Table

    names: dict[Figure, str] = {
        "ndcg": "NDCG@K", "ndcg_new": "new items", "ndcg_expected": "expected NDCG@K",
        "recall_at_K2": "recall@K2", "utility": "clicks per list",
    }  # fmt: skip
    if not any(row.ndcg_new.n for row in found.policies):
        del names["ndcg_new"]
    table = Table("policy", *names.values())
    for row in found.policies:
        means = (row.of(figure) for figure in names)
        table.add_row(row.policy, *(f"{m.mean:.4f} [{m.low:.4f}, {m.high:.4f}]" for m in means))
    for other in dict.fromkeys(gap.against for gap in found.differences):
        gaps = {gap.figure: gap for gap in found.differences if gap.against == other}
        cells = (f"{gaps[f].mean:+.4f} [{gaps[f].low:+.4f}, {gaps[f].high:+.4f}]" for f in names)
        table.add_row(f"the first less {other}", *cells)
    return table
