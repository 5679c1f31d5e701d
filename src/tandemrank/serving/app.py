"""The HTTP interface, an ASGI application of Starlette: parses, calls the service, answers.

Answers are computed on the event loop, a list takes a fraction of a millisecond; whatever takes longer, loading a pair or
making segments, goes to a thread. No answer has a stack trace in it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tandemrank import __version__
from tandemrank.errors import InputError, TandemRankError
from tandemrank.serving import explain, messages, openapi, run
from tandemrank.serving.bucket import Copied
from tandemrank.serving.limits import HEADERS, POLICY, Access, Limits, Refused, read_body
from tandemrank.serving.metrics import Metrics
from tandemrank.serving.records import Event, Ranked
from tandemrank.serving.service import Busy, Service, Settings

LOG = logging.getLogger("tandemrank.serving")
TICK, SEAL = 0.5, 300.0  # seconds between looks at outcomes, and between segments

ONE_OF_SEVERAL = (
    "several replicas answer here, and this would reach one of them. To change the pair, deploy it: tandemrank serve PAIR "
    "--engine ray; to test one against another, serve from one process."
)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Handler = Callable[["Asked", "Context"], Awaitable[Response]]


@dataclass
class Context:
    """What all handlers share. `tick` and `seal` are the seconds between looks; 0 leaves it to the caller.

    `alone`: no other process answers at the same address, so that a change of who answers is a change for everybody.
    """

    service: Service
    access: Access
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)
    tick: float = TICK
    seal: float = SEAL
    alone: bool = True
    ready: bool = False


class Asked(NamedTuple):
    """A request, as far as handlers look at it."""

    headers: dict[bytes, bytes]
    receive: Receive


class Reply(Response):
    """JSON by orjson; the headers that every answer has."""

    def __init__(self, content: Any, status: int = 200, media: bytes = b"application/json") -> None:
        body = content if isinstance(content, bytes) else orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        self.status_code, self.body, self.background = status, body, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", media), *HEADERS]


def refusal(error: Exception) -> Reply:
    """The answer of whatever went wrong: what was expected and what came, never where in the code."""
    if isinstance(error, Refused):
        return Reply({"error": error.words}, error.status)
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])[:200]
        return Reply(
            {"error": f"{where or 'the body'}: {problem['msg']}"}, 400 if problem["type"] == "json_invalid" else 422
        )
    if isinstance(error, Busy):
        return Reply({"error": str(error)}, 409)
    if isinstance(error, InputError):
        return Reply({"error": str(error)}, 422)
    if isinstance(error, TandemRankError):
        return Reply({"error": str(error)}, 503)
    LOG.exception("a request failed")
    return Reply({"error": "the server failed; its log says why."}, 500)


class Guard:
    """Around a handler: who may, how large, how long it took, and errors as answers."""

    def __init__(self, handler: Handler, context: Context, *, admin: bool = False, open_to_all: bool = False) -> None:
        self.handler, self.context, self.admin, self.open_to_all = handler, context, admin, open_to_all

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            headers = dict(scope["headers"])
            if not self.open_to_all:
                self.context.access.check(headers, admin=self.admin)
            if self.admin and not self.context.alone:
                raise Refused(409, ONE_OF_SEVERAL)
            reply = await self.handler(Asked(headers, receive), self.context)
        except Exception as error:  # every failure is an answer
            reply = refusal(error)
        self.context.metrics.answered(scope["path"], reply.status_code)
        await reply(scope, receive, send)


async def _parsed(request: Asked, context: Context, model: type[messages.Message]) -> Any:
    body = await read_body(request.headers, request.receive, context.limits)
    return model.model_validate_json(body)


# --- asking -----------------------------------------------------------------------------------------------------------


async def rank(request: Asked, context: Context) -> Response:
    """A list, or a batch of lists."""
    start = perf_counter()
    if not context.ready:
        raise Refused(503, "not ready: the pair is being warmed.")
    body = await read_body(request.headers, request.receive, context.limits)
    if b'"requests"' in body[:100]:
        batch = messages.RankBatch.model_validate_json(body)
        reply = Reply({"answers": [_ranked(context, one) for one in batch.requests]})
        context.metrics.ranked(perf_counter() - start)
        return reply
    reply = Reply(_ranked(context, messages.RankRequest.model_validate_json(body)))
    context.metrics.ranked(perf_counter() - start)
    return reply


def _ranked(context: Context, asked: messages.RankRequest) -> dict[str, Any]:
    found: Ranked = context.service.server.rank(
        asked.query_id, K=asked.K, items=asked.items, features=asked.query_features, unit=asked.unit
    )
    context.metrics.shown(found.policy)
    if not found.logged and context.service.recorder is not None:
        context.metrics.unlogged.inc()
    return vars(found)


async def feedback(request: Asked, context: Context) -> Response:
    """Events of an impression."""
    asked: messages.FeedbackRequest = await _parsed(request, context, messages.FeedbackRequest)
    events = [Event(e.item, e.type, e.value, e.timestamp) for e in asked.events]
    recorded, fates = context.service.server.feedback_in_detail(asked.impression_id, events)
    for fate in fates:
        context.metrics.events.labels(fate).inc()
    names = ("counted", "repeated", "late", "unmatched", "unknown")
    return Reply({"recorded": recorded, **{name: fates.count(name) for name in names}})  # type: ignore[arg-type]


# --- changing who answers ---------------------------------------------------------------------------------------------


async def pairs(request: Asked, context: Context) -> Response:
    """Loads a pair; the answers go on meanwhile."""
    asked: messages.PairRequest = await _parsed(request, context, messages.PairRequest)
    return _model(await asyncio.to_thread(context.service.load, asked.folder))


async def split(request: Asked, context: Context) -> Response:
    """Gives a loaded pair a share."""
    asked: messages.SplitRequest = await _parsed(request, context, messages.SplitRequest)
    return _model(context.service.split(asked.policy, asked.share, asked.mode))


async def rollback(request: Asked, context: Context) -> Response:
    """Back to the old pair."""
    return _model(context.service.rollback())


def _model(found: BaseModel) -> Reply:
    return Reply(found.model_dump())


# --- watching ---------------------------------------------------------------------------------------------------------


async def healthz(request: Asked, context: Context) -> Response:
    """The process is alive."""
    return Reply({"status": "alive"})


async def readyz(request: Asked, context: Context) -> Response:
    """It is warm."""
    return Reply({"status": "ready"}) if context.ready else Reply({"error": "not ready: warming."}, 503)


async def metrics(request: Asked, context: Context) -> Response:
    """For Prometheus."""
    if context.service.recorder is not None:
        context.metrics.unsynced.set(context.service.recorder.unsynced)
    return Reply(context.metrics.text(), media=b"text/plain; version=0.0.4; charset=utf-8")


async def description(request: Asked, context: Context) -> Response:
    """OpenAPI."""
    return Reply(openapi.document(__version__))


async def status(request: Asked, context: Context) -> Response:
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
            "running": test is not None,
            "verdict": None if verdict is None else asdict(verdict),
            "history": [] if test is None else [asdict(point) for point in test.history],
            "changes": [asdict(change) for change in service.changes],
        }
    )


async def explained(request: Asked, context: Context) -> Response:
    """What each live pair makes of a query."""
    asked: messages.ExplainRequest = await _parsed(request, context, messages.ExplainRequest)
    server = context.service.server
    found = await asyncio.to_thread(
        explain.explain, server.traffic, asked.query_id, asked.query_features, server.exploration
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

    async def give(request: Asked, context: Context) -> Response:
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

    def __init__(self, paths: dict[tuple[str, str], Guard], **options: Any) -> None:
        super().__init__(
            routes=[Route(path, guard, methods=[method]) for (method, path), guard in paths.items()], **options
        )
        self.paths = paths

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        guard = self.paths.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (super().__call__(scope, receive, send) if guard is None else guard(scope, receive, send))


def application(context: Context) -> Application:
    """The ASGI application of a service."""
    admin = {"/pairs": pairs, "/split": split, "/rollback": rollback}
    asking: dict[str, Handler] = {"/rank": rank, "/feedback": feedback, "/explain": explained}
    watching: dict[str, Handler] = {"/status": status, "/metrics": metrics, "/openapi.json": description}
    health: dict[str, Handler] = {"/healthz": healthz, "/readyz": readyz}
    paths = {
        **{("POST", path): Guard(found, context) for path, found in asking.items()},
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
