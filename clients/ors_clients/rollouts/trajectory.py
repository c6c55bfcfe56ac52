"""One rollout as a trainer wants it: token ids, what of them to train on, and the rewards that were earned.

A trajectory is a list of segments in the order of their tokens. The first is the prompt; every other one is the
response, in which only ``model`` segments are trained on. Each segment carries one log-probability a token: the
engine's for the model's tokens, 0.0 for all others. ``response_ids``, ``loss_mask`` and ``logprobs`` are made of the
segments and so always have one length, and nothing in them was ever decoded and encoded again.

A trajectory whose infrastructure failed is not ``trainable`` and has no reward: what the agent would have earned is not
known, and zero would be a lie that the run learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ors_clients.errors import ClientError
from ors_clients.rollouts.messages import ChatMessage
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.tool_calls import MalformedCall, ToolCall

if TYPE_CHECKING:
    from ors_clients.models import ToolResult

__all__ = ["UNTRAINABLE", "Segment", "SegmentKind", "StopReason", "ToolStep", "Trajectory", "TurnTimes"]

SegmentKind = Literal["prompt", "model", "tool", "user", "glue"]

#: ``finished``: the environment ended the episode. ``max_turns``, ``max_tokens``, ``max_time``: a limit was reached;
#: that of time after the model's first turn, for what is late before it is ``infrastructure``.
#: ``stopped``: the trainer ended it. ``aborted``: the engine broke a generation off. ``infrastructure``: ``failure``
#: says what failed.
StopReason = Literal["finished", "max_turns", "max_tokens", "max_time", "stopped", "aborted", "infrastructure"]

#: Stop reasons that say nothing about the agent.
UNTRAINABLE: tuple[StopReason, ...] = ("aborted", "infrastructure")


@dataclass(frozen=True)
class Segment:
    """A run of tokens of one origin. ``tool`` and ``user``: what the environment answered, with the tokens that close
    the model's turn and open the next one; ``glue``: those tokens alone."""

    kind: SegmentKind
    ids: list[int]
    #: One for each id; 0.0 for tokens that no model made.
    logprobs: list[float]
    #: Whether the tokens go into the loss.
    trainable: bool
    text: str


@dataclass(frozen=True)
class ToolStep:
    """One call of a turn and what came of it."""

    #: From 0.
    turn: int
    call: ToolCall | MalformedCall
    #: None where no tool gave one: a malformed call, a tool that raised, a call after the end of the episode.
    result: ToolResult | None = None
    #: Why the call failed; None for one that went well.
    problem: str | None = None
    #: Wall-clock time of the tool call.
    seconds: float = 0.0

    @property
    def reward(self) -> float | None:
        """The reward of the step; None if it had none."""
        return None if self.result is None else self.result.reward


@dataclass(frozen=True)
class TurnTimes:
    """The wall-clock time of one turn by its parts, in seconds."""

    generation: float
    tools: float


@dataclass
class Trajectory:
    """The record of one rollout. Fields are filled while it runs; afterwards it is only read."""

    rollout_id: str
    #: Where the task comes from, as the adapter gave it: free for its own use.
    task: Any = field(default=None, repr=False)
    #: The id of the session that played it; None where none was opened.
    session: str | None = None
    segments: list[Segment] = field(default_factory=list[Segment], repr=False)
    #: The whole conversation, with images in their place.
    messages: list[ChatMessage] = field(default_factory=list[ChatMessage], repr=False)
    steps: list[ToolStep] = field(default_factory=list[ToolStep], repr=False)
    #: Turns that the model has begun.
    turns: int = 0
    stop_reason: StopReason = "stopped"
    #: Why ``stop_reason`` is ``infrastructure``.
    failure: ClientError | None = None
    times: list[TurnTimes] = field(default_factory=list[TurnTimes], repr=False)
    #: Wall-clock seconds until the first generation could begin: session, tools, prompt.
    opening_seconds: float = 0.0
    #: Wall-clock seconds of the whole rollout, the closing of the session included.
    seconds: float = 0.0
    #: Returns the text of ids, where the rollout has a tokenizer.
    decode: Callable[[Sequence[int]], str] | None = field(default=None, repr=False, compare=False)

    @property
    def prompt_ids(self) -> list[int]:
        """The ids before the first generated one; empty if it did not get that far."""
        return list(self.segments[0].ids) if self.segments else []

    @property
    def response_ids(self) -> list[int]:
        """All ids after the prompt: the model's and the environment's."""
        return [token for segment in self.segments[1:] for token in segment.ids]

    @property
    def loss_mask(self) -> list[int]:
        """For each of ``response_ids`` 1 if it goes into the loss, else 0."""
        return [mask for segment in self.segments[1:] for mask in [int(segment.trainable)] * len(segment.ids)]

    @property
    def logprobs(self) -> list[float]:
        """For each of ``response_ids`` the engine's log-probability; 0.0 for what the model did not make."""
        return [logprob for segment in self.segments[1:] for logprob in segment.logprobs]

    @property
    def ids(self) -> list[int]:
        """Prompt and response."""
        return [token for segment in self.segments for token in segment.ids]

    @property
    def response_text(self) -> str:
        """The text of the response for a reader: what the environment said, with the template's marks around it, and
        the model's turns, which lack the token that ended them unless the engine gave a text of its own that has it.

        ``renderer.decode(trajectory.response_ids)`` has every token.
        """
        return "".join(segment.text for segment in self.segments[1:])

    @property
    def terminal(self) -> bool:
        """True if the environment ended the episode by itself."""
        return self.stop_reason == "finished"

    @property
    def trainable(self) -> bool:
        """True if a trainer may learn from it: False after a failure of the infrastructure and after an abort."""
        return self.stop_reason not in UNTRAINABLE

    @property
    def step_rewards(self) -> list[float | None]:
        """One entry for each step, None where it gave no reward."""
        return [step.reward for step in self.steps]

    @property
    def tool_calls(self) -> int:
        """Calls the model made that could be read."""
        return sum(isinstance(step.call, ToolCall) for step in self.steps)

    @property
    def failed_calls(self) -> int:
        """Readable calls that brought no output: unknown tool, invalid input, a tool that raised."""
        return sum(isinstance(step.call, ToolCall) and step.problem is not None for step in self.steps)

    @property
    def verdict_mark(self) -> str:
        """The environment's reservation about the verdict: ``verdict_mark`` in a result's metadata; empty for none."""
        for step in reversed(self.steps):
            mark = (step.result.metadata or {}).get("verdict_mark") if step.result is not None else None
            if isinstance(mark, str) and mark:
                return mark[:200]
        return ""

    @property
    def malformed_calls(self) -> int:
        """Calls that could not be read."""
        return sum(isinstance(step.call, MalformedCall) for step in self.steps)

    @property
    def generation_seconds(self) -> float:
        """Wall-clock time spent waiting for the engine."""
        return sum(times.generation for times in self.times)

    @property
    def tool_seconds(self) -> float:
        """Wall-clock time spent waiting for the environment's tools."""
        return sum(times.tools for times in self.times)

    def reward(self, rule: RewardRule) -> float | None:
        """Return the episode's reward under ``rule``; None where there is none to train on."""
        return rule.total(self.step_rewards, terminal=self.terminal) if self.trainable else None
