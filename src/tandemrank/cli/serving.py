"""Commands of a live policy: serve, replay, seal."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandemrank.cli.options import Curve, Json, Plugin, app, read_curve_option
from tandemrank.cli.progress import working
from tandemrank.cli.terminal import print_summary, show
from tandemrank.errors import ConfigError, JobError, LogError, OutputError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tandemrank.serving.run import Address
    from tandemrank.serving.service import Settings

Policies = Annotated[
    Path | None,
    typer.Option(help="The only folder that policies are loaded from; by default the one that holds POLICY."),
]
LivePolicies = Annotated[Path, typer.Option("--policies", help="Folder that holds the policies which were live.")]

BucketUrl = Annotated[
    str | None, typer.Option(help="URL that every finished segment is copied to, such as s3://bucket/prefix.")
]


@app.command()
def serve(
    policy: Annotated[Path, typer.Argument(help="Saved policy to serve.")],
    log: Annotated[Path | None, typer.Option(help="Folder of the log: journals and Parquet segments.")] = None,
    bucket: BucketUrl = None,
    policies: Policies = None,
    exploration: Annotated[
        str, typer.Option(help="trained (Plackett-Luce), temperature:T, uniform:SHARE or deterministic.")
    ] = "trained",
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
    engine: Annotated[
        str,
        typer.Option(
            help="local: this process answers; ray: replicas on a cluster, at RAY_ADDRESS or of this machine."
        ),
    ] = "local",
    replicas: Annotated[int, typer.Option(help="With --engine ray: how many processes answer.", min=1, max=1000)] = 2,
    plugin: Plugin = None,
) -> None:
    """Serves a policy over HTTP, and logs what the next round of learning needs, propensities included.

    POST /rank and /feedback; GET /healthz, /readyz, /status, /metrics, /openapi.json, and a page at /. With the token: POST
    /policies, /split, /rollback.
    """
    from tandemrank._base.cluster import check_engine
    from tandemrank.serving.drawing import parse

    how, on_cluster = parse(exploration), check_engine(engine) == "ray"
    if not 0 < level < 1:
        raise ConfigError(f"--level is above 0 and below 1; got {level}.")
    if bucket is not None and log is None:
        raise ConfigError("--bucket has copies of a log. Give its folder on this machine too, with --log.")
    try:
        from tandemrank.serving import app as application
        from tandemrank.serving import run
        from tandemrank.serving.service import Settings
    except ImportError as error:
        raise ConfigError(
            f"serving needs the extra `serve`: pip install 'tandemrank[serve]' ({error.name})."
        ) from error
    if on_cluster and replica != "0":
        raise ConfigError("--replica names one process; with --engine ray each replica has a name of its own.")
    settings = Settings(
        policy,
        log=log,
        bucket=bucket,
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
    )
    token = run.read_token(token_file, host)
    address = run.Address(host, port, token)

    def listening(found: int) -> None:
        _say(f"http://{host}:{found} answers with {policy}" + ("" if log is None else f", log in {log}"))
        if token_file is None and "TANDEMRANK_TOKEN" not in os.environ:
            _say(f"token for /policies, /split and /rollback: {token}")

    if on_cluster:
        _on_cluster(settings, address, replicas, seal_seconds)
        return
    running = application.server(settings, address, listening=listening, seal=seal_seconds)
    running.run()
    if not running.started:
        raise JobError(f"cannot listen on {host}:{port}. Is another server there? Give another --port.")


def _on_cluster(settings: "Settings", address: "Address", count: int, seal_seconds: float) -> None:
    """Replicas answer, on whatever nodes; the folders must be there on all of them."""
    from tandemrank.serving import app as application
    from tandemrank.serving import run
    from tandemrank.serving.recorder import Bucket
    from tandemrank.serving.service import Service

    if address.port == 0:
        raise ConfigError(
            "--port 0 takes a free port of one machine; with --engine ray give one that is free on every node."
        )
    folder = settings.folder
    folder.load(folder.name_of(settings.policy))  # what is wrong with it is said here, not by a replica
    if settings.bucket is not None:
        Bucket(settings.bucket).next_number("")  # nor is this
    policy, log = settings.policy.resolve(), None if settings.log is None else settings.log.resolve()
    found = replace(settings, policy=policy, log=log, policies=folder.folder)

    def build(name: str) -> "Starlette":
        service = Service(replace(found, replica=name))
        return application.application(application.Context(service, address, seal=seal_seconds, alone=False))

    run.deploy(build, address, count)
    written = "" if log is None else f", log in {log}"
    _say(f"http://{address.host}:{address.port} answers with {policy} from {count} replicas{written}")
    run.stay()


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
    bucket: BucketUrl = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Makes segments of the journals that ended servers left; a running one does it by itself, and is left alone."""
    from tandemrank.serving.propensities import Propensities
    from tandemrank.serving.recorder import Bucket
    from tandemrank.serving.sealing import Sealer
    from tandemrank.serving.service import PolicyFolder

    if not os.path.isdir(log):
        raise LogError(f"there is no folder {log}. Expected that of a served log, with journals in it.")
    copies = None if bucket is None else Bucket(bucket)
    sealer = Sealer(log, Propensities(find=PolicyFolder(policies).find), window=window)
    with working("computing propensities"):
        found = sealer.seal(everything=everything)
        copied = None if copies is None else copies.copy(log)
    if copied is not None and copied.problems:
        raise OutputError(copied.problems[0])
    if not found and not as_json:
        show("no journal is complete; --everything takes those that could still get clicks")
    summary = {"segments": [{**vars(one), "path": str(one.path)} for one in found]}
    print_summary(summary if copied is None else {**summary, "copied": copied.segments}, as_json)
