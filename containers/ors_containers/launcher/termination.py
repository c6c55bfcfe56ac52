"""End processes of a sandbox: all of them, those of a command, or the family of a container's command.

A child of the launcher does it, which joins the sandbox's pid namespace through a pidfd of its process 1: a process id
is one of that namespace, and no process of the host can be signalled. Before it joins, the child forbids the sandbox's
processes to inspect it, and after that it imports no module.

To end some processes and not others, they are stopped, listed and killed, and none may fork in between. The kernel
looks for a signal when a fork begins and after that for SIGKILL only (``copy_process`` in kernel/fork.c): a process
that is sent SIGSTOP meanwhile has a child first, many milliseconds later where it has much memory or the machine is
busy. So a list is complete only if each process was at rest before it was made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from ors_containers.launcher.messages import Done, EndCommand, EndProcesses
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.hidden_processes import show_processes
from ors_containers.linux.limits.proc_stat import ProcessStatus, process_status
from ors_containers.linux.programs.machine_code_children import signal_all_by_child

__all__ = [
    "ENDING_PATIENCE",
    "end_command",
    "end_processes",
    "join_processes",
    "processes",
    "signal_all",
    "until_gone",
]

#: Seconds in which processes that were killed must have ended.
ENDING_PATIENCE = 20.0
#: Seconds after which it suffices that they are exiting.
_GONE_PATIENCE = 2.0
#: Seconds in which processes that were sent SIGSTOP must be at rest; a long system call can take more.
_REST_PATIENCE = 2.0
#: Lists with new processes after which all processes are stopped instead of a command's alone.
_MOST_LISTS = 20
#: Lists in a row that have to agree: a single list may lack a process that was forked meanwhile, where process ids have
#: begun at 1 again.
_AGREEING = 3
#: Seconds between two looks at processes that are to rest or to end.
_PAUSE = 0.0005


def signal_all(number: int) -> None:
    """Send a signal to every process of the sandbox but process 1, in one system call, which no fork can outrun.

    This process has joined the sandbox's pid namespace for its children, but has no id in it: no process of the sandbox
    can signal it. Its children have one, and an agent with their user can stop or kill them; so each child makes the
    one system call at once, and another is forked until a child has succeeded. In between, this process signals the
    sandbox's processes one by one: forks can outrun that, but processes that only stop or kill others then end.
    """
    deadline = time.monotonic() + ENDING_PATIENCE
    while True:
        child = signal_all_by_child(number)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        elif os.waitstatus_to_exitcode(status) == 0:
            return
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, "the sandbox's processes could not be signalled")
        _signal_each(number)


def _signal_each(number: int) -> None:
    for each in set(_process_ids()) - {1}:
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            process = os.open(f"/proc/{each}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Through its folder: its process id is the sandbox's, and another process's here.
                signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)


def join_processes(process_1: int) -> None:
    """Join every namespace of the sandbox. Raises ``OSError`` if children could then signal the host's processes."""
    namespaces = os.open("/proc/self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    system.refuse_inspection()
    system.setns(process_1, system.ALL_NAMESPACES)
    own, joined = (os.stat(name, dir_fd=namespaces).st_ino for name in ("pid", "pid_for_children"))
    os.close(namespaces)
    if own == joined:
        raise OSError(errno.EPERM, "the sandbox's process ids were not joined")


def until_gone(deadline: float, kept: Collection[int] = (1,)) -> None:
    """Wait until no process but process 1, or those of ``kept``, is left, exiting processes and zombies included.

    An agent can make an exit take minutes: the kernel looks for each of 40,000 locks of one file among all of them. So
    after ``_GONE_PATIENCE`` it suffices that every process is exiting and executes its program no longer. Raises
    ``OSError`` (``ETIMEDOUT``) if a process still executes its program at the ``deadline``.
    """
    pause = _PAUSE
    enough = time.monotonic() + _GONE_PATIENCE
    while left := set(_process_ids()).difference(kept):
        now = time.monotonic()
        if now > enough and all(map(_is_exiting, left)):
            return
        if now > deadline:
            raise OSError(errno.ETIMEDOUT, "the sandbox's processes do not end")
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _is_exiting(process: int) -> bool:
    """Return whether each thread of a process is exiting or has exited."""
    return all(status.exiting for status in _threads(process))


def _threads(process: int) -> Iterator[ProcessStatus]:
    """Return the status of each thread of a process; none of one that has ended."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield process_status(f"{process}/task/{thread}")


def end_command(message: EndCommand, descriptors: list[int]) -> Done:
    """End the processes of one command, all at once, as ``_signal_command`` says.

    All processes for ``everything``, and for ``examination``, whose processes are not seen until they are shown.
    """
    join_processes(descriptors[0])
    if message.how in ("everything", "examination"):
        signal_all(signal.SIGKILL)
        if message.how == "examination":
            with contextlib.suppress(OSError):  # of an ordinary user's sandbox with one id, none are hidden
                show_processes()
        until_gone(time.monotonic() + ENDING_PATIENCE)
        return Done()
    # While all are stopped, in one step, none can fork, and none can harm the child that reads their list.
    signal_all(signal.SIGSTOP)
    child = os.fork()
    if child == 0:
        try:
            _signal_command(message.shell, message.keep_pids, message.how)
        finally:
            os._exit(0)
    # A process may have begun to signal, and stop this child, before it was stopped itself.
    deadline = time.monotonic() + ENDING_PATIENCE
    while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        os.kill(child, signal.SIGCONT if time.monotonic() < deadline else signal.SIGKILL)
    signal_all(signal.SIGCONT)
    return Done()


def end_processes(message: EndProcesses, descriptors: list[int]) -> Done:
    """Kill a process of a container, its descendants and the processes of its session."""
    join_processes(descriptors[0])
    if not _in_child(_kill_family, message.process):
        # While all are stopped, in one step, none can fork.
        signal_all(signal.SIGSTOP)
        try:
            _in_child(_kill_family, message.process)
        finally:
            signal_all(signal.SIGCONT)
    return Done()


def _in_child(work: Callable[[int], bool], argument: int) -> bool:
    """Return what ``work`` returns in a child, which is in the joined pid namespace; again if the child is killed."""
    deadline = time.monotonic() + ENDING_PATIENCE
    while True:
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = 0 if work(argument) else 1
            finally:
                os._exit(code)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        elif (code := os.waitstatus_to_exitcode(status)) in (0, 1):
            return code == 0
        # A process of the container has stopped or killed the child.
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, "the command's processes could not be killed")


def _kill_family(first: int) -> bool:
    """Stop the family of ``first`` until no member is new and all are at rest, so that none can fork, then kill it.

    Returns False for a family that forks and ends faster than it is listed, or that does not come to rest.
    """
    # With the times of their starts: ids of processes that have ended are given again to new ones.
    known: set[tuple[int, int]] = set()
    members: set[tuple[int, int]] = set()
    gone: set[int] = set()
    settled = lists = 0
    deadline = time.monotonic() + _REST_PATIENCE
    while settled < _AGREEING and lists < _MOST_LISTS and time.monotonic() < deadline:
        listed = _process_ids()
        found = processes(listed)
        family = {process for process, status in found.items() if status.session == first or process == first}
        while more := {process for process, status in found.items() if status.parent in family} - family:
            family |= more
        members = {(process, found[process].started) for process in family - {1, os.getpid()}}
        # A process that has ended since the list was made may have a child that is not in the list.
        gone, before = set(listed) - set(found), gone
        restless = {member for member in members if not _is_resting(member[0])}
        if members <= known and gone <= before:
            settled = 0 if restless else settled + 1
            time.sleep(_PAUSE if restless else 0)
        else:
            settled = 0
            lists += 1
        # Those of an earlier list too: a member that was not stopped yet may have continued them.
        for process, _ in restless | (members - known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        known |= members
    for process, _ in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return settled == _AGREEING


def _is_resting(process: int) -> bool:
    """Return whether each thread of a process is stopped, has ended or waits in the kernel: none can fork.

    What waits there may be the parent of a ``vfork``, which waits for its child.
    """
    return all(status.exiting or status.state in "TtDZX" for status in _threads(process))


def _signal_command(shell: int, keep_pids: Mapping[str, int], how: str) -> None:
    """Signal all but process 1, the shell, and ``keep_pids`` (process id → start time) with their descendants.

    ``interrupt`` sends them and the shell SIGINT: a shell drops the rest of its list when its child ends by SIGINT, and
    goes on with it when the child is killed. ``kill`` kills them and interrupts the shell, ``sweep`` leaves the shell
    alone, ``all`` kills it too. Every process is stopped meanwhile.
    """
    found = _stopped_processes()
    for process in found:
        if process in (1, os.getpid(), shell):
            continue
        above = process
        while above in found and above not in (1, shell):
            if keep_pids.get(str(above)) == found[above].started:
                break
            above = found[above].parent
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
                if how != "interrupt":
                    os.kill(process, signal.SIGKILL)
    if shell in found and how != "sweep":
        os.kill(shell, signal.SIGKILL if how == "all" else signal.SIGINT)


def _stopped_processes() -> dict[int, ProcessStatus]:
    """Return the processes, which have all been sent SIGSTOP, from a list that was made when all were at rest."""
    deadline = time.monotonic() + _REST_PATIENCE
    while time.monotonic() < deadline and not all(map(_is_resting, set(processes()) - {1, os.getpid()})):
        time.sleep(_PAUSE)
    return processes()


def processes(listed: Iterable[int] | None = None) -> dict[int, ProcessStatus]:
    """Return the status of each process in this pid namespace that has not ended, by process id."""
    found: dict[int, ProcessStatus] = {}
    for process in _process_ids() if listed is None else listed:
        try:
            status = process_status(process)
        except OSError:
            continue
        if not status.ended:
            found[process] = status
    return found


def _process_ids() -> list[int]:
    """Return the ids of the processes of the mounted ``/proc``, those that have ended among them."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
