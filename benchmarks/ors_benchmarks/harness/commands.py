"""Options and help of the benchmarks' commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import typer
from rich.console import Console

from ors_server.errors import OrsError
from ors_server.telemetry.console import print_error

__all__ = [
    "RESULTS",
    "Charts",
    "Output",
    "Program",
    "choose",
    "choose_names",
    "make_folder",
    "new_console",
    "run_program",
    "section",
]

#: The default folder of results.
RESULTS = Path("benchmarks/results")

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


class Program:
    """A benchmark as a command: one of ``ors-server bench``, and a program of its own."""

    def __init__(self, command: Callable[..., None], *epilog: str) -> None:
        """``epilog``: the parts of the text below its options."""
        self._command = command
        self._epilog = "\n".join(epilog)

    def add_to(self, application: typer.Typer, name: str) -> None:
        """Add it to an application of several commands."""
        application.command(name, epilog=self._epilog)(self._command)

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Run it with these arguments, or those of this process, and end the process.

        Raises ``OrsError`` if something has to be corrected first.
        """
        application = typer.Typer(
            add_completion=False,
            rich_markup_mode="rich",
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        application.command(epilog=self._epilog)(self._command)
        application(arguments, prog_name=f"python -m {self._command.__module__.rpartition('.')[0]}")


def section(title: str, entries: Iterable[Named | str]) -> str:
    """Return a section of ``--help``: names with their titles, or lines as they are."""
    lines = [entry if isinstance(entry, str) else f"{entry.name:<16} {entry.title}" for entry in entries]
    return "\n".join([f"[bold]{title}[/bold]", *(f"  {line}" for line in lines), ""])


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


def make_folder(folder: Path) -> None:
    """Make the folder of results. Raises ``typer.BadParameter``, before anything is measured, where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be made: {error.strerror}.", param_hint="--output") from None


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
