"""The part of an episode that depends on the kind of its task: its start, its limits and its verdict.

A task of Endless Terminals and a generated one have a sandbox with one shell, and tests that are examined. A Harbor
task has a docker-like container, and a verifier in another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ors_containers import CallerError, Sandbox

from ors_server import InfrastructureFailure, JSONObject, JSONValue
from ors_server.wire.request_ids import ids_of_context

from .failure_cause import grade_episode
from .harbor.playing.agent import AgentContainer, open_agent
from .harbor.playing.final_states import StateRules, grade_and_keep
from .harbor.playing.task import PreparedTask
from .preparation import Service, episode_sandbox
from .reference_states import completed
from .settings import TerminalSettings
from .task import TerminalTask

__all__ = ["AgentContainer", "Bounds", "EpisodeVerdict", "Place", "PlayedTask", "bounds_of", "grade", "start"]

PlayedTask = TerminalTask | PreparedTask
Place = Sandbox | AgentContainer


@dataclass(frozen=True)
class Bounds:
    """The most commands of an episode, and seconds of a command and of all of it."""

    steps: int
    command_timeout: float
    episode_timeout: float


@dataclass(frozen=True)
class EpisodeVerdict:
    """A reward and how it came about; ``data`` and ``log`` are for the server alone."""

    reward: float
    mark: str = ""
    #: Every number of the verifier, where it gave several.
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    #: What the server keeps with the record of the episode.
    data: JSONObject = field(default_factory=dict[str, JSONValue])
    log: Mapping[str, object] = field(default_factory=dict[str, object])


def bounds_of(task: PlayedTask, settings: TerminalSettings) -> Bounds:
    """Return the bounds of a task's episodes; a Harbor task names its own time."""
    if isinstance(task, PreparedTask):
        seconds = task.task.config.agent.timeout_sec or settings.episode_timeout
        return Bounds(settings.harbor_steps, settings.harbor_command_timeout, seconds)
    return Bounds(settings.steps, settings.command_timeout, settings.episode_timeout)


async def start(service: Service, task: PlayedTask, settings: TerminalSettings) -> tuple[PlayedTask, Place]:
    """Return a task, complete with what its grading needs, and the place of its agent. The caller stops it.

    Raises ``InfrastructureFailure`` where the task cannot be prepared, and what starting a place raises.
    """
    if isinstance(task, PreparedTask):
        try:
            return task, await open_agent(
                service, task.task, task.record, task.variables, network=settings.task_network
            )
        except (CallerError, OSError) as error:
            # A faulty task is an infrastructure failure to the agent: there is no episode.
            cause, remedy = (error.cause, error.remedy) if isinstance(error, CallerError) else (str(error), "")
            raise InfrastructureFailure(f"The task {task.name!r} cannot be started: {cause}", remedy) from error
    # First: an episode that holds a sandbox must not wait for another.
    task = await completed(service, task, settings)
    return task, await episode_sandbox(service, task, settings)


async def grade(service: Service, task: PlayedTask, place: Place, settings: TerminalSettings) -> EpisodeVerdict:
    """Grade what an agent left in its place. Raises what grading raises where the agent is not the cause."""
    if isinstance(task, PreparedTask):
        assert isinstance(place, AgentContainer), "`start` has returned both"
        session = ids_of_context().get("sid", "")
        rules = StateRules(settings.keep_final_states, settings.final_state_size, settings.final_states_size)
        found = await grade_and_keep(service, task, place.container, rules, session)
        several = len(found.numbers) > 1
        log = {"verdict": found.detail}
        numbers = dict(found.numbers) if several else dict[str, float]()
        return EpisodeVerdict(found.reward, found.mark, numbers, found.data, log)
    assert not isinstance(place, AgentContainer), "`start` has returned both"
    verdict = await grade_episode(service, task, place, settings)
    log = {"verdict": verdict.how, "seed": verdict.seed, "detail": verdict.detail}
    return EpisodeVerdict(float(verdict.passed), verdict.mark, data=verdict.data, log=log)
