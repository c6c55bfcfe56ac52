"""Batches of sessions on their way into the database, and back out of it as messages.

The event loop only notes events (``recorder``); the writer's thread makes rows of them. Everything that one session did
between two writes becomes one row of ``batches``, in which inputs and outputs are the bytes that were sent. Events
become messages when they are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from pydantic_core import from_json, to_json

from ors_server.rollouts.aggregates.derived_columns import LOST, Outcome
from ors_server.rollouts.recording.events import WIDTH, Head, encode_events, read_events
from ors_server.rollouts.verdict_marks import MARK
from ors_server.rollouts.verdicts import split_verdict
from ors_server.telemetry.redaction import redact_json, redact_text

__all__ = ["Batch", "Batches", "End", "Event", "Sofar", "StoredSession", "messages_of_batches"]

Row = dict[str, Any]
#: The head of an event (``events``), and its data.
Event = tuple[float, str | None, str | None, float | None, float | None, bytes]
#: Seconds between two updates of the row of a session that goes on, in milliseconds.
_UPDATED_EVERY = 2000
#: Events after which the thread lets the event loop run, and for how many seconds (``writer``).
_TURN = 256
_PAUSE = 20e-6


class Sofar(NamedTuple):
    """Rewards, end and losses of a session at the time of a handing-over."""

    max_reward: float | None
    total_reward: float | None
    finished: bool
    #: Events that were dropped.
    dropped: int
    #: The reservation about the verdict (``marks``); empty for none.
    mark: str


class StoredSession:
    """A recorded session, as the writer's thread has it: what is stored, and what its row of ``rollouts`` says."""

    __slots__ = ("batches", "characters", "events", "last_at", "rollout_id", "secrets", "session", "told", "told_at")

    def __init__(self, rollout_id: str, session: str, secrets: list[bytes]) -> None:
        self.rollout_id = rollout_id
        self.session = session
        #: The forms of its secrets (``redaction``), which are not stored.
        self.secrets = secrets
        #: Rows of ``batches``, events in them, and bytes of the calls that the client sent.
        self.batches = self.events = self.characters = 0
        #: Time of the last event, in milliseconds since 1970.
        self.last_at = 0
        self.told: tuple[float | None, bool] = (None, False)
        self.told_at = 0


class End(NamedTuple):
    """The end of a session."""

    outcome: Outcome
    reason: str


class Batch:
    """Events of one session between two handings-over."""

    __slots__ = ("begun", "end", "events", "session", "sofar")

    def __init__(self, session: StoredSession) -> None:
        self.session = session
        #: Its row of ``rollouts``, with the name of its run, where it has begun.
        self.begun: Row | None = None
        #: Its events, the values of one after those of the other.
        self.events: list[Head | bytes] = []
        self.end: End | None = None
        #: Set when it is handed over.
        self.sofar = Sofar(None, None, finished=False, dropped=0, mark="")

    def take(self) -> tuple[list[Head], list[bytes]]:
        """Return the heads of its events, one after the other, and the data of each; they leave it."""
        events, self.events = self.events, []
        data = cast("list[bytes]", events[WIDTH :: WIDTH + 1])
        del events[WIDTH :: WIDTH + 1]
        return cast("list[Head]", events), data


class Batches:
    """Batches of one handing-over; ``offset`` leads from their clock to Unix time, in seconds."""

    def __init__(self, recorder: str, batches: Iterable[Batch], size: int, offset: float = 0.0) -> None:
        #: Name of the process that recorded them.
        self.recorder = recorder
        self._batches = batches
        self._offset = offset
        #: Bytes that it takes in memory, about.
        self.size = size
        self._rows: dict[str, list[Row]] | None = None

    def to_json(self) -> bytes:
        """Encode the rows, to keep them on the disk."""
        return to_json({"recorder": self.recorder, "rows": self.rows()})

    @classmethod
    def from_json(cls, data: bytes) -> Batches:
        """Read rows that were kept."""
        kept = from_json(data)
        records = cls(kept["recorder"], (), len(data))
        records._rows = rows = kept["rows"]
        if "pieces" in rows:  # kept by a version that called them so
            rows["batches"] = rows.pop("pieces")
        return records

    def rows(self) -> dict[str, list[Row]]:
        """Return its rows by the kind of change; they are made once."""
        if self._rows is None:
            self._rows = _rows_of(self._batches, self.recorder, self._offset)
            self._batches = ()
        return self._rows


# --- rows ----------------------------------------------------------------------------------------


def _rows_of(batches: Iterable[Batch], recorder: str, offset: float) -> dict[str, list[Row]]:
    begun: list[Row] = []
    stored: list[Row] = []
    states: list[Row] = []
    marks: list[Row] = []
    noted = 0
    for batch in batches:
        session, sofar = batch.session, batch.sofar
        if (row := batch.begun) is not None:
            begun.append({**_without_secrets(row, session.secrets), "recorder": recorder})
        heads, data = batch.take()
        if data:
            count = len(data)
            text = encode_events(heads, data, offset, session.secrets).decode("utf-8", "replace")
            row = {"rollout_id": session.rollout_id, "number": session.batches, "num_messages": count}
            stored.append({**row, "messages": text})
            session.batches += 1
            session.events += count
            session.characters += sum(
                len(each) for name, each in zip(heads[2::WIDTH], data, strict=True) if name is None
            )
            session.last_at = int((cast("float", heads[-WIDTH]) + offset) * 1000)
            noted += count
        if noted >= _TURN:
            time.sleep(_PAUSE)
            noted = 0
        says = (sofar.max_reward, sofar.finished)
        due = says != session.told or session.last_at - session.told_at > _UPDATED_EVERY
        if batch.end is not None or (data and due):
            session.told, session.told_at = says, session.last_at
            states.append(_state(session, sofar, batch.end))
            if sofar.mark:
                kept = json.dumps({"session": session.session, MARK: redact_text(sofar.mark, session.secrets)})
                marks.append({"of": session.rollout_id, "metadata": kept})
    return {"begun": begun, "batches": stored, "states": states, "marks": marks}


def _without_secrets(row: Row, secrets: Sequence[bytes]) -> Row:
    kept = {name: redact_json(row[name].encode(), secrets, b"{}").decode() for name in ("task_spec", "metadata")}
    label = row["task_label"]
    return {**row, **kept, "task_label": None if label is None else redact_text(label, secrets)}


def _state(session: StoredSession, sofar: Sofar, end: End | None) -> Row:
    lost = end is not None and end.outcome == LOST
    return {
        "of": session.rollout_id,
        "num_messages": session.events,
        "max_reward": None if lost else sofar.max_reward,
        "total_reward": None if lost else sofar.total_reward,
        "finished": int(sofar.finished),
        "last_message_at": session.last_at or None,
        "response_characters": session.characters,
        "dropped": sofar.dropped,
        "outcome": None if end is None else end.outcome,
        "outcome_reason": None if end is None else redact_text(end.reason, session.secrets),
    }


# --- messages ------------------------------------------------------------------------------------

#: Raised for a batch that was changed, or that an earlier version damaged.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def messages_of_batches(batches: Iterable[str]) -> Iterable[Row]:
    """Yield the messages of a recorded session, in their order, with times in milliseconds."""
    index = 0
    for batch in batches:
        for message in _messages_of(batch):
            yield {
                "index": index,
                "type": "user_message",
                "content": None,
                "summary": None,
                "content_reference": None,
                "name": None,
                "call_id": None,
                "reward": None,
                "is_finished": False,
                "metadata": None,
                "verdict": None,
                "sent_at": None,
            } | message
            index += 1


def _messages_of(batch: str) -> Iterable[Row]:
    try:
        events = list(read_events(batch))
    except _UNREADABLE:
        yield {"type": "system_message", "content": "This part of the record cannot be read."}
        return
    for event in events:
        try:
            messages = list(_messages(event))
        except _UNREADABLE:
            messages = [{"type": "system_message", "content": "This message of the record cannot be read."}]
        for message in messages:
            yield {"sent_at": event["at"], **message}


def _messages(event: Mapping[str, Any]) -> Iterable[Row]:
    if "call" in event:
        content = json.dumps(event["input"], ensure_ascii=False)
        yield {"type": "tool_call", "content": content, "name": event["name"], "call_id": event["call"]}
    elif "result" in event:
        yield _result(event)
    elif "blocks" in event:
        yield _of_blocks("user_message", event["blocks"])
    else:
        for message in event["messages"]:
            yield from _of_message(message)


def _result(event: Mapping[str, Any]) -> Row:
    timings = {
        f"{name}_ms": event[f"{name}_us"] / 1000
        for name in ("waiting", "inside")
        if event.get(f"{name}_us") is not None
    }
    message: Row = {"type": "tool_result", "name": event["name"], "call_id": event["result"]}
    if "error" in event:
        return {**message, "content": event["error"], "metadata": {**timings, "error": True}}
    run: Row = event["output"]
    if "scores" in run:
        return {**message, "content": json.dumps(run["scores"]), "metadata": timings or None}
    if not run["ok"]:
        return {**message, "content": run["error"], "metadata": {**timings, "refused": run.get("reason") or True}}
    output: Row = run["output"]
    made = _of_blocks("tool_result", output["blocks"])
    metadata: Row = {**timings, **(made.get("metadata") or {})}
    given, verdict = split_verdict(output.get("metadata"))
    if given is not None:
        metadata["metadata"] = given
    return {
        **made,
        **message,
        "reward": output.get("reward"),
        "is_finished": bool(output.get("finished")),
        "metadata": metadata or None,
        "verdict": None if verdict is None else verdict.as_json(),
    }


def _of_blocks(kind: str, blocks: Sequence[Mapping[str, Any]]) -> Row:
    """Return the text of blocks as a message; all of the blocks are in its metadata where they are more than that."""
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text")
    plain = all(block.get("type") == "text" and block.get("detail") is None for block in blocks)
    return {"type": kind, "content": text, "metadata": None if plain else {"blocks": list(blocks)}}


def _of_message(message: Mapping[str, Any]) -> Iterable[Row]:
    said: list[Mapping[str, Any]] = []
    for block in message["blocks"]:
        kind = block.get("type")
        if kind == "tool_call":
            content = json.dumps(block["input"], ensure_ascii=False)
            yield {"type": "tool_call", "content": content, "name": block["name"], "call_id": block["id"]}
        elif kind == "tool_result":
            yield {**_of_blocks("tool_result", block["blocks"]), "call_id": block["tool_call_id"]}
        elif kind == "reasoning":
            yield {"type": "reasoning", "content": block["text"]}
        else:
            said.append(block)
    if said:
        yield _of_blocks(f"{message['role']}_message", said)
