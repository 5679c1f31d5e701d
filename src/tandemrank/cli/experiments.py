"""Commands where the truth is known: demo, table, simulate, evaluate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandemrank._base.progress import working
from tandemrank.cli import sessions as of_sessions
from tandemrank.cli.options import (
    ExperimentOptions,
    FeatureTables,
    Json,
    Out,
    Plugin,
    Resume,
    Seed,
    app,
    bundled,
    command_line,
    listed,
    resumable,
)
from tandemrank.cli.sessions import Sessions, refuse
from tandemrank.cli.terminal import note, print_json, print_summary, show
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from tandemrank._base.ids import Vocabulary
    from tandemrank.experiments.results import Evaluated, Figure
    from tandemrank.policies.two_stage import TwoStagePolicy
    from tandemrank.reports.words import Sheet


def _grid(config: Any, out: Path, as_json: bool, **how: Any) -> None:
    """Runs a grid, writes its reports, prints its table: what `demo` and `table` have in common."""
    from tandemrank._base.files import write_text
    from tandemrank.experiments import grid
    from tandemrank.reports import experiment

    with resumable(), working("trainings finished") as progress:
        table = grid.run(config, out, command=command_line(), progress=progress, **how)
    report = experiment.report(table)
    write_text(out / "table.md", report.markdown())
    path = report.write(out / "report.html")
    if as_json:
        print_json(table)
    else:
        show(experiment.text(table))
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
    """Runs the whole method on a small synthetic world: simulates clicks, learns by the paper's methods and by beliefs,
    compares with the truth.

    With --live: five rounds of serving, clicking, learning, deciding and testing live, in about five minutes.
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
        show(pages.rounds(found).terminal(pages.headline(found)))
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
    "methods": ["independent", "baseline", "joint", "beliefs"],
    "candidates": [50],
    "impressions": [20_000, 60_000, 200_000],
    "runs": 3,
}


METHODS = "beliefs,baseline,independent,joint"


def _study(experiment: Any, out: Path, as_json: bool, *, sizes: dict[str, int], **how: Any) -> None:
    """The study of two models, and its table."""
    from tandemrank._base.files import write_text
    from tandemrank.experiments import study
    from tandemrank.reports.experiment import study as table_of

    with resumable(), working("trainings finished") as progress:
        found = study.run(experiment, out, sizes=sizes, progress=progress, **how)
    table = table_of(found)
    write_text(out / "table.md", table.markdown() + "\n")
    if as_json:
        print_json(found)
    else:
        show(table.terminal())
        show(f"table: {(out / 'table.md').resolve()}")


@app.command()
@bundled
def table(
    switches: ExperimentOptions,
    out: Out = Path("tandemrank-table"),
    preset: Annotated[
        str,
        typer.Option(
            help="tandem (our reading of the paper), paper (taken literally) or stages (a study of two models)."
        ),
    ] = "tandem",
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas.", show_default="beliefs and the paper's three")
    ] = METHODS,
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
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The paper's table: a grid of methods, K2 and N, over independent runs; small and synthetic unless --data is given.

    With --preset stages: the study of when training the stages for each other pays (docs/results).
    The whole table: tandemrank table --data ml-1m.zip --candidates 500,1000,1500 --impressions 100000,320000,1000000 --runs 25
    """
    from tandemrank._base.cluster import check_engine
    from tandemrank._base.config import validated
    from tandemrank.experiments.config import GridConfig

    experiment = switches.experiment(preset)
    how: dict[str, Any] = {"engine": check_engine(engine), "jobs": jobs, "resume": resume}
    whole = experiment.data != "synthetic"
    if not whole and experiment.queries is None and experiment.items is None:
        experiment = experiment.model_copy(update={"queries": 1500, "items": 1000})
    if preset == "stages":
        if methods != METHODS or candidates is not None or not references:
            raise ConfigError(
                "--preset stages has its own methods, candidates and rivals: leave --methods, --candidates and "
                "--no-references out."
            )
        lengths = _sizes(impressions, "1000000" if whole else "100000")
        if len(lengths) != 1 or lengths[0] < 1:
            raise ConfigError(f"--preset stages takes one length of the log, at least 1; got {impressions!r}.")
        sizes = {"impressions": lengths[0], "runs": runs or (10 if whole else 3), "seed": seed}
        _study(experiment, out, as_json, sizes=sizes, **how)
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
    _grid(validated(GridConfig, values), out, as_json, **how)


def _sizes(given: str | None, default: str) -> list[int]:
    return listed(default if given is None else given, int)


@app.command()
@bundled
def simulate(
    switches: ExperimentOptions,
    out: Out = Path("tandemrank-log"),
    impressions: Annotated[int | None, typer.Option(help="Length of the log, N.", min=1)] = None,
    propensities: Annotated[bool, typer.Option(help="Log the exact propensity of every shown item.")] = False,
    sessions: Sessions = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Draws a click log of the experiment's production policy: OUT/log (Parquet) and OUT/production (the policy)."""
    from tandemrank.experiments.world import write_simulated_log

    if sessions is not None:
        refuse(
            {} if impressions is None else {"impressions": impressions}, "has no effect with --sessions: leave it out"
        )
        of_sessions.simulate(switches, out, sessions, seed=seed, propensities=propensities, as_json=as_json)
        return

    experiment = switches.experiment(impressions=impressions)
    with working("impressions drawn", experiment.impressions) as progress:
        summary = write_simulated_log(experiment, out, seed=seed, propensities=propensities, progress=progress)
    print_summary(summary, as_json)


@app.command()
@bundled
def evaluate(
    switches: ExperimentOptions,
    features: FeatureTables,
    policies: Annotated[
        list[Path],
        typer.Option(
            "--policy",
            help="Saved policy, a run of TREC or Parquet of scores; further ones are compared with the first.",
        ),
    ],
    qrels: Annotated[
        Path | None,
        typer.Option(
            help="Graded judgements as the truth, in place of ratings: qrels of TREC, JSON of OpenSearch, CSV of Quepid, or "
            "what `judge` writes."
        ),
    ] = None,
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
    sessions: Sessions = None,
    seed: Seed = 0,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Evaluates policies on ratings or judgements: NDCG, recall of the generator, expected clicks, with intervals."""
    import numpy as np

    from tandemrank.experiments.evaluation import Truth, judge, judge_by_qrels
    from tandemrank.experiments.world import load_task
    from tandemrank.logs.pairs import pairs_of
    from tandemrank.logs.reading import read

    if sessions is not None:
        unused = {"logs": logs, "sample_queries": sample_queries}
        refuse({name: x for name, x in unused.items() if x}, "has no effect with --sessions: leave it out")
        of_sessions.evaluate(switches, policies, sessions, seed=seed, as_json=as_json)
        return
    experiment = switches.experiment()
    if qrels is not None:
        if switches.data is not None or logs or sample_queries is not None or any(vars(features).values()):
            raise ConfigError(
                "--qrels is the truth: leave out --data, --logs, --sample-queries and tables of features."
            )
        pairs = _policies_at(policies, experiment.learning.K)
        with working("evaluating"):
            found = judge_by_qrels(pairs, qrels, experiment.learning.theta, samples=samples, seed=seed)
        _show_evaluation(found, as_json)
        return
    with working("reading the truth"):
        task = load_task(experiment)
        log = read(logs, vocabulary=task.vocabulary) if logs else None
        q = np.arange(task.Q) if log is None else np.flatnonzero(log.impressions)
        clicked = None if log is None else pairs_of(log, "clicked")
    pairs = _policies_at(policies, experiment.learning.K, task.vocabulary)
    if sample_queries is not None and sample_queries < len(q):
        q = np.sort(np.random.default_rng(seed).choice(q, sample_queries, replace=False))
    with working("queries evaluated", len(pairs) * len(q)) as progress:
        found = judge(
            pairs,
            task,
            Truth(task.relevance, experiment.learning.theta, q),
            samples=samples,
            seed=seed,
            clicked=clicked,
            features=vars(features),
            progress=progress,
        )
    _show_evaluation(found, as_json)


def _policies_at(paths: list[Path], K: int, vocabulary: "Vocabulary | None" = None) -> "dict[str, TwoStagePolicy]":
    """Saved policies, or any systems by their runs or scores; the truth has no contexts."""
    from tandemrank.policies.outside import policy_from_file
    from tandemrank.policies.two_stage import load

    found = {}
    for path in paths:
        found[str(path)] = one = policy_from_file(path, None, K, vocabulary) if path.is_file() else load(path)
        if one.context_columns:
            note(f"{path} is evaluated as in the average context: the truth has no {', '.join(one.context_columns)}.")
    return found


def _show_evaluation(found: "Evaluated", as_json: bool) -> None:
    for words in found.notes:
        note(words)
    if as_json:
        print_json(found)
    else:
        show(_evaluation_table(found).terminal())


def _evaluation_table(found: "Evaluated") -> "Sheet":
    """Every policy, and the first less each other one."""
    from tandemrank.reports.words import Sheet

    names: dict[Figure, str] = {
        "ndcg": "NDCG@K",
        "ndcg_new": "new items",
        "ndcg_expected": "expected NDCG@K",
        "recall_at_K2": "recall@K2",
        "utility": "clicks per list",
    }
    if not any(row.ndcg_new.n for row in found.policies):
        del names["ndcg_new"]
    rows = [
        [row.policy, *(f"{m.mean:.4f} [{m.low:.4f}, {m.high:.4f}]" for m in map(row.of, names))]
        for row in found.policies
    ]
    for other in dict.fromkeys(gap.against for gap in found.differences):
        gaps = {gap.figure: gap for gap in found.differences if gap.against == other}
        cells = (f"{gaps[f].mean:+.4f} [{gaps[f].low:+.4f}, {gaps[f].high:+.4f}]" for f in names)
        rows.append([f"the first less {other}", *cells])
    return Sheet(["policy", *names.values()], rows, ["policy"])
