"""One episode of a model, over chat completions or over a token engine, and what came of it.

Both play ``TurnEpisode``, as the trainers do: the same calls mean the same rewards and the same end. Neither raises for
what the model, the endpoint or the environment's server does; they raise for what would fail every episode alike.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ors_clients.client.tool_schemas import openai_tools
from ors_clients.errors import InfrastructureFailure, SamplerFailed
from ors_clients.evaluation.attempts import mistakes_of, usage_of
from ors_clients.evaluation.endpoints.completions import Completion
from ors_clients.evaluation.endpoints.endpoint import ChatEndpoint, ContextOverflow, Usage, connect, refused_endpoint
from ors_clients.evaluation.endpoints.overflow import FINAL, is_overflow
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.rollouts.chat_messages import MessageFormat, replies, wire_message
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.episode import EpisodeSession, RolloutLimits, TurnEpisode
from ors_clients.rollouts.loop import rollout
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.rollouts.trajectory import Trajectory, TurnTimes
from ors_clients.samplers import Sampler, SamplingParameters
from ors_clients.samplers.engine_requests import EngineRequests
from ors_clients.tool_calls import FoundCall, ToolCallFormat, find_format
from ors_clients.tool_calls.calls import Unreadable, named_call
from ors_server import ToolSpec
from ors_server.rollouts.reports.task_scores import LARGEST_REWARD

__all__ = ["CONTEXT_OVERFLOW", "ChatPlayer", "Played", "Player", "TokenPlayer", "seed_of"]

#: How an episode ended whose conversation no longer fitted into the model's context.
CONTEXT_OVERFLOW = "context_overflow"
#: Key under which a call's arguments that are not JSON go back to the model: endpoints refuse them as they are.
_UNREADABLE = "arguments_that_are_no_json"


@dataclass(frozen=True)
class Played:
    """An episode that has ended."""

    trajectory: Trajectory
    #: A stop reason of the rollout, or ``CONTEXT_OVERFLOW``.
    stop: str
    #: Under the run's rule; None if the infrastructure lost it.
    reward: float | None
    usage: Usage
    mistakes: dict[str, int]


class Player(Protocol):
    """A model, however it is reached."""

    async def connect(self) -> None:
        """Return once the model's endpoint is reached. Raises ``EndpointRefused``."""
        ...

    async def play(self, session: EpisodeSession, rollout_id: str, seed: int | None) -> Played:
        """Play the episode of a session that is not open yet, and close it.

        Raises ``ConfigurationError`` and ``RequestRefused``.
        """
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


def seed_of(seed: int | None, task: str, sample: int) -> int | None:
    """Return the seed of one sample of a task: the same in each run, and another one for each sample."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.sha256(f"{seed} {task} {sample}".encode()).digest()[:4]) >> 1


def _limits(settings: EvaluationSettings) -> RolloutLimits:
    return RolloutLimits(
        max_turns=settings.max_turns,
        max_total_tokens=settings.context,
        max_response_tokens_per_turn=settings.max_tokens or settings.context,
        max_seconds=settings.episode_timeout,
        max_tool_output_characters=settings.max_tool_output,
    )


def _played(trajectory: Trajectory, stop: str, rule: RewardRule, usage: Usage, cut_turns: int) -> Played:
    reward = None
    if trajectory.trainable:
        reward = trajectory.reward(rule)
        if reward is not None and abs(reward) > LARGEST_REWARD:
            trajectory.failure = InfrastructureFailure(
                f"The episode's reward is {reward}, with which nothing can be computed", "Look at the environment."
            )
            reward = None
    return Played(trajectory, stop, reward, usage, mistakes_of(trajectory, cut_turns=cut_turns))


class _NoTextCalls:
    """The form of calls of an endpoint that reads them itself: a model's text holds none."""

    name, instructions, end_of_call = "api", "", ""

    def parse(self, text: str, tools: Sequence[ToolSpec], *, turn: int = 0) -> list[FoundCall]:
        return []


@dataclass
class _Turns:
    """The turns of an episode, beside their messages."""

    times: list[TurnTimes] = field(default_factory=list[TurnTimes])
    #: Turns that a limit of tokens cut off.
    cut: int = 0
    #: Ids of calls.
    ids: set[str] = field(default_factory=set[str])

    def with_ids(self, calls: Sequence[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
        """Return a turn's calls, each with an id of its own in the episode, whatever the endpoint gave."""
        found: list[dict[str, Any]] = []
        for place, call in enumerate(calls):
            if not call["id"] or call["id"] in self.ids:
                call = {**call, "id": f"call{turn:03}{place:02}"}  # of the length that Mistral's models want
            self.ids.add(call["id"])
            found.append(call)
        return found


class ChatPlayer:
    """A model behind chat completions."""

    def __init__(self, endpoint: ChatEndpoint, settings: EvaluationSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._rule = RewardRule(settings.reward)  # pyright: ignore[reportArgumentType] - the settings checked it
        self._in_text = settings.tool_calls != "api"
        self._format: ToolCallFormat = find_format(settings.tool_calls) if self._in_text else _NoTextCalls()

    async def connect(self) -> None:
        """Return once the endpoint is reached. Raises ``EndpointRefused``."""
        await self._endpoint.connect()

    async def play(self, session: EpisodeSession, rollout_id: str, seed: int | None) -> Played:
        """Play an episode."""
        begun = time.perf_counter()
        usage, turns = Usage(), _Turns()
        form = MessageFormat(self._format)
        episode = TurnEpisode(
            session,
            form,
            _limits(self._settings),
            self._rule,
            self._settings.system_prompt,
            describe_tools=self._in_text,
        )
        stop = ""
        async with episode.playing():
            try:
                await self._turns(episode, form, usage, turns, {} if seed is None else {"seed": seed})
            except ContextOverflow:
                stop = CONTEXT_OVERFLOW
                episode.stop("max_tokens")
        trajectory = Trajectory(
            rollout_id,
            session=episode.session_id,
            messages=list(episode.messages),
            steps=list(episode.steps),
            turns=episode.turns,
            stop_reason=episode.stop_reason or "stopped",
            failure=episode.failure,
            times=turns.times,
            seconds=time.perf_counter() - begun,
        )
        return _played(trajectory, stop or trajectory.stop_reason, self._rule, usage, turns.cut)

    async def _turns(
        self, episode: TurnEpisode, form: MessageFormat, usage: Usage, turns: _Turns, more: Mapping[str, Any]
    ) -> None:
        """Take turns until the episode is over. Raises ``ContextOverflow`` and ``ClientError``."""
        start = await episode.reset()
        tools = [] if self._in_text else openai_tools(start.tools)
        messages = [wire_message(message) for message in start.messages]
        while episode.stop_reason is None:
            begun = time.perf_counter()
            completion = await self._endpoint.complete(messages, tools, usage=usage, **more)
            generated = time.perf_counter() - begun
            calls = turns.with_ids(completion.tool_calls, episode.turns)
            form.message = {"tool_calls": calls}
            messages.append(self._history(completion, calls))
            truncated = completion.finish == "length"
            turns.cut += truncated
            text = completion.text
            if completion.reasoning:
                text = f"<think>\n{completion.reasoning}\n</think>\n\n{text}"
            result = await episode.step(text, truncated=truncated)
            turns.times.append(TurnTimes(generated, sum(step.seconds for step in result.steps)))
            messages += replies(result.messages, form.message)

    def _history(self, completion: Completion, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the model's message as it goes back to the endpoint."""
        message: dict[str, Any] = {"role": "assistant", "content": completion.text or (None if calls else "")}
        if completion.reasoning and not self._settings.drop_reasoning:
            message[completion.reasoning_name] = completion.reasoning
        if calls:
            message["tool_calls"] = [_readable(call) for call in calls]
        return message

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def _readable(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with arguments that are a JSON object."""
    function: dict[str, Any] = call["function"]
    try:
        named_call({"name": "any", "arguments": function["arguments"]})
        return call
    except Unreadable:
        return {**call, "function": {**function, "arguments": json.dumps({_UNREADABLE: function["arguments"]})}}


class TokenPlayer:
    """A model behind an engine that takes and gives token ids."""

    def __init__(self, sampler: Any, renderer: ChatRenderer, settings: EvaluationSettings) -> None:
        self._sampler: Sampler = sampler
        self._requests: EngineRequests = sampler.requests
        self._renderer = renderer
        self._settings = settings
        self._rule = RewardRule(settings.reward)  # pyright: ignore[reportArgumentType] - the settings checked it
        self._format = find_format("auto" if settings.tool_calls == "api" else settings.tool_calls)

    async def connect(self) -> None:
        """Return once the engine is reached. Raises ``EndpointRefused``."""
        await connect(self._settings.base_url, self._requests.connect, self._requests.first_pause)

    async def play(self, session: EpisodeSession, rollout_id: str, seed: int | None) -> Played:
        """Play an episode."""
        settings = self._settings
        extra = dict(settings.extra) if seed is None else {"seed": seed, **settings.extra}
        limits = _limits(settings)
        trajectory = await rollout(
            session,
            self._sampler,
            self._renderer,
            self._format,
            limits=limits,
            sampling=SamplingParameters(
                max_tokens=limits.max_response_tokens_per_turn,
                temperature=1.0 if settings.temperature is None else settings.temperature,
                top_p=1.0 if settings.top_p is None else settings.top_p,
                extra=extra,
            ),
            system_prompt=settings.system_prompt,
            rollout_id=rollout_id,
        )
        stop, refusal = str(trajectory.stop_reason), trajectory.failure
        answered = refusal.answered if isinstance(refusal, SamplerFailed) else None
        if refusal is not None and answered in FINAL:
            raise refused_endpoint(refusal.cause)
        if stop == "max_tokens":
            stop = CONTEXT_OVERFLOW
        # The request held ids, so no text of it can be repeated.
        elif refusal is not None and answered is not None and is_overflow(answered, refusal.cause):
            # The engine's context is smaller than --context.
            stop, trajectory.stop_reason, trajectory.failure = CONTEXT_OVERFLOW, "max_tokens", None
        limit = limits.max_response_tokens_per_turn
        cut = sum(segment.kind == "model" and len(segment.ids) >= limit for segment in trajectory.segments)
        return _played(trajectory, stop, self._rule, usage_of(trajectory), cut)

    async def close(self) -> None:
        """Close the connections."""
        await self._requests.close()
