"""The process that starts sandboxes and enters them.

A threaded server must not fork and then run Python (``preexec_fn``), and ``bwrap --die-with-parent`` fires when the
*thread* that started it ends. So one small process with one thread does nothing else: it forks a child for each
request, and the child does the work and answers on the same socket. Nothing here waits for a child.

A sandbox is two things: process 1 of its namespaces (``holder``), started through bubblewrap, and whatever enters these
namespaces later: shells, and children that open a file or end a command's processes. Entering goes through a pidfd that
the server got when the sandbox came up, so a reused process id cannot lead elsewhere.

Invariants: when the server ends, its end of the socket closes, this process ends, and the kernel ends every sandbox
with it. A child that acts on a sandbox's processes has joined the sandbox's pid namespace first: it cannot name, and so
cannot signal, a process of the host. A child touches a sandbox's files only from inside its mount namespace, as its
user: no path can lead out. Such a child cannot be inspected by the sandbox's processes and imports no module there.
Where the kernel can keep signals in a domain, this process and all of its sandboxes are in one; a copy of it that is
outside does examinations and interrupts.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ors_containers.launcher.apptainer import settle_container, start_apptainer
from ors_containers.launcher.nsenter import interrupt_command, open_file, stat_file
from ors_containers.launcher.privileges import (
    default_signals,
    give_pipe,
    is_open,
    join_groups,
    lower,
    open_groups,
    place,
)
from ors_containers.launcher.rootfs import FILTER_AT, HOLDER_AT, NEWS_AT, Message, prepare, shared_text
from ors_containers.launcher.trusted_exec import EXAMINATION, start_examination
from ors_containers.linux import syscalls as system
from ors_containers.linux.fd_passing import receive
from ors_containers.linux.kernel_limits import hide, limit_ipc
from ors_containers.linux.pause_program import holder_program
from ors_containers.linux.seccomp import seccomp_filter

__all__ = ["MESSAGE_SIZE", "main"]

#: Largest message either way, in bytes; a Unix socket takes 200 KiB at once with Linux's default buffers.
MESSAGE_SIZE = 128 * 1024

#: What is done to a sandbox's processes from beyond the reach of their signals.
_OUTSIDE = frozenset(("examine", "interrupt"))

_OOM_SCORE = 500  # an agent's process goes before the sandbox's process 1 does


class Launcher:
    """The loop. ``control`` is the socket shared with the server and with every child."""

    def __init__(self, control: socket.socket, machine: str) -> None:
        self._control = control
        #: Where requests come from, and where those of ``_OUTSIDE`` are sent on.
        self._requests = control
        self._outside: socket.socket | None = None
        self._helpers: dict[int, int] = {}  # process id → request id
        self._filter = seccomp_filter(machine)
        self._holder = holder_program(machine)
        self._operations: dict[str, Callable[[Message, list[int]], Message | None]] = {
            "start": self._start,
            "enter": self._enter,
            "open": open_file,
            "status": stat_file,
            "interrupt": interrupt_command,
            "settle": settle_container,
            "examine": self._examine,
        }

    def serve(self) -> None:
        """Serve requests until the server has gone."""
        news, signalled = os.pipe()
        os.set_blocking(signalled, False)
        os.set_blocking(news, False)
        signal.signal(signal.SIGCHLD, _ignore)  # the pipe below tells of it
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(news, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == news:
                    os.read(news, 4096)
                    self._reap()
                    continue
                data, descriptors = receive(self._requests, MESSAGE_SIZE, 8)
                if not data:
                    return
                message = json.loads(data)
                if self._outside is not None and message["operation"] in _OUTSIDE:
                    self._send_on(self._outside, data, descriptors, message)
                else:
                    self._handle(message, descriptors)

    def divide(self) -> None:
        """Keep the processes of sandboxes from signalling those of examinations, where the kernel can do that.

        This process, and with it all that it starts from now on, enters a domain that no signal leaves. A copy of it
        stays outside: its children enter sandboxes for examinations, and to end what runs there.
        """
        if os.geteuid() != 0:
            return  # an ordinary user's would need no_new_privs, and could start nothing that is setuid
        requests, sent_on = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        copy = os.fork()
        if copy == 0:
            sent_on.close()
            self._requests = requests
            system.become_subreaper()
            return
        requests.close()
        try:
            system.scope_signals()
        except OSError:
            sent_on.close()  # which ends the copy
        else:
            self._outside = sent_on

    def _send_on(self, outside: socket.socket, data: bytes, descriptors: list[int], message: Message) -> None:
        try:
            socket.send_fds(outside, [data], descriptors)
        except OSError as error:
            self._send({"id": message["id"], "errno": error.errno, "error": f"cannot be sent on: {error.strerror}"})
        for descriptor in descriptors:
            os.close(descriptor)

    def _handle(self, message: Message, descriptors: list[int]) -> None:
        try:
            child = os.fork()
        except OSError as error:
            self._send({"id": message["id"], "errno": error.errno, "error": f"cannot fork: {error.strerror}"})
            child = -1
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._work(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if child == -1:
            return
        if message["operation"] == "start":
            self._send({"id": message["id"], "process": child})
        else:
            self._helpers[child] = message["id"]

    def _work(self, message: Message, descriptors: list[int]) -> NoReturn:
        code = 0
        try:
            answer: Message | None = self._operations[message["operation"]](message, descriptors)
        except OSError as error:
            answer = {"errno": error.errno, "error": error.strerror or str(error)}
        except BaseException as error:  # noqa: BLE001 - whatever it is, the server has to hear of it
            answer = {"errno": errno.EIO, "error": f"{type(error).__name__}: {error}"}
        try:
            if answer is not None:
                opened: int | None = answer.pop("descriptor", None)
                self._send({"id": message["id"], **answer}, () if opened is None else (opened,))
        except OSError:
            code = 1
        os._exit(code)

    def _send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)

    def _reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            request = self._helpers.pop(process, None)
            code = os.waitstatus_to_exitcode(status)
            if request is None:
                self._send({"exited": process, "code": code})
            elif code != 0:
                self._send({"id": request, "errno": errno.EIO, "error": f"the launcher's child ended with {code}"})

    def _start(self, message: Message, descriptors: list[int]) -> None:
        """Become the bwrap of a new sandbox. What goes wrong is written to its error pipe."""
        ready, errors = descriptors
        place([(os.open(os.devnull, os.O_RDONLY), 0), (ready, 1), (errors, 2)])
        try:
            groups = open_groups(message["groups"])  # before rights are given up
            if message["container"] == "apptainer":
                start_apptainer(message, self._holder, groups)
            arguments, shared = prepare(message)
            os.write(1, shared_text(shared))
            # Not sooner: the first process to join after a pause waits ten milliseconds for all processors. The child
            # for the first shell does so meanwhile (``_enter``).
            join_groups(groups)
            # A holder of its own: process 1's program is a file that a root inside can open, and so lock.
            holder = _sealed("ors-holder", self._holder)
            place([(holder, HOLDER_AT), (_sealed("ors-filter", self._filter), FILTER_AT), (1, NEWS_AT)])
            default_signals()
            os.execv(arguments[0], arguments)  # noqa: S606 - becoming it is the point
        except (OSError, ValueError) as error:
            os.write(2, str(error).encode())
        os._exit(70)

    def _enter(self, message: Message, descriptors: list[int]) -> Message:
        """Start a program in a sandbox; the answer is its process id here and there."""
        holder, *passed = descriptors
        groups: list[int] = []
        kernel = -1
        if message["gate"]:
            # The sandbox is coming up meanwhile, and this child's own child will be in the groups it is in.
            join_groups(open_groups(message["groups"]))
            holder = _let_in(holder)
            kernel = os.open("/proc/sys/kernel", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            groups = open_groups(message["groups"])
        news, report = os.pipe()
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
        for pipe in passed:
            give_pipe(pipe, message["user"], message["group"], holder)
        system.refuse_inspection()
        system.setns(holder, system.ALL_NAMESPACES)
        bounded = True
        if kernel != -1:
            if not message["one_id"]:
                system.become(0, 0)
                hide(EXAMINATION)
            bounded = limit_ipc(kernel)
            os.close(kernel)
        process = os.fork()
        if process == 0:
            self._control.close()
            try:
                join_groups(groups)
                os.write(report, f"{os.getpid()}\n".encode())
                for pipe in passed:
                    give_pipe(pipe, message["user"], message["group"])
                devnull = os.open(os.devnull, os.O_RDWR)  # the sandbox's
                # `report` stays open until the program runs: its end says that it does.
                place(
                    [(report, 40), (devnull, 0), (devnull, 1), (devnull, 2), *zip(passed, message["at"], strict=True)]
                )
                os.set_inheritable(40, False)
                os.setsid()
                lower(message)
                system.set_seccomp(self._filter)
                default_signals()
                program: str = message["arguments"][0]
                os.execve(program, message["arguments"], message["environment"])  # noqa: S606 - as above
            except OSError as error:
                os.write(40 if is_open(40) else report, f"{error.errno} {error.strerror}".encode())
            os._exit(70)
        os.close(report)
        said = b""
        while piece := os.read(news, 4096):
            said += piece
        inner, _, problem = said.decode().partition("\n")
        if problem or not inner:
            os.waitpid(process, 0)
            number, _, text = problem.partition(" ")
            return {"errno": int(number or errno.EIO), "error": f"{message['arguments'][0]}: {text}"}
        return {"process": process, "inner": int(inner), "ipc_bounded": bounded}

    def _examine(self, message: Message, descriptors: list[int]) -> Message:
        return start_examination(message, descriptors, self._filter, self._control)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _sealed(name: str, content: bytes) -> int:
    """A descriptor of an executable, read-only file in memory, at its start."""
    writable = os.memfd_create(name)
    os.write(writable, content)
    os.fchmod(writable, 0o555)
    # A program cannot be executed while anybody has it open for writing.
    readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(writable)
    return readable


def _let_in(gate: int) -> int:
    """Wait at a socket for the descriptor of a sandbox's process 1. Raises ``OSError`` if it does not come up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, gate) as waiting:
        _, descriptors = receive(waiting, 1, 1)
    if not descriptors:
        raise OSError(errno.ESRCH, "it did not come up")
    return descriptors[0]


def main(descriptor: int, machine: str) -> None:
    """Serve the socket at ``descriptor`` until its other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server's affair; it ends us by ending itself
    system.become_subreaper()
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    launcher = Launcher(control, machine)
    # A child that has joined a sandbox's files must not find a module there that it has not imported yet.
    sys.meta_path.clear()
    sys.path.clear()
    gc.disable()
    gc.freeze()
    launcher.divide()
    with contextlib.suppress(ConnectionError):  # a server that was killed has closed its end in the middle
        launcher.serve()
