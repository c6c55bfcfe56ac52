"""A program that starts another one as a process of its own, without a parent that could end it, and returns.

Ray ends an actor's child processes with the actor. The second fork makes the program a child of process 1, and its own
session keeps it out of the actor's process group. Run by path (``python -I -S``), with the standard library alone.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main(command: list[str]) -> None:
    """Run a command detached; its output goes where this process's goes."""
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execvp(command[0], command)  # noqa: S606 - a program and its arguments, without a shell


if __name__ == "__main__":
    main(sys.argv[1:])
