"""The command recommend."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandemrank._base.files import Kind, regular, replacing
from tandemrank.cli.app import app
from tandemrank.cli.options import Json, Logs, Plugin
from tandemrank.cli.terminal import note, print_json, show
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl
    from scipy.sparse import csr_matrix

    from tandemrank._base.ids import Vocabulary

ON_SCREEN = 20  # queries, where the lists go to a terminal


@app.command()
def recommend(
    policy: Annotated[Path, typer.Argument(help="Saved policy.")],
    queries: Annotated[
        str | None,
        typer.Option(
            help="Query ids separated by commas, or a Parquet file with query_id; by default all of the policy."
        ),
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="clicked or shown: leave out what a query has clicked, or was shown, in --logs.")
    ] = None,
    logs: Logs = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Drawn lists instead of the most likely ones: what the next log needs.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of the drawn lists: another one each time.", min=0)] = None,
    query_features: Annotated[
        Path | None, typer.Option(help="Features of queries that the policy has not seen: Parquet with query_id.")
    ] = None,
    item_features: Annotated[Path | None, typer.Option(help="The same for the items, with item_id.")] = None,
    out: Annotated[Path | None, typer.Option(help="Parquet file for the lists: query_id, items (top first).")] = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """The lists that a saved policy recommends: what both stages score highest, best first, or drawn ones."""
    from tandemrank._base.frames import columns_of
    from tandemrank.policies.two_stage import extended, load

    if (exclude is None) != (not logs):
        raise ConfigError("--exclude says what to leave out, and --logs where it is: give both, or neither.")
    if seed is not None and not sample:
        raise ConfigError("--seed is for drawn lists: give --sample too, or leave it out.")
    loaded = extended(load(policy), query_features=query_features, item_features=item_features)
    ids = None if queries is None else _known(_query_ids(queries, loaded.vocabulary), loaded.vocabulary)
    left_out = None if exclude is None else _excluded(exclude, logs or [], loaded.vocabulary)
    lists = loaded.recommend(ids, exclude=left_out, sample=sample, seed=seed or 0)
    if out is not None:
        ours = Kind("file of lists", check=lambda path: columns_of(path) == ["query_id", "items"])
        with replacing(out, ours, inputs=[policy, query_features, item_features, *(logs or [])]) as place:
            lists.write_parquet(place)
    if as_json:
        print_json(lists.to_dicts())
    elif out is not None:
        show(f"lists of {len(lists):,} queries: {out}")
    else:
        _print(lists)


def _query_ids(asked: str, vocabulary: "Vocabulary") -> "pl.Series":
    """Ids by name, of the type that the policy's have, or those of a file."""
    import polars as pl

    from tandemrank._base.ids import id_series

    if asked.endswith(".parquet"):
        try:
            return pl.read_parquet(regular(asked), columns=["query_id"])["query_id"]
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise ConfigError(
                f"cannot read the queries in {asked}: expected Parquet with a column query_id."
            ) from error
    found = id_series("query_id", [part.strip() for part in asked.split(",")])
    if not vocabulary.query_ids.dtype.is_integer():
        return found
    numbers = found.cast(pl.Int64, strict=False)
    if numbers.null_count():
        raise ConfigError(f"the policy's query ids are whole numbers; got {asked!r}.")
    return numbers


def _known(ids: "pl.Series", vocabulary: "Vocabulary") -> "pl.Series":
    """The ids that the policy knows; the others are named on standard error. If it knows none, they are refused later."""
    from tandemrank._base.ids import positions_of

    known = positions_of(vocabulary.query_ids, ids, "query", missing="mark", owner="the policy") >= 0
    if known.all() or not known.any():
        return ids
    unknown = ids.filter(~known)
    note(f"{len(unknown)} of {len(ids)} query ids are not known to the policy and get no list (first: {unknown[0]!r}).")
    return ids.filter(known)


def _excluded(asked: str, logs: list[str], vocabulary: "Vocabulary") -> "csr_matrix":
    from tandemrank.logs.pairs import check_exclude, pairs_of
    from tandemrank.logs.reading import read

    what = check_exclude(asked)
    return pairs_of(read(logs), what, vocabulary)


def _print(lists: "pl.DataFrame") -> None:
    from rich.table import Table

    table = Table("query_id", "items, best first", box=None)
    for query, items in lists.head(ON_SCREEN).iter_rows():
        table.add_row(str(query), ", ".join(map(str, items)) or "–")
    show(table)
    if len(lists) > ON_SCREEN:
        show(f"{ON_SCREEN} of {len(lists):,} queries; --out writes them all")
