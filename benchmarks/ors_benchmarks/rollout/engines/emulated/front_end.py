"""An emulated engine as the benchmark uses it: the front-end, in the process where vLLM's is.

The core is another process (``core``). What an engine's front-end does in this process, it spends here: for each
request when it comes, and for each token when its step has ended, the profile's processor time on the event loop. The
time that this module's own work takes is part of it. As vLLM does, it takes a step's tokens in pieces and lets others
run between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ors_clients.errors import SamplerFailed
from ors_clients.samplers.generations import Generation, Sampler, SamplingParameters

from ors_benchmarks.rollout.engines.base import EngineFailed, EngineTotals, ModelFiles
from ors_benchmarks.rollout.engines.emulated.core import LONGEST_LINE
from ors_benchmarks.rollout.engines.emulated.profile import FrontEnd, Profile
from ors_benchmarks.rollout.engines.emulated.vocabulary import Vocabulary
from ors_benchmarks.rollout.recording import times
from ors_benchmarks.rollout.steering import Turn

__all__ = ["EmulatedEngine", "spend"]

#: Seconds in which the core starts and ends.
_START_LIMIT, _END_LIMIT = 60.0, 10.0
#: Tokens of a step that the front-end takes without letting others run, as vLLM's (VLLM_V1_OUTPUT_PROC_CHUNK_SIZE).
_PIECE = 128
#: Key of a request's text or length among the engine's own parameters.
_STEERING = "emulated"
_GONE = "The process of the emulated engine has ended"


def spend(until: float) -> None:
    """Use this thread's processor until its clock (``time.thread_time``) says ``until``."""
    while time.thread_time() < until:
        pass


@dataclass
class EmulatedEngine:
    """See the module."""

    profile: Profile
    sampler: Sampler
    _front_end: _FrontEnd
    _process: subprocess.Popen[bytes]
    _description: Mapping[str, str]
    name: str = field(default="emulated", init=False)

    @classmethod
    async def open(cls, profile: Profile, files: ModelFiles, *, cores: int) -> EmulatedEngine:
        """Start the core, for a machine with so many cores. Raises ``EngineFailed``."""
        Vocabulary(files.folder)  # the core could not say what is wrong with it
        ours, theirs = socket.socketpair()
        with theirs:
            process = _start_core(theirs)
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        scale = profile.scale(cores)
        first = {"profile": profile.model_dump(mode="json"), "model": str(files.folder), "scale": scale}
        writer.write(json.dumps(first).encode() + b"\n")
        try:
            async with asyncio.timeout(_START_LIMIT):
                line = await reader.readline()
        except (TimeoutError, ConnectionError):
            line = b""
        if not line:
            writer.close()
            process.kill()
            process.wait()
            raise EngineFailed("The emulated engine's process does not start", "Its own error is above.")
        front_end = _FrontEnd(reader, writer, profile.front_end)
        description = {
            "device": "emulated",
            "profile": json.dumps(profile.model_dump(mode="json", exclude={"derivation"})),
            "requests_per_request": f"{scale:g}",
        }
        return cls(profile, front_end, front_end, process, description)

    def steered(self, parameters: SamplingParameters, turn: Turn) -> SamplingParameters:
        """Steer to the turn's example."""
        return replace(parameters, extra={**parameters.extra, _STEERING: turn.example})

    def exact(self, parameters: SamplingParameters, made: Sequence[int], *, steered: bool) -> SamplingParameters:
        """Ask for as many tokens."""
        extra = {**parameters.extra, _STEERING: len(made)}
        return replace(parameters, max_tokens=len(made), extra=extra)

    async def forget(self) -> bool:
        """Empty the prefix cache; returns True. Raises ``EngineFailed``."""
        try:
            await self._front_end.forget()
        except SamplerFailed as error:
            raise EngineFailed(error.cause, "Run it again; if it ends again, that is a bug.") from None
        return True

    async def totals(self) -> EngineTotals:
        """Return empty counters: each generation has its own times."""
        return EngineTotals()

    def processes(self) -> Mapping[str, int]:
        """Return the core."""
        return {"engine core": self._process.pid}

    def gpus(self) -> Sequence[str]:
        """None."""
        return ()

    def description(self) -> dict[str, str]:
        """Return the profile."""
        return dict(self._description)

    async def close(self) -> None:
        """End the core."""
        await self._front_end.close()
        try:
            await asyncio.to_thread(self._process.wait, _END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _start_core(link: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ors_benchmarks.rollout.engines.emulated.core", str(link.fileno())],
        pass_fds=[link.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C ends the run first, and then the engine
    )


class _FrontEnd:
    """The sampler, and the connection to the core."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, costs: FrontEnd) -> None:
        self._reader = reader
        self._writer = writer
        self._costs = costs
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._gone = False
        self._reading = asyncio.create_task(self._read())

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Continue ``ids`` as the steering says. Raises ``SamplerFailed``."""
        begun = time.thread_time()
        steering = parameters.extra.get(_STEERING)
        if steering is None:
            raise SamplerFailed("An emulated engine has no weights to sample with", "Play it without --free.")
        number, answer = self._request()
        self._send(
            {
                "request": number,
                "ids": list(ids),
                "text": steering if isinstance(steering, str) else None,
                "exact": steering,
                "max_tokens": parameters.max_tokens,
            }
        )
        spend(begun + self._costs.request_seconds)
        try:
            made = await answer
        except asyncio.CancelledError:
            self._waiting.pop(number, None)
            if not self._gone:
                self._send({"cancel": number})
            raise
        told = times.get()
        if told is not None:
            told.queue, told.engine, told.cached = made["queue"], made["engine"], made["cached"]
        return Generation(made["ids"], made["logprobs"], "", "length" if made["cut"] else "stop")

    async def forget(self) -> None:
        """Empty the cache. Raises ``SamplerFailed``."""
        number, answer = self._request()
        self._send({"forget": number})
        await answer

    def _request(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if self._gone:
            raise SamplerFailed(_GONE)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        return number, answer

    def _send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                begun = time.thread_time()
                message = json.loads(line)
                if "forgot" in message:
                    self._answer(message["forgot"], message)
                    continue
                tokens = message["tokens"]
                for start in range(0, len(tokens), _PIECE):
                    if start:
                        await asyncio.sleep(0)
                        begun = time.thread_time()
                    piece = tokens[start : start + _PIECE]
                    for told in piece:
                        if "ids" in told:
                            self._answer(told["request"], told)
                    spend(begun + len(piece) * self._costs.token_seconds)
        self._gone = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SamplerFailed(_GONE))
        self._waiting.clear()

    def _answer(self, number: int, message: dict[str, Any]) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def close(self) -> None:
        """Close the connection, at whose end the core ends."""
        self._writer.close()
        self._reading.cancel()
        await asyncio.wait([self._reading])
