"""Records of sessions on their way into the database, and back out of it as messages.

The event loop only notes what happened (``recorder``); the writer's thread makes rows of it. Everything that one
session did between two writes becomes one row of ``pieces`` (``notes``), in which inputs and outputs are the bytes that
were sent. Notes become messages when they are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pydantic_core import from_json, to_json

from ors_server.rollouts.derived import LOST, Outcome
from ors_server.rollouts.marks import MARK
from ors_server.rollouts.notes import WIDTH, Head, encode_notes, read_notes
from ors_server.telemetry.redaction import redact_json, redact_text

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["End", "Note", "Part", "Recorded", "Records", "messages_of_notes"]

Row = dict[str, Any]
#: The head of a note (``notes``), and its data.
Note = tuple[float, str | None, str | None, float | None, float | None, bytes]
#: Seconds between two updates of the row of a session that goes on, in milliseconds.
_UPDATED_EVERY = 2000
#: Notes after which the thread lets the event loop run, and for how many seconds (``writer``).
_TURN = 256
_PAUSE = 20e-6


class Recorded(Protocol):
    """A session that is recorded (``recorder.Recording``), as the writer's thread sees it."""

    rollout_id: str
    max_reward: float | None
    total_reward: float | None
    finished: bool
    dropped: int
    session: str
    mark: str
    #: The forms of the session's secrets (``redaction``).
    secrets: list[bytes]
    #: Of the writer's thread: rows of ``pieces``, notes in them, bytes of the calls that the client sent, the time of
    #: the last note in milliseconds, and what the row of ``rollouts`` says.
    pieces: int
    stored: int
    characters: int
    last_at: int
    told: tuple[float | None, bool]
    told_at: int


class End(NamedTuple):
    """The end of a session."""

    outcome: Outcome
    reason: str


class Part:
    """Notes of one session between two handings-over."""

    __slots__ = ("begun", "end", "notes")

    def __init__(self) -> None:
        #: Its row of ``rollouts``, with the name of its run, where it has begun.
        self.begun: Row | None = None
        #: Its notes, the values of one after those of the other.
        self.notes: list[Head | bytes] = []
        self.end: End | None = None

    def take(self) -> tuple[list[Head], list[bytes]]:
        """Return the heads of its notes, one after the other, and the data of each; they leave it."""
        notes, self.notes = self.notes, []
        data = cast("list[bytes]", notes[WIDTH :: WIDTH + 1])
        del notes[WIDTH :: WIDTH + 1]
        return cast("list[Head]", notes), data


class Records:
    """Notes of what sessions did in a short while; ``offset`` leads from their clock to Unix time, in seconds."""

    def __init__(self, recorder: str, parts: Iterable[tuple[Recorded, Part]], size: int, offset: float = 0.0) -> None:
        self._recorder = recorder
        self._parts = parts
        self._offset = offset
        #: Bytes that it takes in memory, about.
        self.size = size
        self._rows: dict[str, list[Row]] | None = None

    def to_json(self) -> bytes:
        """Encode the rows, to keep them on the disk."""
        return to_json({"recorder": self._recorder, "rows": self._made()})

    @classmethod
    def from_json(cls, data: bytes) -> Records:
        """Read rows that were kept."""
        kept = from_json(data)
        records = cls(kept["recorder"], (), len(data))
        records._rows = kept["rows"]
        return records

    def write(self, connection: Connection) -> None:
        """Store the rows in one transaction; those that are stored already change nothing.

        Raises ``SQLAlchemyError``.
        """
        from ors_server.rollouts.record_rows import write_rows

        write_rows(connection, self._recorder, self._made())

    def _made(self) -> dict[str, list[Row]]:
        if self._rows is None:
            self._rows = _rows_of(self._parts, self._recorder, self._offset)
            self._parts = ()
        return self._rows


# --- rows ----------------------------------------------------------------------------------------


def _rows_of(parts: Iterable[tuple[Recorded, Part]], recorder: str, offset: float) -> dict[str, list[Row]]:
    begun: list[Row] = []
    pieces: list[Row] = []
    states: list[Row] = []
    marks: list[Row] = []
    noted = 0
    for recording, part in parts:
        if (row := part.begun) is not None:
            begun.append({**_without_secrets(row, recording.secrets), "recorder": recorder})
        heads, data = part.take()
        if data:
            count = len(data)
            text = encode_notes(heads, data, offset, recording.secrets).decode("utf-8", "replace")
            row = {"rollout_id": recording.rollout_id, "number": recording.pieces, "num_messages": count}
            pieces.append({**row, "messages": text})
            recording.pieces += 1
            recording.stored += count
            recording.characters += sum(
                len(each) for name, each in zip(heads[2::WIDTH], data, strict=True) if name is None
            )
            recording.last_at = int((cast("float", heads[-WIDTH]) + offset) * 1000)
            noted += count
        if noted >= _TURN:
            time.sleep(_PAUSE)
            noted = 0
        changed = (recording.max_reward, recording.finished) != recording.told
        due = changed or recording.last_at - recording.told_at > _UPDATED_EVERY
        # The event loop goes on meanwhile: the next part, which has notes, says what it has noted since.
        if part.end is not None or (data and due):
            recording.told, recording.told_at = (recording.max_reward, recording.finished), recording.last_at
            states.append(_state(recording, part.end))
            if recording.mark:
                kept = json.dumps({"session": recording.session, MARK: redact_text(recording.mark, recording.secrets)})
                marks.append({"of": recording.rollout_id, "metadata": kept})
    return {"begun": begun, "pieces": pieces, "states": states, "marks": marks}


def _without_secrets(row: Row, secrets: Sequence[bytes]) -> Row:
    kept = {name: redact_json(row[name].encode(), secrets, b"{}").decode() for name in ("task_spec", "metadata")}
    label = row["task_label"]
    return {**row, **kept, "task_label": None if label is None else redact_text(label, secrets)}


def _state(recording: Recorded, end: End | None) -> Row:
    lost = end is not None and end.outcome == LOST
    return {
        "of": recording.rollout_id,
        "num_messages": recording.stored,
        "max_reward": None if lost else recording.max_reward,
        "total_reward": None if lost else recording.total_reward,
        "finished": int(recording.finished),
        "last_message_at": recording.last_at or None,
        "response_characters": recording.characters,
        "dropped": recording.dropped,
        "outcome": None if end is None else end.outcome,
        "outcome_reason": None if end is None else redact_text(end.reason, recording.secrets),
    }


# --- messages ------------------------------------------------------------------------------------

#: Raised for a piece that was changed, or that an earlier version damaged.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def messages_of_notes(pieces: Iterable[str]) -> Iterable[Row]:
    """Yield the messages of a recorded session, in their order, with times in milliseconds."""
    index = 0
    for piece in pieces:
        for message in _messages_of(piece):
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
                "sent_at": None,
            } | message
            index += 1


def _messages_of(piece: str) -> Iterable[Row]:
    try:
        notes = list(read_notes(piece))
    except _UNREADABLE:
        yield {"type": "system_message", "content": "This part of the record cannot be read."}
        return
    for note in notes:
        try:
            messages = list(_messages(note))
        except _UNREADABLE:
            messages = [{"type": "system_message", "content": "This message of the record cannot be read."}]
        for message in messages:
            yield {"sent_at": note["at"], **message}


def _messages(note: Mapping[str, Any]) -> Iterable[Row]:
    if "call" in note:
        content = json.dumps(note["input"], ensure_ascii=False)
        yield {"type": "tool_call", "content": content, "name": note["name"], "call_id": note["call"]}
    elif "result" in note:
        yield _result(note)
    elif "blocks" in note:
        yield _of_blocks("user_message", note["blocks"])
    else:
        for message in note["messages"]:
            yield from _of_message(message)


def _result(note: Mapping[str, Any]) -> Row:
    timings = {
        f"{name}_ms": note[f"{name}_us"] / 1000 for name in ("waiting", "inside") if note.get(f"{name}_us") is not None
    }
    message: Row = {"type": "tool_result", "name": note["name"], "call_id": note["result"]}
    if "error" in note:
        return {**message, "content": note["error"], "metadata": {**timings, "error": True}}
    run: Row = note["output"]
    if "scores" in run:
        return {**message, "content": json.dumps(run["scores"]), "metadata": timings or None}
    if not run["ok"]:
        return {**message, "content": run["error"], "metadata": {**timings, "refused": run.get("reason") or True}}
    output: Row = run["output"]
    made = _of_blocks("tool_result", output["blocks"])
    metadata: Row = {**timings, **(made.get("metadata") or {})}
    if output.get("metadata") is not None:
        metadata["metadata"] = output["metadata"]
    return {
        **made,
        **message,
        "reward": output.get("reward"),
        "is_finished": bool(output.get("finished")),
        "metadata": metadata or None,
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
