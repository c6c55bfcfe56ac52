"""``ors-server tasks prepare``: build Harbor's folders, verify once with a network, and try them sealed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_cli.flags import TestsImportCode
from ors_cli.managing.terminal_work import run_work, terminal_module
from ors_server.errors import DefinitionError

__all__ = ["prepare"]

_MARKS = {"holds": ("yes", "green"), "fails": ("no", "bold red"), "absent": ("-", "dim")}


def prepare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="A folder with one folder a task, or a task's own folder.")
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Tasks prepared at the same time.")] = os.cpu_count() or 1,
    again: Annotated[bool, typer.Option("--again", help="Run stages again that were run before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    addresses: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A table of addresses that scripts fetch with curl, and what they get here."),
    ] = None,
    without_solution: Annotated[
        bool,
        typer.Option(
            "--without-solution", help="Take tasks without a solution: nothing shows that their verifier can give 1."
        ),
    ] = False,
    tests_import_code: Annotated[
        TestsImportCode | None,
        typer.Option(
            help="Tasks whose verdict an agent could write, because it needs programs of the agent: leave them out "
            "(refuse, the default), or take and mark them (flag). [dim]ORS_TERMINAL_TESTS_IMPORT_CODE[/dim]",
        ),
    ] = None,
) -> None:
    """Prepare Harbor's folders: afterwards their tasks are played without a network.

    Of each task it builds the image, runs tests/test.sh once with this machine's network and keeps what that fetched,
    runs it again without a network, and then plays: doing nothing earns 0, the solution 1, a loop that writes the
    reward 0. RUN instructions, tests and solutions are programs of the folder's author: with a network they reach what
    this machine reaches.

    Each result is kept: a run that was killed goes on where it was, and a stage that failed is tried again. Exits with
    1 when a task is not ready, with 2 when there is none.
    """
    settings: Any = terminal_module("settings").read_settings()
    flag = (tests_import_code.value if tests_import_code is not None else settings.tests_import_code) == "flag"
    found: list[Any] = [
        each
        for folder in folders
        for each in terminal_module("harbor.discovery").find_harbor_folders(folder.absolute())
    ]
    if not found:
        raise DefinitionError(
            f"There is no Harbor task in {', '.join(map(str, folders))}", "Name a folder with a task.toml, or of such."
        )
    variables: Any = terminal_module("harbor.templates").named_variables(settings.variable_names, os.environ)
    source: Any = terminal_module("harbor.source").HarborSource(found, variables)
    progress = Console(stderr=True, highlight=False)
    records: list[Any] = []

    def on_stage(name: str, stage: str, result: Any) -> None:
        words = f"{len(records)}/{len(source.names)} {name}: {stage} {result.outcome}, {result.seconds:.1f} s"
        progress.print(Text(words, style="red" if result.outcome == "fails" else ""), soft_wrap=True)

    async def run() -> None:
        from ors_server.sandboxes import close_sandbox_service, sandbox_service

        try:
            service = await sandbox_service()
            work = terminal_module("harbor.preparing.workers").prepare_tasks
            tasks = [source.read(name) for name in source.names]
            options = {"jobs": jobs, "flag": flag, "again": again, "addresses": addresses}
            options["without_solution"] = without_solution
            async for record in work(service, tasks, variables, on_stage=on_stage, **options):
                records.append(record)  # noqa: PERF401 - read by `on_stage` meanwhile
        finally:
            await close_sandbox_service()

    run_work(run())
    records.sort(key=lambda record: record.name)
    ready = sum(record.ready for record in records)
    if as_json:
        listing = {"tasks": [_as_json(record) for record in records], "left_out": source.problems, "ready": ready}
        typer.echo(json.dumps(listing, indent=2))
    else:
        _print(Console(highlight=False), records, source.problems, ready)
    if ready < len(records) or source.problems:
        raise typer.Exit(1)


def _as_json(record: Any) -> dict[str, Any]:
    return {**asdict(record), "ready": record.ready}


def _print(console: Console, records: list[Any], problems: list[str], ready: int) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("Task")
    stages: list[str] = list(terminal_module("harbor.record").STAGES)
    for stage in stages:
        table.add_column(stage)
    for record in records:
        words = [_MARKS[record.stages[stage].outcome] if stage in record.stages else ("", "") for stage in stages]
        table.add_row(record.name, *(Text(word, style=style) for word, style in words))
    console.print(table)
    for record in records:
        if words := record.problem or record.mark or record.not_shown:
            console.print(Text(f"{record.name}: {words}", style="yellow"), soft_wrap=True)
    for problem in problems:
        console.print(Text(f"left out: {problem}", style="red"), soft_wrap=True)
    console.print(f"{ready} of {len(records)} tasks are ready.", soft_wrap=True)
