"""Commands that are imported when they are called: to list them costs no import of what they work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

__all__ = ["Load", "new_group", "with_commands"]

#: Imports a command and adds it to an application that is empty.
Load = Callable[[typer.Typer], object]


def new_group(**settings: Any) -> typer.Typer:
    """Return an application with the settings of all commands; ``settings`` are Typer's own."""
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        # Tracebacks stay plain: rich prints the locals of each frame, which may hold secrets.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


def with_commands(commands: Mapping[str, tuple[str, Load]], **settings: Any) -> typer.Typer:
    """Return an application of commands, by name: a line of help, and the function that adds the command itself."""

    class Commands(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Return the command that is called, imported, in the place of the one that stands in the list."""
            name, listed, rest = super().resolve_command(ctx, args)
            return name, listed if name is None else _command(name, commands[name][1]), rest

    application = new_group(cls=Commands, **settings)
    for name, (line, _) in commands.items():
        application.command(name, help=line)(_listed)
    return application


def _listed() -> None:
    """Stand for a command in the list."""


def _command(name: str, load: Load) -> Any:
    application = new_group()
    application.callback()(_listed)  # with it, an application of one command is a group, too
    load(application)
    group: Any = get_command(application)  # typed as a command, which has no others
    return group.commands[name]
