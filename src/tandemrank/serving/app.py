"""The HTTP interface, an ASGI application of Starlette: checks who asks, parses, calls the service, answers.

Around every handler stands a `Guard`: access, and failures as answers that never say where in the code. Answers are computed on
the event loop, a list takes a fraction of a millisecond; whatever takes longer, loading a policy or making segments, goes to a
thread.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tandemrank import __version__
from tandemrank.errors import InputError, TandemRankError
from tandemrank.serving import explain, messages, run
from tandemrank.serving.metrics import Metrics
from tandemrank.serving.records import Event
from tandemrank.serving.run import (
    HEADERS,
    POLICY,
    Receive,
    Refused,
    check_origin,
    headers_of,
    read_body,
)
from tandemrank.serving.service import LOG, Busy, Service, Settings

TICK, SEAL = 0.5, 300.0  # seconds between looks at outcomes, and between segments

ONE_OF_SEVERAL = (
    "several replicas answer here, and this would reach one of them. To change the policy, deploy it: tandemrank serve POLICY "
    "--engine ray; to test one against another, serve from one process."
)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Handler = Callable[["HttpRequest", "Context"], Awaitable[Response]]
M = TypeVar("M", bound=messages.Message)


@dataclass
class Context:
    """What all handlers share. `tick` and `seal` are the seconds between looks; 0 leaves it to the caller.

    `alone`: no other process answers at the same address, so that a change of who answers is a change for everybody.
    """

    service: Service
    address: run.Address
    tick: float = TICK
    seal: float = SEAL
    alone: bool = True

    def __post_init__(self) -> None:
        """Nothing is counted yet."""
        self.metrics = Metrics(self.service)


class HttpRequest(NamedTuple):
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
    """The answer of whatever went wrong: what was expected and what was found, never where in the code."""
    if isinstance(error, Refused):
        return Reply({"error": error.words}, error.status)
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])[:200]
        return Reply({"error": f"{where or 'the body'}: {problem['msg']}"}, 422)
    if isinstance(error, Busy):
        return Reply({"error": str(error)}, 409)
    if isinstance(error, InputError):
        return Reply({"error": str(error)}, 422)
    if isinstance(error, TandemRankError):
        return Reply({"error": str(error)}, 503)
    LOG.exception("a request failed")
    return Reply({"error": "the server failed; its log says why."}, 500)


class Guard:
    """Around a handler: who may, and errors as answers."""

    def __init__(self, handler: Handler, context: Context, *, admin: bool = False, open_to_all: bool = False) -> None:
        self.handler, self.context, self.admin, self.open_to_all = handler, context, admin, open_to_all

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            headers = headers_of(scope["headers"])
            self.context.address.check(headers, admin=self.admin, open_to_all=self.open_to_all)
            if scope["method"] == "POST" and b"origin" in headers:
                check_origin(headers)
            if self.admin and not self.context.alone:
                raise Refused(409, ONE_OF_SEVERAL)
            reply = await self.handler(HttpRequest(headers, receive), self.context)
        except Exception as error:  # every failure is an answer
            reply = refusal(error)
        self.context.metrics.answered(scope["path"], reply.status_code)
        await reply(scope, receive, send)


async def body_of(request: HttpRequest, context: Context) -> Any:
    """The JSON of a request."""
    try:
        return orjson.loads(await read_body(request.headers, request.receive, context.address.limits))
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}.") from error


async def parsed(request: HttpRequest, context: Context, model: type[M]) -> M:
    """The body of a request as a message."""
    return model.model_validate(await body_of(request, context))


# --- lists and what was clicked ---------------------------------------------------------------------------------------


async def rank(request: HttpRequest, context: Context) -> Response:
    """A list, or a batch of them."""
    start, server = perf_counter(), context.service.server
    if not context.metrics.ready:
        raise Refused(503, "not ready: the policy is being warmed.")
    body = await body_of(request, context)
    if isinstance(body, dict) and "requests" in body:
        batch = messages.RankBatch.model_validate(body)
        found = server.rank_all([vars(one) for one in batch.requests])
        reply = Reply({"answers": [one._asdict() for one in found]})
    else:
        reply = Reply(server.rank(**vars(messages.RankRequest.model_validate(body)))._asdict())
    context.metrics.ranked(perf_counter() - start)
    return reply


async def feedback(request: HttpRequest, context: Context) -> Response:
    """Events of an impression."""
    asked = await parsed(request, context, messages.FeedbackRequest)
    events = [Event(e.item, e.type, e.value, e.timestamp) for e in asked.events]
    recorded, fates = context.service.server.feedback(asked.impression_id, events)
    names = [name for name in messages.FeedbackAnswer.model_fields if name != "recorded"]
    return Reply({"recorded": recorded, **{name: fates.count(name) for name in names}})  # type: ignore[arg-type]


# --- changing who answers ---------------------------------------------------------------------------------------------


async def policies(request: HttpRequest, context: Context) -> Response:
    """Loads a policy; the answers go on meanwhile."""
    asked = await parsed(request, context, messages.PolicyRequest)
    return _model(await asyncio.to_thread(context.service.load, asked.folder))


async def split(request: HttpRequest, context: Context) -> Response:
    """Gives a loaded policy a share."""
    asked = await parsed(request, context, messages.SplitRequest)
    return _model(context.service.split(asked.policy, asked.share, asked.mode))


async def rollback(request: HttpRequest, context: Context) -> Response:
    """Back to the old policy."""
    return _model(context.service.rollback())


def _model(found: BaseModel) -> Reply:
    return Reply(found.model_dump())


# --- watching ---------------------------------------------------------------------------------------------------------


async def healthz(request: HttpRequest, context: Context) -> Response:
    """The process is alive."""
    return Reply({"status": "alive", "log": context.service.log_state})


async def readyz(request: HttpRequest, context: Context) -> Response:
    """It is warm."""
    return Reply({"status": "ready"}) if context.metrics.ready else Reply({"error": "not ready: warming."}, 503)


async def metrics(request: HttpRequest, context: Context) -> Response:
    """For Prometheus."""
    return Reply(context.metrics.text(), media=b"text/plain; version=0.0.4; charset=utf-8")


async def description(request: HttpRequest, context: Context) -> Response:
    """OpenAPI."""
    return Reply(messages.document(__version__))


async def status(request: HttpRequest, context: Context) -> Response:
    """Policies, shares, outcomes, latency, the verdict with its history."""
    service = context.service
    verdict, test = service.verdict(), service.test
    return Reply(
        {
            "version": __version__,
            "ready": context.metrics.ready,
            "replica": service.settings.replica,
            "since": service.started,
            "exploration": service.server.exploration.name,
            "traffic": service.traffic().model_dump(),
            "policies": [policy.model_dump() for policy in service.policies()],
            "folders": service.folder.names(),
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
    """What each live policy makes of a query."""
    asked, server = await parsed(request, context, messages.ExplainRequest), context.service.server
    options = asked.query_id, asked.query_features, server.exploration, server.theta
    found = [await asyncio.to_thread(explain.explain, arm.live, *options) for arm in server.traffic.arms]
    return Reply({"policies": [asdict(one) for one in found]})


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

HANDLERS: dict[str, Handler] = {
    "/rank": rank,
    "/feedback": feedback,
    "/policies": policies,
    "/split": split,
    "/rollback": rollback,
    "/explain": explained,
    "/status": status,
    "/healthz": healthz,
    "/readyz": readyz,
    "/metrics": metrics,
    "/openapi.json": description,
}


async def _ticking(context: Context) -> None:
    while True:
        await asyncio.sleep(context.tick)
        try:
            context.service.tick()
        except Exception:  # a failure must not end what rolls back a bad policy
            LOG.exception("outcomes could not be looked at")


async def _sealing(context: Context) -> None:
    while True:
        await asyncio.sleep(context.seal)
        await asyncio.to_thread(context.service.write_segments)


@asynccontextmanager
async def _life(context: Context) -> AsyncIterator[None]:
    tasks = []
    if context.tick > 0:
        tasks.append(asyncio.create_task(_ticking(context)))
    if context.seal > 0 and context.service.recorder is not None:
        tasks.append(asyncio.create_task(_sealing(context)))
    context.metrics.ready = True
    try:
        yield
    finally:
        context.metrics.ready = False
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
        self.router.redirect_slashes = False  # it would send whoever asks to whatever Host says

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        guard = self.paths.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (super().__call__(scope, receive, send) if guard is None else guard(scope, receive, send))


def application(context: Context) -> Application:
    """The ASGI application of a service."""
    paths = {
        (call.method, call.path): Guard(HANDLERS[call.path], context, admin=call.admin, open_to_all=call.open_to_all)
        for call in messages.CALLS
    }
    paths |= {("GET", path): Guard(page(path), context, open_to_all=True) for path in STATIC}

    async def missing(request: Request, error: Exception) -> Response:
        code = getattr(error, "status_code", 404)
        return Reply({"error": "there is no such path." if code == 404 else "another method is expected here."}, code)

    return Application(paths, exception_handlers={404: missing, 405: missing}, lifespan=lambda app: _life(context))


def server(
    settings: Settings,
    address: run.Address,
    *,
    listening: Callable[[int], None] = lambda port: None,
    tick: float = TICK,
    seal: float = SEAL,
) -> run.Running:
    """A server that is ready to run: the policy is loaded and warm."""
    context = Context(Service(settings), address, tick=tick, seal=seal)
    return run.server(application(context), address, listening=listening)


def replica(settings: Settings, address: run.Address, *, seal: float = SEAL) -> Application:
    """The application of one of several processes that answer at one address; the policy is loaded and warm."""
    return application(Context(Service(settings), address, seal=seal, alone=False))
