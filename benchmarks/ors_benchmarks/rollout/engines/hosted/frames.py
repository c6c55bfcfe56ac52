"""The messages between the benchmark and the process of its engine's front-end: pickled, each behind its length.

Both ends are this program's own: nothing that comes over the socket was written by anything else.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ors_clients.samplers.generations import Generation, SamplingParameters

from ors_benchmarks.rollout.engines.base import EngineTotals, ModelFiles
from ors_benchmarks.rollout.engines.emulated.profile import Profile
from ors_benchmarks.rollout.recording import EngineTimes
from ors_benchmarks.rollout.steering import Turn

__all__ = ["Answer", "Ask", "Cancel", "Exact", "Failed", "Generate", "Made", "Opened", "Start", "read", "write"]

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Start:
    """The engine to open: of a profile, or vLLM with these settings."""

    files: ModelFiles
    profile: Profile | None
    options: Mapping[str, Any]
    prefix_caching: bool
    concurrency: int
    #: Cores of the engine's other processes, and those of this one; None where none is bound.
    cores: Sequence[int] | None
    front_end_cores: Sequence[int] | None


class Opened(NamedTuple):
    """The engine was opened."""

    description: dict[str, str]
    processes: dict[str, int]
    gpus: list[str]


class Exact(NamedTuple):
    """The steering of a replay: as many tokens, with an expression or without."""

    tokens: int
    steered: bool


class Generate(NamedTuple):
    """A generation."""

    number: int
    ids: list[int]
    parameters: SamplingParameters
    steering: Turn | Exact | None
    rollout_id: str


class Cancel(NamedTuple):
    """A generation whose client waits no longer."""

    number: int


class Ask(NamedTuple):
    """A request to the engine that has no parameters: ``forget`` or ``totals``."""

    number: int
    what: str


class Made(NamedTuple):
    """The generation."""

    number: int
    generation: Generation
    times: EngineTimes


class Answer(NamedTuple):
    """The answer to ``Ask``."""

    number: int
    value: bool | EngineTotals


class Failed(NamedTuple):
    """The failure of a request, or of the start (number -1)."""

    number: int
    cause: str
    remedy: str


async def read(reader: asyncio.StreamReader) -> Any:
    """Return the next message; None at the end."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301 - see the module
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write(writer: asyncio.StreamWriter, message: Any) -> None:
    """Send a message."""
    content = pickle.dumps(message)
    writer.write(_LENGTH.pack(len(content)) + content)
