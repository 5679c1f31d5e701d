"""What goes over the wire: requests, held to their limits, and answers. OpenAPI is made of these."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

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

    query_id: Id | None = Field(None, description="The query, or the user, as the pair's ids have it.")
    query_features: Annotated[dict[Text, Number | Text | None], Field(max_length=FEATURES)] | None = Field(
        None, description="Features of a query that the pair may not know, by the names of its columns."
    )
    unit: Text | None = Field(None, description="Who always gets the same pair while a split lasts, such as a user.")
    K: Annotated[int, Field(ge=1, le=10_000, strict=True)] | None = Field(
        None, description="Places, at most the pair's."
    )
    items: Annotated[list[Id], Field(max_length=ITEMS)] | None = Field(None, description="Only these are available.")

    def arguments(self) -> dict[str, Any]:
        """As the engine takes them."""
        return {
            "query_id": self.query_id,
            "K": self.K,
            "items": self.items,
            "features": self.query_features,
            "unit": self.unit,
        }


class ExplainRequest(Message):
    """A question whose answer nobody is shown: what each live pair makes of it."""

    query_id: Id | None = None
    query_features: Annotated[dict[Text, Number | Text | None], Field(max_length=FEATURES)] | None = None


class RankBatch(Message):
    """Several questions at once, answered in their order."""

    requests: Annotated[list[RankRequest], Field(min_length=1, max_length=BATCH)]


class RankAnswer(Message):
    """A list, and whose it is."""

    impression_id: str
    items: list[int | str]
    policy: str = Field(description="The digest of the pair, or of both where their lists were interleaved.")
    source: Literal["pair", "features", "popular"]
    logged: bool
    unknown: list[int | str] = Field(description="Items that were said to be available and that no pair knows.")


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


class PairRequest(Message):
    """A saved pair in the allowed folder."""

    folder: Text = Field(description="Its path below the folder of pairs.")


class PairAnswer(Message):
    """A pair that is loaded, warm, and ready to get traffic."""

    policy: str
    folder: str
    queries: int
    items: int
    K2: int
    K: int
    live: bool


class SplitRequest(Message):
    """How a loaded pair gets traffic: a share, all of it, or half of every list."""

    policy: Text
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] = Field(
        0.5, description="Of impressions; 1 makes it the only pair."
    )
    mode: Literal["split", "interleave"] = "split"


class ArmAnswer(Message):
    """A pair that is live."""

    policy: str
    folder: str
    share: float


class TrafficAnswer(Message):
    """Who answers now."""

    mode: Literal["single", "split", "interleave"]
    arms: list[ArmAnswer]


class ErrorAnswer(Message):
    """What was expected and what came."""

    error: str


class Health(Message):
    """Whether it is well."""

    status: str
    log: str | None = Field(None, description='"ok", "none" where nothing is logged, or why the log takes no records.')
