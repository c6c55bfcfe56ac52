"""An engine whose front-end has a process of its own, as the benchmark uses it.

Trainers have it so too: their engines are servers, or actors of a cluster. What the front-end does for each token then
takes nothing from the event loop of the episodes, and its garbage is not theirs to collect.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ors_clients.errors import SamplerFailed
from ors_clients.samplers.generations import Generation, Sampler, SamplingParameters

from ors_benchmarks.rollout.engines.base import EngineFailed, EngineTotals
from ors_benchmarks.rollout.engines.hosted.frames import (
    Answer,
    Ask,
    Cancel,
    Exact,
    Failed,
    Generate,
    Made,
    Opened,
    Start,
    read,
    write,
)
from ors_benchmarks.rollout.recording import times
from ors_benchmarks.rollout.steering import Turn

__all__ = ["FRONT_END", "HostedEngine"]

#: The process's name in reports.
FRONT_END = "engine front-end"
#: Seconds in which it ends, its engine with it.
_END_LIMIT = 60.0
#: Key of the steering among an engine's own parameters.
_STEERING = "steering"
_GONE = "The process of the engine's front-end has ended"


@dataclass
class HostedEngine:
    """See the module."""

    name: str
    sampler: Sampler
    _connection: _Connection
    _process: subprocess.Popen[bytes]
    _opened: Opened = field(repr=False)

    @classmethod
    async def open(cls, name: str, start: Start) -> HostedEngine:
        """Start the process, and the engine in it. Raises ``EngineFailed``."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _start(theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        write(writer, start)
        try:
            answer: Opened | Failed | None = await read(reader)
        except asyncio.CancelledError:
            writer.close()
            await _end(process)
            raise
        if isinstance(answer, Opened):
            connection = _Connection(reader, writer)
            return cls(name, connection, connection, process, answer)
        writer.close()
        await _end(process)
        if answer is None:
            raise EngineFailed(f"{_GONE} while it started", "Its own error is above.")
        raise EngineFailed(answer.cause, answer.remedy)

    def steered(self, parameters: SamplingParameters, turn: Turn) -> SamplingParameters:
        """Steer as the engine does."""
        return replace(parameters, extra={**parameters.extra, _STEERING: turn})

    def exact(self, parameters: SamplingParameters, made: Sequence[int], *, steered: bool) -> SamplingParameters:
        """Force the length as the engine does."""
        return replace(parameters, extra={**parameters.extra, _STEERING: Exact(len(made), steered)})

    async def forget(self) -> bool:
        """As the engine's. Raises ``EngineFailed``."""
        return bool(await self._ask("forget"))

    async def totals(self) -> EngineTotals:
        """As the engine's. Raises ``EngineFailed``."""
        found = await self._ask("totals")
        assert isinstance(found, EngineTotals)
        return found

    async def _ask(self, what: str) -> bool | EngineTotals:
        try:
            answer = await self._connection.ask(lambda number: Ask(number, what))
        except SamplerFailed as error:
            raise EngineFailed(error.cause, error.remedy or "Run the engine alone to see why.") from None
        assert isinstance(answer, Answer)
        return answer.value

    def processes(self) -> Mapping[str, int]:
        """Return the front-end, and the engine's own."""
        return {FRONT_END: self._process.pid, **self._opened.processes}

    def gpus(self) -> Sequence[str]:
        """Return the engine's."""
        return self._opened.gpus

    def description(self) -> dict[str, str]:
        """Return the engine's."""
        return self._opened.description

    async def close(self) -> None:
        """End the engine and its front-end."""
        await self._connection.close()
        await _end(self._process)


def _start(link: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ors_benchmarks.rollout.engines.hosted.process", str(link.fileno())],
        pass_fds=[link.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C ends the run first, and then the engine
    )


async def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        await asyncio.to_thread(process.wait, _END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Connection:
    """The sampler, and the socket to the process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._gone = False
        self._reading = asyncio.create_task(self._read())

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """As the engine's. Raises ``SamplerFailed``."""
        extra = dict(parameters.extra)
        steering: Turn | Exact | None = extra.pop(_STEERING, None)
        parameters = replace(parameters, extra=extra)
        made = await self.ask(lambda number: Generate(number, list(ids), parameters, steering, rollout_id))
        assert isinstance(made, Made)
        told = times.get()
        if told is not None:
            told.queue, told.engine, told.cached = made.times.queue, made.times.engine, made.times.cached
        return made.generation

    async def ask(self, request: Callable[[int], Generate | Ask]) -> Made | Answer:
        """Send what ``request`` makes of a number, and return its answer. Raises ``SamplerFailed``."""
        if self._gone:
            raise SamplerFailed(_GONE)
        number = next(self._numbers)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        write(self._writer, request(number))
        try:
            answer = await waiting
        except asyncio.CancelledError:
            if not self._gone:
                write(self._writer, Cancel(number))
            raise
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, Failed):
            raise SamplerFailed(answer.cause, answer.remedy)
        return answer

    async def _read(self) -> None:
        while (message := await read(self._reader)) is not None:
            waiting = self._waiting.get(message.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        self._gone = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SamplerFailed(_GONE))

    async def close(self) -> None:
        """Close the socket, at whose end the process ends."""
        self._writer.close()
        self._reading.cancel()
        await asyncio.wait([self._reading])
