"""Events of what a session does, and the JSON that they are stored as.

The event loop, which has other code in its caches, only puts together what it has: a few values, and the bytes of a
request or an answer. A loop of the writer's thread makes JSON of many events for a fraction of the cost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic_core import from_json, to_json

from ors_server.telemetry.redaction import finds, redact_json, redact_text
from ors_server.wire.encoding import encode
from ors_server.wire.sse import FRAME_END, ONE_FRAME, read_frames
from ors_server.wire.texts import without_surrogates

__all__ = ["WIDTH", "Head", "encode_events", "read_events"]

#: What is known of an event besides its data: its time, by the monotonic clock; the id of its call; a name; and the
#: seconds that the call waited and that the author's code took. Heads stand one after the other in a list, without
#: tuples: the garbage collector would walk those of thousands of calls.
#:
#: - Of a prompt, without an id, the name is ``blocks`` or ``messages``; its data are JSON.
#: - Of a call that began there is no name; its data are the body of its request.
#: - Of a call that ended the name is its tool's; its data are the frames of its answer.
Head = float | str | None
#: Values of a head.
WIDTH = 5

_START, _END = len(ONE_FRAME), -len(FRAME_END)


def encode_events(heads: Sequence[Head], data: Sequence[bytes], offset: float, secrets: Sequence[bytes]) -> bytes:
    """Encode events and their data, without secrets (``redaction.forms_of``).

    ``offset`` leads from their clock to Unix time, in seconds.
    """
    made: list[bytes] = []
    ids, names = heads[1::WIDTH], heads[2::WIDTH]
    for call_id, name, each in zip(ids, names, data, strict=True):
        if name is None:
            made.append(_written_anew(each) if b"\\" in each else each)
        elif call_id is None:
            made.append(each)
        else:
            made.append(each[_START:_END] if each.startswith(ONE_FRAME) else _joined(each, secrets))
    joined, events = b",".join(made), to_json(heads)
    if finds(joined, secrets) or finds(events, secrets):
        kinds = zip(ids, names, made, strict=True)
        joined = b",".join(_data_without(call_id, name, each, secrets) for call_id, name, each in kinds)
        events = to_json(_heads_without(heads, secrets))
    return b'{"offset":%b,"events":%b,"data":[%b]}' % (to_json(offset), events, joined)


def _heads_without(heads: Sequence[Head], secrets: Sequence[bytes]) -> list[Head]:
    shown = list(heads)
    for place in range(0, len(shown), WIDTH):
        name = shown[place + 2]
        if shown[place + 1] is not None and isinstance(name, str):
            shown[place + 2] = redact_text(name, secrets)
    return shown


def _data_without(call_id: Head, name: Head, data: bytes, secrets: Sequence[bytes]) -> bytes:
    if name is None:
        shape = b'{"name":"[redacted]","input":{}}'
    else:
        shape = b"[]" if call_id is None else b'{"error_event":"[redacted]"}'
    return redact_json(data, secrets, shape)


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


def read_events(batch: str) -> Iterable[Mapping[str, Any]]:
    """Yield events as mappings with the time ``at``, in milliseconds.

    They have ``call``, ``name`` and ``input``; or ``result``, ``name``, ``waiting_us``, ``inside_us``, and ``output``
    or ``error``; or ``blocks`` or ``messages``. Earlier versions stored such mappings. Raises ``ValueError``,
    ``TypeError`` or ``LookupError`` where it cannot be read.
    """
    stored = json.loads(batch)
    if isinstance(stored, list):
        yield from cast("list[Mapping[str, Any]]", stored)
        return
    heads: list[Any] = stored["events"] if "events" in stored else stored["notes"]  # as 0.2 called them
    columns = (heads[number::WIDTH] for number in range(WIDTH))
    for at, call_id, name, waited, inside, data in zip(*columns, stored["data"], strict=True):
        event: dict[str, Any] = {"at": int((at + stored["offset"]) * 1000)}
        if name is None:
            event |= {"call": call_id, **data}
        elif call_id is None:
            event[name] = data
        else:
            event |= {"result": call_id, "name": name, "waiting_us": _micro(waited), "inside_us": _micro(inside)}
            event |= {"error": data["error_event"]} if "error_event" in data else {"output": data}
        yield event


def _micro(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e6)
