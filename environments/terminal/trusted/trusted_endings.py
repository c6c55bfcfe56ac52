"""Record of how the programs that tests start end: by themselves, or by a signal that the tests have not sent.

The agent's programs that run beside the tests have the same user. Where the kernel does not block their signals
(``docs/terminal.md``), they can kill a ``grep`` that would have found something, and a test that asserts the absence of
a match passes. Therefore an unexpected death by a signal makes the outcome ``KILLED``. Programs outside of the trusted
folders are not watched, and no program is watched where the tests themselves handle signals.
"""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Callable
from typing import Any

__all__ = ["Endings"]

_SHELLS = frozenset(("ash", "bash", "dash", "ksh", "sh", "zsh"))
#: Text of tests that send signals, by any program, or that expect a program to end by a signal.
_SIGNALS = re.compile(
    r"kill|signal|SIG[A-Z]{2}|core dump|returncode\s*(==|in|<)\s*[-(\[{]|-\s*(9|15)\b|\b1(29|3\d|4\d)\b"
)
#: Positions of the ends of the pipe for standard input in the arguments of ``fork_exec``.
_INPUT, _INPUTS_OTHER_END = 6, 7


_wait = os.waitpid
#: The watches of this process: none before it starts a program of the tests.
_watches: list[Endings] = []


def _waitpid(process: int, options: int, /) -> tuple[int, int]:
    ended, status = _wait(process, options)
    if ended:
        for watch in _watches:
            watch.note(ended, status)
    return ended, status


# Now, and not when a watch starts: a warm Python imports `subprocess` between the two, which keeps the function.
os.waitpid = _waitpid


class Endings:
    """Watch on the exit status of every program that ``subprocess`` waits for."""

    def __init__(self, text: str, is_trusted: Callable[[str], bool], signalled: set[int]) -> None:
        self._watched = _SIGNALS.search(text) is None
        self._is_trusted = is_trusted
        self._signalled = signalled
        self._programs: dict[int, str] = {}
        self._pipelines = "pipefail" in text
        #: The first program that was ended by a signal of unknown origin.
        self.killed = ""

    def install(self) -> None:
        """Start the watch, for as long as the process lasts."""
        _watches.append(self)

    def started(self, process: int, arguments: tuple[Any, ...]) -> None:
        """Record a started program. This is the callback ``process_isolation.ProcessIsolation.on_start``."""
        for candidate in arguments[1]:
            path = os.fsdecode(candidate)
            if os.access(path, os.X_OK):
                self._programs[process] = path
                break
        given = arguments[_INPUT]
        if given > 2 and arguments[_INPUTS_OTHER_END] == -1:
            # A pipeline `a | b` that the tests connect by hand: a may end by SIGPIPE.
            self._pipelines = self._pipelines or _is_pipe(given)

    def note(self, process: int, status: int) -> None:
        """Record how a process has ended."""
        path = self._programs.pop(process, "")
        code = os.waitstatus_to_exitcode(status) if not os.WIFSTOPPED(status) else 0
        shell = os.path.basename(path) in _SHELLS  # noqa: PTH119 - pathlib is one import more
        number = -code if code < 0 else code - 128 if shell and 128 < code < 160 else 0
        if not (self._watched and number and path and self._is_trusted(os.path.dirname(path))):  # noqa: PTH120 - as above
            return
        if self._signalled & {process, 0, -1} or (number == signal.SIGPIPE and self._pipelines):
            return
        self.killed = self.killed or f"{path} was ended by signal {number}, which the tests have not sent"


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False
