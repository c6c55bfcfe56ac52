"""Episodes played and replayed: the same workers, the same order, once with an environment and once without.

``play`` keeps ``concurrency`` episodes going until all are done; ``replay`` does the same with what ``play`` recorded,
where an episode is only its generations: each has exactly as many tokens as before, and each turn's prompt holds what
the engine made in the turn before it, so that the prefix cache finds as much. What the two differ by is the
environment: its server, the way there and back, and the client's work on the answers.

A run that cannot go on ends early, with the episodes it has and the reason: when no episode succeeds any more, or when
its time is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ors_clients.errors import ClientError, InfrastructureFailure, SamplerFailed
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.episode import EpisodeSession, RolloutLimits
from ors_clients.rollouts.loop import rollout
from ors_clients.rollouts.sessions_ahead import AheadSession, SessionsAhead
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.samplers.generations import SamplingParameters
from ors_clients.tool_calls import find_format

from ors_benchmarks.rollout.engines.base import Engine
from ors_benchmarks.rollout.recording import EpisodeRecord, RecordedSampler, RecordedSession
from ors_benchmarks.rollout.steering import Turn, Unsteerable, steer
from ors_server import ToolSpec

__all__ = ["CUT_OFF", "RUN_LIMIT", "NotSteered", "PlayedEnvironment", "Run", "Workload", "play", "replay"]

#: Default limit of a run in seconds.
RUN_LIMIT = 900.0
#: The outcome of an episode that was under way when its run ended.
CUT_OFF = "cut off"
#: Episodes in a row without one that succeeds, after which a run gives up; at least as many as play at once.
HOPELESS = 12


class NotSteered(InfrastructureFailure):
    """A turn that was steered to a call has none: its length says nothing about a run with calls."""


@dataclass(frozen=True)
class Workload:
    """The tasks, sizes and limits of a run."""

    #: Indices of the tasks, taken in turn.
    tasks: Sequence[int]
    episodes: int
    concurrency: int
    #: Turns of an episode.
    turns: int
    sampling: SamplingParameters
    #: Tokens of prompt and response that the engine has room for.
    max_total_tokens: int
    #: Whether the model's calls are steered; characters of free text before each.
    steered: bool = True
    free_characters: int = 0
    system_prompt: str | None = None
    #: Sessions that are opened ahead, at most.
    prefetch: int = 0
    #: Seconds a run may take.
    limit: float = RUN_LIMIT


@dataclass(frozen=True)
class PlayedEnvironment:
    """An environment, reached through a client."""

    #: A session on a task, not entered yet.
    session: Callable[[int], AheadSession]
    #: The task as the environment lists it.
    task: Callable[[int], Mapping[str, Any]]


@dataclass
class Run:
    """The episodes of a run and its end."""

    started: float = 0.0
    ended: float = 0.0
    episodes: list[EpisodeRecord] = field(default_factory=list[EpisodeRecord])
    #: Why it ended before all episodes were played.
    gave_up: str | None = None

    @property
    def seconds(self) -> float:
        """From the beginning of the first episode to the end of the last."""
        return self.ended - self.started

    @property
    def generated(self) -> int:
        """Tokens the engine made."""
        return sum(episode.generated for episode in self.episodes)

    @property
    def comparable(self) -> bool:
        """True if a replay can be compared with it: it was completed, and every turn was steered as planned."""
        return self.gave_up is None and not any(isinstance(episode.failure, NotSteered) for episode in self.episodes)


async def play(
    run: Run,
    engine: Engine,
    renderer: ChatRenderer,
    environment: PlayedEnvironment,
    workload: Workload,
    *,
    progress: Callable[[EpisodeRecord], None],
    edge: Callable[[], None],
) -> None:
    """Play all episodes into ``run``, which has what was played also if this is cancelled.

    ``progress`` is called after each episode, ``edge`` when the run begins and when it ends. Raises nothing that an
    episode raises.
    """
    failed_in_row = 0

    async def episode(number: int, make: Callable[[], AheadSession]) -> None:
        nonlocal failed_in_row
        record = EpisodeRecord(f"episode-{number}", workload.tasks[number % len(workload.tasks)])
        run.episodes.append(record)
        record.started = time.monotonic()
        try:
            await _episode(engine, renderer, environment, ahead.take(number, make), workload, record)
        finally:
            record.ended = time.monotonic()
        failed_in_row = failed_in_row + 1 if record.failure is not None else 0
        if failed_in_row >= max(HOPELESS, workload.concurrency):
            run.gave_up = f"{failed_in_row} episodes in a row failed, the last so: {record.failure}"
        progress(record)

    def maker(task: int) -> Callable[[], AheadSession]:
        return lambda: environment.session(task)

    # It ends after the run's clock: what is measured goes on to the last grading.
    async with SessionsAhead(workload.prefetch) as ahead:
        makers = [maker(workload.tasks[number % len(workload.tasks)]) for number in range(workload.episodes)]
        ahead.expect(enumerate(makers))
        await _work(run, workload, (episode(number, make) for number, make in enumerate(makers)), edge)


async def _episode(
    engine: Engine,
    renderer: ChatRenderer,
    environment: PlayedEnvironment,
    session: EpisodeSession,
    workload: Workload,
    record: EpisodeRecord,
) -> None:
    turns: list[Turn] = []

    def learn(tools: Sequence[ToolSpec]) -> None:
        if workload.steered:
            if not tools:
                raise Unsteerable("The environment has no tools that the model could be held to", "Play it --free.")
            turns.extend(steer(tools, environment.task(record.task), workload.turns, workload.free_characters))

    def steered(parameters: SamplingParameters, number: int) -> SamplingParameters:
        return engine.steered(parameters, turns[min(number, len(turns) - 1)]) if turns else parameters

    try:
        trajectory = await rollout(
            RecordedSession(session, record, learn),
            RecordedSampler(engine.sampler, record, steered),
            renderer,
            find_format("hermes"),
            limits=RolloutLimits(max_turns=workload.turns, max_total_tokens=workload.max_total_tokens),
            sampling=workload.sampling,
            system_prompt=workload.system_prompt,
            rollout_id=record.rollout_id,
        )
    except ClientError as error:
        record.outcome, record.failure = "refused", error
    except asyncio.CancelledError:
        record.outcome, record.failure = CUT_OFF, InfrastructureFailure("It was not over when the run ended")
        raise
    except Exception as error:  # noqa: BLE001 - of a renderer or a client: one episode's failure must not lose the others
        record.outcome, record.failure = "raised", InfrastructureFailure(f"{type(error).__name__}: {error}")
    else:
        _conclude(record, trajectory, workload)


def _conclude(record: EpisodeRecord, trajectory: Trajectory, workload: Workload) -> None:
    record.outcome = trajectory.stop_reason
    record.failure = trajectory.failure
    if record.failure is None and not trajectory.trainable:
        record.failure = SamplerFailed("The engine broke a generation off")
    elif record.failure is None and workload.steered and trajectory.tool_calls < trajectory.turns:
        record.failure = NotSteered(
            "A turn that was held to a call has none",
            "The engine ignores structured output, or --max-tokens or --max-total-tokens cut the turn off.",
        )
    rewards = [reward for reward in trajectory.step_rewards if reward is not None]
    record.reward = rewards[-1] if rewards and trajectory.trainable else None
    record.problems = [step.problem for step in trajectory.steps if step.problem is not None]
    for error in record.environment_errors:
        if error in record.problems:  # the message reached the model, but the mistake is not its own
            record.problems.remove(error)


async def replay(engine: Engine, recorded: Run, workload: Workload) -> Run:
    """Generate again what the engine generated for ``recorded``, with nothing in between; gives up at a failure."""
    run = Run()

    async def episode(original: EpisodeRecord) -> None:
        record = EpisodeRecord(original.rollout_id, original.task, started=time.monotonic())
        run.episodes.append(record)
        ids: list[int] = []
        for turn in original.turns:
            ids.extend(turn.added)

            def exact(parameters: SamplingParameters, _: int, made: Sequence[int] = turn.made) -> SamplingParameters:
                return engine.exact(parameters, made, steered=workload.steered)

            sampler = RecordedSampler(engine.sampler, record, exact)
            try:
                generation = await sampler.generate(ids, turn.parameters, rollout_id=record.rollout_id)
            except ClientError as error:
                record.failure, run.gave_up = error, f"the engine failed in the replay: {error}"
                break
            if generation.finish == "abort":
                run.gave_up = "the engine broke a generation of the replay off"
                break
            if len(generation.ids) != len(turn.made):
                run.gave_up = (
                    f"the engine made {len(generation.ids)} tokens in the replay where it was asked for exactly "
                    f"{len(turn.made)}: it does not keep to min_tokens and ignore_eos"
                )
                break
            ids.extend(generation.ids)
        record.ended = time.monotonic()

    originals = [original for original in recorded.episodes if original.turns]
    await _work(run, workload, (episode(original) for original in originals))
    return run


async def _work(
    run: Run,
    workload: Workload,
    episodes: Iterator[Coroutine[Any, Any, None]],
    edge: Callable[[], None] = lambda: None,
) -> None:
    """Run the episodes, so many at a time, until they are done or the run gives up."""

    async def worker() -> None:
        while run.gave_up is None and (episode := next(episodes, None)) is not None:
            await episode

    edge()
    run.started = time.monotonic()
    try:
        async with asyncio.timeout(workload.limit), asyncio.TaskGroup() as group:
            for _ in range(workload.concurrency):
                group.create_task(worker())
    except TimeoutError:
        run.gave_up = f"not done after {workload.limit:g} s (--run-limit)"
    finally:
        run.ended = time.monotonic()
        edge()
