"""The core of an emulated engine, a process of its own: it takes the time of the steps that an accelerator would take.

    python -m ors_benchmarks.rollout.engines.emulated.core FD

The socket of that number takes and gives one JSON object a line (``front_end``). Requests are scheduled as vLLM
schedules them: all that have come take part in the next step, prompts are computed in pieces where they are longer than
a step, and blocks that another request computed are not computed again. A step whose end is noticed late, because other
work had the processor, does not put off the next one: an accelerator does not wait for this machine's processors.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ors_benchmarks.rollout.engines.emulated.profile import Profile
from ors_benchmarks.rollout.engines.emulated.vocabulary import Drawn, Vocabulary

__all__ = ["Core", "PrefixCache", "Request"]

#: Bytes of a line, at most.
LONGEST_LINE = 64 * 2**20


class PrefixCache:
    """The blocks of tokens whose work is done, each known by all tokens up to its end. Nothing is ever dropped."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: set[int] = set()

    def cached(self, ids: list[int]) -> int:
        """Return how many tokens of a prompt need not be computed; never all of them."""
        place = chain = 0
        while place + self._block < len(ids):
            chain = self._chain(chain, ids, place)
            if chain not in self._known:
                break
            place += self._block
        return place

    def add(self, ids: list[int]) -> None:
        """Keep the whole blocks of computed tokens."""
        chain = 0
        for place in range(0, len(ids) - self._block + 1, self._block):
            chain = self._chain(chain, ids, place)
            self._known.add(chain)

    def _chain(self, before: int, ids: list[int], place: int) -> int:
        return hash((before, *ids[place : place + self._block]))

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


@dataclass
class Request:
    """One request of a generation."""

    number: int
    ids: list[int]
    drawn: Drawn
    came: float
    #: Whether the limit of tokens cut it off.
    cut: bool = False
    #: Tokens of the prompt that are still to be computed, and those that were cached; None before the first step.
    left: int | None = None
    cached: int = 0
    scheduled: float = 0.0
    made: int = 0


@dataclass
class Core:
    """The schedule."""

    profile: Profile
    scale: float
    cache: PrefixCache
    running: dict[int, Request] = field(default_factory=dict[int, Request])

    def first_came(self) -> float:
        """Return when the oldest request came that is running."""
        return next(iter(self.running.values())).came

    def begin(self, now: float) -> tuple[float, list[Request]]:
        """Begin a step at ``now``; return its length, and the requests that get a token at its end."""
        budget = self.profile.step_tokens / self.scale
        prefilled = 0.0
        sampling: list[Request] = []
        batch = 0
        for request in self.running.values():
            if request.left is None:
                if request.came > now:
                    continue
                request.cached = self.cache.cached(request.ids)
                request.left, request.scheduled = len(request.ids) - request.cached, now
            if request.left:
                taken = min(request.left, max(0, int(budget - prefilled)))
                request.left -= taken
                prefilled += taken
                if request.left:
                    continue
                self.cache.add(request.ids)
            sampling.append(request)
            batch += 1
        return self.profile.step_seconds(batch * self.scale, prefilled * self.scale), sampling

    def end(self, sampling: list[Request], now: float) -> list[dict[str, Any]]:
        """End the step; return what its requests got, those that are done with their times."""
        said: list[dict[str, Any]] = []
        for request in sampling:
            if request.number not in self.running:  # its client has cancelled it
                continue
            request.made += 1
            told: dict[str, Any] = {"request": request.number}
            if request.made == len(request.drawn.ids):
                del self.running[request.number]
                # The last token is sampled and never computed.
                self.cache.add([*request.ids, *request.drawn.ids[:-1]])
                told |= {
                    "ids": request.drawn.ids,
                    "logprobs": request.drawn.logprobs,
                    "queue": request.scheduled - request.came,
                    "engine": now - request.scheduled,
                    "cached": request.cached,
                    "cut": request.cut,
                }
            said.append(told)
        return said


class _Process:
    """The process: requests come in, steps follow each other while there are any."""

    def __init__(self, core: Core, vocabulary: Vocabulary, writer: asyncio.StreamWriter) -> None:
        self._core = core
        self._vocabulary = vocabulary
        self._writer = writer
        self._came = asyncio.Event()

    def take(self, message: dict[str, Any]) -> None:
        """Take a message of the front-end."""
        if "forget" in message:
            self._core.cache.clear()
            self._say({"forgot": message["forget"]})
        elif "cancel" in message:
            self._core.running.pop(message["cancel"], None)
        else:
            drawn = (
                self._vocabulary.babble(message["exact"])
                if message["text"] is None
                else self._vocabulary.spell(message["text"])
            )
            most, number = message["max_tokens"], message["request"]
            made = Drawn(drawn.ids[:most], drawn.logprobs[:most])
            cut = len(made.ids) < len(drawn.ids)
            self._core.running[number] = Request(number, message["ids"], made, time.monotonic(), cut)
            self._came.set()

    async def steps(self) -> None:
        """Take steps without end."""
        ends = 0.0
        while True:
            if not self._core.running:
                self._came.clear()
                await self._came.wait()
            # A step begins when the last one has ended, but not before there is something to do.
            ends = max(ends, self._core.first_came())
            seconds, sampling = self._core.begin(ends)
            ends += seconds
            await asyncio.sleep(ends - time.monotonic())
            tokens = self._core.end(sampling, ends)
            if tokens:
                self._say({"tokens": tokens})

    def _say(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


async def _serve(link: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=link, limit=LONGEST_LINE)
    first: dict[str, Any] = json.loads(await reader.readline())
    profile = Profile.model_validate(first["profile"])
    core = Core(profile, first["scale"], PrefixCache(profile.block_tokens))
    process = _Process(core, Vocabulary(Path(first["model"])), writer)
    gc.collect()
    gc.freeze()
    writer.write(b'{"started": true}\n')
    steps = asyncio.create_task(process.steps())
    try:
        while line := await reader.readline():
            process.take(json.loads(line))
    finally:
        steps.cancel()


def main() -> None:
    """Serve until the front-end closes the socket."""
    link = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(ConnectionError, KeyboardInterrupt):
        asyncio.run(_serve(link))


if __name__ == "__main__":
    main()
