"""The process that starts sandboxes and enters them.

A threaded server must not fork and then run Python (``preexec_fn``), and ``bwrap --die-with-parent`` fires when the
*thread* that started it ends. So one small process with one thread forks a child for each request, and the child does
the work and responds on the same socket. This process never blocks on a child.

A sandbox is process 1 of its namespaces (``linux.pause_program``), started through bubblewrap or Apptainer, and the
processes that enter these namespaces later: shells, and children that open a file or end a command's processes. They
enter through a pidfd that the server got when the sandbox came up, so a reused process id cannot lead elsewhere.

Invariants: when the server ends, its end of the socket closes, this process ends, and the kernel ends every sandbox
with it. A child that acts on a sandbox's processes has joined the sandbox's pid namespace first: it cannot name, and so
cannot signal, a process of the host. A child touches a sandbox's files only from inside its mount namespace, as its
user: no path can lead out. The sandbox's processes cannot inspect such a child, and it imports no module there. Where
the kernel can confine signals to a domain, this process and all of its sandboxes are in one; a copy of this process
outside of the domain starts examinations and ends commands.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from ors_containers.launcher.apptainer import settle_container, start_apptainer
from ors_containers.launcher.bubblewrap import start_bubblewrap
from ors_containers.launcher.container import start_container
from ors_containers.launcher.enter import enter_sandbox
from ors_containers.launcher.examination import start_examination
from ors_containers.launcher.examining.program import Here, examine_inside
from ors_containers.launcher.examining.visits import visits
from ors_containers.launcher.examining.warm_python import WarmPythons
from ors_containers.launcher.file_operations import open_file, rename_file, stat_file
from ors_containers.launcher.messages import (
    MESSAGE_SIZE,
    EndCommand,
    EndProcesses,
    Enter,
    Envelope,
    Examine,
    ExamineHere,
    Examining,
    Exited,
    Failed,
    Opened,
    OpenFile,
    RenameFile,
    Request,
    Response,
    SettleContainer,
    StartApptainer,
    StartBubblewrap,
    StartContainer,
    Started,
    StatFile,
    open_envelope,
    read_request,
    seal,
)
from ors_containers.launcher.privileges import open_groups, place
from ors_containers.launcher.records import InvalidRecord
from ors_containers.launcher.termination import end_command, end_processes
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.proc_masks import prepare as prepare_masks
from ors_containers.linux.confinement.seccomp import seccomp_filter
from ors_containers.linux.fd_passing import receive
from ors_containers.linux.programs.enter_program import enter_program
from ors_containers.linux.programs.machine_code_children import prepare as prepare_children
from ors_containers.linux.programs.monitor_program import monitor_program
from ors_containers.linux.programs.pause_program import pause_program

__all__ = ["main"]

#: Requests that start a sandbox: their child becomes bwrap, Apptainer or a monitor, and the response is sent at once.
_STARTS = frozenset((StartBubblewrap.__name__, StartApptainer.__name__, StartContainer.__name__))
_EXAMINATIONS = frozenset((Examine.__name__, ExamineHere.__name__))
#: Requests that are handled outside of the domain that keeps the sandboxes' signals.
_OUTSIDE = frozenset((Examine.__name__, EndCommand.__name__, EndProcesses.__name__))


#: Descriptors beside a message: five, and a file of each hierarchy of control groups.
_MOST_DESCRIPTORS = 24


class Launcher:
    """The loop. ``control`` is the socket shared with the server and with every child."""

    def __init__(
        self,
        control: socket.socket,
        machine: str,
        *,
        requests: socket.socket | None = None,
        is_warm: bool = False,
    ) -> None:
        """``is_warm``: programs of examinations are not executed, but ``serve`` raises ``Here`` in their processes."""
        self._control = control
        self._warm = None if is_warm else WarmPythons(control, machine)
        self._visits = visits() if is_warm else None
        #: The socket of requests, and the one on which those of ``_OUTSIDE`` are forwarded.
        self._requests = requests or control
        self._outside: socket.socket | None = None
        #: Children that have to respond: process id → request id.
        self._responding: dict[int, int] = {}
        #: Those of examinations: they may have responded, and go on (``examination``).
        self._examining: dict[int, int] = {}
        #: The request whose child this process is.
        self._identity = 0
        self._filter = seccomp_filter(machine)
        self._container_filter = seccomp_filter(machine, container=True)
        self._process_1 = pause_program(machine)
        self._monitor = monitor_program(machine)
        self._enter_program = enter_program(machine)
        prepare_masks()
        prepare_children()
        self._operations: dict[type, Callable[[Any, list[int]], Response]] = {
            StartBubblewrap: self._start,
            StartApptainer: self._start,
            StartContainer: self._start,
            SettleContainer: settle_container,
            Enter: self._enter,
            Examine: self._examine,
            ExamineHere: self._examine_here,
            OpenFile: open_file,
            StatFile: stat_file,
            RenameFile: rename_file,
            EndCommand: end_command,
            EndProcesses: end_processes,
        }

    def serve(self) -> None:
        """Serve requests until the server has gone. Raises ``Here``, as the class says."""
        signals, signalled = os.pipe()
        os.set_blocking(signalled, False)
        os.set_blocking(signals, False)
        signal.signal(signal.SIGCHLD, _ignore)  # it becomes readable at the pipe
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(signals, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == signals:
                    os.read(signals, 4096)
                    self._reap()
                    continue
                data, descriptors = receive(self._requests, MESSAGE_SIZE, _MOST_DESCRIPTORS)
                if not data:
                    return
                envelope = open_envelope(data)
                if self._outside is not None and envelope.kind in _OUTSIDE:
                    self._forward(self._outside, data, descriptors, envelope.id)
                else:
                    self._handle(envelope, descriptors)

    def divide(self) -> None:
        """Keep the processes of sandboxes from signalling those of examinations, where the kernel can do that.

        This process and its children from now on are in a domain that no signal leaves. A copy of this process stays
        outside: its children enter sandboxes to start examinations and to end processes.
        """
        if os.geteuid() != 0:
            return  # an ordinary user's process would need no_new_privs, and could start no setuid program
        requests, forwarding = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        copy = os.fork()
        if copy == 0:
            forwarding.close()
            self._requests = requests
            system.become_subreaper()
            return
        requests.close()
        try:
            system.scope_signals()
        except OSError:
            forwarding.close()  # which ends the copy
        else:
            self._outside = forwarding

    def _forward(self, outside: socket.socket, data: bytes, descriptors: list[int], request: int) -> None:
        try:
            socket.send_fds(outside, [data], descriptors)
        except OSError as error:
            self._send(request, _failure(error, "cannot be forwarded: "))
        for descriptor in descriptors:
            os.close(descriptor)

    def _handle(self, envelope: Envelope, descriptors: list[int]) -> None:
        child = -1
        request: Request | None = None
        try:
            request = read_request(envelope)  # before the fork: a child would copy every page that this touches
            if self._visits is not None and isinstance(request, ExamineHere) and request.is_frozen:
                if len(descriptors) != 2:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                child = self._visits.fork(descriptors[1])
            elif not self._is_taken(envelope.id, request, descriptors):
                child = os.fork()
        except InvalidRecord as error:
            self._send(envelope.id, Failed(errno.EPROTO, str(error)))
        except OSError as error:
            self._send(envelope.id, _failure(error, "cannot fork: "))
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            assert request is not None
            self._work(envelope.id, request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if child == -1:
            return
        if envelope.kind in _STARTS:
            self._send(envelope.id, Started(child))
        elif envelope.kind in _EXAMINATIONS:
            self._examining[child] = envelope.id
        else:
            self._responding[child] = envelope.id

    def _is_taken(self, identity: int, request: Request, descriptors: list[int]) -> bool:
        """Hand an examination to the warm Python, if there is one that can take it."""
        return (
            self._warm is not None and isinstance(request, Examine) and self._warm.take(identity, request, descriptors)
        )

    def _work(self, identity: int, request: Request, descriptors: list[int]) -> NoReturn:
        """Be the child of a request: do what it says and respond."""
        code = 0
        self._identity = identity
        try:
            response = self._operations[type(request)](request, descriptors)
        except OSError as error:
            response = _failure(error)
        except Here:
            raise
        except BaseException as error:  # noqa: BLE001 - the server needs a response to every request
            response = Failed(errno.EIO, f"{type(error).__name__}: {error}")
        try:
            self._send(identity, response, (response.descriptor,) if isinstance(response, Opened) else ())
        except OSError:
            code = 1
        os._exit(code)

    def _send(self, request: int, response: Response, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._control, [seal(request, response)], descriptors)

    def _reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            self._note_end(process, status)

    def wait(self) -> None:
        """Wait until every request has been responded to."""
        while self._responding or self._examining:
            self._note_end(*os.waitpid(-1, 0))

    def _note_end(self, process: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        for unanswered in self._warm.ended(process, code) if self._warm is not None else ():
            self._send(unanswered, Failed(errno.EIO, "the process that examines has ended"))
        if process in self._examining:
            self._send(self._examining.pop(process), Exited(process, code))
            return
        request = self._responding.pop(process, None)
        if request is None:
            self._send(0, Exited(process, code))
        elif code != 0:
            self._send(request, Failed(errno.EIO, f"the launcher's child ended with {code}"))

    def _start(self, message: StartBubblewrap | StartApptainer | StartContainer, descriptors: list[int]) -> NoReturn:
        """Become bwrap, Apptainer or a container's monitor. Errors are written to the second descriptor."""
        ready, errors, *others = descriptors
        place([(os.open(os.devnull, os.O_RDONLY), 0), (ready, 1), (errors, 2)])
        try:
            if isinstance(message, StartApptainer):
                start_apptainer(message, self._process_1)
            groups = open_groups(message.groups)  # before rights are dropped
            if isinstance(message, StartContainer):
                start_container(message, others, (self._process_1, self._monitor), self._container_filter, groups)
            start_bubblewrap(message, self._process_1, self._filter, groups)
        except (OSError, ValueError) as error:
            os.write(2, str(error).encode())
        os._exit(70)

    def _enter(self, message: Enter, descriptors: list[int]) -> Response:
        seccomp = self._container_filter if message.program.user.capabilities else self._filter
        return enter_sandbox(message, descriptors, seccomp, self._control, self._enter_program)

    def _examine_here(self, message: ExamineHere, descriptors: list[int]) -> Response:
        with socket.socket(fileno=descriptors[0]) as connection:
            data, opened = receive(connection, MESSAGE_SIZE, _MOST_DESCRIPTORS)
        request = read_request(open_envelope(data))
        assert isinstance(request, Examine)
        if message.is_frozen and self._visits is not None:
            examine_inside(request, opened, self._filter, self._send_own_id)
        return self._examine(request, opened, is_here=True)

    def _send_own_id(self) -> None:
        assert self._visits is not None
        self._send(self._identity, Examining(self._visits.own_id(), is_program=True))

    def _examine(self, message: Examine, descriptors: list[int], *, is_here: bool = False) -> Response:
        return start_examination(
            message,
            descriptors,
            self._filter,
            self._control,
            self._enter_program,
            lambda response: self._send(self._identity, response),
            is_here=is_here,
        )


def _failure(error: OSError, before: str = "") -> Failed:
    return Failed(error.errno or errno.EIO, f"{before}{error.strerror or error}")


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def main(descriptor: int, machine: str) -> None:
    """Serve the socket at ``descriptor`` until its other end is closed."""
    os.umask(0o022)  # users of a sandbox have to reach what is made for it, whatever the server's umask is
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals for the server: this process ends when the server does
    system.become_subreaper()
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    launcher = Launcher(control, machine)
    # A child that has joined a sandbox's mounts must not import a module from there.
    sys.meta_path.clear()
    sys.path.clear()
    gc.disable()
    gc.freeze()
    launcher.divide()
    with contextlib.suppress(ConnectionError):  # a server that was killed has closed its end in the middle
        launcher.serve()
