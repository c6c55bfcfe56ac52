"""The file in which the tools' shell keeps its directory and variables from one command to the next."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["SHELL_STATE", "remove_shell_state"]

#: Its place in the container.
SHELL_STATE = "/tmp/.shell-state"  # noqa: S108 - of the container


def remove_shell_state(changes: Path) -> None:
    """Remove the file from a layer of an agent's files: the agent has not made it."""
    place = changes / SHELL_STATE.strip("/")
    if not place.parent.is_symlink():
        with contextlib.suppress(OSError):  # there is none, or the agent has put something else there
            place.unlink()
