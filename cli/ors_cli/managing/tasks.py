"""``ors-server tasks``: check folders of terminal tasks, and write generated and converted tasks as such folders.

The work is the terminal environment's own (``verification``, ``writing``), imported by path when it is asked for.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_cli.flags import TestsImportCode
from ors_cli.managing.prepare_tasks import prepare
from ors_cli.managing.regrade_tasks import regrade
from ors_cli.managing.terminal_work import run_work, terminal_module
from ors_server.errors import InfrastructureFailure

__all__ = ["tasks"]

tasks = typer.Typer(
    no_args_is_help=True,
    help="Check and prepare folders of terminal tasks, and write generated and converted ones.",
    epilog="[bold]Examples[/bold]\n"
    "  ors-server tasks generate csv_join --count 20 --output my_tasks   twenty tasks as folders\n"
    "  ors-server tasks verify my_tasks                                  play and grade them\n"
    "  ors-server tasks prepare harbor_tasks                             build Harbor's folders, try them sealed\n"
    "  ors-server tasks regrade                                          grade kept episodes again\n"
    "  ors-server serve terminal --tasks my_tasks                        train on them",
)

_MARKS = {"holds": ("yes", "green"), "fails": ("no", "bold red"), "absent": ("-", "dim"), "error": ("error", "red")}


@tasks.callback()
def _group() -> None:
    """Check and prepare folders of terminal tasks, and write generated and converted ones."""


@tasks.command("verify", no_args_is_help=True)
def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="A folder with one folder a task, or a task's own folder.")
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Tasks checked at the same time.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List the tasks that are sound as well.")] = False,
    tests_import_code: Annotated[
        TestsImportCode | None,
        typer.Option(
            help="Tasks whose tests import the agent's code: leave them out (refuse, the default), or run them and "
            "mark their verdicts (flag). [dim]ORS_TERMINAL_TESTS_IMPORT_CODE[/dim]",
        ),
    ] = None,
) -> None:
    """Play and grade tasks: what must hold before the agent holds, doing nothing earns 0, the solution earns 1.

    Of Harbor's tasks it shows what `ors-server tasks prepare` has found of the folders as they are now: doing nothing
    earns 0, the solution 1, a loop that writes the reward 0. A folder that is not prepared is left out.

    Of each task that is listed, and in --json of every task, it shows test by test which program reads a place of the
    agent, such as its home directory.

    Exits with 1 when a task is not sound or a folder cannot be used, with 2 when nothing could be checked.
    """
    checks: Any = terminal_module("tasks.verification")
    settings: Any = terminal_module("settings").read_settings()
    changes = {"tests_import_code": tests_import_code.value} if tests_import_code is not None else {}
    settings = settings.model_copy(update={"solvable_only": False, **changes})
    source: Any = terminal_module("tasks.folders").FolderSource([folder.absolute() for folder in folders], settings)
    console = Console(highlight=False)
    progress = Console(stderr=True, highlight=False)
    reports: list[Any] = []
    prepared: list[Any] = []

    async def run() -> None:
        from ors_server.sandboxes import close_sandbox_service, sandbox_service

        if source.harbor:
            prepared.extend(_harbor_reports(source))
        if not source.endless:
            return
        try:
            service = await sandbox_service()
            found = (source.find(name) for name in sorted(source.endless))
            async for report in checks.verify_tasks(service, found, settings, jobs=jobs):
                reports.append(report)
                if progress.is_terminal:
                    progress.print(f"{len(reports)}/{len(source.endless)} {report.name}", end="\r", soft_wrap=True)
        finally:
            await close_sandbox_service()

    run_work(run())
    problems = [*source.problems, *(each.text for each in prepared if isinstance(each, InfrastructureFailure))]
    reports += [each for each in prepared if not isinstance(each, InfrastructureFailure)]
    reports.sort(key=lambda report: report.name)
    sound = sum(report.sound for report in reports)
    if as_json:
        listing = {
            "tasks": [_as_json(report) for report in reports],
            "left_out": problems,
            "sound": sound,
            "checked": len(reports),
        }
        typer.echo(json.dumps(listing, indent=2))
    else:
        _print(console, checks.CHECKS, [report for report in reports if every or not report.sound])
        for problem in problems:
            console.print(Text(f"left out: {problem}", style="red"), soft_wrap=True)
        console.print(f"{sound} of {len(reports)} tasks are sound.", soft_wrap=True)
    if sound < len(reports) or problems:
        raise typer.Exit(1 if reports else 2)


tasks.command("prepare", no_args_is_help=True)(prepare)
tasks.command("regrade")(regrade)


@tasks.command("generate", no_args_is_help=True)
def generate(
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder to write into; it is made where it is missing."),
    ],
    families: Annotated[
        list[str] | None, typer.Argument(metavar="[FAMILY]...", help="Families of tasks; all of them by default.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Tasks of each family.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first task of each; the next ones count up.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Solutions played at the same time.")] = os.cpu_count() or 1,
) -> None:
    """Write generated tasks as folders, in the form of Endless Terminals.

    Each solution is played once in a sandbox: the tests of a folder compare with the state that it leaves.
    """
    writing: Any = terminal_module("tasks.writing")
    progress = Console(stderr=True, highlight=False)

    def report(number: int, name: str) -> None:
        if progress.is_terminal:
            progress.print(f"{number} {name}", end="\r", soft_wrap=True)

    async def run() -> list[Path]:
        from ors_server.sandboxes import close_sandbox_service, sandbox_service

        settings: Any = terminal_module("settings").read_settings()
        try:
            return await writing.write_tasks(
                await sandbox_service(), settings, output, families or (), count=count, seed=seed, jobs=jobs,
                on_written=report,
            )  # fmt: skip
        finally:
            await close_sandbox_service()

    written = run_work(run())
    console = Console(highlight=False)
    console.print(
        Text(f"Wrote {len(written)} tasks to {output}. Check them: ors-server tasks verify {output}"), soft_wrap=True
    )


@tasks.command("convert", no_args_is_help=True)
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with one folder a task, or a task's own folder.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write into; a task in it is kept.")],
) -> None:
    """Convert folders of Terminal-Bench 1 into folders of Harbor, as Harbor's own converter does.

    A task of several containers, or with other needs that one container cannot meet, is left out by name. Exits with 1
    when a task was left out, with 2 when there is none.
    """
    done: Any = terminal_module("harbor.terminal_bench.conversion").convert_tasks(source, output)
    console = Console(highlight=False)
    for note in done.notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)
    for problem in done.problems:
        console.print(Text(f"left out: {problem}", style="red"), soft_wrap=True)
    console.print(Text(f"Wrote {len(done.written)} tasks to {output}."), soft_wrap=True)
    if done.problems:
        raise typer.Exit(1)


def _harbor_reports(source: Any) -> list[Any]:
    from ors_containers.images import ImageStore

    store = ImageStore()
    try:
        return list(terminal_module("tasks.harbor_reports").harbor_reports(source, store))
    finally:
        store.close()


def _as_json(report: Any) -> dict[str, Any]:
    return {
        "name": report.name,
        "origin": report.origin,
        "sound": report.sound,
        "seconds": round(report.seconds, 3),
        "checks": {
            name: {"outcome": check.outcome, **({"detail": check.detail} if check.detail else {})}
            for name, check in report.checks.items()
        },
        "programs": [
            {
                "test": row.test,
                "program": row.program,
                "places": list(row.places),
                "agents": row.agents,
                "seen": row.seen,
            }
            for row in report.programs
        ],
        **({"verdict_mark": report.mark} if report.mark else {}),
    }


def _reading(row: Any) -> str:
    """Return a program that is given a place of the agent, in words."""
    whose = "the agent's program " if row.agents else ""
    places = f" reads {', '.join(row.places)}" if row.places else " is started"
    return f"{row.test or 'on import'}: {whose}{row.program}{places}" + ("" if row.seen else " (by the text)")


def _print(console: Console, checks: Any, reports: list[Any]) -> None:
    if not reports:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("Task")
    columns = [name for name in checks if any(name in report.checks for report in reports)]
    for name in columns:
        table.add_column(name.replace("_", " "))
    table.add_column("Reads", justify="right")
    table.add_column("Seconds", justify="right")
    for report in reports:
        outcomes = (report.checks[name].outcome if name in report.checks else "absent" for name in columns)
        marks = (_MARKS[outcome] for outcome in outcomes)
        words = (Text(word, style=style) for word, style in marks)
        table.add_row(report.name, *words, str(len(report.programs)), f"{report.seconds:.1f}")
    console.print(table)
    for report in reports:
        for name, check in report.checks.items():
            if check.detail and check.outcome != "holds":
                console.print(Text(f"\n{report.name}, {checks[name]}: {check.detail}"), soft_wrap=True)
        if report.programs or report.mark:
            console.print()
        if report.mark:
            console.print(Text(f"{report.name}: {report.mark}", style="yellow"), soft_wrap=True)
        for row in report.programs:
            console.print(Text(f"{report.name}, {_reading(row)}"), soft_wrap=True)
    console.print()
