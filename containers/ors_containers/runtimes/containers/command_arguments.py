"""Checks of what a caller gives a command of a container, before anything is started."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Mapping, Sequence

from ors_containers.errors import InvalidCommand
from ors_containers.launcher.messages import PackedProgram, Program

__all__ = ["check_limits", "checked_program", "checked_script"]


def checked_script(command: str, shell: str) -> bytes:
    """Return the text of a command. Raises ``InvalidCommand`` as ``Container.run`` does."""
    if "\0" in command:
        raise InvalidCommand("A command cannot hold a NUL character")
    if not shell.startswith("/") or "\0" in shell:
        raise InvalidCommand(f"The shell {shell!r} is not an absolute path")
    try:
        return command.encode()
    except UnicodeEncodeError as error:
        raise InvalidCommand(f"The command holds a surrogate: {error}") from error


def check_limits(timeout: float | None, max_bytes: int | None) -> None:
    """Raise ``InvalidCommand`` for a time-out or a limit of output that no command can have."""
    if timeout is not None and not (timeout >= 0 and math.isfinite(timeout)):
        raise InvalidCommand(f"A time-out of {timeout} s is too short")
    if max_bytes is not None and max_bytes < 0:
        raise InvalidCommand(f"An output limit of {max_bytes} bytes is too small")


def checked_program(
    program: Program, argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None
) -> PackedProgram:
    """Return the arguments, variables and directory of a program. Raises ``InvalidCommand``."""
    if isinstance(argv, str) or not argv:
        raise InvalidCommand("A program needs a list of arguments, of which the first is its name")
    variables = dict(env or {})
    for name in variables:
        if not name or "=" in name:
            raise InvalidCommand(f"{name!r} cannot be a variable")
    for text in (*argv, cwd or "", *variables, *variables.values()):
        if "\0" in text:
            raise InvalidCommand(f"{text[:80]!r} holds a NUL character")
        try:
            os.fsencode(text)
        except UnicodeEncodeError as error:
            raise InvalidCommand(f"{text[:80]!r} holds a surrogate that stands for no byte") from error
    directory = posixpath.join(program.directory, cwd) if cwd else ""
    return PackedProgram(list(argv), program.environment | variables, directory)
