"""Identity of a worker of a server with several: its place, and its address once it listens.

The supervisor starts ``ors-server serve --listen …`` with the variable ``ORS_WORKER``, a JSON object with ``slot``,
``incarnation``, ``restarted`` (whether an earlier worker of this slot has ended), ``folder``, which all workers of the
server have in common, ``descriptor``, an open pipe, and ``verifier`` (``cluster_key``) where gateways on other machines
reach it. The worker writes one line of JSON to the pipe when it listens, and keeps it open: its end is the end of the
worker. A pipe that is broken at the other end is the end of the supervisor: the worker then ends when its last session
has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from ors_containers.linux.subprocesses import pipe_file

from ors_server.errors import DefinitionError
from ors_server.wire.version import HANDSHAKE

__all__ = [
    "PROGRAM",
    "VARIABLE",
    "Announcement",
    "Identity",
    "announce",
    "identity",
    "read_announcement",
    "supervisor_ended",
]

VARIABLE = "ORS_WORKER"
#: The module of the command line, by which a server starts others of its kind: workers, gateways, nodes.
PROGRAM = "ors_cli"


class Identity(NamedTuple):
    """A worker's place in its server."""

    slot: int
    incarnation: int
    restarted: bool
    folder: Path
    descriptor: int
    #: Digest of the token that it wants from gateways, in hexadecimal digits; empty on a Unix socket.
    verifier: str = ""


@cache
def identity() -> Identity | None:
    """Return this process's identity; None where it is not a worker. Raises ``DefinitionError``."""
    # Taken out of the environment: what this process starts is not a worker.
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    try:
        given: dict[str, Any] = json.loads(text)
        return Identity(
            int(given["slot"]),
            int(given["incarnation"]),
            bool(given["restarted"]),
            Path(given["folder"]),
            int(given["descriptor"]),
            str(given.get("verifier", "")),
        )
    except (ValueError, KeyError, TypeError):
        raise DefinitionError(
            f"{VARIABLE} is {text!r:.200}", "It is set by `ors-server serve --workers` and `ors-server node` only."
        ) from None


class Announcement(NamedTuple):
    """A worker that listens, as it tells the supervisor."""

    address: str
    #: The names of each environment, its own first; the default environment first.
    environments: list[list[str]]
    version: str
    handshake: int
    #: Reasons why environments cannot be served, by their names.
    unavailable: Mapping[str, str] = {}


def read_announcement(line: bytes) -> Announcement:
    """Read an announcement, perhaps of another version. Raises ``ValueError``."""
    given: Any = json.loads(line)
    if not isinstance(given, dict):
        raise ValueError("not an announcement")
    known = cast("dict[str, Any]", given)
    handshake = known.get("handshake")
    if handshake != HANDSHAKE:
        # The other fields may have another form.
        version = str(known.get("version", "of an older version"))
        return Announcement("", [], version, handshake if isinstance(handshake, int) else 0)
    return Announcement(
        known["address"], known["environments"], known["version"], HANDSHAKE, known.get("unavailable", {})
    )


def announce(worker: Identity, announcement: Announcement) -> None:
    """Tell the supervisor that this worker listens."""
    os.write(worker.descriptor, json.dumps(announcement._asdict()).encode() + b"\n")


async def supervisor_ended(worker: Identity) -> None:
    """Wait until the supervisor has ended."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    class Pipe(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            if not ended.done():
                ended.set_result(None)

    transport, _ = await loop.connect_write_pipe(Pipe, pipe_file(os.dup(worker.descriptor), "wb"))
    try:
        await ended
    finally:
        transport.close()
