"""The HTTP interface, an ASGI application of Starlette: checks who asks, parses, calls the service, answers.

Around every handler stands a `Guard`: access, and failures as answers that never say where in the code. Answers are computed on
the event loop, a list takes a fraction of a millisecond; whatever takes longer, loading a policy or making segments, goes to a
thread.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import orjson
import polars as pl
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tandemrank import __version__
from tandemrank.errors import InputError, TandemRankError
from tandemrank.logs.titles import NONE as NO_TITLE
from tandemrank.serving import messages, run
from tandemrank.serving.messages import HttpCall
from tandemrank.serving.records import Event, FeedbackAnswer, Ranked
from tandemrank.serving.run import Receive, Refused, check_origin, headers_of, read_body
from tandemrank.serving.service import (
    LOG,
    Busy,
    FoundQuery,
    LiveTraffic,
    LoadedPolicy,
    PolicyClicks,
    Service,
    Settings,
)

TICK, SEAL = 0.5, 300.0  # seconds between looks at outcomes, and between segments

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


# --- metrics ----------------------------------------------------------------------------------------------------------

BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
RECENT = 4096  # requests whose latencies are kept for quantiles
COUNTS = {
    "sealed_impressions": "Impressions in segments.",
    "late_clicks": "Clicks after the window, when sealed.",
    "damaged_records": "Records that could not be used.",
    "seal_failures": "Segments that could not be made.",
}
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """What a monitoring system reads, and the page: the numbers of HTTP, and those that the service counts.

    No ids of queries or items, and no features.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.ready = False
        self.registry = CollectorRegistry()
        self.requests: Counter[tuple[str, str]] = Counter()  # by path and status
        self.seconds = Histogram(
            "tandemrank_rank_seconds", "Time of a request to rank.", buckets=BUCKETS, registry=self.registry
        )
        self.registry.register(self)
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # how long a request took, and when it ended

    def ranked(self, seconds: float) -> None:
        """One request to rank was answered."""
        self.seconds.observe(seconds)
        self._recent.append((seconds, monotonic()))

    def latency(self) -> dict[str, float]:
        """Quantiles of recent requests in milliseconds, and requests per second over the last ten seconds."""
        found = sorted(seconds for seconds, _ in self._recent) or [0.0]
        quantiles = {f"p{q}": 1000 * found[(len(found) - 1) * q // 100] for q in (50, 90, 99)}
        since = monotonic() - 10
        return {**quantiles, "per_second": sum(end > since for _, end in self._recent) / 10}

    def collect(self) -> Iterator[Metric]:
        """The numbers of the service, as they are when somebody looks."""
        service, recorder = self.service, self.service.recorder
        requests = CounterMetricFamily("tandemrank_requests", "Requests by path and status.", labels=["path", "status"])
        for path_and_status, n in self.requests.items():
            requests.add_metric(path_and_status, n)
        yield requests
        labelled = {
            "impressions": ("Lists shown, by policy.", "policy", service.outcomes.lists),
            "events": ("Events by what became of them.", "fate", service.outcomes.fates),
            "rollbacks": ("Rollbacks, by whom.", "by", service.rollbacks),
        }
        for name, (words, label, counts) in labelled.items():
            found = CounterMetricFamily(f"tandemrank_{name}", words, labels=[label])
            for value, n in counts.items():
                found.add_metric([value], n)
            yield found
        yield CounterMetricFamily("tandemrank_unlogged", "Lists that the log could not take.", service.server.unlogged)
        for name, words in COUNTS.items():
            yield CounterMetricFamily(f"tandemrank_{name}", words, service.counts[name])
        gauges: dict[str, tuple[str, float]] = {
            "ready": ("1 after warm-up.", self.ready),
            "log_failing": ("1 while the log takes no records.", recorder is not None and bool(recorder.failing)),
            "unsynced_bytes": ("Bytes of the journal not surely on disk.", recorder.unsynced if recorder else 0),
        }
        for name, (words, amount) in gauges.items():
            yield GaugeMetricFamily(f"tandemrank_{name}", words, float(amount))


# --- around every handler ---------------------------------------------------------------------------------------------


@dataclass
class Context:
    """What all handlers share. `tick` and `seal` are the seconds between looks; 0 leaves it to the caller."""

    service: Service
    address: run.Address
    tick: float = TICK
    seal: float = SEAL

    def __post_init__(self) -> None:
        """Nothing is counted yet."""
        self.metrics = Metrics(self.service)


HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
# What a browser may do with whatever else than JSON it gets.
POLICY = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
)


class Reply(Response):
    """Bytes, or a value as JSON; the headers that every answer has."""

    def __init__(self, content: Any, status: int = 200, media: bytes = run.JSON) -> None:
        body = content if isinstance(content, bytes) else orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        self.status_code, self.body, self.background = status, body, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", media), *HEADERS]
        if media != run.JSON:
            self.raw_headers.append(POLICY)


def refusal(error: Exception) -> Reply:
    """The answer of whatever went wrong: what was expected and what was found, never where in the code."""
    if isinstance(error, Refused):
        return Reply({"error": error.words}, error.status)
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])[:200]
        return Reply({"error": f"{where or 'the body'}: {problem['msg']}"}, 422)
    if isinstance(error, TandemRankError):
        status = 409 if isinstance(error, Busy) else 422 if isinstance(error, InputError) else 503
        return Reply({"error": str(error)}, status)
    LOG.exception("a request failed")
    return Reply({"error": "the server failed; its log says why."}, 500)


class Guard:
    """Around the handler of a call: who may, the body, the answer, and errors as answers."""

    def __init__(self, call: HttpCall, context: Context) -> None:
        self.call, self.context, self.media = call, context, call.media.encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        call, context = self.call, self.context
        try:
            headers = headers_of(scope["headers"])
            context.address.check(headers, admin=call.admin, open_to_all=call.open_to_all)
            if scope["method"] == "POST" and b"origin" in headers:
                check_origin(headers)
            body = await read_json(headers, receive, context.address.limits) if call.takes else None
            reply = Reply(await call.handler(context, body), media=self.media)
        except Exception as error:  # every failure is an answer
            reply = refusal(error)
        context.metrics.requests[scope["path"], str(reply.status_code)] += 1
        await reply(scope, receive, send)


async def read_json(headers: dict[bytes, bytes], receive: Receive, limits: run.Limits) -> Any:
    """The body of a request, not yet held to any message."""
    try:
        return orjson.loads(await read_body(headers, receive, limits))
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}.") from error


# --- lists and what was clicked ---------------------------------------------------------------------------------------


async def rank(context: Context, body: Any) -> Ranked | messages.RankAnswers:
    """A list, or a batch of lists."""
    start, server = perf_counter(), context.service.server
    if not context.metrics.ready:
        raise Refused(503, "not ready: the policy is being warmed.")
    found: Ranked | messages.RankAnswers
    if isinstance(body, dict) and "requests" in body:
        batch = messages.RankBatch.model_validate(body)
        found = messages.RankAnswers(server.rank_all([vars(one) for one in batch.requests]))
    else:
        found = server.rank(**vars(messages.RankRequest.model_validate(body)))
    context.metrics.ranked(perf_counter() - start)
    return found


async def feedback(context: Context, body: Any) -> FeedbackAnswer:
    """Events of an impression: idempotent, in any order."""
    asked = messages.FeedbackRequest.model_validate(body)
    events = [Event(e.item, e.type, e.value, e.timestamp) for e in asked.events]
    return context.service.server.feedback(asked.impression_id, events)


# --- changing who answers ---------------------------------------------------------------------------------------------


async def policies(context: Context, body: Any) -> LoadedPolicy:
    """Loads a policy from the allowed folder; the answers go on meanwhile."""
    return await asyncio.to_thread(context.service.load, messages.PolicyRequest.model_validate(body).folder)


async def split(context: Context, body: Any) -> LiveTraffic:
    """Gives a loaded policy a share of the traffic."""
    return await asyncio.to_thread(context.service.split, **vars(messages.SplitRequest.model_validate(body)))


async def rollback(context: Context, body: None) -> LiveTraffic:
    """Back to the old policy."""
    return context.service.rollback()


# --- watching ---------------------------------------------------------------------------------------------------------


async def healthz(context: Context, body: None) -> dict[str, str]:
    """The process is alive; what the log says is beside it."""
    return {"status": "alive", "log": context.service.log_state}


async def readyz(context: Context, body: None) -> dict[str, str]:
    """It is warm and answers."""
    if not context.metrics.ready:
        raise Refused(503, "not ready: warming.")
    return {"status": "ready"}


async def metrics(context: Context, body: None) -> bytes:
    """For Prometheus."""
    return generate_latest(context.metrics.registry)


async def description(context: Context, body: None) -> dict[str, Any]:
    """This description."""
    return messages.document(CALLS, __version__)


async def status(context: Context, body: None) -> dict[str, Any]:
    """Policies, shares, outcomes, latency, the verdict with its history."""
    service, test = context.service, context.service.test
    return {
        "version": __version__,
        "ready": context.metrics.ready,
        "replica": service.settings.replica,
        "since": service.started,
        "exploration": service.server.exploration.name,
        "traffic": service.traffic(),
        "policies": service.policies(),
        "folders": service.folder.names(),
        "latency_ms": context.metrics.latency(),
        "tallies": service.outcomes.tallies,
        "events": service.outcomes.fates,
        "unlogged": service.server.unlogged,
        "log": service.log_state,
        "test": None if test is None else {"running": service.running, "tallies": test.tallies},
        "names": service.names,
        "verdict": service.verdict(),
        "history": [] if test is None else test.history,
        "changes": service.changes,
    }


async def history(context: Context, body: Any) -> dict[str, Any]:
    """Lists, impressions and clicks over time, by policy, of the last day at most."""
    asked = messages.HistoryRequest.model_validate(body)
    now = context.service.clock()
    width, steps = context.service.outcomes.history(asked.seconds, now)
    return {"now": now, "seconds_per_step": width, "steps": steps}


async def explain(context: Context, body: Any) -> dict[str, Any]:
    """Candidates, scores and exposure of a query, by policy; with the titles that are known."""
    asked, titles = messages.ExplainRequest.model_validate(body), context.service.titles
    found = await asyncio.to_thread(context.service.server.explain, **vars(asked))
    items = {str(one.item): titles.items.of(one.item) for policy in found for one in policy.candidates}
    return {
        "title": titles.queries.of(asked.query_id).title,
        "titles": {item: title._asdict() for item, title in items.items() if title != NO_TITLE},
        "policies": found,
    }


async def search(context: Context, body: Any) -> dict[str, list[FoundQuery]]:
    """Queries by the beginning of their id, or by their title."""
    asked = messages.SearchRequest.model_validate(body)
    return {"queries": await asyncio.to_thread(context.service.search, asked.words, asked.most)}


async def summary(context: Context, body: None) -> dict[str, Any]:
    """What became of the answers since the server began: impressions and clicks by policy, events, segments, the verdict."""
    service = context.service
    return {
        "replica": service.settings.replica,
        "since": service.started,
        "until": service.clock(),
        "policies": service.summary(),
        "events": service.outcomes.fates,
        "unlogged": service.server.unlogged,
        "segments": {name: service.counts[name] for name in COUNTS},
        "verdict": service.verdict(),
        "changes": service.changes,
    }


async def summary_csv(context: Context, body: None) -> bytes:
    """Impressions and clicks by policy, and at each rank, as a table."""
    ranks = [f"clicks_at_{k + 1}" for k in range(context.service.server.traffic.first.K)]
    names = [x.name for x in fields(PolicyClicks) if x.name != "clicks_by_rank"]
    rows = [{**vars(one), **dict(zip(ranks, one.clicks_by_rank, strict=False))} for one in context.service.summary()]
    table = pl.DataFrame([{name: row.get(name, 0) for name in (*names, *ranks)} for row in rows], [*names, *ranks])
    return table.write_csv().encode()


def page(name: str) -> Callable[[Context, None], Awaitable[bytes]]:
    """A file of the page for people."""
    content = (Path(__file__).parent / "static" / name).read_bytes()

    async def give(context: Context, body: None) -> bytes:
        return content

    return give


# --- the application --------------------------------------------------------------------------------------------------

CALLS = [
    HttpCall(
        "POST",
        "/rank",
        rank,
        takes=(messages.RankRequest, messages.RankBatch),
        gives=(Ranked, messages.RankAnswers),
    ),
    HttpCall("POST", "/feedback", feedback, takes=(messages.FeedbackRequest,), gives=(FeedbackAnswer,)),
    HttpCall("POST", "/policies", policies, takes=(messages.PolicyRequest,), gives=(LoadedPolicy,), admin=True),
    HttpCall("POST", "/split", split, takes=(messages.SplitRequest,), gives=(LiveTraffic,), admin=True),
    HttpCall("POST", "/rollback", rollback, gives=(LiveTraffic,), admin=True),
    HttpCall("POST", "/explain", explain, takes=(messages.ExplainRequest,)),
    HttpCall("POST", "/search", search, takes=(messages.SearchRequest,)),
    HttpCall("POST", "/history", history, takes=(messages.HistoryRequest,)),
    HttpCall("GET", "/status", status),
    HttpCall("GET", "/summary.json", summary),
    HttpCall("GET", "/summary.csv", summary_csv, media="text/csv; charset=utf-8"),
    HttpCall("GET", "/healthz", healthz, open_to_all=True),
    HttpCall("GET", "/readyz", readyz, open_to_all=True),
    HttpCall("GET", "/metrics", metrics, media="text/plain; version=0.0.4; charset=utf-8"),
    HttpCall("GET", "/openapi.json", description),
]
# The page has no data in it, so that it is open to all.
PAGE = [
    HttpCall("GET", path, page(name), open_to_all=True, media=f"{media}; charset=utf-8")
    for path, name, media in (
        ("/", "page.html", "text/html"),
        ("/docs", "docs.html", "text/html"),
        ("/page.js", "page.js", "text/javascript"),
        ("/docs.js", "docs.js", "text/javascript"),
        ("/page.css", "page.css", "text/css"),
        ("/uPlot.iife.min.js", "uPlot.iife.min.js", "text/javascript"),
        ("/uPlot.min.css", "uPlot.min.css", "text/css"),
    )
]


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
    paths = {(call.method, call.path): Guard(call, context) for call in (*CALLS, *PAGE)}

    async def missing(request: Request, error: Exception) -> Response:
        code = getattr(error, "status_code", 404)
        return Reply({"error": "there is no such path." if code == 404 else "another method is expected here."}, code)

    return Application(paths, exception_handlers={404: missing, 405: missing}, lifespan=lambda app: _life(context))


def server(
    settings: Settings,
    address: run.Address,
    *,
    listening: Callable[[int], None] = lambda port: None,
    seal: float = SEAL,
) -> run.Running:
    """A server that is ready to run: the policy is loaded and warm."""
    context = Context(Service(settings), address, seal=seal)
    return run.server(application(context), address, listening=listening)
