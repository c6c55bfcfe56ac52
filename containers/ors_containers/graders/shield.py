"""Keep the programs that an examination's program starts from inspecting each other and the program itself.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import shield``).

The program of an examination has capabilities that permit nothing in a sandbox (``syscalls.SHIELD``) and that no
process of the agent has. The kernel lets no process inspect another that has a capability it lacks: its memory,
descriptors, environment, root and working folder in ``/proc`` and through ``ptrace``. After ``up``, each program that
this process starts gets a different half of these capabilities. No half contains another: such a program can be
inspected by this process and by the program's own children, which have the same half, but not by the agent's processes
or by another program started here; and it can inspect none of these.

All of them have the same user. So they may send signals to each other, and read and write every file that the user
may: files with expected results are deleted before a program of the agent is started.

Invariant: each half is given to one program only. ``TooManyPrograms`` is raised when none is left.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import ctypes
import itertools
import math
import os
import sys
from array import array
from collections.abc import Callable, Generator
from typing import Any

__all__ = ["Shield", "TooManyPrograms", "up"]

_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
#: Audit events that come before a new process; ``subprocess`` and ``multiprocessing`` have ``fork_exec`` besides.
_STARTS = frozenset(("os.fork", "os.forkpty", "os.posix_spawn", "os.system"))

#: Capabilities to divide: the halves of more would be too many to list.
_ENOUGH = 14


class TooManyPrograms(RuntimeError):
    """More programs were started than can be kept apart."""


class Shield:
    """The capabilities of this process, and the halves of them that its programs have."""

    def __init__(self, capabilities: list[int]) -> None:
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._capabilities = capabilities
        self._count = math.comb(len(capabilities), len(capabilities) // 2)
        self._numbers = _shared_numbers(self._count)
        self._keeping = False
        self._all = sum(1 << capability for capability in capabilities)
        #: How many programs this process has started or tried to.
        self.started = 0
        #: Whether there were more of them than halves.
        self.exhausted = False
        #: The half of each program that ``subprocess`` started, by process id; halves are masks as in ``CapPrm``.
        self.halves: dict[int, int] = {}
        #: Called with the process id of each such program and with the arguments of ``fork_exec``.
        self.on_start: Callable[[int, tuple[Any, ...]], None] = lambda process, arguments: None
        #: The halves that were given within ``keeping``.
        self.kept: set[int] = set()
        self._current = 0

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Note the halves of what is started in this block in ``kept``."""
        before, self._keeping = self._keeping, True
        try:
            yield
        finally:
            self._keeping = before

    def install(self) -> None:
        """Give each program a half from now on, for good. Raises ``OSError`` where that is not possible."""
        self._change()
        start = _posixsubprocess.fork_exec

        def fork_exec(*arguments: Any) -> int:
            self._change()
            half = self._current
            process = start(*arguments)
            self.halves[process] = half
            self.on_start(process, arguments)
            return process

        _posixsubprocess.fork_exec = fork_exec
        if "subprocess" in sys.modules:  # it has imported the function already
            vars(sys.modules["subprocess"])["_fork_exec"] = fork_exec
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self._change()
            if self._keeping and event in ("os.fork", "os.forkpty"):
                self.kept.add(self._all)  # a copy of this process keeps what it has

    def _change(self) -> None:
        """Take another half for the programs that this thread starts."""
        self.started += 1
        halves = itertools.combinations(self._capabilities, len(self._capabilities) // 2)
        half = next(itertools.islice(halves, self._next(), None))
        self._control(_PR_CAP_AMBIENT_CLEAR_ALL, 0)
        for capability in half:
            self._control(_PR_CAP_AMBIENT_RAISE, capability)
        self._current = sum(1 << capability for capability in half)
        if self._keeping:
            self.kept.add(self._current)

    def _next(self) -> int:
        try:
            piece = os.read(self._numbers, array("H").itemsize)
        except OSError:  # a child made by `os.fork` has closed everything
            return int.from_bytes(os.urandom(4)) % self._count
        if not piece:
            self.exhausted = True
            raise TooManyPrograms(f"more than {self._count} programs were started")
        return array("H", piece)[0] % self._count

    def _control(self, operation: int, capability: int) -> None:
        if self._prctl(_PR_CAP_AMBIENT, operation, capability, 0, 0) == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl(PR_CAP_AMBIENT): {os.strerror(number)}")


def _shared_numbers(count: int) -> int:
    """Return a descriptor from which this process and its forks read each of the numbers below ``count`` once."""
    descriptor = os.memfd_create("halves")
    numbers = array("H", range(count)).tobytes()
    os.write(descriptor, numbers)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def up() -> Shield:
    """Keep the programs that this process starts from now on from inspecting it and each other.

    Call it once, in the main thread, before a program is started. Raises ``OSError`` where it is not possible.
    """
    with open("/proc/self/status") as file:  # noqa: PTH123 - one import less
        lines = file.read().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    permitted = int(fields["CapPrm"], 16)
    if permitted == 0:
        raise OSError("this is not an examination: the process has no capability that its children would lack")
    shield = Shield([number for number in range(permitted.bit_length()) if permitted >> number & 1][:_ENOUGH])
    shield.install()
    return shield
