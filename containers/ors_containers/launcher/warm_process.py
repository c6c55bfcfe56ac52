"""The program of a warm Python: import, say so, and then fork for each examination.

It runs in the toolset's Python, and is a launcher that only gets examinations.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from ors_containers.launcher.examining.program import Here
from ors_containers.launcher.examining.warm_python import CONTROL_AT, NAME, READY, REQUESTS_AT, SOURCES_AT
from ors_containers.launcher.messages import Program
from ors_containers.launcher.process import Launcher
from ors_containers.linux import syscalls as system
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["main"]

#: Python's own word in the place of the locale C. It has been started with the program's other variables of locales.
_COERCED = {"LC_CTYPE": os.environ["LC_CTYPE"]} if os.environ.get("LC_CTYPE") == "C.UTF-8" else {}
#: Before the limits of an examination's program hold.
_OPEN_FILES = os.sysconf("SC_OPEN_MAX")
_PACKAGE = "ors_containers"
#: Modules that are kept, for to free them takes as long.
_hidden: list[ModuleType] = []


def main(arguments: Sequence[str]) -> Callable[[], int] | None:
    """Be the warm Python until its socket of requests is closed.

    In an examination's process, return the program's ``main``, and the process is as one that was executed.
    """
    machine, module, packages, *ahead = arguments
    sys.path.remove(SOURCES_AT)
    path = list(sys.path)
    sys.path[:] = [EXAMINATION, *path, packages]
    # The program before the others: what it replaces, modules that are imported later have from the start.
    program: Callable[[], int] = importlib.import_module(module).main
    for name in ahead:
        importlib.import_module(name)
    finders = list(sys.meta_path)
    # A copy that has joined a sandbox's mounts must not import a module from there before it is the program.
    sys.meta_path.clear()
    sys.path.clear()
    system.become_subreaper()
    control, requests = (socket.socket(fileno=number) for number in (CONTROL_AT, REQUESTS_AT))
    for connection in (control, requests):
        connection.set_inheritable(False)
    # A copy may be in a sandbox from its first instruction on, where any process may read its arguments.
    system.refuse_inspection()
    system.set_name(NAME)
    launcher = Launcher(control, machine, requests=requests, is_warm=True)
    # A program is to find none of this package. To look for them in each copy would copy a page for each module's name.
    _hidden.extend(sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == _PACKAGE)
    gc.disable()
    gc.freeze()
    try:
        with contextlib.suppress(ConnectionError):  # nothing is wanted any longer
            requests.send(READY)
            launcher.serve()
            launcher.wait()
    except Here as here:
        for connection in (control, requests):
            connection.detach()
        sys.meta_path[:], sys.path[:] = finders, path
        _become(here.program)
        return program
    return None


def _become(program: Program) -> None:
    """Be as a Python is that was executed with the program's arguments and variables."""
    os.closerange(3, _OPEN_FILES)
    for number, handler in (
        *((signal.SIGPIPE, signal.SIG_IGN), (signal.SIGXFSZ, signal.SIG_IGN)),
        (signal.SIGINT, signal.default_int_handler),
    ):
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(program.environment | _COERCED)
    time.tzset()
    sys.argv[:] = program.arguments[-1:]
    platform.__dict__["_uname_cache"] = None  # `uuid` has asked for the system's name when it was imported
    system.set_name(os.path.basename(program.arguments[0]))
    gc.enable()
