"""What goes over the wire: requests, held to their limits, and answers; and its description, OpenAPI 3.1, made of these."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.json_schema import models_json_schema

ITEMS, FEATURES, EVENTS, BATCH, TEXT = 10_000, 200, 1000, 256, 256  # the most of each

Text = Annotated[str, StringConstraints(min_length=1, max_length=TEXT)]
Whole = Annotated[int, Field(ge=-(2**63) + 1, le=2**63 - 1, strict=True)]
Id = Whole | Text
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class Message(BaseModel):
    """A field that is not expected is refused, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid")


class RankRequest(Message):
    """A question: who asks, how many places, and which items are available."""

    query_id: Id | None = Field(None, description="The query, or the user, as the policy's ids have it.")
    query_features: Annotated[dict[Text, Number | Text | None], Field(max_length=FEATURES)] | None = Field(
        None, description="Features of a query that the policy may not know, by the names of its columns."
    )
    unit: Text | None = Field(None, description="Who always gets the same policy while a split lasts, such as a user.")
    K: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = Field(
        None, description="Places, at most the policy's."
    )
    items: Annotated[list[Id], Field(max_length=ITEMS)] | None = Field(None, description="Only these are available.")


class ExplainRequest(Message):
    """A question whose answer nobody is shown: what each live policy makes of it."""

    query_id: Id | None = None
    query_features: Annotated[dict[Text, Number | Text | None], Field(max_length=FEATURES)] | None = None


class RankBatch(Message):
    """Several questions at once, answered in their order."""

    requests: Annotated[list[RankRequest], Field(min_length=1, max_length=BATCH)]


class RankAnswer(Message):
    """A list, and whose it is."""

    impression_id: str
    items: list[int | str]
    policy: str = Field(description="The digest of the policy, or of both where their lists were interleaved.")
    source: Literal["policy", "features", "popular"]
    logged: bool
    unknown: list[int | str] = Field(description="Items that were said to be available and that no policy knows.")


class RankAnswers(Message):
    """The answers of a batch."""

    answers: list[RankAnswer]


class EventMessage(Message):
    """What a user did with an item."""

    item: Id
    type: Text = "click"
    value: Number | None = None
    timestamp: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False, strict=True)] | None = Field(
        None, description="Seconds since 1970; by default when the event arrives."
    )


class FeedbackRequest(Message):
    """Events of one impression; in any order, any number of times."""

    impression_id: Text
    events: Annotated[list[EventMessage], Field(min_length=1, max_length=EVENTS)]


class FeedbackAnswer(Message):
    """What became of the events; `recorded` is False where the log could not take them."""

    recorded: bool
    counted: int = Field(description="Clicks that count and had not come before.")
    repeated: int
    late: int
    unmatched: int = Field(description="Clicks on items that the impression did not show.")
    unknown: int = Field(description="Clicks of an impression that this process does not remember; the log joins them.")


class PolicyRequest(Message):
    """A saved policy in the allowed folder."""

    folder: Text = Field(description="Its path below the folder of policies.")


class PolicyAnswer(Message):
    """A policy that is loaded, warm, and ready to get traffic."""

    policy: str
    folder: str
    queries: int
    items: int
    K2: int
    K: int
    live: bool


class SplitRequest(Message):
    """How a loaded policy gets traffic: a share, all of it, or half of every list."""

    policy: Text
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] = Field(
        0.5, description="Of impressions; 1 makes it the only policy."
    )
    mode: Literal["split", "interleave"] = "split"


class ArmAnswer(Message):
    """A policy that is live."""

    policy: str
    folder: str
    share: float


class TrafficAnswer(Message):
    """Who answers now."""

    mode: Literal["single", "split", "interleave"]
    arms: list[ArmAnswer]


class ErrorAnswer(Message):
    """What was expected and what was found."""

    error: str


class Health(Message):
    """Whether it is well."""

    status: str
    log: str | None = Field(None, description='"ok", "none" where nothing is logged, or why the log takes no records.')


@dataclass(frozen=True)
class HttpCall:
    """One call: what it takes and gives, who may make it, and which statuses it has beside 200.

    `admin`: with the token alone. `open_to_all`: without it, also where others can reach the server.
    """

    method: str
    path: str
    words: str
    takes: tuple[type[BaseModel], ...] = ()
    gives: tuple[type[BaseModel], ...] = ()
    admin: bool = False
    open_to_all: bool = False
    statuses: tuple[int, ...] = ()
    media: str = "application/json"


BODY = (400, 408, 413, 415, 422)
CALLS = [
    HttpCall(
        "POST",
        "/rank",
        "A list, or a batch of lists.",
        takes=(RankRequest, RankBatch),
        gives=(RankAnswer, RankAnswers),
        statuses=(*BODY, 503),
    ),
    HttpCall(
        "POST",
        "/feedback",
        "Events of an impression: idempotent, in any order.",
        takes=(FeedbackRequest,),
        gives=(FeedbackAnswer,),
        statuses=BODY,
    ),
    HttpCall(
        "POST",
        "/policies",
        "Loads a policy from the allowed folder.",
        takes=(PolicyRequest,),
        gives=(PolicyAnswer,),
        admin=True,
        statuses=(*BODY, 409),
    ),
    HttpCall(
        "POST",
        "/split",
        "Gives a loaded policy a share of the traffic.",
        takes=(SplitRequest,),
        gives=(TrafficAnswer,),
        admin=True,
        statuses=(*BODY, 409),
    ),
    HttpCall(
        "POST", "/rollback", "Back to the old policy.", gives=(TrafficAnswer,), admin=True, statuses=(400, 409, 422)
    ),
    HttpCall(
        "POST",
        "/explain",
        "Candidates, scores and exposure of a query, by policy.",
        takes=(ExplainRequest,),
        statuses=BODY,
    ),
    HttpCall("GET", "/status", "Policies, shares, outcomes, latency, the verdict."),
    HttpCall("GET", "/healthz", "The process is alive.", gives=(Health,), open_to_all=True),
    HttpCall("GET", "/readyz", "It is warm and answers.", gives=(Health,), open_to_all=True, statuses=(503,)),
    HttpCall("GET", "/metrics", "For Prometheus.", media="text/plain"),
    HttpCall("GET", "/openapi.json", "This description."),
]


def document(version: str) -> dict[str, Any]:
    """The whole description."""
    models = sorted({x for call in CALLS for x in (*call.takes, *call.gives)} | {ErrorAnswer}, key=lambda x: x.__name__)
    _, schemas = models_json_schema([(x, "validation") for x in models], ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "TandemRank", "version": version, "description": "A two-stage ranking policy, live."},
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(call: HttpCall) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": call.words,
        "operationId": call.path.strip("/").replace(".", "_") or "page",
        "responses": {"200": {"description": "Done.", "content": {call.media: {"schema": _schema(call.gives)}}}},
    }
    for status in sorted({*call.statuses, 401, 421}):
        error = {"application/json": {"schema": _schema((ErrorAnswer,))}}
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
