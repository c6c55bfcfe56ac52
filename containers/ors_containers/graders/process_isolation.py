"""Keep the programs that an examination's program starts from inspecting each other and the program itself.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import
process_isolation``).

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
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

__all__ = ["ProcessIsolation", "TooManyPrograms", "up"]

_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
#: Audit events that come before a new process; ``subprocess`` and ``multiprocessing`` have ``fork_exec`` besides.
_STARTS = frozenset(("os.fork", "os.forkpty", "os.posix_spawn", "os.system"))

#: CAP_SETGID, by which a program of the agent is kept out of the examiners' group. No program gets it.
_GROUPS = 6
#: Positions in the arguments of ``fork_exec``.
_PROGRAMS_AT, _ENVIRONMENT_AT, _GROUPS_AT, _BEFORE_AT = 1, 5, 18, 21
#: Capabilities to divide: the halves of more would be too many to list.
_ENOUGH = 14


class TooManyPrograms(RuntimeError):
    """More programs were started than can be kept apart."""


class ProcessIsolation:
    """The capabilities of this process, and the halves of them that its programs have."""

    def __init__(self, capabilities: list[int], *, can_leave: bool = False) -> None:
        #: Whether this process may take the examiners' group from a program.
        self.can_leave = can_leave
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._capabilities = capabilities
        self._count = math.comb(len(capabilities), len(capabilities) // 2)
        self._numbers = _shared_numbers(self._count)
        self._keeping = False
        self._all = sum(1 << capability for capability in capabilities) | can_leave << _GROUPS
        #: How many programs this process has started or tried to.
        self.started = 0
        #: Whether there were more of them than halves.
        self.exhausted = False
        #: The half of each program that ``subprocess`` started, by process id; halves are masks as in ``CapPrm``.
        self.halves: dict[int, int] = {}
        #: Called with the process id of each such program and with the arguments of ``fork_exec``.
        self.on_start: Callable[[int, tuple[Any, ...]], None] = lambda process, arguments: None
        #: Called with the arguments of ``fork_exec``; returns those to use, and a function to call afterwards.
        #: ``program_rights`` decides by it what the program may do besides.
        self.admit: Callable[[tuple[Any, ...]], tuple[Sequence[Any], Callable[[], None]]] = lambda arguments: (
            arguments,
            lambda: None,
        )
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
            admitted, after = self.admit(arguments)
            self._change()
            half = self._current
            try:
                process = start(*admitted)
            finally:
                after()
            self.halves[process] = half
            self.on_start(process, arguments)
            return process

        _posixsubprocess.fork_exec = fork_exec
        if "subprocess" in sys.modules:  # it has imported the function already
            vars(sys.modules["subprocess"])["_fork_exec"] = fork_exec
        sys.addaudithook(self._audit)
        self._route()

    def _route(self) -> None:
        """Start programs by ``fork_exec`` in the other ways, too; and admit what a copy of this process executes."""
        module: Any = os
        module.system = _system
        module.posix_spawn = module.posix_spawnp = _spawn
        become = os.execve

        def execve(path: Any, words: Sequence[Any], environment: Mapping[Any, Any] | None = None) -> None:
            pairs = (os.environb if environment is None else environment).items()
            given = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in pairs]
            arguments = ((words, (path,), True, (), None, given), (-1,) * 12, (None, None, -1, None, False))
            admitted = self.admit(tuple(itertools.chain.from_iterable(arguments)))[0]
            if admitted[_GROUPS_AT] is not None:
                os.setgroups(admitted[_GROUPS_AT])
            if admitted[_BEFORE_AT] is not None:
                admitted[_BEFORE_AT]()
            variables = dict(item.split(b"=", 1) for item in admitted[_ENVIRONMENT_AT])
            become(admitted[_PROGRAMS_AT][0], admitted[0], variables)

        def execv(path: Any, words: Sequence[Any]) -> None:
            execve(path, words)

        module.execve, module.execv = execve, execv

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


def _system(command: Any) -> int:
    """``os.system`` by way of ``fork_exec``, through which every program goes."""
    import subprocess

    status = subprocess.run(command, shell=True).returncode  # noqa: S602 - what the tests ask for
    return -status if status < 0 else status << 8


def _spawn(path: Any, words: Sequence[Any], environment: Any, *, file_actions: Any = (), **more: Any) -> int:
    """``os.posix_spawn`` by way of ``fork_exec``."""
    import subprocess

    if more.keys() - {"setsid", "setpgroup", "resetids", "setsigmask", "setsigdef", "scheduler"}:
        raise TypeError(f"posix_spawn: {', '.join(more)}")

    def act() -> None:
        for kind, *details in file_actions or ():
            if kind == os.POSIX_SPAWN_OPEN:
                target, *opening = details
                opened = os.open(*opening)
                os.dup2(opened, target)
                if opened != target:
                    os.close(opened)
            elif kind == os.POSIX_SPAWN_CLOSE:
                os.close(details[0])
            else:
                os.dup2(*details)

    started = subprocess.Popen(
        words,
        executable=path,
        env=environment,
        close_fds=False,
        restore_signals=False,
        start_new_session=bool(more.get("setsid")),
        process_group=more.get("setpgroup"),
        preexec_fn=act,
    )
    started.returncode = 0  # the caller waits for it
    return started.pid


def _shared_numbers(count: int) -> int:
    """Return a descriptor from which this process and its forks read each of the numbers below ``count`` once."""
    descriptor = os.memfd_create("halves")
    numbers = array("H", range(count)).tobytes()
    os.write(descriptor, numbers)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def up() -> ProcessIsolation:
    """Keep the programs that this process starts from now on from inspecting it and each other.

    Call it once, in the main thread, before a program is started. Raises ``OSError`` where it is not possible.
    """
    with open("/proc/self/status") as file:  # noqa: PTH123 - one import less
        lines = file.read().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    permitted = int(fields["CapPrm"], 16)
    if permitted == 0:
        raise OSError("this is not an examination: the process has no capability that its children would lack")
    numbers = [number for number in range(permitted.bit_length()) if permitted >> number & 1 and number != _GROUPS]
    isolation = ProcessIsolation(numbers[:_ENOUGH], can_leave=bool(permitted >> _GROUPS & 1))
    isolation.install()
    return isolation
