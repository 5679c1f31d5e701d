"""Commands about a log itself: validate, examination."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tandemrank.cli.app import app
from tandemrank.cli.options import Engine, Json, Logs, Seed
from tandemrank.cli.progress import working
from tandemrank.cli.terminal import print_json, print_summary, print_validation
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
    from dataclasses import asdict

    from tandemrank.logs import validation

    with working("reading the log"):
        found = validation.validate(logs, K=list_length)
        mended = None if fix is None else validation.fix(logs, fix, K=list_length)
    if as_json:
        copy = {} if mended is None else {"fixed": {**asdict(mended), "path": str(mended.path)}}
        print_json({**asdict(found), **copy})
    else:
        print_validation(found, mended)
    if not found.fit:
        sys.exit(1)


@app.command()
def examination(
    logs: Logs,
    list_length: Annotated[int, typer.Option(help="Places of a shown list, K.", min=2)] = 10,
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

    from tandemrank._base.cluster import check_engine
    from tandemrank.clicks import examination
    from tandemrank.logs.reading import read

    if method not in ("harvest", "em", "trust"):
        raise ConfigError(f"--method takes harvest, em or trust; got {method!r}.")
    found: Any
    with working("reading the log and comparing ranks"):
        rows = read(logs, K=list_length, engine=check_engine(engine))
        if method == "trust":
            found = examination.estimate_trust(rows, list_length, seed=seed)
        else:
            found = examination.estimate(rows, list_length, method=method, seed=seed)
    answer = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(found).items()}
    if as_json:
        print_json(answer)
        return
    columns = [k for k, v in answer.items() if isinstance(v, list) and len(v) == list_length]
    ranks = [{"rank": k + 1, **{c: answer[c][k] for c in columns}} for k in range(list_length)]
    print_summary({**{k: v for k, v in answer.items() if k not in columns}, "curve": ranks}, as_json=False)
