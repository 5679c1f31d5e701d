"""Commands of a live policy: serve, replay, seal."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tandemrank._base.progress import working
from tandemrank.cli.options import Curve, Json, Plugin, app, read_curve_option
from tandemrank.cli.terminal import print_summary, show
from tandemrank.errors import ConfigError, JobError, LogError

Policies = Annotated[
    Path | None,
    typer.Option(help="The only folder that policies are loaded from; by default the one that holds POLICY."),
]
LivePolicies = Annotated[Path, typer.Option("--policies", help="Folder that holds the policies which were live.")]


@app.command()
def serve(
    policy: Annotated[Path, typer.Argument(help="Saved policy to serve.")],
    log: Annotated[Path | None, typer.Option(help="Folder of the log: journals and Parquet segments.")] = None,
    policies: Policies = None,
    exploration: Annotated[
        str,
        typer.Option(
            help="belief (tries what the belief does not know, as far as it costs little; belief:C by C standard deviations), "
            "trained (Plackett-Luce), temperature:T, uniform:SHARE or deterministic."
        ),
    ] = "belief",
    host: Annotated[str, typer.Option(help="Address to listen on. Any but the loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8080,
    token_file: Annotated[Path | None, typer.Option(help="File with the token; or TANDEMRANK_TOKEN.")] = None,
    replica: Annotated[str, typer.Option(help="Name of this process in the log; replicas share a folder.")] = "0",
    curve: Curve = None,
    window: Annotated[float, typer.Option(help="Seconds after an impression in which a click counts.", min=0)] = 1800.0,
    settle: Annotated[
        float, typer.Option(help="Seconds after which the verdict takes an impression's clicks as final.", min=0)
    ] = 60.0,
    fsync_every_request: Annotated[
        bool,
        typer.Option(
            "--fsync-every-request", help="Have every record on disk before its answer goes out, not within a second."
        ),
    ] = False,
    seal_seconds: Annotated[float, typer.Option(help="Seconds between segments.", min=0.1)] = 300.0,
    level: Annotated[float, typer.Option(help="Level of the verdict and of the automatic rollback.")] = 0.95,
    rollback: Annotated[bool, typer.Option(help="Roll back automatically if the new policy is worse.")] = True,
    promote: Annotated[
        bool, typer.Option("--promote", help="Promote automatically if the new policy is better.")
    ] = False,
    titles: Annotated[
        list[Path] | None,
        typer.Option(help="Table of item_id, title, url, or of query_id, title, for the page. May be repeated."),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Serves a policy over HTTP, and logs what the next round of learning needs, propensities included.

    A page to look at it is at /, a description of all calls at /docs.
    """
    from tandemrank.logs.titles import read_titles
    from tandemrank.serving.drawing import parse

    how = parse(exploration)
    if not 0 < level < 1:
        raise ConfigError(f"--level is above 0 and below 1; got {level}.")
    try:
        from tandemrank.serving import app as application
        from tandemrank.serving import run
        from tandemrank.serving.service import Settings
    except ImportError as error:
        raise ConfigError(
            f"serving needs the extra `serve`: pip install 'tandemrank[serve]' ({error.name})."
        ) from error
    settings = Settings(
        policy,
        log=log,
        policies=policies,
        exploration=how,
        replica=replica,
        theta=read_curve_option(curve, cells=False) or "reciprocal",
        window=window,
        settle=settle,
        sync_seconds=0.0 if fsync_every_request else 1.0,
        level=level,
        rollback=rollback,
        promote=promote,
        titles=read_titles(*titles or ()),
    )
    token = run.read_token(token_file, host)
    address = run.Address(host, port, token)

    def listening(found: int) -> None:
        _say(f"http://{host}:{found} answers with {policy}" + ("" if log is None else f", log in {log}"))
        if token_file is None and "TANDEMRANK_TOKEN" not in os.environ:
            _say(f"token for /policies, /split and /rollback: {token}")

    running = application.server(settings, address, listening=listening, seal=seal_seconds)
    running.run()
    if not running.started:
        raise JobError(f"cannot listen on {host}:{port}. Is another server there? Give another --port.")


def _say(words: str) -> None:
    print(f"tandemrank: {words}", file=sys.stderr, flush=True)  # noqa: T201


@app.command()
def replay(
    log: Annotated[str, typer.Argument(help="Folder or URL of a served log, or one of its segments.")],
    policies: LivePolicies,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Draws every list of a served log again, from policy, query and key, and compares them item by item.

    Exit code 0: all equal; 1: the first difference is shown.
    """
    from tandemrank.serving import replay as replays
    from tandemrank.serving.service import PolicyFolder

    with working("lists drawn again") as progress:
        live = PolicyFolder(policies).find(replays.digests([log]))
        found = replays.replay([log], live, progress=progress)
    print_summary(found, as_json)
    if found.first is not None:
        sys.exit(1)


@app.command()
def seal(
    log: Annotated[Path, typer.Argument(help="Folder of a served log.")],
    policies: LivePolicies,
    window: Annotated[float, typer.Option(help="Seconds after an impression in which a click counts.", min=0)] = 1800.0,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything", help="Also seal impressions that could still get clicks; clicks that come later are lost."
        ),
    ] = False,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Makes segments of the journals that ended servers left; a running one does it by itself, and is left alone."""
    from tandemrank.serving.propensities import Propensities
    from tandemrank.serving.sealing import Sealer
    from tandemrank.serving.service import PolicyFolder

    if not os.path.isdir(log):
        raise LogError(f"there is no folder {log}. Expected that of a served log, with journals in it.")
    sealer = Sealer(log, Propensities(find=PolicyFolder(policies).find), window=window)
    with working("computing propensities"):
        found = sealer.seal(everything=everything)
    if not found and not as_json:
        show("no journal is complete; --everything takes those that could still get clicks")
    print_summary({"segments": [{**vars(one), "path": one.path and str(one.path)} for one in found]}, as_json)
