"""Notes of what a session does, and the JSON that they are stored as.

The event loop, which has other code in its caches, only puts together what it has: a few values, and the bytes of a
request or an answer. A loop of the writer's thread makes JSON of many notes for a fraction of the cost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic_core import from_json, to_json

from ors_server.encoding import encode
from ors_server.redaction import finds, redact_json, redact_text
from ors_server.sse import FRAME_END, ONE_FRAME, read_frames
from ors_server.texts import without_surrogates

__all__ = ["Head", "encode_notes", "read_notes"]

#: When the prompt was read, by the monotonic clock, and its kind: ``blocks`` or ``messages``. Its data are JSON.
_Prompt = tuple[float, str]
#: When a call began, its id, and nothing. Its data are the body of its request.
_Began = tuple[float, str, None]
#: When a call ended, its id, its tool, and the seconds that it waited and that the author's code took. Its data are the
#: frames of its answer.
_Ended = tuple[float, str, str, float | None, float | None]
Head = _Prompt | _Began | _Ended

#: In the place of data that cannot be read, by the length of its head.
_LEFT_OUT = {
    2: b"[]",
    3: b'{"name":"[redacted]","input":{}}',
    5: b'{"error_event":"[redacted]"}',
}
_START, _END = len(ONE_FRAME), -len(FRAME_END)


def encode_notes(heads: Sequence[Head], data: Sequence[bytes], offset: float, secrets: Sequence[bytes]) -> bytes:
    """Encode notes and their data, without secrets (``redaction.forms_of``).

    ``offset`` leads from their clock to Unix time, in seconds.
    """
    made: list[bytes] = []
    for head, each in zip(heads, data, strict=True):
        if len(head) == 5:
            made.append(each[_START:_END] if each.startswith(ONE_FRAME) else _joined(each, secrets))
        else:
            made.append(_written_anew(each) if b"\\" in each and len(head) == 3 else each)
    joined, notes = b",".join(made), to_json(heads)
    if finds(joined, secrets) or finds(notes, secrets):
        joined = b",".join(_data_without(head, each, secrets) for head, each in zip(heads, made, strict=True))
        notes = to_json([_head_without(head, secrets) for head in heads])
    return b'{"offset":%b,"notes":%b,"data":[%b]}' % (to_json(offset), notes, joined)


def _head_without(head: Head, secrets: Sequence[bytes]) -> Head:
    if len(head) != 5:
        return head
    at, call_id, name, waited, inside = head
    return at, call_id, redact_text(name, secrets), waited, inside


def _data_without(head: Head, data: bytes, secrets: Sequence[bytes]) -> bytes:
    if not finds(data, secrets):
        return data
    try:
        return redact_json(data, secrets)
    except (ValueError, RecursionError):  # nothing of it is kept that could be a secret
        return _LEFT_OUT[len(head)]


def _joined(frames: bytes, secrets: Sequence[bytes]) -> bytes:
    error, data = read_frames(frames)
    if error:
        return b'{"error_event":%b}' % to_json(data.decode("utf-8", "replace"))
    if secrets and b"\\u" in data:
        # Where a long result was cut, a space may be an escape, and a secret would not be found behind it.
        with contextlib.suppress(ValueError, RecursionError):
            return to_json(json.loads(data))
    return data


def _written_anew(body: bytes) -> bytes:
    """Encode a request as everything else is encoded: secrets are not looked for behind every possible escape."""
    try:
        return to_json(from_json(body))
    except ValueError:  # half an emoji, which ``Exchange.parse`` replaces too
        return encode(without_surrogates(json.loads(body)))


def read_notes(piece: str) -> Iterable[Mapping[str, Any]]:
    """Yield notes as mappings with the time ``at``, in milliseconds.

    They have ``call``, ``name`` and ``input``; or ``result``, ``name``, ``waiting_us``, ``inside_us``, and ``output``
    or ``error``; or ``blocks`` or ``messages``. Earlier versions stored such mappings. Raises ``ValueError``,
    ``TypeError`` or ``LookupError`` where it cannot be read.
    """
    stored = json.loads(piece)
    if isinstance(stored, list):
        yield from cast("list[Mapping[str, Any]]", stored)
        return
    for head, data in zip(stored["notes"], stored["data"], strict=True):
        note: dict[str, Any] = {"at": int((head[0] + stored["offset"]) * 1000)}
        if len(head) == 2:
            note[head[1]] = data
        elif len(head) == 3:
            note |= {"call": head[1], **data}
        else:
            _, note["result"], note["name"], waited, inside = head
            note["waiting_us"], note["inside_us"] = _micro(waited), _micro(inside)
            note |= {"error": data["error_event"]} if "error_event" in data else {"output": data}
        yield note


def _micro(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e6)
