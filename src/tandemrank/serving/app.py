"""The HTTP interface, an ASGI application of Starlette: parses, calls the service, answers.

Answers are computed on the event loop, a list takes a fraction of a millisecond; whatever takes longer, loading a pair or
making segments, goes to a thread. No answer has a stack trace in it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tandemrank import __version__
from tandemrank.errors import TandemRankError
from tandemrank.serving import explain, messages, requests, run
from tandemrank.serving.access import POLICY, Access
from tandemrank.serving.log_files import Copied
from tandemrank.serving.requests import (
    LOG,
    SEAL,
    TICK,
    Context,
    Guard,
    Handler,
    HttpRequest,
    RankPath,
    Receive,
    Reply,
    Send,
    parsed,
)
from tandemrank.serving.service import Service, Settings

# --- changing who answers ---------------------------------------------------------------------------------------------


async def pairs(request: HttpRequest, context: Context) -> Response:
    """Loads a pair; the answers go on meanwhile."""
    asked: messages.PairRequest = await parsed(request, context, messages.PairRequest)
    return _model(await asyncio.to_thread(context.service.load, asked.folder))


async def split(request: HttpRequest, context: Context) -> Response:
    """Gives a loaded pair a share."""
    asked: messages.SplitRequest = await parsed(request, context, messages.SplitRequest)
    return _model(context.service.split(asked.policy, asked.share, asked.mode))


async def rollback(request: HttpRequest, context: Context) -> Response:
    """Back to the old pair."""
    return _model(context.service.rollback())


def _model(found: BaseModel) -> Reply:
    return Reply(found.model_dump())


# --- watching ---------------------------------------------------------------------------------------------------------


async def healthz(request: HttpRequest, context: Context) -> Response:
    """The process is alive."""
    return Reply({"status": "alive", "log": context.service.log_state})


async def readyz(request: HttpRequest, context: Context) -> Response:
    """It is warm."""
    return Reply({"status": "ready"}) if context.ready else Reply({"error": "not ready: warming."}, 503)


async def metrics(request: HttpRequest, context: Context) -> Response:
    """For Prometheus."""
    if context.service.recorder is not None:
        context.metrics.unsynced.set(context.service.recorder.unsynced)
        context.metrics.log_failing.set(bool(context.service.recorder.failing))
    return Reply(context.metrics.text(), media=b"text/plain; version=0.0.4; charset=utf-8")


async def description(request: HttpRequest, context: Context) -> Response:
    """OpenAPI."""
    return Reply(messages.document(__version__))


async def status(request: HttpRequest, context: Context) -> Response:
    """Pairs, shares, outcomes, latency, the verdict with its history."""
    service = context.service
    verdict, test = service.verdict(), service.test
    return Reply(
        {
            "version": __version__,
            "ready": context.ready,
            "replica": service.settings.replica,
            "since": service.started,
            "exploration": service.server.exploration.name,
            "traffic": service.traffic().model_dump(),
            "pairs": [pair.model_dump() for pair in service.pairs()],
            "folders": service.library.names(),
            "latency_ms": context.metrics.latency(),
            "tallies": service.tallies(),
            "events": service.outcomes.fates,
            "unlogged": service.server.unlogged,
            "log": service.log_state,
            "running": test is not None,
            "verdict": None if verdict is None else asdict(verdict),
            "history": [] if test is None else [asdict(point) for point in test.history],
            "changes": [asdict(change) for change in service.changes],
        }
    )


async def explained(request: HttpRequest, context: Context) -> Response:
    """What each live pair makes of a query."""
    asked: messages.ExplainRequest = await parsed(request, context, messages.ExplainRequest)
    server = context.service.server
    found = await asyncio.to_thread(
        explain.explain, server.traffic, asked.query_id, asked.query_features, server.exploration, server.theta
    )
    return Reply({"pairs": [asdict(one) for one in found]})


STATIC = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
}


def page(path: str) -> Handler:
    """A file of the page; it has no data in it, so that it is open to all."""
    name, media = STATIC[path]
    content = (Path(__file__).parent / "static" / name).read_bytes()

    async def give(request: HttpRequest, context: Context) -> Response:
        reply = Reply(content, media=media)
        reply.headers["content-security-policy"] = POLICY
        return reply

    return give


# --- the application --------------------------------------------------------------------------------------------------


async def _ticking(context: Context) -> None:
    while True:
        await asyncio.sleep(context.tick)
        try:
            context.service.tick()
        except Exception:  # a failure must not end what rolls back a bad pair
            LOG.exception("outcomes could not be looked at")


async def _sealing(context: Context) -> None:
    while True:
        await asyncio.sleep(context.seal)
        try:
            for sealed in await asyncio.to_thread(context.service.seal):
                context.metrics.sealed.inc(sealed.impressions)
                context.metrics.set_aside.inc(sealed.set_aside)
                context.metrics.late.inc(sealed.late)
                context.metrics.damaged.inc(sealed.damaged)
        except (TandemRankError, OSError) as error:
            context.metrics.seal_failures.inc()
            LOG.error("no segment was made: %s", error)
        except Exception:
            context.metrics.seal_failures.inc()
            LOG.exception("no segment was made")
        await copy_segments(context)


async def copy_segments(context: Context) -> None:
    """To the bucket, if there is one; what failed is said and counted, and tried again the next time."""
    try:
        copied = await asyncio.to_thread(context.service.copy)
    except Exception as error:
        copied = Copied(0, (f"segments were not copied: {type(error).__name__}, {error}",))
    context.metrics.copied.inc(copied.segments)
    context.metrics.copy_failures.inc(len(copied.problems))
    for problem in copied.problems:
        LOG.error("%s", problem)


def _shares(context: Context, by: str) -> None:
    """The metrics of who answers, after every change."""
    context.metrics.share.clear()
    for arm in context.service.server.traffic.arms:
        context.metrics.share.labels(arm.live.digest).set(arm.share)
    context.metrics.swaps.inc()
    if "rolled back" in context.service.changes[-1].words:
        context.metrics.rollbacks.labels(by).inc()


@asynccontextmanager
async def _life(context: Context) -> AsyncIterator[None]:
    context.service.on_change = lambda by: _shares(context, by)
    _shares(context, "start")
    tasks = []
    if context.tick > 0:
        tasks.append(asyncio.create_task(_ticking(context)))
    if context.seal > 0 and context.service.recorder is not None:
        tasks.append(asyncio.create_task(_sealing(context)))
    context.ready = True
    context.metrics.ready.set(1)
    try:
        yield
    finally:
        context.ready = False
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        context.service.close()


class Application(Starlette):
    """Knows all its paths, and looks them up; what it has no path for is Starlette's to answer."""

    def __init__(self, paths: dict[tuple[str, str], Guard | RankPath], **options: Any) -> None:
        super().__init__(
            routes=[Route(path, guard, methods=[method]) for (method, path), guard in paths.items()], **options
        )
        self.paths = paths
        self.router.redirect_slashes = False  # it would send whoever asks to whatever Host says

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        guard = self.paths.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (super().__call__(scope, receive, send) if guard is None else guard(scope, receive, send))


def application(context: Context) -> Application:
    """The ASGI application of a service."""
    admin = {"/pairs": pairs, "/split": split, "/rollback": rollback}
    telling: dict[str, Handler] = {"/feedback": requests.feedback, "/explain": explained}
    watching: dict[str, Handler] = {"/status": status, "/metrics": metrics, "/openapi.json": description}
    health: dict[str, Handler] = {"/healthz": healthz, "/readyz": readyz}
    paths: dict[tuple[str, str], Guard | RankPath] = {
        ("POST", requests.PATH): RankPath(context),
        **{("POST", path): Guard(found, context) for path, found in telling.items()},
        **{("POST", path): Guard(found, context, admin=True) for path, found in admin.items()},
        **{("GET", path): Guard(found, context) for path, found in watching.items()},
        **{("GET", path): Guard(page(path), context, open_to_all=True) for path in STATIC},
        **{("GET", path): Guard(found, context, open_to_all=True) for path, found in health.items()},
    }

    async def missing(request: Request, error: Exception) -> Response:
        code = getattr(error, "status_code", 404)
        return Reply({"error": "there is no such path." if code == 404 else "another method is expected here."}, code)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        async with _life(context):
            yield

    return Application(paths, exception_handlers={404: missing, 405: missing}, lifespan=life)


def server(
    settings: Settings,
    address: run.Address,
    *,
    listening: Callable[[int], None] = lambda port: None,
    tick: float = TICK,
    seal: float = SEAL,
) -> run.Running:
    """A server that is ready to run: the pair is loaded and warm."""
    access = Access(address.host, address.token)
    context = Context(Service(settings), access, address.limits, tick=tick, seal=seal)
    return run.server(application(context), address, listening=listening)


def replica(settings: Settings, address: run.Address, *, seal: float = SEAL) -> Application:
    """The application of one of several processes that answer at one address; the pair is loaded and warm."""
    access = Access(address.host, address.token)
    return application(Context(Service(settings), access, address.limits, seal=seal, alone=False))
