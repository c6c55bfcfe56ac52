"""The content of an upload: events of rollouts, as openreward clients send them.

A ``rollout`` event opens a rollout, a ``message`` is one step of its conversation, a ``rollout_update`` says more about
it, and a ``run_report`` is the report of a whole run. An event is checked strictly (a reward is a number, never a
string that looks like one, and never NaN), and keys that are not known are kept. Invariant: an event that does not fit
costs itself and none of the others, because clients do not send an upload again after a 4xx.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from ors_server.errors import InvalidBody
from ors_server.rollouts.reports.formats import LARGEST, misfit
from ors_server.wire.encoding import encode

__all__ = [
    "Event",
    "InvalidEvent",
    "MessageEvent",
    "MessageType",
    "RolloutEvent",
    "RolloutUpdate",
    "RunReport",
    "Upload",
    "read_event",
    "read_upload",
]

Identifier = Annotated[str, Field(min_length=1, max_length=200)]
#: Milliseconds since 1970, up to the year 9999.
Timestamp = Annotated[int, Field(ge=0, le=253_402_300_799_999)]
Attributes: TypeAlias = dict[str, Any] | None
MessageType = Literal["reasoning", "tool_call", "tool_result", "user_message", "assistant_message", "system_message"]


class _Event(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    event_id: Identifier = Field(alias="eventId")
    timestamp: Timestamp


class RolloutEvent(_Event):
    """Opens a rollout; ``event_id`` is the rollout's id from here on."""

    event_type: Literal["rollout"] = Field(alias="eventType")
    run_name: Annotated[str, Field(min_length=1, max_length=1000)] = Field(alias="runName")
    rollout_name: str | None = Field(default=None, alias="rolloutName")
    step: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    environment: str | None = None
    environment_id: str | None = None
    variant: str | None = None
    variant_id: str | None = None
    split: str | None = None
    metadata: Attributes = None
    task_spec: Attributes = None
    run_info: Attributes = None
    rollout_info: Attributes = None


class MessageEvent(_Event):
    """One step of a rollout's conversation; ``index`` is its place, whenever it arrives."""

    event_type: Literal["message"] = Field(alias="eventType")
    rollout_event_id: Identifier = Field(alias="rolloutEventId")
    index: Annotated[int, Field(ge=0, lt=2**31)]
    type: MessageType
    content: str | None = None
    content_reference: str | None = Field(default=None, alias="contentReference")
    summary: str | None = None
    name: str | None = None
    call_id: str | None = Field(default=None, alias="callId")
    environment_id: str | None = None
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    is_finished: bool | None = Field(default=None, alias="isFinished")
    metadata: Attributes = None


class RolloutUpdate(_Event):
    """Says more about a rollout; ``event_id`` is the rollout's. Of two that say the same thing the later one counts."""

    event_type: Literal["rollout_update"] = Field(alias="eventType")
    rollout_info: Attributes = None


class RunReport(_Event):
    """The report of a run; of several the latest counts. One of a known kind and version has that format."""

    event_type: Literal["run_report"] = Field(alias="eventType")
    run_name: Annotated[str, Field(min_length=1, max_length=1000)] = Field(alias="runName")
    kind: Annotated[str, Field(min_length=1, max_length=50)]
    version: Annotated[int, Field(ge=0, lt=2**31)]
    report: dict[str, Any]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.encoded) > LARGEST:
            raise PydanticCustomError("too_long", "A report has at most 1 MiB as JSON")
        if problem := misfit(self.kind, self.version, self.report):
            raise PydanticCustomError("misfit", "The report does not fit its version: {problem}", {"problem": problem})
        return self

    @cached_property
    def encoded(self) -> bytes:
        """The report as JSON."""
        return encode(self.report)


Event: TypeAlias = RolloutEvent | MessageEvent | RolloutUpdate | RunReport


class Upload(BaseModel):
    """The body of ``POST /v1/rollouts``."""

    events: list[Annotated[Event, Field(discriminator="event_type")]]


_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event_type")])


class InvalidEvent(ValueError):
    """One event that does not fit; ``problems`` in FastAPI's form, without its content."""

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        super().__init__("The event does not fit")
        self.problems = problems


def read_upload(body: bytes) -> list[object]:
    """Return the unchecked events of an upload's body. Raises ``InvalidBody`` if it has no list of events."""
    document = _read_json(body)
    events: object = cast("dict[str, object]", document).get("events") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise InvalidBody(
            [{"type": "list_type", "loc": ["body", "events"], "msg": "Input should be an object with a list of events"}]
        )
    return cast("list[object]", events)


def read_event(number: int, event: object) -> Event:
    """Check an event of an upload; ``number`` is its position there. Raises ``InvalidEvent``."""
    try:
        return _EVENT.validate_python(event)
    except ValidationError as error:
        raise InvalidEvent(_problems(number, event, error)) from None


def _read_json(body: bytes) -> object:
    try:
        return from_json(body)
    except ValueError as error:
        try:
            # Half an emoji, as models write it, is escaped JSON to most clients but not to pydantic.
            return from_json(encode(json.loads(body)))
        except (ValueError, RecursionError):
            message = f"The body is not JSON that can be read: {error}"
            raise InvalidBody([{"type": "json_invalid", "loc": ["body"], "msg": message}]) from None


def _problems(number: int, event: object, error: ValidationError) -> list[dict[str, Any]]:
    event_id: object = cast("dict[str, object]", event).get("eventId") if isinstance(event, dict) else None
    named = {"event_id": event_id[:200]} if isinstance(event_id, str) else {}
    return [
        {
            "type": problem["type"],
            # Without the name of the union's member, which is not a key of the event.
            "loc": ["body", "events", number, *(problem["loc"][1:] or _whole(problem["type"]))],
            "msg": problem["msg"],
            **named,
        }
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def _whole(problem: str) -> tuple[str, ...]:
    return ("eventType",) if problem.startswith("union_tag") else ()
