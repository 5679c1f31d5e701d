"""The commands that make a policy and that use it: learn, recommend, export."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from tandemrank._base.files import Kind, replacing
from tandemrank._base.progress import load_first, training_progress
from tandemrank.cli import sessions
from tandemrank.cli.options import (
    Config,
    Curve,
    FeatureTables,
    Json,
    Logs,
    Out,
    PageOptions,
    Plugin,
    Resume,
    Seed,
    Since,
    Switches,
    Titles,
    Until,
    app,
    bundled,
    command_line,
    listed,
    read_curve_option,
    resumable,
)
from tandemrank.cli.sessions import SessionOptions
from tandemrank.cli.terminal import note, print_json, show
from tandemrank.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    import polars as pl
    from scipy.sparse import csr_matrix

    from tandemrank._base.ids import Vocabulary
    from tandemrank.policies.two_stage import TwoStagePolicy

RUN = "tandemrank"  # the name of a run
ON_SCREEN = 20  # queries, where the lists go to a terminal
LISTS = ["query_id", "items"], ["query_id", "items", "query_title", "titles"]  # columns of what `recommend` writes


@app.command()
@bundled
def learn(
    over: SessionOptions,
    page: PageOptions,
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
    pair_features: Annotated[
        Path | None, typer.Option(help="Features of pairs: Parquet with query_id, item_id and numbers.")
    ] = None,
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
    context: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns of the log that are the context of an impression, such as device,hour. May be repeated."
        ),
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Number of candidates, K2; by default 500, or all items if fewer.", min=1)
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(help="Learn this instead of clicks: the column of the log with what clicked items were worth."),
    ] = None,
    curve: Curve = None,
    config: Config = None,
    switches: Switches = None,
    since: Since = None,
    until: Until = None,
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
    With --sessions: for what a click leads to; the queries of the policy are the states of the log.
    """
    load_first("training.learning", "reports.training")
    from tandemrank._base.cluster import check_engine
    from tandemrank._base.config import resolve
    from tandemrank._base.files import claimed
    from tandemrank.logs.sources import during
    from tandemrank.policies.two_stage import load
    from tandemrank.reports import training
    from tandemrank.training import learning
    from tandemrank.training.config import LearningConfig
    from tandemrank.training.schedules import Method
    from tandemrank.training.start import Start

    columns = listed(",".join(context), str) if context else None
    flags = {"candidates": candidates, "context": columns, "examination": read_curve_option(curve)}
    tables = {
        "query_features": query_features,
        "item_features": item_features,
        "pair_features": pair_features,
        "query_embeddings": query_embeddings,
        "item_embeddings": item_embeddings,
    }
    resolved = resolve(LearningConfig, file=config, switches=switches or (), flags=flags)
    embedded = query_embeddings or item_embeddings
    how = over.arguments(start=start, query_embeddings=embedded, engine=engine != "local", reward=reward)
    if not resume:
        training.check_free(out, get_args(Method))
    named = page.named(not over.sessions)
    first, drew = (None if path is None else load(path) for path in (start, logging_policy))
    if over.sessions:
        how |= {"methods": method, "logging_policy": drew, "seed": seed, "resume": resume}
        sessions.learn(logs, out, resolved, Start(None, **tables), how, as_json)
        return
    inputs = [*logs, start, logging_policy, *tables.values(), *(page.titles or [])]
    with resumable(), training_progress() as (stage, epoch), claimed(out, training.TRAINING, inputs=inputs):
        learned = learning.learn(
            during(logs, since=since, until=until),
            resolved,
            methods=method,
            start=Start(first, **tables),
            logging_policy=drew,
            seed=seed,
            checkpoints=out / "checkpoints",
            resume=resume,
            engine=check_engine(engine),
            listener=learning.Listener(stage=stage, epoch=epoch, note=note),
            reward=None if reward == "clicks" else reward,
        )
    summary = training.write(learned, out, command=command_line(), seed=seed, named=named)
    if as_json:
        print_json(summary)
        return
    show(training.values(learned).terminal(training.TITLE.format(learned.reward)))
    for sentence in (*training.chosen(learned), *training.sentences(learned), *training.gate_sentences(learned)):
        show(sentence)
    show(training.made(learned))
    show(f"propensities: {learned.propensity} ({learned.propensity_reason})")
    if learned.was_trained:
        show(f"training started from {learned.start.words}")
    show(f"policies: {', '.join(entry['policy'] for entry in summary['methods'])}")
    show(f"report: {summary['report']}")


@dataclass(frozen=True)
class Exclusion:
    """What is left out of the lists, and the log where it is."""

    exclude: Annotated[
        str | None, typer.Option(help="clicked or shown: leave out what a query has clicked, or was shown, in --logs.")
    ] = None
    logs: Logs = None

    def pairs(self, vocabulary: "Vocabulary") -> "csr_matrix | None":
        """The pairs that are left out."""
        from tandemrank.logs.pairs import check_exclude, pairs_of
        from tandemrank.logs.reading import read

        if (self.exclude is None) != (not self.logs):
            raise ConfigError("--exclude says what to leave out, and --logs where it is: give both, or neither.")
        if self.exclude is None or self.logs is None:
            return None
        what = check_exclude(self.exclude)
        return pairs_of(read(self.logs), what, vocabulary)


@dataclass(frozen=True)
class Drawing:
    """Whether lists are drawn, and by which seed."""

    sample: Annotated[
        bool, typer.Option("--sample", help="Drawn lists instead of the most likely ones: what the next log needs.")
    ] = False
    seed: Annotated[int | None, typer.Option(help="Of the drawn lists: another one each time.", min=0)] = None

    def arguments(self) -> dict[str, Any]:
        """Those of `TwoStagePolicy.recommend`."""
        if self.seed is not None and not self.sample:
            raise ConfigError("--seed is for drawn lists: give --sample too, or leave it out.")
        return {"sample": self.sample, "seed": self.seed or 0}


@app.command()
@bundled
def recommend(
    drawing: Drawing,
    exclusion: Exclusion,
    features: FeatureTables,
    policy: Annotated[Path, typer.Argument(help="Saved policy.")],
    queries: Annotated[
        str | None,
        typer.Option(
            help="Query ids separated by commas, or a Parquet, CSV or .jsonl file with query_id; by default all of the policy."
        ),
    ] = None,
    context: Annotated[
        list[str] | None, typer.Option(help="Context of the lists, as column=value. May be repeated.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the lists: .trec, a run of TREC, else Parquet with query_id and items (top first)."
        ),
    ] = None,
    titles: Titles = None,
    as_json: Json = False,
    plugin: Plugin = None,
) -> None:
    """The lists that a saved policy recommends: what both stages score highest, best first, or drawn ones."""
    from tandemrank._base.frames import columns_of
    from tandemrank.policies.two_stage import load

    drawn = drawing.arguments()
    loaded = features.extended(load(policy))
    ids = None if queries is None else _query_ids(queries, loaded.vocabulary)
    if ids is not None:
        loaded, ids = _answering(loaded, ids)
    loaded = loaded.in_context(_context(context or []))
    lists = loaded.recommend(ids, exclude=exclusion.pairs(loaded.vocabulary), titles=titles, **drawn)
    if out is not None:
        run = out.suffix == ".trec"
        ours = Kind("file of lists", check=lambda path: _is_run(path) if run else columns_of(path) in LISTS)
        inputs = [policy, *vars(features).values(), *(exclusion.logs or []), *(titles or [])]
        with replacing(out, ours, inputs=inputs) as place:
            if run:
                place.write_text(_run(lists), encoding="utf-8")
            else:
                lists.write_parquet(place)
    if as_json:
        print_json(lists.to_dicts())
    elif out is not None:
        show(f"lists of {len(lists):,} queries: {out}")
    else:
        _print(lists)


def _run(lists: "pl.DataFrame") -> str:
    """Lists as a run of TREC: query, Q0, item, rank, score, name."""
    rows = lists.select("query_id", "items").iter_rows()
    lines = [f"{q} Q0 {item} {k + 1} {1 / (k + 1):.6f} {RUN}\n" for q, items in rows for k, item in enumerate(items)]
    if wrong := next((line for line in lines if len(line.split()) != 6), None):
        raise PolicyError(f"a run of TREC takes no ids with spaces; got {wrong.strip()!r}. Write Parquet.")
    return "".join(lines)


def _is_run(path: Path) -> bool:
    """Whether a file is one of ours, or empty."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return not path.stat().st_size or file.readline().split()[-1:] == [RUN]


def _context(given: list[str]) -> dict[str, str]:
    """The context of --context column=value."""
    if wrong := [one for one in given if "=" not in one]:
        raise ConfigError(f"--context: expected column=value, such as device=phone; got {wrong[0]!r}.")
    return {name: value for name, _, value in (one.partition("=") for one in given)}


@app.command()
def export(
    policy: Annotated[Path, typer.Argument(help="Saved policy.")],
    to: Annotated[
        str, typer.Option(help="numpy, faiss, opensearch, elasticsearch, vespa, onnx or trec (docs/how-to/export.md).")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("tandemrank-export"),
    plugin: Plugin = None,
) -> None:
    """Writes a saved policy for another system: vectors, an index, lines for a search engine, networks, run files."""
    from tandemrank.policies.two_stage import load
    from tandemrank.serving.export import export as write

    loaded = load(policy)
    folder = write(loaded, to, out)
    show(f"{to}: {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}")
    if loaded.context_columns:
        show(f"everything is as in the average context: {', '.join(loaded.context_columns)} are not exported")


def _query_ids(asked: str, vocabulary: "Vocabulary") -> "pl.Series":
    """Ids by name, of the type that the policy's have, or those of a file."""
    import polars as pl

    from tandemrank._base.frames import ids_of, read_table
    from tandemrank._base.ids import id_series

    if asked.endswith((".parquet", ".csv", ".jsonl")):
        return ids_of(read_table(asked, "")[0], "query_id", asked)
    found = id_series("query_id", [part.strip() for part in asked.split(",")])
    if not vocabulary.query_ids.dtype.is_integer():
        return found
    numbers = found.cast(pl.Int64, strict=False)
    if numbers.null_count():
        raise ConfigError(f"the policy's query ids are whole numbers; got {asked!r}.")
    return numbers


def _answering(policy: "TwoStagePolicy", ids: "pl.Series") -> "tuple[TwoStagePolicy, pl.Series]":
    """The policy with an answer for ids that it does not know, as the average query, and the ids; where it has no such answer,
    those that it knows. Standard error hears of it."""
    from tandemrank._base.ids import plain_ids, positions_of

    known = positions_of(policy.vocabulary.query_ids, ids, "query", missing="mark", owner="the policy") >= 0
    if known.all():
        return policy, ids
    unknown = plain_ids(ids.filter(~known)).unique(maintain_order=True)
    said = f"{(~known).sum()} of {len(ids)} query ids are not known to the policy"
    try:
        policy = policy.with_queries(unknown)
    except PolicyError:
        if not known.any():
            return policy, ids
        note(f"{said} and get no list (first: {unknown[0]!r}).")
        return policy, ids.filter(known)
    note(f"{said} and are answered as the average query (first: {unknown[0]!r}).")
    return policy, ids


def _print(lists: "pl.DataFrame") -> None:
    """A line for each query; with titles a block for each."""
    from rich.table import Table
    from rich.text import Text

    if "titles" not in lists.columns:
        table = Table(box=None)
        for name in ("query_id", "items, best first"):
            table.add_column(name, overflow="fold")
        for query, items in lists.head(ON_SCREEN).iter_rows():
            table.add_row(str(query), ", ".join(map(str, items)) or "–")
        show(table)
    else:
        for query, items, name, titles in lists.head(ON_SCREEN).iter_rows():
            show(f"{query}" + ("" if name == str(query) else f": {name}"))
            table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
            for rank, (item, title) in enumerate(zip(items, titles, strict=True), 1):
                table.add_row(f"{rank}", Text(title), Text("" if title == str(item) else str(item), "dim"))
            show(table)
    if len(lists) > ON_SCREEN:
        show(f"{ON_SCREEN} of {len(lists):,} queries; --out writes them all")
