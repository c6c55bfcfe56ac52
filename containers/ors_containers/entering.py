"""What a child of the launcher does to itself before it executes a program in a sandbox.

Invariant: when ``lower`` returns, the process has no right left that a program of the sandbox must not have, and can
get none back; the order of its steps is the one in which each can still be taken.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
from collections.abc import Iterable
from typing import Any

from ors_containers import system_calls as system

__all__ = ["default_signals", "is_open", "lower", "place"]

Message = dict[str, Any]


def place(pairs: Iterable[tuple[int, int]]) -> None:
    """Put descriptors at given numbers, inheritable, whatever numbers they have now."""
    moved = [(fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 64), target) for source, target in pairs]
    for source, target in moved:
        os.dup2(source, target, inheritable=True)
        os.close(source)


def is_open(descriptor: int) -> bool:
    """Whether this process has a descriptor of that number."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def default_signals() -> None:
    """Undo what Python and the launcher ignore; ignored signals stay ignored in the program that is executed."""
    for number in (
        *(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def lower(message: Message, *, shielded: bool = False) -> None:
    """Give up everything a sandbox's program must not have, in the order in which it can still be given up.

    ``shielded`` leaves ``system_calls.SHIELD``, which does nothing but keep processes without it from this one.
    """
    for name, value in message["resources"].items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    if shielded:
        system.make_inheritable(system.SHIELD)
    system.drop_bounding_set()
    if not message["one_id"]:  # else the kernel has made it the only user there is
        system.become(message["user"], message["group"])
    if shielded:
        system.keep_capability(system.SHIELD)
    else:
        system.drop_capabilities()
    system.no_new_privileges()
    os.umask(0o022)
    for directory in (message["directory"], "/"):
        try:
            os.chdir(directory)
        except OSError:
            continue
        break
