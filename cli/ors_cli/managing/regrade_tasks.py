"""``ors-server tasks regrade``: grade kept episodes of Harbor tasks again, after a test was repaired."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_cli.flags import TestsImportCode
from ors_cli.managing.rollouts import DataDir, location_of_rollouts
from ors_cli.managing.terminal_work import run_work, terminal_module
from ors_server.errors import DefinitionError
from ors_server.rollouts.errors import StoreUnavailable
from ors_server.rollouts.location import Location
from ors_server.telemetry.redaction import forms_of, redact_value

__all__ = ["regrade"]


def regrade(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR]...",
            help="Folders of tasks: only their episodes. By default all episodes, each with its task's own folder.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="NAME", help="Only episodes of this task; may be given several times."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Episodes graded at the same time.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    tests_import_code: Annotated[
        TestsImportCode | None,
        typer.Option(
            help="Tasks whose verdict an agent could write: leave their episodes out (refuse, the default), or grade "
            "and mark them (flag). [dim]ORS_TERMINAL_TESTS_IMPORT_CODE[/dim]",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Grade kept episodes of Harbor tasks again, without their agents, by the folders as they are prepared now.

    A server with ORS_TERMINAL_KEEP_FINAL_STATES=DAYS keeps what the agent of each graded episode has left, for so many
    days. After a test was repaired and `ors-server tasks prepare` has run, this shows the reward before and now. Where
    rollouts of these episodes are stored, the new verdict is beside the former one, which stays: `ors-server rollouts`
    shows both.

    Exits with 1 when an episode could not be graded or a verdict not be stored, with 2 when there is none to grade. It
    may be run again at any time.
    """
    settings: Any = terminal_module("settings").read_settings()
    flag = (tests_import_code.value if tests_import_code is not None else settings.tests_import_code) == "flag"
    variables: Any = terminal_module("harbor.templates").named_variables(settings.variable_names, os.environ)
    regrading: Any = terminal_module("harbor.playing.regrading")
    tasks: Any = regrading.PreparedTasks(_found(folders) if folders else None, variables, flag=flag)
    states = [state for state in _kept() if tasks.concern(state) and (not names or state.task in names)]
    if not states:
        raise DefinitionError(
            "No episode of these tasks is kept" if folders or names else "No episode is kept",
            "Let the server keep them: ORS_TERMINAL_KEEP_FINAL_STATES=DAYS.",
        )
    location = location_of_rollouts(data_dir)
    results: list[Any] = []
    store = _Verdicts(location, forms_of(variables.values()))
    progress = Console(stderr=True, highlight=False)

    async def run() -> None:
        from ors_server.sandboxes import close_sandbox_service, sandbox_service

        try:
            service = await sandbox_service()
            async for result in regrading.regrade_states(service, states, tasks, jobs=jobs):
                results.append(result)
                await asyncio.to_thread(store.add, result)
                if progress.is_terminal:
                    progress.print(f"{len(results)}/{len(states)} {result.state.task}", end="\r", soft_wrap=True)
        finally:
            await close_sandbox_service()

    run_work(run())
    results.sort(key=lambda result: (result.state.task, result.state.graded_at))
    graded = {result.state.task for result in results}
    problems = [f"no episode of {name!r} is kept" for name in names or () if name not in graded]
    if as_json:
        typer.echo(json.dumps(_listing(results, store, problems), indent=2))
    else:
        _print(Console(highlight=False), results, store, problems)
    if problems or store.problem or any(result.problem for result in results):
        raise typer.Exit(1)


class _Verdicts:
    """The new verdicts in the database of rollouts: how many are stored, and the first problem."""

    def __init__(self, location: Location, secrets: Sequence[bytes]) -> None:
        self.location = location
        #: Forms of what verifiers got from the operator, which one of them may have printed.
        self._secrets = secrets
        self.stored = 0
        self.problem = ""

    def add(self, result: Any) -> None:
        """Store the verdict of a result that has one and belongs to a session."""
        from ors_server.rollouts.storing.regrade_rows import NewVerdict, add_verdict
        from ors_server.rollouts.verdicts import read_verdict

        state, verdict = result.state, result.verdict
        if verdict is None or not state.session or self.problem:
            return
        found = read_verdict(redact_value(verdict.data, self._secrets))
        new = NewVerdict(
            session=state.session,
            state=state.name,
            tests=result.key,
            reward=verdict.reward,
            previous_reward=state.reward,
            verdict_mark=verdict.mark or None,
            graded_at=time.time_ns() // 1_000_000,
            verdict=None if found is None else json.dumps(found.as_json()),
        )
        try:
            self.stored += add_verdict(self.location, new)
        except StoreUnavailable as error:
            self.problem = error.text

    @property
    def words(self) -> str:
        """Return where the verdicts are."""
        if self.problem:
            return f"New verdicts are not stored: {self.problem}"
        if self.stored:
            return f"New verdicts stored beside the rollouts in {self.location.shown}: {self.stored}."
        return f"No new verdict is stored: there are no rollouts of these episodes in {self.location.shown}."


def _found(folders: Sequence[Path]) -> list[Any]:
    discovery: Any = terminal_module("harbor.discovery")
    found = [each for folder in folders for each in discovery.find_harbor_folders(folder.absolute())]
    if not found:
        raise DefinitionError(
            f"There is no Harbor task in {', '.join(map(str, folders))}", "Name a folder with a task.toml, or of such."
        )
    return found


def _kept() -> list[Any]:
    from ors_containers.images import ImageStore

    return terminal_module("harbor.playing.final_states").find_states(ImageStore())


def _changed(results: list[Any]) -> tuple[int, int, int]:
    """Return how many rewards have changed, how many of them are higher, and how many results have a verdict."""
    graded = [result for result in results if result.verdict is not None]
    changed = [result for result in graded if result.changed]
    higher = sum(result.verdict.reward > (result.state.reward or 0.0) for result in changed)
    return len(changed), higher, len(graded)


def _listing(results: list[Any], store: _Verdicts, problems: list[str]) -> dict[str, Any]:
    changed, _, graded = _changed(results)
    return {
        "episodes": [_as_json(result) for result in results],
        "graded": graded,
        "changed": changed,
        "stored": store.stored,
        "problems": [*problems, *([store.problem] if store.problem else [])],
    }


def _as_json(result: Any) -> dict[str, Any]:
    state, verdict = result.state, result.verdict
    return {
        "task": state.task,
        "session": state.session,
        "state": state.name,
        "graded_at": datetime.fromtimestamp(state.graded_at, UTC).isoformat(),
        "tests": {"before": state.key, "now": result.key or None},
        "reward": {"before": state.reward, "now": None if verdict is None else verdict.reward},
        "changed": result.changed,
        "verdict_mark": verdict.mark if verdict is not None and verdict.mark else None,
        "problem": result.problem or None,
    }


def _print(console: Console, results: list[Any], store: _Verdicts, problems: list[str]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("Task")
    table.add_column("Session", no_wrap=True)
    table.add_column("Graded (UTC)", no_wrap=True)
    table.add_column("Before", justify="right")
    table.add_column("Now", justify="right")
    for result in results:
        state = result.state
        now = _number(None if result.verdict is None else result.verdict.reward)
        at = f"{datetime.fromtimestamp(state.graded_at, UTC):%Y-%m-%d %H:%M}"
        style = "bold yellow" if result.changed else ""
        table.add_row(Text(state.task), state.session[:8] or "-", at, _number(state.reward), Text(now, style=style))
    console.print(table)
    for problem, count in Counter(result.problem for result in results if result.problem).items():
        console.print(Text(f"{count} not graded: {problem}", style="red"), soft_wrap=True)
    for problem in problems:
        console.print(Text(problem, style="red"), soft_wrap=True)
    changed, higher, graded = _changed(results)
    console.print(f"Graded again: {graded} of {len(results)} episodes. Rewards changed: {changed}, higher: {higher}.")
    console.print(Text(store.words, style="red" if store.problem else ""), soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
