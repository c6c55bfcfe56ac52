"""Options, help and end of the benchmarks' commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Console

from ors_benchmarks.harness.results import Report, free_path
from ors_server.cli.errors import print_error
from ors_server.errors import OrsError

__all__ = [
    "RESULTS",
    "Charts",
    "Output",
    "Program",
    "Rows",
    "as_program",
    "choose",
    "choose_names",
    "finish",
    "new_console",
    "rounds_option",
    "run_program",
    "seconds_option",
    "section",
]

#: The default folder of results.
RESULTS = Path("benchmarks/results")

Rows = Annotated[str | None, typer.Option("--rows", metavar="NAME,...", help="Rows to measure. Default: all.")]
Output = Annotated[
    Path, typer.Option("--output", metavar="DIR", help="Folder for the JSON and the charts.", file_okay=False)
]
Charts = Annotated[bool, typer.Option("--charts/--no-charts", help="Draw the charts, with matplotlib.")]


class Named(Protocol):
    """Something that an option can name."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...


Choice = TypeVar("Choice", bound=Named)


class Program(Protocol):
    """A benchmark as a program: runs with these arguments, or those of this process, and ends the process.

    Raises ``OrsError`` if something has to be corrected first.
    """

    def __call__(self, arguments: Sequence[str] | None = None, program: str | None = None) -> None: ...


def rounds_option(default: int, more: str = "") -> Any:
    """Return the option ``--rounds``."""
    return typer.Option("--rounds", min=1, help=f"How often each row is measured{more}. Default {default}.")


def seconds_option(default: int) -> Any:
    """Return the option ``--seconds``."""
    return typer.Option("--seconds", min=0.1, help=f"Seconds of each stretch of calls. Default {default}.")


def section(title: str, entries: Iterable[Named | str]) -> str:
    """Return a section of ``--help``: names with their titles, or lines as they are."""
    lines = [entry if isinstance(entry, str) else f"{entry.name:<16} {entry.title}" for entry in entries]
    return "\n".join([f"[bold]{title}[/bold]", *(f"  {line}" for line in lines), ""])


def as_program(command: Callable[..., None], *epilog: str) -> Program:
    """Return the program of a command, with the parts of the text below its options."""
    application = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.command(epilog="\n".join(epilog))(command)
    default = f"python -m {command.__module__.rpartition('.')[0]}"

    def run(arguments: Sequence[str] | None = None, program: str | None = None) -> None:
        application(arguments, prog_name=program or default)

    return run


def run_program(program: Program) -> None:
    """Run a benchmark as the program of this process; a correctable error is printed in two lines."""
    try:
        program()
    except OrsError as error:
        print_error(error)
        sys.exit(2)


def new_console() -> Console:
    """Return the console of a benchmark. A table in a file or a pipe is not cut to the width of a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 150)


def choose(names: str | None, known: Sequence[Choice], option: str) -> list[Choice]:
    """Return the choices named, separated by commas, each once and in that order; all for None.

    Raises ``typer.BadParameter`` for an unknown name; it names ``option``.
    """
    by_name = {item.name: item for item in known}
    return list(known) if names is None else [by_name[name] for name in choose_names(names, by_name, option)]


def choose_names(names: str, known: Iterable[str], option: str) -> list[str]:
    """Return the names in ``names``, each once and in that order. Raises ``typer.BadParameter`` for an unknown one."""
    chosen = list(dict.fromkeys(part.strip() for part in names.split(",")))
    known = list(known)
    for name in chosen:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}.", param_hint=option)
    return chosen


def finish(
    report: Report,
    name: str,
    folder: Path,
    console: Console,
    show: Callable[[Report, Console], None],
    draw: Callable[[Report, Path, str], list[Path]] | None = None,
) -> None:
    """Write the report and its charts, print it, and end with 1 if anything failed."""
    path = free_path(folder, f"{name}-{report.started:%Y-%m-%d}")
    report.write(path)
    written = [path, *(draw(report, folder, path.stem) if draw is not None else ())]
    console.print()
    show(report, console)
    for file in written:
        console.print(f"written: {file}", soft_wrap=True)
    if report.failures:
        raise typer.Exit(1)
