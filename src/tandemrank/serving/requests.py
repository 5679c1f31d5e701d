"""Requests: what is around every handler (access, size, failures as answers that never say where in the code), lists, events.

Every list passes through `RankPath`, in as few steps as there can be: a plain question, an id and perhaps a unit, is read as it
is, and anything else, right or wrong, by the model of the message, whose words a refusal has.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from tandemrank.errors import InputError, TandemRankError
from tandemrank.serving import messages
from tandemrank.serving.access import HEADERS, Access, Limits, Refused, check_origin, headers_of, read_body
from tandemrank.serving.metrics import Metrics
from tandemrank.serving.records import Event, Ranked
from tandemrank.serving.service import Busy, Service

LOG = logging.getLogger("tandemrank.serving")
TICK, SEAL = 0.5, 300.0  # seconds between looks at outcomes, and between segments

PATH = "/rank"
MOST = 2**63
FIXED = [(b"content-type", b"application/json"), *HEADERS]

ONE_OF_SEVERAL = (
    "several replicas answer here, and this would reach one of them. To change the pair, deploy it: tandemrank serve PAIR "
    "--engine ray; to test one against another, serve from one process."
)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Handler = Callable[["HttpRequest", "Context"], Awaitable[Response]]


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
            headers = headers_of(scope["headers"])
            self.context.access.check(headers, admin=self.admin, open_to_all=self.open_to_all)
            if scope["method"] == "POST" and b"origin" in headers:
                check_origin(headers)
            if self.admin and not self.context.alone:
                raise Refused(409, ONE_OF_SEVERAL)
            reply = await self.handler(HttpRequest(headers, receive), self.context)
        except Exception as error:  # every failure is an answer
            reply = refusal(error)
        self.context.metrics.answered(scope["path"], reply.status_code)
        await reply(scope, receive, send)


class RankPath:
    """`POST /rank`, an ASGI application of its own: a guard, its handler and its answer in one."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        start, context = perf_counter(), self.context
        try:
            headers = headers_of(scope["headers"])
            context.access.check(headers, admin=False)
            if b"origin" in headers:
                check_origin(headers)
            if not context.ready:
                raise Refused(503, "not ready: the pair is being warmed.")
            content = answered(await read_body(headers, receive, context.limits), context)
        except Exception as error:  # every failure is an answer
            reply = refusal(error)
            context.metrics.answered(PATH, reply.status_code)
            await reply(scope, receive, send)
            return
        context.metrics.ranked(perf_counter() - start)
        context.metrics.answered(PATH, 200)
        length = (b"content-length", b"%d" % len(content))
        await send({"type": "http.response.start", "status": 200, "headers": [length, *FIXED]})
        await send({"type": "http.response.body", "body": content})


def answered(body: bytes, context: Context) -> bytes:
    """The answer to a question, or to a batch of them."""
    if (asked := plain(body)) is not None:
        query_id, unit = asked
        return orjson.dumps(_noted(context.service.server.rank(query_id, unit=unit), context).message())
    if b'"requests"' in body[:100]:
        batch = messages.RankBatch.model_validate_json(body)
        found = context.service.server.rank_all([one.arguments() for one in batch.requests])
        return orjson.dumps({"answers": [_noted(one, context).message() for one in found]})
    asked_for = messages.RankRequest.model_validate_json(body)
    return orjson.dumps(_noted(context.service.server.rank(**asked_for.arguments()), context).message())


def plain(body: bytes) -> tuple[int | str, str | None] | None:
    """Id and unit of a question that has nothing else and is surely right; None for any other."""
    try:
        asked = orjson.loads(body)
    except ValueError:
        return None
    if type(asked) is not dict or "query_id" not in asked:
        return None
    query_id, unit = asked["query_id"], None
    if len(asked) > 1:
        unit = asked.get("unit")
        if len(asked) > 2 or type(unit) is not str or not 0 < len(unit) <= messages.TEXT:
            return None
    if type(query_id) is int:
        return (query_id, unit) if -MOST < query_id < MOST else None
    if type(query_id) is str and 0 < len(query_id) <= messages.TEXT:
        return query_id, unit
    return None


def _noted(found: Ranked, context: Context) -> Ranked:
    """The same, once the metrics know of it."""
    context.metrics.shown(found.policy)
    if not found.logged and context.service.recorder is not None:
        context.metrics.unlogged.inc()
    return found


async def parsed(request: HttpRequest, context: Context, model: type[messages.Message]) -> Any:
    """The body of a request as a message."""
    body = await read_body(request.headers, request.receive, context.limits)
    return model.model_validate_json(body)


async def feedback(request: HttpRequest, context: Context) -> Response:
    """Events of an impression."""
    asked: messages.FeedbackRequest = await parsed(request, context, messages.FeedbackRequest)
    events = [Event(e.item, e.type, e.value, e.timestamp) for e in asked.events]
    recorded, fates = context.service.server.feedback_in_detail(asked.impression_id, events)
    for fate in fates:
        context.metrics.events.labels(fate).inc()
    names = ("counted", "repeated", "late", "unmatched", "unknown")
    return Reply({"recorded": recorded, **{name: fates.count(name) for name in names}})  # type: ignore[arg-type]
