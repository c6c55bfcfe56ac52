"""Rollouts for a trainer that samples tokens by itself: the part that slime and Miles share.

An ``EpisodeRunner`` holds what all rollouts of a process use: the training configuration, the connections to the
environments, and where finished rollouts are sent. ``run`` plays one episode. Invariants: an episode's session is
closed whatever happens; sending a rollout on neither slows nor fails it; and a run whose infrastructure loses every
rollout ends instead of drawing new ones without end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ors_clients.client.async_client import AsyncClient
from ors_clients.client.sessions import AsyncSession
from ors_clients.errors import ClientError, InfrastructureFailure, PromptTooLong
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.episode import TurnEpisode
from ors_clients.rollouts.loop import RolloutLimits, rollout
from ors_clients.rollouts.sinks import TrajectorySink
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.rollouts.upload_events import RolloutLabels
from ors_clients.samplers import Generation, Sampler, SamplingParameters
from ors_clients.training.config import TrainingConfiguration, resolve_secrets
from ors_clients.training.dataset import TaskRow
from ors_clients.training.losses import Losses

__all__ = ["SENT_PARAMETERS", "Episode", "EpisodeRunner", "WatchedSampler", "episode_trajectory"]

_log = logging.getLogger(__name__)

#: What is sent on of how a rollout was sampled.
SENT_PARAMETERS = ("temperature", "top_p", "top_k", "max_tokens")


class WatchedSampler:
    """A sampler that keeps its generations, and stops generating when the trainer does.

    A trainer that has its batch aborts what the engine still generates. An episode that waits for a tool at that moment
    would begin another generation, and the trainer wait for it. ``routing_key`` takes the place of the rollout's id, by
    which a router chooses the engine.
    """

    def __init__(self, sampler: Sampler, stopped: Callable[[], bool], routing_key: str | None = None) -> None:
        self.generations: list[Generation] = []
        self._sampler = sampler
        self._stopped = stopped
        self._routing_key = routing_key

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """As ``Sampler.generate``."""
        if self._stopped():
            return Generation([], [], "", "abort")
        key = self._routing_key or rollout_id
        generation = await self._sampler.generate(ids, parameters, rollout_id=key, images=images)
        self.generations.append(generation)
        return generation


@dataclass(frozen=True)
class Episode:
    """A finished rollout."""

    row: TaskRow
    trajectory: Trajectory
    #: Under the environment's rule; None where there is nothing to train on.
    reward: float | None
    #: What the engine answered, in order.
    generations: list[Generation] = field(default_factory=list[Generation])


def _too_long(trajectory: Trajectory, limit: int) -> PromptTooLong | None:
    """Return the mistake of a limit that the prompt alone reaches; there is nothing to train on."""
    if trajectory.stop_reason != "max_tokens" or trajectory.turns:
        return None
    return PromptTooLong(
        f"The prompt has {len(trajectory.prompt_ids)} tokens of {limit} that a rollout may have",
        "Give rollouts more tokens, or leave such tasks out",
    )


def episode_trajectory(episode: TurnEpisode, rollout_id: str, task: Any, seconds: float) -> Trajectory:
    """Return a finished episode without its tokens, which the trainer keeps, as the sinks take it."""
    return Trajectory(
        rollout_id,
        task,
        session=episode.session_id,
        messages=list(episode.messages),
        steps=list(episode.steps),
        turns=episode.turns,
        stop_reason=episode.stop_reason or "stopped",
        failure=episode.failure,
        seconds=seconds,
    )


class EpisodeRunner:
    """Plays episodes of one training configuration. Belongs to the event loop that it is used on.

    ``sinks`` get every rollout. ``uploads`` makes one more for each server, of its address, which gets the rollouts of
    that server's environments.
    """

    def __init__(
        self,
        configuration: TrainingConfiguration,
        *,
        base_url: str | None = None,
        sinks: Sequence[TrajectorySink] = (),
        uploads: Callable[[str], TrajectorySink] | None = None,
        losses: Losses | None = None,
    ) -> None:
        self.configuration = configuration
        #: Counts every rollout that is played for training.
        self.losses = losses or Losses()
        self._base_url = base_url
        self._sinks = sinks
        self._make_upload = uploads
        #: By the address of the server whose rollouts they take.
        self._uploads: dict[str, TrajectorySink] = {}
        self._clients: dict[str | None, AsyncClient] = {}
        self._failures_in_row = 0
        self._last_counted = 0.0

    def client(self, environment: str) -> AsyncClient:
        """Return the connection to the server of this environment."""
        url = self.configuration.environment(environment).base_url or self._base_url or self.configuration.base_url
        if url not in self._clients:
            self._clients[url] = AsyncClient(url)
        return self._clients[url]

    async def default_row(self, index: int) -> TaskRow:
        """Return a task for a sample without one, from the first environment's first split.

        ``index`` is the same for all samples of a group.
        """
        name, settings = next(iter(self.configuration.environments.items()))
        split = settings.splits[0]
        environment = self.client(name).environment(name)
        return TaskRow(name, await environment.task(split, index % max(1, await environment.num_tasks(split))))

    def session(self, row: TaskRow) -> AsyncSession:
        """Return a session of the row's task with its secrets, to be entered. Raises ``ConfigurationError``."""
        secrets = resolve_secrets(self.configuration.environment(row.environment), self.configuration.secrets)
        environment = self.client(row.environment).environment(row.task.environment)
        return environment.session(task=row.task, secrets=secrets or None)

    def limits(self, row: TaskRow, *, max_total_tokens: int, max_response_tokens: int) -> RolloutLimits:
        """Return the limits of an episode of the row."""
        return RolloutLimits(
            max_turns=self.configuration.environment(row.environment).max_turns,
            max_total_tokens=max_total_tokens,
            max_response_tokens_per_turn=max_response_tokens,
            max_seconds=self.configuration.max_seconds,
            max_tool_output_characters=self.configuration.max_tool_output_characters,
        )

    async def run(
        self,
        row: TaskRow,
        sampler: Sampler,
        renderer: ChatRenderer,
        sampling: SamplingParameters,
        *,
        max_total_tokens: int,
        routing_key: str | None = None,
        stopped: Callable[[], bool] = lambda: False,
        metadata: dict[str, Any] | None = None,
    ) -> Episode:
        """Play the episode of ``row``, under an id of its own. ``routing_key``: the router's key, if the
        trainer has one; ``stopped``: asked before each generation and while the episode waits, which it then aborts;
        ``metadata``: sent on with the rollout; with a true ``evaluation`` it is not one of the training's losses.

        Raises ``ConfigurationError`` and ``RequestRefused`` for what would fail every rollout alike, and
        ``InfrastructureFailure`` where ``count_failure`` does.
        """
        configuration = self.configuration
        begun = time.monotonic()
        watched = WatchedSampler(sampler, stopped, routing_key)
        trajectory = await rollout(
            self.session(row),
            watched,
            renderer,
            configuration.format,
            limits=self.limits(row, max_total_tokens=max_total_tokens, max_response_tokens=sampling.max_tokens),
            sampling=sampling,
            system_prompt=configuration.system_prompt,
            task=row,
            stopped=stopped,
        )
        reward = trajectory.reward(configuration.environment(row.environment).reward_rule)
        parameters = {name: getattr(sampling, name) for name in SENT_PARAMETERS}
        self.send(row, trajectory, reward, metadata=metadata, parameters=parameters)
        failure = trajectory.failure or _too_long(trajectory, max_total_tokens)
        counted = trajectory.stop_reason != "aborted" and not (metadata or {}).get("evaluation")
        self.count_failure(row, failure, begun, counted=counted)
        return Episode(row, trajectory, reward, watched.generations)

    def send(
        self,
        row: TaskRow,
        trajectory: Trajectory,
        reward: float | None,
        *,
        metadata: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Hand a finished rollout to the sinks, which send it on in the background. ``parameters``: how it was
        sampled."""
        labels = RolloutLabels(
            run_name=self.configuration.run_name,
            reward=reward,
            rollout_name=f"{row.environment}-{row.hash}-{trajectory.rollout_id}",
            environment=row.task.environment,
            split=row.task.split,
            task_spec=row.task.spec,
            metadata=metadata or {},
            rollout_info={"task_index": row.task.index, **(parameters or {})},
        )
        for sink in (*self._sinks, *self._upload(row.environment)):
            sink.submit(trajectory, labels)

    def _upload(self, environment: str) -> list[TrajectorySink]:
        """Return the sink of the environment's own server, if there is to be one."""
        if self._make_upload is None:
            return []
        url = self.client(environment).url
        if url not in self._uploads:
            self._uploads[url] = self._make_upload(url)
        return [self._uploads[url]]

    def count_failure(self, row: TaskRow, failure: ClientError | None, begun: float, *, counted: bool = True) -> None:
        """Note how a rollout ended that began at ``begun``, by the monotonic clock; ``counted``: in ``losses`` too.

        What one incident costs counts once, however many rollouts were in flight: a failure counts if its rollout began
        after the last one that counted. So the number is that of the tries, one after another, that failed. Raises
        ``InfrastructureFailure`` if there were too many in a row.
        """
        if counted:
            self.losses.count(row.environment, failure)
        if failure is None:
            self._failures_in_row = 0
            return
        _log.warning("A rollout of %s was lost: %s", row.environment, failure)
        if self._failures_in_row and begun < self._last_counted:
            return
        self._failures_in_row += 1
        self._last_counted = time.monotonic()
        if self._failures_in_row >= self.configuration.max_failures_in_row:
            raise InfrastructureFailure(
                f"Rollouts were lost {self._failures_in_row} times in a row, the last one by this: {failure.cause}",
                failure.remedy or "Look at the environments' server and at the engine, then start the run again",
            )

    async def close(self) -> None:
        """Send what waits to be sent, and close the connections."""
        await asyncio.gather(*(sink.close() for sink in (*self._sinks, *self._uploads.values())))
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
