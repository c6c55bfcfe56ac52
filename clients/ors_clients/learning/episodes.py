"""Episodes of a run on its server: given calls, as demonstrations; and the model's own, to train on.

Invariant: the reward of an episode is the environment's, under the rule of the evaluation. One that the infrastructure
lost has none; a demonstration is played again, a rollout of the training is counted and left out.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.errors import ClientError, InfrastructureFailure
from ors_clients.learning.plan import Plan, PlannedTask
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.episode import EpisodeSession, RolloutLimits, TurnEpisode
from ors_clients.rollouts.loop import rollout
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.rollouts.sessions_ahead import SessionsAhead
from ors_clients.rollouts.sinks import RolloutsSink
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.rollouts.upload_events import RolloutLabels
from ors_clients.samplers.generations import Sampler, SamplingParameters
from ors_clients.tool_calls import find_format
from ors_clients.training.losses import cause_of
from ors_server.protocol import ToolSpec

__all__ = ["Demonstration", "Episodes", "Rollout", "call_text"]

#: Times that a lost demonstration is played.
_TRIES = 4


@dataclass(frozen=True)
class Demonstration:
    """An episode of one given call: what the model is shown, the call, and what it earned."""

    index: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    answer: str
    reward: float

    def prompt(self, renderer: ChatRenderer) -> list[int]:
        """Return the ids before the call."""
        return renderer.start(self.messages, [ToolSpec.model_validate(tool) for tool in self.tools]).ids

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Rollout:
    """An episode of the model, as the trainer takes it."""

    trajectory: Trajectory
    #: None where the infrastructure lost it.
    reward: float | None
    #: Why it is lost; empty where it is not.
    lost: str = ""


@dataclass
class Episodes:
    """The episodes of one plan on one server. Belongs to the event loop that it is used on."""

    client: AsyncClient
    plan: Plan
    #: Gets the rollouts of the training; None for a server that keeps none.
    sink: RolloutsSink | None = None

    @property
    def environment(self) -> AsyncEnvironment:
        """The plan's environment on the server."""
        return self.client.environment(self.plan.environment)

    async def demonstrate(
        self, split: str, tasks: Sequence[PlannedTask], calls: Callable[[PlannedTask], str]
    ) -> list[Demonstration]:
        """Play a given call in each task. Raises ``InfrastructureFailure`` for one that is lost again and again."""

        async def one(task: PlannedTask) -> Demonstration:
            for _ in range(_TRIES - 1):
                try:
                    return await self._demonstrated(split, task, calls(task))
                except InfrastructureFailure:
                    await asyncio.sleep(1.0)
            return await self._demonstrated(split, task, calls(task))

        return await self._at_once([lambda task=task: one(task) for task in tasks])

    async def _demonstrated(self, split: str, task: PlannedTask, answer: str) -> Demonstration:
        session = self.environment.session(split=split, index=task.index)
        rule = RewardRule()
        limits = RolloutLimits(max_turns=self.plan.recipe.max_turns)
        episode = TurnEpisode(session, find_format(self.plan.tool_calls), limits, rule, control_texts=None)
        async with episode.playing():
            start = await episode.reset()
            await episode.step(answer)
        if episode.failure is not None:
            raise episode.failure
        tools = [tool.model_dump(mode="json", by_alias=True) for tool in start.tools]
        rewards = [step.reward for step in episode.steps]
        reward = rule.total(rewards, terminal=episode.stop_reason == "finished")
        return Demonstration(task.index, list(start.messages), tools, answer, reward)

    async def rollouts(
        self, indices: Sequence[int], sampler: Sampler, renderer: ChatRenderer, step: int
    ) -> list[Rollout]:
        """Play an episode of each of these training tasks. Raises ``ConfigurationError`` and ``RequestRefused``."""
        split, environment = self.plan.train_split, self.environment
        makers = [lambda index=index: environment.session(split=split, index=index) for index in indices]
        async with SessionsAhead(self.plan.recipe.concurrency) as ahead:
            ahead.expect(enumerate(makers))

            async def one(place: int) -> Rollout:
                session = ahead.take(place, makers[place])
                return await self._rollout(session, indices[place], sampler, renderer, step)

            return await self._at_once([lambda place=place: one(place) for place in range(len(indices))])

    async def _rollout(
        self, session: EpisodeSession, index: int, sampler: Sampler, renderer: ChatRenderer, step: int
    ) -> Rollout:
        recipe, split = self.plan.recipe, self.plan.train_split
        trajectory = await rollout(
            session,
            sampler,
            renderer,
            find_format(self.plan.tool_calls),
            limits=RolloutLimits(
                max_turns=recipe.max_turns,
                max_total_tokens=recipe.context,
                max_response_tokens_per_turn=recipe.max_tokens,
            ),
            sampling=SamplingParameters(max_tokens=recipe.max_tokens),
            rollout_id=uuid.uuid4().hex,
        )
        reward = trajectory.reward(RewardRule())
        if self.sink is not None:
            labels = RolloutLabels(
                run_name=self.plan.name,
                reward=reward,
                environment=self.plan.environment,
                split=split,
                step=step,
                run_info={"kind": "training", "reward": "sum", "success_at": recipe.success_at},
                rollout_info={"task_index": index},
            )
            self.sink.submit(trajectory, labels)
        cause = "aborted" if trajectory.failure is None else cause_of(trajectory.failure)
        return Rollout(trajectory, reward, cause if reward is None else "")

    async def _at_once(self, makers: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        turn = asyncio.Semaphore(self.plan.recipe.concurrency)

        async def one(make: Callable[[], Awaitable[Any]]) -> Any:
            async with turn:
                return await make()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(make)) for make in makers]
        except BaseExceptionGroup as errors:
            raise next((error for error in errors.exceptions if isinstance(error, ClientError)), errors) from None
        return [task.result() for task in tasks]


def call_text(task: PlannedTask) -> str:
    """Return the call that solves a task as the model has to write it."""
    call = json.dumps({"name": task.tool, "arguments": dict(task.arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
