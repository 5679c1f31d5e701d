"""The description of the HTTP interface, OpenAPI 3.1, made of the messages and of the table of calls."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tandemrank.serving import messages as m


@dataclass(frozen=True)
class Call:
    """One call: what it takes and gives, who may make it, and which statuses it has beside 200."""

    method: str
    path: str
    words: str
    takes: tuple[type[BaseModel], ...] = ()
    gives: tuple[type[BaseModel], ...] = ()
    admin: bool = False
    statuses: tuple[int, ...] = field(default_factory=tuple)
    media: str = "application/json"


BODY = (400, 408, 413, 415, 422)
CALLS = [
    Call("post", "/rank", "A list, or a batch of lists.", (m.RankRequest, m.RankBatch), (m.RankAnswer, m.RankAnswers),
         statuses=(*BODY, 503)),
    Call("post", "/feedback", "Events of an impression: idempotent, in any order.", (m.FeedbackRequest,),
         (m.FeedbackAnswer,), statuses=BODY),
    Call("post", "/pairs", "Loads a pair from the allowed folder.", (m.PairRequest,), (m.PairAnswer,), admin=True,
         statuses=(*BODY, 409)),
    Call("post", "/split", "Gives a loaded pair a share of the traffic.", (m.SplitRequest,), (m.TrafficAnswer,),
         admin=True, statuses=(*BODY, 409)),
    Call("post", "/rollback", "Back to the old pair.", (), (m.TrafficAnswer,), admin=True, statuses=(400, 409, 422)),
    Call("post", "/explain", "Candidates, scores and exposure of a query, by pair.", (m.ExplainRequest,), statuses=BODY),
    Call("get", "/status", "Pairs, shares, outcomes, latency, the verdict.", admin=False),
    Call("get", "/healthz", "The process is alive.", gives=(m.Health,)),
    Call("get", "/readyz", "It is warm and answers.", gives=(m.Health,), statuses=(503,)),
    Call("get", "/metrics", "For Prometheus.", media="text/plain"),
    Call("get", "/openapi.json", "This description."),
]  # fmt: skip


def document(version: str) -> dict[str, Any]:
    """The whole description."""
    models = sorted(
        {x for call in CALLS for x in (*call.takes, *call.gives)} | {m.ErrorAnswer}, key=lambda x: x.__name__
    )
    _, schemas = models_json_schema([(x, "validation") for x in models], ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "TandemRank", "version": version, "description": "A pair of ranking stages, live."},
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": call.words,
        "operationId": call.path.strip("/").replace(".", "_") or "page",
        "responses": {"200": {"description": "Done.", "content": {call.media: {"schema": _schema(call.gives)}}}},
    }
    for status in sorted({*call.statuses, 401, 421}):
        error = {"application/json": {"schema": _schema((m.ErrorAnswer,))}}
        found["responses"][str(status)] = {"description": "Refused.", "content": error}
    if call.takes:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _schema(call.takes)}}}
    if call.admin:
        found["security"] = [{"token": []}]
    return found


def _schema(models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    named = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    if not named:
        return {}
    return named[0] if len(named) == 1 else {"anyOf": named}
