"""One rollout after another for a trainer that samples tokens by itself: what slime and Miles share.

An ``EpisodeRunner`` holds what all rollouts of a process use: the training configuration, the connections to the
environments, and where finished rollouts are sent. ``run`` plays one episode. Invariants: an episode's session is
closed whatever happens; sending a rollout on neither slows nor fails it; and a run whose infrastructure loses every
rollout ends instead of drawing new ones for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ors_clients.client import AsyncClient
from ors_clients.configuration import TrainingConfiguration, resolve_secrets
from ors_clients.errors import ClientError, InfrastructureFailure
from ors_clients.rendering import ChatRenderer
from ors_clients.rollout_events import RolloutLabels
from ors_clients.rollout_loop import RolloutLimits, rollout
from ors_clients.samplers import Generation, Sampler, SamplingParameters
from ors_clients.sessions import AsyncSession
from ors_clients.sinks import TrajectorySink
from ors_clients.tasks import TaskRow
from ors_clients.trajectory import Trajectory

__all__ = ["Episode", "EpisodeRunner", "WatchedSampler"]

_log = logging.getLogger(__name__)


class WatchedSampler:
    """A sampler that keeps its generations, and stops generating when the trainer does.

    A trainer that has its batch aborts what the engine still generates. An episode that waits for a tool at that moment
    would begin another generation, and the trainer wait for it.
    """

    def __init__(self, sampler: Sampler, stopped: Callable[[], bool]) -> None:
        self.generations: list[Generation] = []
        self._sampler = sampler
        self._stopped = stopped

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """As ``Sampler.generate``."""
        if self._stopped():
            return Generation([], [], "", "abort")
        generation = await self._sampler.generate(ids, parameters, rollout_id=rollout_id, images=images)
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


class EpisodeRunner:
    """Plays episodes of one training configuration. Belongs to the event loop that it is used on."""

    def __init__(
        self,
        configuration: TrainingConfiguration,
        *,
        base_url: str | None = None,
        sinks: Sequence[TrajectorySink] = (),
    ) -> None:
        self.configuration = configuration
        self._base_url = base_url
        self._sinks = sinks
        self._clients: dict[str | None, AsyncClient] = {}
        self._failures_in_row = 0

    def client(self, environment: str) -> AsyncClient:
        """The connection to the server of this environment."""
        url = self.configuration.environment(environment).base_url or self._base_url or self.configuration.base_url
        if url not in self._clients:
            self._clients[url] = AsyncClient(url)
        return self._clients[url]

    async def default_row(self, index: int) -> TaskRow:
        """A task for a sample that names none: of the first environment's first split, by the sample's index."""
        name, settings = next(iter(self.configuration.environments.items()))
        split = settings.splits[0]
        environment = self.client(name).environment(name)
        return TaskRow(name, await environment.task(split, index % max(1, await environment.num_tasks(split))))

    def session(self, row: TaskRow) -> AsyncSession:
        """A session of the row's task with its secrets, to be entered. Raises ``ConfigurationError``."""
        secrets = resolve_secrets(self.configuration.environment(row.environment), self.configuration.secrets)
        environment = self.client(row.environment).environment(row.task.environment)
        return environment.session(task=row.task, secrets=secrets or None)

    def limits(self, row: TaskRow, *, max_total_tokens: int, max_response_tokens: int) -> RolloutLimits:
        """Where an episode of the row ends at the latest."""
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
        rollout_id: str,
        stopped: Callable[[], bool] = lambda: False,
        metadata: dict[str, Any] | None = None,
    ) -> Episode:
        """Play the episode of ``row``. ``stopped``: asked before each generation; ``metadata``: sent on with the
        rollout.

        Raises ``ConfigurationError`` and ``RequestRefused`` for what would fail every rollout alike, and
        ``InfrastructureFailure`` once the infrastructure has lost ``max_failures_in_row`` rollouts in a row.
        """
        configuration = self.configuration
        watched = WatchedSampler(sampler, stopped)
        trajectory = await rollout(
            self.session(row),
            watched,
            renderer,
            configuration.format,
            limits=self.limits(row, max_total_tokens=max_total_tokens, max_response_tokens=sampling.max_tokens),
            sampling=sampling,
            system_prompt=configuration.system_prompt,
            task=row,
            rollout_id=rollout_id,
        )
        reward = trajectory.reward(configuration.environment(row.environment).reward_rule)
        labels = RolloutLabels(
            run_name=configuration.run_name,
            reward=reward,
            rollout_name=f"{row.environment}-{row.hash}-{rollout_id}",
            environment=row.task.environment,
            split=row.task.split,
            task_spec=row.task.spec,
            metadata=metadata or {},
            rollout_info={
                "task_index": row.task.index,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_tokens": sampling.max_tokens,
            },
        )
        for sink in self._sinks:
            sink.submit(trajectory, labels)
        self.count_failure(row, trajectory.failure)
        return Episode(row, trajectory, reward, watched.generations)

    def count_failure(self, row: TaskRow, failure: ClientError | None) -> None:
        """Note how a rollout ended. Raises ``InfrastructureFailure`` if too many in a row have failed."""
        if failure is None:
            self._failures_in_row = 0
            return
        self._failures_in_row += 1
        _log.warning("A rollout of %s was lost: %s", row.environment, failure)
        if self._failures_in_row >= self.configuration.max_failures_in_row:
            raise InfrastructureFailure(
                f"The last {self._failures_in_row} rollouts were lost, the last one by this: {failure.cause}",
                failure.remedy or "Look at the environments' server and at the engine, then start the run again",
            )

    async def close(self) -> None:
        """Send what waits to be sent, and close the connections."""
        for sink in self._sinks:
            await sink.close()
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
