"""The terminal environment: the model solves a task by shell commands, and tests that it cannot reach grade the result.

An episode is a sandbox of its own with one persistent shell. It ends when the model calls ``done`` or has used up its
steps, and is then graded. When its time is over, it ends without grading. The reward is 1 or 0.

Invariants: a reward is the verdict of trusted tests, or 0 for an episode whose time is over; any other failure is an
``InfrastructureFailure`` without a reward, also for a command or a grading that other tenants of the machine kept from
the processors. One call at a time touches the sandbox. Nothing that a client receives contains the tests or the
graders' knowledge of a task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from ors_containers import CommandResult, InvalidCommand, ShellFailed, keep_from_sandboxes
from ors_containers.errors import UnknownImage
from pydantic import BaseModel, Field

from ors_server import DefinitionError, Environment, JSONObject, JSONValue, Split, TextBlock, ToolOutput, tool
from ors_server.hosting.errors import InvalidTask
from ors_server.protocol import VERDICT
from ors_server.sandboxes import sandbox_service, sandboxes_unavailable
from ors_server.wire.texts import shorten

from .episode import AgentContainer, Place, PlayedTask, bounds_of, grade, start
from .preparation import Service, grading_unavailable, program_finder
from .settings import TerminalSettings, read_settings
from .task import TaskSource
from .tasks.folders import FolderSource
from .tasks.generated import GeneratedSource

__all__ = ["BashParameters", "TerminalEnvironment", "task_source"]

logger = logging.getLogger("ors_server.terminal")

_SOLVED = "The task is solved."
_UNSOLVED = "The task is not solved."
_TIME_SPENT = "The episode's time of {seconds:g} s is over."
_STEPS_SPENT = "The last of the {steps} is used; the episode is over."


class BashParameters(BaseModel):
    """Input of the bash tool."""

    command: str = Field(description="What to run in the shell, for example: ls -la /home/user")


class TerminalEnvironment(Environment):
    """Terminal tasks with a binary reward."""

    aliases: ClassVar[Sequence[str]] = ("kanishk/EndlessTerminals",)
    #: The variable that takes the folders of ``ors-server serve --tasks``.
    task_folders_variable: ClassVar[str] = "ORS_TERMINAL_TASKS"
    #: The variable that takes ``ors-server serve --tests-import-code``.
    tests_import_code_variable: ClassVar[str] = "ORS_TERMINAL_TESTS_IMPORT_CODE"

    #: Read from ``ORS_TERMINAL_*`` at first use unless a subclass sets its own.
    settings: ClassVar[TerminalSettings | None] = None

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDKs' signature
        super().__init__(task_spec, secrets)
        name = task_spec.get("id")
        if not isinstance(name, str):
            raise InvalidTask('A task of this environment is {"id": …}', "Send a task from /tasks or /task unchanged.")
        self._settings = self.current_settings()
        self._task = self.find_task(name)
        self._bounds = bounds_of(self._task, self._settings)
        self._sandbox: Place | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._steps = 0
        #: When the episode's time is over; counted from the first call, because trainers open many sessions in advance.
        self._deadline: float | None = None

    @classmethod
    def find_task(cls, name: str) -> PlayedTask:
        """Find a task by name.

        Raises ``InvalidTask``, and ``InfrastructureFailure`` if it can no longer be read or needs a program that is
        missing here.
        """
        return task_source(cls.current_settings()).find(name)

    @classmethod
    def current_settings(cls) -> TerminalSettings:
        """Return the settings of this class."""
        return cls.settings or _settings_of_process()

    @classmethod
    async def sandboxes(cls) -> Service:
        """Return the service that starts sandboxes: the server's own."""
        return await sandbox_service()

    @classmethod
    def name(cls) -> str:
        return "terminalenvironment"

    @classmethod
    async def unavailable(cls) -> str:
        """Return the reason why sandboxes or their grader are not available here, and the remedy; empty where they are.

        Raises ``DefinitionError`` for invalid settings and tasks, before anything that takes long.
        """
        await asyncio.to_thread(task_source, cls.current_settings())
        return await sandboxes_unavailable() or await grading_unavailable()

    # ── tasks ──

    @classmethod
    def list_splits(cls) -> list[Split]:
        return list(task_source(cls.current_settings()).splits)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        source = task_source(cls.current_settings())
        return [{"id": source.name(split, index)} for index in range(source.count(split))]

    # ── the episode ──

    async def setup(self) -> None:
        self._task, self._sandbox = await start(await self.sandboxes(), self._task, self._settings)

    async def teardown(self) -> None:
        if self._stopping is not None:
            await self._stopping
        elif self._sandbox is not None:
            await self._sandbox.stop()

    async def get_prompt(self) -> list[TextBlock]:
        bounds = self._bounds
        rules = (
            f"You have a Linux shell in {self._home}{self._network}. `bash` runs a command in it: at most "
            f"{_commands(bounds.steps)}, {bounds.command_timeout:g} seconds each, {bounds.episode_timeout:g} "
            "seconds in all. Directory, variables and background processes last from command to command; input is "
            "empty, so nothing interactive works. Call `done` when the task is solved: what you leave behind is "
            "checked then, or after your last command."
        )
        return [TextBlock(text=f"{self._task.prompt.strip()}\n\n{rules}")]

    @property
    def _home(self) -> str:
        if self._sandbox is None:
            return "your home directory"
        image = self._sandbox.image
        return image.directory or "/" if isinstance(self._sandbox, AgentContainer) else image.home

    @property
    def _network(self) -> str:
        has_one = isinstance(self._sandbox, AgentContainer) and self._sandbox.container.network == "open"
        return "" if has_one else ", without a network"

    # Both are exclusive: a shell runs one command at a time, and nothing may run while the episode is graded.
    @tool(exclusive=True)
    async def bash(self, params: BashParameters) -> ToolOutput:
        """Run a command in the shell and return what it prints. Directory, variables and background processes last."""
        remaining = self._remaining()
        if remaining <= 0:
            return self._time_over("")
        self._steps += 1
        sandbox = self._require()
        try:
            result = await sandbox.run(params.command, timeout=min(self._bounds.command_timeout, remaining))
        except InvalidCommand as error:
            text, status = f"[The command was not run: {error.cause}]", None
        except ShellFailed:
            # The sandbox works: the agent's processes kill every shell, and grading ends those processes.
            text, status = "[The command was not run: processes in the sandbox keep a shell from starting]", None
        else:
            text, status = self._shown(result), result.exit_status
            self._extend(result.waited)
        if self._remaining() <= 0:
            return self._time_over(text)
        if self._steps >= self._bounds.steps:
            return await self._graded(f"{text}\n\n{_STEPS_SPENT.format(steps=_commands(self._bounds.steps))} ")
        metadata: JSONObject = {"exit_status": status, "steps_left": self._bounds.steps - self._steps}
        return ToolOutput(blocks=[TextBlock(text=text)], metadata=metadata)

    @tool(exclusive=True)
    async def done(self) -> ToolOutput:
        """Say that the task is solved. This ends the episode: what you leave behind is checked."""
        if self._remaining() <= 0:
            return self._time_over("")
        return await self._graded("")

    # ── details ──

    def _require(self) -> Place:
        assert self._sandbox is not None, "the server sets an episode up before it calls a tool"
        return self._sandbox

    def _remaining(self) -> float:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._bounds.episode_timeout
        return self._deadline - time.monotonic()

    def _extend(self, seconds: float) -> None:
        """Give back time in which a command waited for processors that other tenants of the machine used."""
        assert self._deadline is not None, "the first call begins it"
        self._deadline += seconds

    def _shown(self, result: CommandResult) -> str:
        lines = [shorten(result.text, self._settings.output)]
        if result.timed_out:
            lines.append(f"[The command was ended after {result.seconds:.1f} s.]")
        elif result.exit_status != 0:
            lines.append(f"[exit status {result.exit_status}]")
        elif not result.output:
            lines.append("[no output]")
        return "\n".join(line.removesuffix("\n") for line in lines if line)

    def _time_over(self, text: str) -> ToolOutput:
        over = _TIME_SPENT.format(seconds=self._bounds.episode_timeout)
        return self._end(f"{text}\n\n{over}" if text else over, 0.0, "time")

    async def _graded(self, text: str) -> ToolOutput:
        service = await self.sandboxes()
        started = time.monotonic()
        verdict = await grade(service, self._task, self._require(), self._settings)
        # The server takes the tests' names and output off the result: they would tell a model what the tests check.
        seconds = round(time.monotonic() - started, 3)
        logger.debug("graded", extra={"task": self._task.name, "seconds": seconds, **verdict.log})
        words = text + (_SOLVED if verdict.reward >= 1 else _UNSOLVED)
        more: JSONObject = {"rewards": dict(verdict.numbers)} if verdict.numbers else {}
        return self._end(words, verdict.reward, "graded", verdict.mark, **{VERDICT: verdict.data}, **more)

    def _end(self, text: str, reward: float, how: str, mark: str = "", **more: JSONValue) -> ToolOutput:
        # Stop the sandbox now, not with the session: a trainer may keep the session open long after this.
        self._stopping = asyncio.create_task(self._require().stop())
        metadata: JSONObject = {"ended": how, "steps": self._steps, **more}
        if mark:
            metadata["verdict_mark"] = mark
        return ToolOutput(blocks=[TextBlock(text=text)], metadata=metadata, reward=reward, finished=True)


def _commands(count: int) -> str:
    return f"{count} command" if count == 1 else f"{count} commands"


@cache
def _settings_of_process() -> TerminalSettings:
    return read_settings()


def task_source(settings: TerminalSettings) -> TaskSource[PlayedTask]:
    """Return the source of tasks that the settings name; found once. Raises ``DefinitionError``."""
    key = settings.model_dump_json()
    source = _sources.get(key)
    if source is None:
        source = _sources[key] = _find_source(settings)
    return source


_sources: dict[str, TaskSource[PlayedTask]] = {}


def _find_source(settings: TerminalSettings) -> TaskSource[PlayedTask]:
    for folder in settings.folders:
        keep_from_sandboxes(folder)  # tests and solutions
    if settings.folders:
        return FolderSource(settings.folders, settings)
    try:
        has_program = program_finder(settings.image)
    except UnknownImage as error:
        raise DefinitionError(f"ORS_TERMINAL_IMAGE: {error.cause}", error.remedy) from error
    return GeneratedSource(
        has_program,
        families=settings.family_names,
        train_tasks=settings.train_tasks,
        test_tasks=settings.test_tasks,
    )
