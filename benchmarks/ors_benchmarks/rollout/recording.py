"""Records of episodes: spans of wall-clock time, and the prompt and the generation of each turn.

A record is made by standing between the rollout and its two partners: ``RecordedSession`` before the environment's
session, ``RecordedSampler`` before the engine. The rollout itself is untouched, so what is measured is what trainers
run. From the turns of a record an episode can be replayed on the engine with no environment: each turn's prompt is the
last prompt, what the engine made of it, and the tokens that were added then.

All times are of ``time.monotonic``, which is the machine's and so the engine process's as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ors_clients.errors import ClientError, ToolFailed
from ors_clients.models import ToolResult
from ors_clients.rollouts.episode import EpisodeSession
from ors_clients.samplers.generations import Generation, Sampler, SamplingParameters

from ors_server import Message, TerminalToolSpec, ToolSpec

__all__ = [
    "EngineTimes",
    "EpisodeRecord",
    "Metered",
    "RecordedSampler",
    "RecordedSession",
    "Span",
    "TurnRecord",
    "times",
]

T = TypeVar("T")
SpanKind = Literal["open", "prompt", "tools", "generate", "call", "close"]


class Span(NamedTuple):
    """A stretch of an episode's time."""

    kind: SpanKind
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended - self.started


@dataclass
class EngineTimes:
    """The engine's own times of one generation; None for those it does not report."""

    #: Seconds it waited to be scheduled, and from then to its last token.
    queue: float | None = None
    engine: float | None = None
    #: Prompt tokens that were not computed again.
    cached: int | None = None


#: The times of the generation that the current task waits for; an engine in this process fills them in.
times: ContextVar[EngineTimes | None] = ContextVar("engine_times", default=None)


class TurnRecord(NamedTuple):
    """One generation."""

    #: The tokens of the prompt that were not yet in the last turn's prompt and generation.
    added: list[int]
    #: The tokens of the whole prompt.
    prompt: int
    made: list[int]
    #: What the rollout asked for, before it was steered.
    parameters: SamplingParameters
    times: EngineTimes


@dataclass
class EpisodeRecord:
    """One episode."""

    rollout_id: str
    task: int
    started: float = 0.0
    ended: float = 0.0
    spans: list[Span] = field(default_factory=list[Span])
    turns: list[TurnRecord] = field(default_factory=list[TurnRecord])
    #: The trajectory's stop reason; ``refused`` or ``raised`` where the rollout raised instead, ``cut off`` where the
    #: run ended first.
    outcome: str = ""
    #: The failure that kept it from a reward; None for a normal episode.
    failure: ClientError | None = None
    reward: float | None = None
    #: Failed calls, by the message the model got: its own mistakes, and tools that raised.
    problems: list[str] = field(default_factory=list[str])
    environment_errors: list[str] = field(default_factory=list[str])
    #: Processor time that the client took for its requests to the environment.
    request_cpu: float = 0.0

    @property
    def generated(self) -> int:
        """Tokens the engine made."""
        return sum(len(turn.made) for turn in self.turns)

    @property
    def prompt(self) -> int:
        """Tokens of all prompts, each with all that came before it."""
        return sum(turn.prompt for turn in self.turns)

    def seconds(self, *kinds: SpanKind) -> float:
        """Time spent in spans of these kinds."""
        return sum(span.seconds for span in self.spans if span.kind in kinds)

    @contextmanager
    def span(self, kind: SpanKind) -> Generator[None]:
        """Record the body's time, also if it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.spans.append(Span(kind, started, time.monotonic()))

    def metered(self, request: Coroutine[Any, Any, T]) -> Metered[T]:
        """Await a request, and record its processor time."""
        return Metered(request, self._add_cpu)

    def _add_cpu(self, seconds: float) -> None:
        self.request_cpu += seconds


class Metered(Generic[T]):
    """Await a coroutine; ``add`` gets the processor time of each stretch in which it has the event loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], add: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._add = add

    def __await__(self) -> Generator[Any, Any, T]:
        go_on = partial(self._coroutine.send, None)
        while True:
            begun = time.thread_time()
            try:
                awaited = go_on()
            except StopIteration as end:
                return end.value
            finally:
                self._add(time.thread_time() - begun)
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - a cancellation or a failure: the coroutine's own
                go_on = partial(self._coroutine.throw, error)
            else:
                go_on = partial(self._coroutine.send, None)


class RecordedSampler:
    """The engine of one episode."""

    def __init__(
        self,
        sampler: Sampler,
        record: EpisodeRecord,
        steered: Callable[[SamplingParameters, int], SamplingParameters],
    ) -> None:
        self._sampler = sampler
        self._record = record
        self._steered = steered
        self._known = 0

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """As the engine's, with the parameters of this turn. Raises ``SamplerFailed``."""
        told = EngineTimes()
        token = times.set(told)
        try:
            with self._record.span("generate"):
                generation = await self._sampler.generate(
                    ids, self._steered(parameters, len(self._record.turns)), rollout_id=rollout_id, images=images
                )
        finally:
            times.reset(token)
        self._record.turns.append(TurnRecord(list(ids[self._known :]), len(ids), generation.ids, parameters, told))
        self._known = len(ids) + len(generation.ids)
        return generation


class RecordedSession:
    """The session of one episode."""

    def __init__(
        self, session: EpisodeSession, record: EpisodeRecord, learn: Callable[[Sequence[ToolSpec]], None]
    ) -> None:
        self._session = session
        self._record = record
        self._learn = learn

    async def __aenter__(self) -> RecordedSession:
        with self._record.span("open"):
            await self._record.metered(self._session.__aenter__())
        return self

    async def close(self) -> None:
        """End it."""
        with self._record.span("close"):
            await self._record.metered(self._session.close())

    async def messages(self) -> list[Message]:
        """Return the opening conversation."""
        with self._record.span("prompt"):
            return await self._record.metered(self._session.messages())

    async def tools(self) -> list[ToolSpec]:
        """Return the tools of this task."""
        with self._record.span("tools"):
            tools = await self._record.metered(self._session.tools())
        self._learn(tools)
        return tools

    @property
    def terminal_tool(self) -> TerminalToolSpec | None:
        """The tool that takes a final message."""
        return self._session.terminal_tool

    async def call(self, name: str, input: Mapping[str, Any], /) -> ToolResult:
        """Run a tool. Raises ``ClientError``."""
        with self._record.span("call"):
            try:
                return await self._record.metered(self._session.call(name, input))
            except ToolFailed as failure:
                self._record.environment_errors.append(failure.message)
                raise
