"""Programs that start at once: copies of a Python that has imported what a server imports.

These imports take a second of processor time, and the tests start hundreds of servers, with workers and gateways. A
copy runs the same code with the arguments, variables, folder and descriptors it is given, and is a child of the process
that asks for it: the kernel gives an orphan to the nearest ancestor that asks for them, and the copy's parent ends at
once. What a copy starts is a copy too. The seed of its hashes is 0, as that of workers is.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

__all__ = ["PreparedProgram", "serve_copies"]

#: What nearly every server, worker or gateway has imported once it listens.
_IMPORTED = (
    "ors_cli.application",
    "ors_cli.serving.banner",
    "ors_cli.serving.serve",
    "ors_server.cluster.gateway.process",
    "ors_server.cluster.supervisor.supervisor",
    "ors_server.http.app",
    "ors_server.http.serving",
    "ors_server.http.uvicorn_protocol",
    "ors_server.rollouts.store",
    "ors_server.server",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
#: From linux/prctl.h.
_SET_CHILD_SUBREAPER = 36
_LARGEST_REQUEST = 1 << 17
#: What a command line in ``/proc`` has room for, in bytes.
_LONGEST_COMMAND = 1 << 12
_SEED = {"PYTHONHASHSEED": "0"}
_READ_AT_THE_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC")
#: The words of a command that starts programs of ours.
_HAS_CHILDREN = {"--workers", "--gateways", "--pools", "node", "gateway"}
_PROGRAM = "import sys; from tests.support.prepared_python import serve_copies; serve_copies(int(sys.argv[1]))"
#: Arguments of ``Popen._execute_child`` that a copy follows; all others have to be as if they were not given.
_FOLLOWED = {"args", "close_fds", "cwd", "env", "pass_fds", "restore_signals", "start_new_session", "creationflags"}
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python, its allocator and the dynamic linker read at their start."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_THE_START)}


_OF_THE_PREPARED = _of_python(os.environ) | _SEED


def _module(command: Sequence[str]) -> str | None:
    """Return the module that a command runs as the main one: ``python -m MODULE ...`` or ``ors-server ...``."""
    if command[:2] == [sys.executable, "-m"]:
        return command[2] if command[2].startswith(("ors_", "tests.")) else None
    return "ors_cli" if command[0] == str(Path(sys.executable).with_name("ors-server")) else None


_execute: Any = vars(subprocess.Popen)["_execute_child"]
_ARGUMENTS = _execute.__code__.co_varnames[1 : _execute.__code__.co_argcount]


class PreparedProgram(subprocess.Popen[Any]):
    """``subprocess.Popen`` that starts a copy where it can; everything else is executed as usual."""

    def _execute_child(self, *given: Any) -> None:
        options = dict(zip(_ARGUMENTS, given, strict=True))
        environment = dict(os.environ if options["env"] is None else options["env"])
        if not _can_be_copied(options, environment):
            _execute(self, *given)
            return
        pipes = [options[name] for name in _PIPES]
        standard = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        kept = sorted(options["pass_fds"])
        request = {
            "command": list(map(str, options["args"])),
            "environment": environment,
            "folder": str(options["cwd"] or Path.cwd()),
            "new_session": options["start_new_session"],
            "kept": kept,
        }
        with _starting:
            self.pid = (_own or _executed()).start(request, [*standard, *kept])
        self._child_created = True
        super().__getattribute__("_close_pipe_fds")(*pipes)


def _can_be_copied(options: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Say whether it is a command of ours, with no option that a copy does not follow, and Python set up as here."""
    command = options["args"]
    if isinstance(command, str | bytes | os.PathLike) or _module(list(map(str, command))) is None:
        return False
    others = [value for name, value in options.items() if name not in _FOLLOWED and name not in _PIPES]
    return all(value is None or value is False or value == -1 for value in others) and (  # 0 is a process group
        _of_python(environment) | _SEED == _OF_THE_PREPARED and environment.get("PYTHONHASHSEED", "0") == "0"
    )


class _Prepared:
    """A process that is copied, as the process sees it whose children the copies are."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a copy; return its process ID. It is this process's child."""
        with _orphans_come_here():
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(64)
        assert answer, "the prepared Python has ended"
        return int(answer)

    def close(self) -> None:
        """End the process that is copied. Its copies go on."""
        self._socket.close()


#: One start at a time: whether orphans come here is said of the whole process.
_starting = threading.Lock()
#: That of a copy, whose programs have been imported before it ran.
_own: _Prepared | None = None


@functools.cache
def _executed() -> _Prepared:
    """Start the first process that is copied; it ends with this one."""
    connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    with its:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(its.fileno()), " " * _LONGEST_COMMAND],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=surroundings | _SEED,
            pass_fds=[its.fileno()],
        )
    prepared = _Prepared(connection)
    atexit.register(process.wait)
    atexit.register(prepared.close)
    return prepared


@contextlib.contextmanager
def _orphans_come_here() -> Generator[None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def serve_copies(descriptor: int) -> None:
    """Import what most programs import. Then run each program that is asked for at a socket, in a copy."""
    gc.disable()
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    if (request := _serve_copies(socket.socket(fileno=descriptor))) is not None:
        _run(request)


def _serve_copies(connection: socket.socket) -> dict[str, Any] | None:
    """Answer requests; return in each copy, with its request, and at the end with None."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 64)
        if not message:
            return None
        told, tell = os.pipe()
        if parent := os.fork():
            # An orphan changes hands when its parent has ended, so the tests hear of the copy after that.
            os.waitpid(parent, 0)
            connection.send(os.read(told, 64))
            for descriptor in (told, tell, *descriptors):
                os.close(descriptor)
            continue
        parent = os.getpid()
        if own := os.fork():
            os.write(tell, str(own).encode())
            os._exit(0)
        while os.getppid() == parent:
            os.sched_yield()  # a program that ends with its parent would end with this one
        os.close(told)
        os.close(tell)
        signal.signal(signal.SIGINT, interrupt)
        connection.close()
        request = json.loads(message)
        given = [0, 1, 2, *request["kept"]]
        _place(descriptors, given)
        if _HAS_CHILDREN & set(request["command"]) and (copied := _keep_a_copy(given)) is not None:
            return copied
        return request


def _keep_a_copy(descriptors: Sequence[int]) -> dict[str, Any] | None:
    """Keep this process as it is, to copy it for what it starts. Return in each such copy, with its request."""
    global _own
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        its.close()
        _own = _Prepared(ours)
        subprocess.Popen = PreparedProgram
        return None
    ours.close()
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        for descriptor in descriptors:
            os.dup2(nothing.fileno(), descriptor)
    if (request := _serve_copies(its)) is None:
        os._exit(0)
    return request


def _place(descriptors: Sequence[int], wanted: Sequence[int]) -> None:
    """Give descriptors the numbers that a program expects."""
    above = max(*descriptors, *wanted) + 1
    moved = [os.dup2(old, above + index) for index, old in enumerate(descriptors)]
    for old in descriptors:
        os.close(old)
    for old, new in zip(moved, wanted, strict=True):
        os.dup2(old, new)
        os.close(old)


def _show_in_proc(command: Sequence[str]) -> None:
    """Make this the command line in ``/proc``, zero bytes after it: tests look for processes and for secrets there."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    line = b"".join(word.encode() + b"\0" for word in command)
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def _run(request: Mapping[str, Any]) -> None:
    command: list[str] = request["command"]
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _show_in_proc(command)
    importlib.invalidate_caches()
    gc.enable()
    is_module = command[0] == sys.executable
    sys.argv = command[2:] if is_module else command
    sys.path[0] = request["folder"] if is_module else str(Path(command[0]).parent)
    module = _module(command)
    assert module is not None
    if is_module:
        if not hasattr(sys.modules.get(module), "__path__"):
            sys.modules.pop(module, None)  # as the main module it is another one, as always with ``-m``
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        importlib.import_module(module).main()
