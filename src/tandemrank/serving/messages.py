"""What goes over the wire: requests, held to their limits; every call; and its description, OpenAPI 3.1, made of these."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from tandemrank.serving.records import Ranked

ITEMS, FEATURES, CONTEXT, EVENTS, BATCH, TEXT = 10_000, 200, 20, 1000, 256, 256  # the most of each

Text = Annotated[str, StringConstraints(min_length=1, max_length=TEXT)]
Whole = Annotated[int, Field(ge=-(2**63) + 1, le=2**63 - 1, strict=True)]
Id = Whole | Text
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class Message(BaseModel):
    """A field that is not expected is refused, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid")


class ExplainRequest(Message):
    """A question whose answer nobody is shown: what each live policy makes of it."""

    query_id: Id | None = Field(None, description="The query, or the user, as the policy's ids have it.")
    query_features: Annotated[dict[Text, Number | Text | None], Field(max_length=FEATURES)] | None = Field(
        None, description="Features of a query that the policy may not know, by the names of its columns."
    )
    context: Annotated[dict[Text, Number | Text | None], Field(max_length=CONTEXT)] | None = Field(
        None, description="The context of the request, such as a device, by the names of the log's columns."
    )


class RankRequest(ExplainRequest):
    """A question: who asks, how many places, and which items are available."""

    unit: Text | None = Field(None, description="Who always gets the same policy while a split lasts, such as a user.")
    session: Text | None = Field(
        None, description="The session that this list is of: the server remembers what was clicked last in it."
    )
    K: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = Field(
        None, description="Places, at most the policy's."
    )
    items: Annotated[list[Id], Field(max_length=ITEMS)] | None = Field(None, description="Only these are available.")


class RankBatch(Message):
    """Several questions at once, answered in their order."""

    requests: Annotated[list[RankRequest], Field(min_length=1, max_length=BATCH)]


@dataclass(frozen=True)
class RankAnswers:
    """The answers of a batch."""

    answers: list[Ranked]


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


class PolicyRequest(Message):
    """A saved policy in the allowed folder."""

    folder: Text = Field(description="Its path below the folder of policies.")


class SplitRequest(Message):
    """How a loaded policy gets traffic: a share, or all of it."""

    policy: Text
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] = Field(
        0.5, description="Of impressions; 1 makes it the only policy."
    )


class HistoryRequest(Message):
    """How far back to look."""

    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = Field(
        3600.0, description="Of the last day at most."
    )


class SearchRequest(Message):
    """What the ids or titles of queries are searched for."""

    words: Annotated[str, StringConstraints(max_length=TEXT)] = Field(
        "", description="The beginning of an id, or a part of a title; without it the first queries are given."
    )
    most: Annotated[int, Field(ge=1, le=100, strict=True)] = Field(20, description="How many queries at most.")


@dataclass(frozen=True)
class HttpCall:
    """One call: who answers it, what it takes and gives, and who may make it. The handler's docstring describes it.

    `takes`: messages, any of which may be the body; without one no body is read. `admin`: with the token alone.
    `open_to_all`: without it, also where others can reach the server.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    takes: tuple[type, ...] = ()
    gives: tuple[type, ...] = ()
    admin: bool = False
    open_to_all: bool = False
    media: str = "application/json"


REFUSAL = {
    "description": "Refused: what was expected, and what was found.",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}},
}


def document(calls: Sequence[HttpCall], version: str) -> dict[str, Any]:
    """The description of all calls."""
    models = {model.__name__: model for call in calls for model in (*call.takes, *call.gives)}
    adapters = [(name, "validation", TypeAdapter[Any](model)) for name, model in sorted(models.items())]
    _, schemas = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "TandemRank", "version": version, "description": "A two-stage ranking policy, live."},
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(call: HttpCall) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": call.handler.__doc__,
        "operationId": call.path.strip("/").replace(".", "_"),
        "responses": {
            "200": {"description": "Done.", "content": {call.media: {"schema": _schema(call.gives)}}},
            "default": REFUSAL,
        },
    }
    if call.takes:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _schema(call.takes)}}}
    if call.admin:
        found["security"] = [{"token": []}]
    return found


def _schema(models: tuple[type, ...]) -> dict[str, Any]:
    """Any of these; of none, anything."""
    return {"anyOf": [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]} if models else {}
