"""Commands about a log itself: validate, examine."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tandemrank.cli.app import app
from tandemrank.cli.options import Engine, Json, Logs, Seed
from tandemrank.cli.progress import working
from tandemrank.cli.terminal import print_json, show
from tandemrank.errors import ConfigError


@app.command()
def validate(
    logs: Logs,
    list_length: Annotated[
        int | None, typer.Option(help="Places of a shown list, K; longer lists are problems.", min=1)
    ] = None,
    fix: Annotated[Path | None, typer.Option(help="Write a cleaned copy of the log to this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Is this log fit? All its problems at once, what it is, and which questions it can answer.

    Exit code 0: fit; 1: it has problems (they are listed); 2: it cannot be read at all.
    """
    from tandemrank.cli.terminal import print_validation
    from tandemrank.logs import validation

    with working("reading the log"):
        found = validation.validate(logs, K=list_length)
        mended = None if fix is None else validation.fix(logs, fix, K=list_length)
    if as_json:
        print_json({**vars(found), **({} if mended is None else {"fixed": mended})})
    else:
        print_validation(found, mended)
    if not found.fit:
        sys.exit(1)


@app.command()
def examine(
    logs: Logs,
    list_length: Annotated[
        int | None, typer.Option(help="Ranks of the curve, K; by default all of the log's.", min=2)
    ] = None,
    method: Annotated[
        str, typer.Option(help="harvest (an item against itself at other ranks), em, or trust (with trust bias).")
    ] = "harvest",
    engine: Engine = "local",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How much users look at each rank, from the log itself: the examination curve with intervals.

    Refused where the log cannot identify it: an item must have been shown at several ranks for the same query.
    """
    from tandemrank._base.cluster import check_engine
    from tandemrank.cli.terminal import curve_tables
    from tandemrank.clicks import examination

    if method not in ("harvest", "em", "trust"):
        raise ConfigError(f"--method takes harvest, em or trust; got {method!r}.")
    check_engine(engine)
    with working("reading the log and comparing ranks"):
        found = examination.examine(logs, list_length, method=method, seed=seed, engine=engine)  # type: ignore[call-overload]
    if as_json:
        print_json(found)
    else:
        for table in curve_tables(found):
            show(table)
