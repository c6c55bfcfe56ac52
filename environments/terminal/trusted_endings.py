"""How the programs that tests start come to their end: by themselves, or by a signal that the tests have not sent.

Programs of the agent's that run beside the tests have the same user. Where the kernel does not keep their signals away
(``docs/terminal.md``), they can kill a ``grep`` that would have found something, and a test that asserts the contrary
passes. A program that nobody expects to die, and that did, spoils a verdict. Programs outside of the trusted folders
may end as they like, and so may all where the tests deal with signals themselves.
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
#: In the text of tests that send signals, by whatever program, or expect that something ends by one.
_SIGNALS = re.compile(
    r"kill|signal|SIG[A-Z]{2}|core dump|returncode\s*(==|in|<)\s*[-(\[{]|-\s*(9|15)\b|\b1(29|3\d|4\d)\b"
)
#: Where ``fork_exec`` has the ends of the pipes for standard input.
_INPUT, _INPUTS_OTHER_END = 6, 7


class Endings:
    """Looks at the status of every program that ``subprocess`` waits for."""

    def __init__(self, text: str, is_trusted: Callable[[str], bool], signalled: set[int]) -> None:
        self._watched = _SIGNALS.search(text) is None
        self._is_trusted = is_trusted
        self._signalled = signalled
        self._programs: dict[int, str] = {}
        self._pipelines = "pipefail" in text
        #: The first program that was ended by nobody knows whom.
        self.killed = ""

    def install(self) -> None:
        """Look from now on; before ``subprocess`` is imported."""
        wait = os.waitpid

        def waitpid(process: int, options: int, /) -> tuple[int, int]:
            ended, status = wait(process, options)
            if ended:
                self._note(ended, status)
            return ended, status

        os.waitpid = waitpid

    def started(self, process: int, arguments: tuple[Any, ...]) -> None:
        """Note a program, as ``shield.Shield.on_start`` tells of it."""
        for candidate in arguments[1]:
            path = os.fsdecode(candidate)
            if os.access(path, os.X_OK):
                self._programs[process] = path
                break
        given = arguments[_INPUT]
        if given > 2 and arguments[_INPUTS_OTHER_END] == -1:
            # `a | b`, made by hand: a may end by SIGPIPE.
            self._pipelines = self._pipelines or _is_pipe(given)

    def _note(self, process: int, status: int) -> None:
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
