"""The process of an engine's front-end.

    python -m ors_benchmarks.rollout.engines.hosted.process FD

It opens the engine that the first message names, and generates what the others ask for, until the socket of that number
is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys

import uvloop
from ors_clients.errors import ClientError

from ors_benchmarks.harness.processes import bind
from ors_benchmarks.rollout.engines.base import Engine
from ors_benchmarks.rollout.engines.emulated.front_end import EmulatedEngine
from ors_benchmarks.rollout.engines.hosted.frames import (
    Answer,
    Ask,
    Cancel,
    Failed,
    Generate,
    Made,
    Opened,
    Start,
    read,
    write,
)
from ors_benchmarks.rollout.engines.vllm import VLLMEngine
from ors_benchmarks.rollout.recording import EngineTimes, times
from ors_benchmarks.rollout.steering import Turn
from ors_server.errors import OrsError

__all__ = ["main"]


async def _open(start: Start) -> Engine:
    if start.profile is not None:
        return await EmulatedEngine.open(start.profile, start.files, cores=len(os.sched_getaffinity(0)))
    return await VLLMEngine.open(
        start.files,
        options=start.options,
        prefix_caching=start.prefix_caching,
        cores=start.cores,
        concurrency=start.concurrency,
    )


class _Host:
    """The requests under way."""

    def __init__(self, engine: Engine, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def take(self, message: Generate | Ask | Cancel) -> None:
        """Take a message."""
        if isinstance(message, Cancel):
            if (task := self._tasks.get(message.number)) is not None:
                task.cancel()
            return
        work = self._generate(message) if isinstance(message, Generate) else self._ask(message)
        task = self._tasks[message.number] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(message.number, None))

    async def _generate(self, request: Generate) -> None:
        engine, steering, parameters = self._engine, request.steering, request.parameters
        told = EngineTimes()
        times.set(told)  # of this task
        try:
            if isinstance(steering, Turn):
                parameters = engine.steered(parameters, steering)
            elif steering is not None:
                parameters = engine.exact(parameters, range(steering.tokens), steered=steering.steered)
            made = await engine.sampler.generate(request.ids, parameters, rollout_id=request.rollout_id)
        except ClientError as error:
            self._say(Failed(request.number, error.cause, error.remedy))
        except Exception as error:  # noqa: BLE001 - of vLLM's structured output: the generation has failed, not the engine
            self._say(Failed(request.number, f"{type(error).__name__}: {error}", ""))
        else:
            self._say(Made(request.number, made, told))

    async def _ask(self, request: Ask) -> None:
        try:
            value = await (self._engine.forget() if request.what == "forget" else self._engine.totals())
        except OrsError as error:
            self._say(Failed(request.number, error.cause, error.remedy))
        else:
            self._say(Answer(request.number, value))

    def _say(self, message: object) -> None:
        write(self._writer, message)

    async def cancel(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())


async def _serve(link: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=link)
    start: Start = await read(reader)
    try:
        engine = await _open(start)
    except OrsError as error:
        write(writer, Failed(-1, error.cause, error.remedy))
        await writer.drain()
        return
    host = _Host(engine, writer)
    try:
        if start.front_end_cores is not None:
            bind(os.getpid(), start.front_end_cores)
        gc.collect()
        gc.freeze()
        write(writer, Opened(engine.description(), {**engine.processes()}, [*engine.gpus()]))
        while (message := await read(reader)) is not None:
            host.take(message)
        await host.cancel()
    finally:
        gc.unfreeze()  # or vLLM's libraries take what is left at the exit for a leak
        await engine.close()


def main() -> None:
    """Serve until the benchmark closes the socket."""
    link = socket.socket(fileno=int(sys.argv[1]))
    with (
        contextlib.suppress(ConnectionError, KeyboardInterrupt),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(link))


if __name__ == "__main__":
    main()
