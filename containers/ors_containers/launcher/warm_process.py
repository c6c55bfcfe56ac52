"""The program of a warm Python: import, say so, and then fork for each examination.

It runs in the toolset's Python, and is a launcher that only gets examinations.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ors_containers.launcher.examining.warm_python import CONTROL_AT, READY, REQUESTS_AT, SOURCES_AT
from ors_containers.launcher.messages import Program
from ors_containers.launcher.process import Launcher
from ors_containers.linux import syscalls as system
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["main"]

#: Python's own word in the place of the locale C. It has been started with the program's other variables of locales.
_COERCED = {"LC_CTYPE": os.environ["LC_CTYPE"]} if os.environ.get("LC_CTYPE") == "C.UTF-8" else {}
#: Before the limits of an examination's program hold.
_OPEN_FILES = os.sysconf("SC_OPEN_MAX")


def main(arguments: Sequence[str]) -> None:
    """Be the warm Python until its socket of requests is closed."""
    machine, module, packages, *ahead = arguments
    sys.path.remove(SOURCES_AT)
    path = list(sys.path)
    sys.path[:] = [EXAMINATION, *path, packages]
    for name in ahead:
        importlib.import_module(name)
    program: Callable[[], int] = importlib.import_module(module).main
    sys.path[:] = path
    system.become_subreaper()
    control, requests = (socket.socket(fileno=number) for number in (CONTROL_AT, REQUESTS_AT))
    for connection in (control, requests):
        connection.set_inheritable(False)
    launcher = Launcher(control, machine, requests=requests, here=lambda started: _become(started, program))
    gc.disable()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):  # nothing is wanted any longer
        requests.send(READY)
    launcher.serve()
    launcher.wait()


def _become(program: Program, main: Callable[[], int]) -> NoReturn:
    """Be as a Python is that was executed with the program's arguments and variables, and run its ``main``."""
    os.closerange(3, _OPEN_FILES)
    for number, handler in (
        *((signal.SIGPIPE, signal.SIG_IGN), (signal.SIGXFSZ, signal.SIG_IGN)),
        (signal.SIGINT, signal.default_int_handler),
    ):
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(program.environment | _COERCED)
    sys.argv[:] = program.arguments[-1:]
    system.set_name(os.path.basename(program.arguments[0]))  # noqa: PTH119 - nothing more is imported here
    gc.enable()
    status = 1
    try:
        status = main()
    except BaseException as error:  # noqa: BLE001 - an executed Python would print it and end with 1; so does this one
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
    os._exit(status)
