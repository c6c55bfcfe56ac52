"""``ors-server tasks``: check folders of terminal tasks, and write generated tasks as such folders.

The work is the terminal environment's own (``verification``, ``writing``), imported by path when it is asked for: an
environment is a folder, also for us.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_server.errors import InfrastructureFailure, TargetError
from ors_server.hosting.folder_imports import folder_package
from ors_server.hosting.targets import bundled_environments

__all__ = ["tasks"]

tasks = typer.Typer(
    no_args_is_help=True,
    help="Check folders of terminal tasks, and write generated ones.",
    epilog="[bold]Examples[/bold]\n"
    "  ors-server tasks generate csv_join --count 20 --output my_tasks   twenty tasks as folders\n"
    "  ors-server tasks verify my_tasks                                  play and grade them\n"
    "  ors-server serve terminal --tasks my_tasks                        train on them\n"
    "  ors-server tasks requirements csv_join                            what its tasks demand and check",
)

_MARKS = {"holds": ("yes", "green"), "fails": ("no", "bold red"), "absent": ("-", "dim"), "error": ("error", "red")}


@tasks.callback()
def _group() -> None:
    """Check folders of terminal tasks, and write generated ones."""


@tasks.command("verify", no_args_is_help=True)
def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="A folder with one folder a task, or a task's own folder.")
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Tasks checked at the same time.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List the tasks that are sound as well.")] = False,
) -> None:
    """Play and grade tasks: what must hold before the agent holds, doing nothing earns 0, the solution earns 1.

    Exits with 1 when a task is not sound or a folder cannot be used, with 2 when nothing could be checked.
    """
    checks: Any = _terminal("verification")
    source: Any = _terminal("endless").EndlessSource([folder.absolute() for folder in folders], solvable_only=False)
    console = Console(highlight=False)
    progress = Console(stderr=True, highlight=False)
    reports: list[Any] = []

    async def run() -> None:
        from ors_server.sandboxes import close_sandbox_service, sandbox_service

        try:
            service = await sandbox_service()
            found = (source.find(name) for name in sorted(source.names))
            settings: Any = _terminal("settings").read_settings()
            async for report in checks.verify_tasks(service, found, settings, jobs=jobs):
                reports.append(report)
                if progress.is_terminal:
                    progress.print(f"{len(reports)}/{len(source.names)} {report.name}", end="\r", soft_wrap=True)
        finally:
            await close_sandbox_service()

    _run(run())
    reports.sort(key=lambda report: report.name)
    sound = sum(report.sound for report in reports)
    if as_json:
        listing = {
            "tasks": [_as_json(report) for report in reports],
            "left_out": source.problems,
            "sound": sound,
            "checked": len(reports),
        }
        typer.echo(json.dumps(listing, indent=2))
    else:
        _print(console, checks.CHECKS, [report for report in reports if every or not report.sound])
        for problem in source.problems:
            console.print(Text(f"left out: {problem}", style="red"), soft_wrap=True)
        console.print(f"{sound} of {len(reports)} tasks are sound.", soft_wrap=True)
    if sound < len(reports) or source.problems:
        raise typer.Exit(1)


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
) -> None:
    """Write generated tasks as folders, in the form of Endless Terminals."""
    writing: Any = _terminal("writing")
    written = writing.write_tasks(output, families or (), count=count, seed=seed)
    console = Console(highlight=False)
    console.print(
        Text(f"Wrote {len(written)} tasks to {output}. Check them: ors-server tasks verify {output}"), soft_wrap=True
    )


@tasks.command("requirements", no_args_is_help=True)
def requirements(
    families: Annotated[list[str], typer.Argument(metavar="FAMILY...", help="Families of generated tasks.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first task shown.")] = 0,
) -> None:
    """Print what generated tasks demand: each sentence of a prompt, its checks and the false solutions they refuse.

    One task of every shape of a family, in Markdown. It holds the answers' tests: nothing for a model to read.
    """
    generation: Any = _terminal("generation")
    for name in families:
        if name not in generation.FAMILIES:
            raise TargetError(
                f"There is no family of tasks {name!r}", f"Known are {', '.join(sorted(generation.FAMILIES))}."
            )
        typer.echo(generation.requirements_page(name, seed))


def _terminal(module: str) -> ModuleType:
    folder = bundled_environments().get("terminal")
    if folder is None:
        raise TargetError(
            "This installation lacks the terminal environment", "Install ors-server from its checkout again."
        )
    return folder_package(folder).load(module)


def _run(work: Any) -> None:
    from ors_containers import SandboxError

    try:
        asyncio.run(work)
    except SandboxError as error:
        raise InfrastructureFailure(error.cause, error.remedy) from error


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
    }


def _print(console: Console, checks: Any, reports: list[Any]) -> None:
    if not reports:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("Task")
    for name in checks:
        table.add_column(name.replace("_", " "))
    table.add_column("Seconds", justify="right")
    for report in reports:
        marks = [_MARKS[report.checks[name].outcome] for name in checks]
        table.add_row(report.name, *(Text(word, style=style) for word, style in marks), f"{report.seconds:.1f}")
    console.print(table)
    for report in reports:
        for name, check in report.checks.items():
            if check.detail and check.outcome != "holds":
                console.print(Text(f"\n{report.name}, {checks[name]}: {check.detail}"), soft_wrap=True)
    console.print()
