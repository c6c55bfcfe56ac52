"""Verification of tasks: the initial tests pass, an empty episode earns 0, the solution earns 1.

Each task is prepared, played and graded as in an episode, several at a time. A failure that an episode would count
against its agent is the task's here: tests that would run code of the sandbox are reported as such.

Invariant: a report says of every check whether it held, did not, or could not be made; no check is left out silently.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ors_containers import Sandbox, SandboxError

from ors_server import OrsError

from ..failure_cause import grade_final
from ..grading import Verdict, run_tests
from ..preparation import Service, episode_sandbox
from ..reference_states import completed
from ..settings import TerminalSettings
from ..task import TerminalTask
from ..tests_code.reading_programs import ReadingProgram, merged, reading_programs

__all__ = ["CHECKS", "Check", "Outcome", "TaskReport", "verify_tasks"]

Outcome = Literal["holds", "fails", "absent", "error"]
#: Every check by its name, and its statement. Harbor's tasks have ``nothing``, ``solution`` and ``cheat``.
CHECKS: Mapping[str, str] = {
    "initial": "the initial-state tests pass before the agent",
    "nothing": "doing nothing earns 0",
    "solution": "the solution earns 1",
    "near_miss": "the near miss earns 0",
    "cheat": "a loop that writes the reward earns 0",
}


@dataclass(frozen=True)
class Check:
    """One check of one task."""

    outcome: Outcome
    detail: str = ""


@dataclass
class TaskReport:
    """Report on one task."""

    name: str
    origin: str
    checks: dict[str, Check] = field(default_factory=dict[str, Check])
    seconds: float = 0.0
    #: Programs of the final tests that are given a place of the agent.
    programs: list[ReadingProgram] = field(default_factory=list[ReadingProgram])
    #: A reservation about the verdicts (``grading.CODE_RAN``); empty for none.
    mark: str = ""

    @property
    def sound(self) -> bool:
        """Return whether every check that could be made held, and none failed to be made."""
        return all(check.outcome in ("holds", "absent") for check in self.checks.values())


async def verify_tasks(
    service: Service, tasks: Iterable[TerminalTask], settings: TerminalSettings, *, jobs: int
) -> AsyncIterator[TaskReport]:
    """Check tasks, ``jobs`` at a time; yields each report as it is complete."""
    waiting = iter(tasks)
    running: set[asyncio.Task[TaskReport]] = set()
    try:
        while True:
            while len(running) < jobs and (task := next(waiting, None)) is not None:
                running.add(asyncio.create_task(_verify(service, task, settings)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for finished in done:
                yield finished.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _verify(service: Service, task: TerminalTask, settings: TerminalSettings) -> TaskReport:
    report = TaskReport(task.name, task.origin)
    started = time.monotonic()
    player = _Player(service, task, settings)
    await player.untouched(report)
    await player.played(report, "solution", task.solution, expected=True)
    await player.played(report, "near_miss", task.near_miss, expected=False)
    report.seconds = time.monotonic() - started
    return report


class _Player:
    def __init__(self, service: Service, task: TerminalTask, settings: TerminalSettings) -> None:
        self._service = service
        self._task = task
        self._settings = settings

    async def untouched(self, report: TaskReport) -> None:
        """Check a sandbox in which no command was run."""
        try:
            async with await self._open() as sandbox:
                report.checks["initial"] = _check(await self._initial(sandbox), expected=True)
                report.checks["nothing"] = _check(await self._final(sandbox, report), expected=False)
        except (SandboxError, OrsError) as error:
            for name in ("initial", "nothing"):
                report.checks.setdefault(name, Check("error", str(error)))

    async def played(self, report: TaskReport, name: str, script: str | None, *, expected: bool) -> None:
        """Check the state that a script leaves."""
        if script is None:
            report.checks[name] = Check("absent")
            return
        try:
            async with await self._open() as sandbox:
                result = await sandbox.run(
                    f"bash -c {shlex.quote(script)}", timeout=self._settings.steps * self._settings.command_timeout
                )
                check = _check(await self._final(sandbox, report), expected=expected)
                if check.outcome == "fails":
                    said = result.text.strip()[-300:]
                    check = Check("fails", f"{check.detail}\nit ended with {result.exit_status}: {said}".strip())
                report.checks[name] = check
        except (SandboxError, OrsError) as error:
            report.checks[name] = Check("error", str(error))

    async def _open(self) -> _Opened:
        self._task = await completed(self._service, self._task, self._settings)
        return _Opened(await episode_sandbox(self._service, self._task, self._settings))

    async def _final(self, sandbox: Sandbox, report: TaskReport) -> Verdict:
        """Grade, and add what the tests have started to the report."""
        verdict = await grade_final(self._service, self._task, sandbox, self._settings, record=True)
        home = sandbox.image.home
        known = report.programs or reading_programs(self._task.final_tests, home)
        report.programs = merged(known, verdict.programs, home)
        report.mark = report.mark or verdict.mark
        return verdict

    async def _initial(self, sandbox: Sandbox) -> Verdict:
        return await run_tests(
            sandbox,
            await self._service.toolset(),
            self._task.initial_tests,
            live=self._task.grading == "live",
            timeout=self._settings.grading_timeout,
        )


class _Opened:
    """A started sandbox, stopped at the end of a block."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def __aenter__(self) -> Sandbox:
        return self._sandbox

    async def __aexit__(self, *error: object) -> None:
        await self._sandbox.stop()


def _check(verdict: Verdict, *, expected: bool) -> Check:
    if verdict.kept_out:
        words = f"The tests run code of the sandbox inside the grader: {verdict.kept_out}"
        return Check("error", f"{words}. --tests-import-code flag allows it, with a mark on the verdicts.")
    if verdict.how in ("timed out", "killed") and not expected:
        return Check("fails", f"the tests were {verdict.how}")  # the reward is 0, but the agent is not the cause
    if verdict.passed == expected:
        return Check("holds")
    return Check("fails", verdict.detail or ("the tests pass" if verdict.passed else f"the tests {verdict.how}"))
