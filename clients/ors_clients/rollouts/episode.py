"""An episode one model turn at a time: text in, the environment's answer out, without tokens.

The token-level rollout and the turn-level adapters (ROLL, SkyRL, …) share ``TurnEpisode``, so the same text means the
same calls, rewards and end in each of them. It opens its session, reads the calls of a turn, and runs them in order
until the environment ends the episode. A mistake of the model becomes a message to the model; any other failure becomes
a typed error. The model's text never makes it raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ors_clients.errors import (
    ClientError,
    ConfigurationError,
    DeadlineExceeded,
    InfrastructureFailure,
    RequestRefused,
    ToolFailed,
)
from ors_clients.rollouts.control_texts import ControlTexts, control_texts_of
from ors_clients.rollouts.messages import ChatMessage, Content, chat_messages, content_of, text_of
from ors_clients.rollouts.rewards import RewardRule, check_reward
from ors_clients.rollouts.trajectory import UNTRAINABLE, StopReason, ToolStep
from ors_clients.tool_calls import MalformedCall, ToolCall, ToolCallFormat, describe_tools
from ors_clients.tool_calls.calls import call_id
from ors_clients.tool_calls.thinking import split_thinking
from ors_clients.transport.error_responses import REFUSED_INPUTS
from ors_server import Message, TerminalToolSpec, ToolSpec
from ors_server.wire.texts import shorten

if TYPE_CHECKING:
    from ors_clients.models import ToolResult

__all__ = ["EpisodeSession", "EpisodeStart", "RolloutLimits", "TurnEpisode", "TurnResult", "without_end_marks"]

_NO_CALL = "No tool call was found. Use one of the tools to go on."
_CUT_OFF = "The turn was cut off at its token limit before it held a complete tool call. Write a shorter one."
_AGAIN = "Write the call again in the form that the prompt describes."
#: Seconds between two looks at whether the trainer has stopped.
_WATCH_SECONDS = 0.5
#: Marks of the end of a turn in the chat templates of the field, where a trainer hands over a text with them.
_END_MARKS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>")


class EpisodeSession(Protocol):
    """The part of a session, remote or local, that an episode uses. Entering opens it."""

    async def __aenter__(self) -> Any: ...

    async def close(self) -> None:
        """Close it, also while the caller is being cancelled; may be repeated."""
        ...

    async def messages(self) -> list[Message]:
        """Return the opening conversation."""
        ...

    async def tools(self) -> list[ToolSpec]:
        """Return the tools of this task."""
        ...

    @property
    def terminal_tool(self) -> TerminalToolSpec | None:
        """The tool that takes a final message, once ``tools`` was asked."""
        ...

    async def call(self, name: str, input: Mapping[str, Any], /) -> ToolResult:
        """Run a tool. Raises ``ClientError``."""
        ...


@dataclass(frozen=True)
class RolloutLimits:
    """The limits of a rollout that its environment does not end. Raises ``ConfigurationError`` for a limit under 1."""

    max_turns: int = 20
    #: Prompt and response together, in tokens.
    max_total_tokens: int = 8192
    #: One generation, in tokens.
    max_response_tokens_per_turn: int = 4096
    #: Wall-clock seconds from the opening of the session. An episode whose model has not taken a turn by then is lost
    #: (``DeadlineExceeded``): nothing was sampled that it could be rewarded for.
    max_seconds: float | None = None
    #: A longer tool output loses its middle.
    max_tool_output_characters: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name} is {value}", "Give a number over 0")


@dataclass(frozen=True)
class EpisodeStart:
    """The conversation that the model sees first."""

    messages: list[ChatMessage]
    #: For the chat template; empty where the system prompt describes them.
    tools: list[ToolSpec]


@dataclass(frozen=True)
class TurnResult:
    """The result of one turn of the model."""

    #: The messages that answer the turn; empty where the episode is over for another reason than the environment's.
    messages: list[ChatMessage]
    #: The turn's steps.
    steps: list[ToolStep]
    #: Whether the episode is over, and why.
    stop_reason: StopReason | None = None
    #: The episode's reward under the rule, once it is over; None before, and where there is nothing to train on.
    reward: float | None = None
    failure: ClientError | None = None

    @property
    def over(self) -> bool:
        """True if this was the last turn."""
        return self.stop_reason is not None

    @property
    def problems(self) -> list[str]:
        """The problems of the turn's calls."""
        return [step.problem for step in self.steps if step.problem is not None]


@dataclass
class TurnEpisode:
    """One episode. ``reset`` once, ``step`` until ``over``, and ``close`` in any case."""

    session: EpisodeSession
    tool_format: ToolCallFormat
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    reward_rule: RewardRule = field(default_factory=RewardRule)
    #: Put before the environment's messages. ``{tools}`` in it stands for the tools, one JSON object a line.
    system_prompt: str | None = None

    #: Whether the system prompt has to say which tools there are and how to call them: nothing else does.
    describe_tools: bool = False
    #: Returns whether the trainer no longer needs the episode. It is polled while the episode is played; the episode
    #: is aborted when it returns True, even during a tool call or a generation.
    stopped: Callable[[], bool] | None = None
    #: Breaks up control tokens in what the environment says; None where the ids are made by ``ChatRenderer``, which
    #: encodes them exactly.
    control_texts: ControlTexts | None = field(default_factory=control_texts_of)

    def __post_init__(self) -> None:
        #: The conversation, and the same as the model is shown it.
        self.messages: list[ChatMessage] = []
        self.shown: list[ChatMessage] = []
        self.tools: list[ToolSpec] = []
        self.steps: list[ToolStep] = []
        #: Turns taken.
        self.turns = 0
        self.stop_reason: StopReason | None = None
        self.failure: ClientError | None = None
        #: The id of the session once it is open, where it has one.
        self.session_id: str | None = None
        self._entered = False

    async def reset(self) -> EpisodeStart:
        """Open the session and read the task. Raises ``ClientError``; ``close`` all the same."""
        if self._entered:
            raise ConfigurationError("The episode was begun before", "Make a TurnEpisode for each episode")
        self._entered = True
        await self.session.__aenter__()
        self.session_id = getattr(self.session, "id", None)
        self.tools = await self.session.tools()
        self.messages = chat_messages(await self.session.messages())
        self.shown = self._to_show(self.messages)
        prompt = self.system_prompt or ""
        shown = self.tools
        if "{tools}" in prompt:
            prompt = prompt.replace("{tools}", describe_tools(self.tools))
            shown = []
        elif self.describe_tools and self.tools:
            listing = f"# Tools\n\n<tools>\n{describe_tools(self.tools)}\n</tools>\n\n{self.tool_format.instructions}"
            prompt = f"{prompt}\n\n{listing}" if prompt else listing
            shown = []
        if prompt:
            _put_first(self.messages, prompt)
            _put_first(self.shown, prompt)
        return EpisodeStart(list(self.shown), shown)

    def _to_show(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        return list(messages) if self.control_texts is None else self.control_texts.in_messages(messages)

    async def step(self, text: str, *, truncated: bool = False, thinking: bool = False) -> TurnResult:
        """Take one turn of the model. ``truncated``: a token limit cut the text off. ``thinking``: the prompt had
        begun the model's thinking, so that ``text`` begins inside of it. Once ``over``, nothing more happens."""
        if self.stop_reason is not None:
            return TurnResult([], [], self.stop_reason, self._reward(), self.failure)
        turn = self.turns
        self.turns += 1
        first_step, first_answer = len(self.steps), len(self.messages) + 1
        self.messages.append({"role": "assistant", "content": text})
        self.shown.append(self.messages[-1])
        try:
            await self._answer(turn, without_end_marks(text), truncated=truncated, thinking=thinking)
        except (InfrastructureFailure, RequestRefused) as failure:
            # Refused: the session was opened with the same settings, so the run as a whole is not misconfigured.
            self.stop("infrastructure", failure)
        if self.stop_reason is None and self.turns >= self.limits.max_turns:
            self.stop("max_turns")
        answers = self._to_show(self.messages[first_answer:])
        self.shown += answers
        return TurnResult(answers, self.steps[first_step:], self.stop_reason, self._reward(), self.failure)

    async def _answer(self, turn: int, text: str, *, truncated: bool, thinking: bool) -> None:
        searched = f"<think>{text}" if thinking else text
        found = self.tool_format.parse(searched, self.tools, turn=turn)
        if truncated and found and isinstance(last := found[-1], ToolCall) and not last.closed:
            found[-1] = MalformedCall(last.raw, "it was cut off at the turn's token limit")
        calls = [call for call in found if isinstance(call, ToolCall)]
        if not found:
            terminal = self.session.terminal_tool
            if terminal is None or truncated:
                self._say(_CUT_OFF if truncated else _NO_CALL)
                return
            _, answer = split_thinking(searched)
            input = {terminal.arg: answer} if terminal.arg else {}
            found = calls = [ToolCall(terminal.name, input, "", call_id(turn, 0))]
        problems: list[str] = []
        for call in found:
            if isinstance(call, MalformedCall):
                self.steps.append(ToolStep(turn, call, problem=call.problem))
                problems.append(f"A tool call could not be read: {call.problem}")
                continue
            await self._run(turn, call)
            if self.stop_reason is not None:
                return
        if problems and calls:
            # Behind results, as one more of them: some templates refuse a user message there.
            self.messages += [{"role": "tool", "tool_call_id": "", "name": "", "content": text} for text in problems]
        elif problems:
            self._say("\n".join([*problems, _AGAIN]))

    async def _run(self, turn: int, call: ToolCall) -> None:
        begun = time.perf_counter()
        result: ToolResult | None = None
        try:
            result = await self.session.call(call.name, call.input)
            if result.reward is not None:
                check_reward(result.reward)
            problem, content = result.error, content_of(result.blocks)
        except ToolFailed as failure:
            problem = content = failure.message
        except RequestRefused as refusal:
            if refusal.status_code not in REFUSED_INPUTS:
                raise
            problem = content = refusal.text  # the model's input is not a request, or too large
        if problem is not None:
            content = f"Error: {problem}"
        self.steps.append(ToolStep(turn, call, result, problem, time.perf_counter() - begun))
        self.messages.append(
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": self._shortened(content)}
        )
        if result is not None and result.finished:
            self.stop("finished")

    def _shortened(self, content: Content) -> Content:
        limit = self.limits.max_tool_output_characters
        if limit is None:
            return content
        if isinstance(content, list):
            return [
                {**part, "text": shorten(part["text"], limit)} if part["type"] == "text" else part for part in content
            ]
        return shorten(content, limit)

    def _say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def _reward(self) -> float | None:
        if self.stop_reason is None or self.stop_reason in UNTRAINABLE:
            return None
        return self.reward_rule.total([step.reward for step in self.steps], terminal=self.stop_reason == "finished")

    def abort(self, text: str, reason: StopReason = "aborted") -> TurnResult:
        """Take a turn that ends the episode unfinished, for its engine or a limit broke it off: it is kept, and nothing
        in it is run."""
        self.turns += 1
        self.messages.append({"role": "assistant", "content": text})
        self.shown.append(self.messages[-1])
        return self.stop(reason)

    def stop(self, reason: StopReason = "stopped", failure: ClientError | None = None) -> TurnResult:
        """End the episode from outside: by a limit or a failure of the trainer's. The first reason stands."""
        if self.stop_reason is None:
            self.stop_reason, self.failure = reason, failure
        return TurnResult([], [], self.stop_reason, self._reward(), self.failure)

    @contextlib.asynccontextmanager
    async def playing(self) -> AsyncGenerator[None]:
        """Play within this: lost infrastructure, the limit of time and ``stopped`` become the reason of the stop, and
        the session is closed. Other exceptions, a cancellation among them, go on."""
        deadline = asyncio.timeout(self.limits.max_seconds)
        watch = None
        try:
            async with deadline:
                if self.stopped is not None:
                    watch = asyncio.create_task(_expire_once(self.stopped, deadline))
                yield
        except InfrastructureFailure as failure:
            self.stop("infrastructure", failure)
        except TimeoutError:
            if not deadline.expired():
                raise
            if self.stopped is not None and self.stopped():
                self.stop("aborted")
            elif self.turns:
                self.stop("max_time")
            else:
                self.stop("infrastructure", _too_slow(self.limits.max_seconds))
        finally:
            if watch is not None:
                watch.cancel()
            await self.close()

    async def close(self) -> None:
        """Close the session; may be repeated. Errors of the session are not raised: the episode has happened."""
        if self._entered:
            self._entered = False
            with contextlib.suppress(ClientError):
                await self.session.close()


def _put_first(messages: list[ChatMessage], prompt: str) -> None:
    """Add a system prompt. An environment's own one follows it in the same message: templates take one only."""
    if messages and messages[0]["role"] == "system":
        own = text_of(messages.pop(0)["content"])
        prompt = f"{prompt}\n\n{own}"
    messages.insert(0, {"role": "system", "content": prompt})


async def _expire_once(condition: Callable[[], bool], deadline: asyncio.Timeout) -> None:
    """Let ``deadline`` be over as soon as ``condition`` holds."""
    while not condition():  # noqa: ASYNC110 - the trainer's flag cannot be waited for
        await asyncio.sleep(_WATCH_SECONDS)
    with contextlib.suppress(RuntimeError):  # it is over already
        deadline.reschedule(asyncio.get_running_loop().time())


def _too_slow(seconds: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The model had not taken its first turn after {seconds} seconds (max_seconds)",
        "Look at what the session's set-up and the engine wait for, or give more time",
    )


def without_end_marks(text: str) -> str:
    """Return a turn's text without marks of its end."""
    stripped = text.rstrip()
    while stripped.endswith(_END_MARKS):
        for mark in _END_MARKS:
            stripped = stripped.removesuffix(mark)
        text = stripped
        stripped = stripped.rstrip()
    return text
