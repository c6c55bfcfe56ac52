"""Control groups: the hierarchies where this process may make them, and one group for each sandbox.

Version 1, version 2 and both at once are found by reading where each controller is mounted, and by making a group and
setting a limit: a failure is remembered with its reason, and a controller counts only if the trial succeeded. Groups
are made below this process's own, so the limits of the server are limits of its sandboxes too.

Invariant: a group's directories are named in a lease before they are made (``leases``), so none is ever lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ors_containers.limits import Limits
from ors_containers.linux import kernel_files
from ors_containers.linux.limits.kernel_limits import LASTING_MEMORY
from ors_containers.linux.limits.proc_stat import process_status
from ors_containers.linux.limits.processor_time import GroupAccount, Machine, Quota

__all__ = ["CONTROLLERS", "LEAF", "ControlGroups", "Controller", "charged_memory", "make_room", "remove_group"]

Controller = Literal["memory", "pids", "cpu"]
CONTROLLERS: tuple[Controller, ...] = ("memory", "pids", "cpu")
#: The controller of version 1 that counts processor time, mostly mounted with ``cpu``; version 2 counts without one.
_ACCOUNTING = "cpuacct"

#: Processes of a sandbox that are not the agent's: bubblewrap outside and process 1 inside.
_OUR_PROCESSES = 2
_PERIOD = 100_000  # microseconds
#: Group into which processes move where they are in the way of the sandboxes' groups.
LEAF = "ors-server"
#: Bytes that a file costs the kernel beside its content.
_INODE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    version: Literal[1, 2]
    own: Path  # this process's own group
    reason: str = ""  # why no group can be made here; empty where it can be made


def charged_memory(limits: Limits) -> int:
    """Return the bytes that the memory controller allows a sandbox.

    The controller also charges what outlives processes: files, and shared memory (``LASTING_MEMORY``). They get room of
    their own, so that a full disk does not get a process killed.
    """
    return limits.memory + limits.disk + limits.inodes * _INODE_BYTES + LASTING_MEMORY


class ControlGroups:
    """The controllers found at start, and the parent of this server's groups in each.

    ``owner`` names the parent groups. ``system`` is the root of the file system; tests give one of their own.
    """

    def __init__(self, owner: str, system: Path = Path("/")) -> None:
        self._parent_name = f"ors-{owner}"
        self._hierarchies = _find(system)
        for name, hierarchy in self._hierarchies.items():
            if not hierarchy.reason:
                self._hierarchies[name] = _Hierarchy(hierarchy.version, hierarchy.own, self._prepare(name, hierarchy))
        #: The processors that all sandboxes share.
        self.machine = Machine(_quotas(self._hierarchies), system)

    @property
    def enforced(self) -> Mapping[Controller, str]:
        """The mechanism of each limit that is enforced: ``cgroup v1`` or ``cgroup v2``."""
        return {
            name: f"cgroup v{hierarchy.version}"
            for name in CONTROLLERS
            if (hierarchy := self._hierarchies.get(name)) is not None and not hierarchy.reason
        }

    @property
    def missing(self) -> Mapping[Controller, str]:
        """The reason for each limit that is not enforced."""
        reasons: dict[Controller, str] = {}
        for name in CONTROLLERS:
            hierarchy = self._hierarchies.get(name)
            if hierarchy is None:
                reasons[name] = "Its controller is not mounted"
            elif hierarchy.reason:
                reasons[name] = hierarchy.reason
        return reasons

    @cached_property
    def _usable(self) -> Mapping[str, tuple[int, str]]:
        """The version, and the path of the directory that holds this server's groups, by controller."""
        return {
            name: (hierarchy.version, str(hierarchy.own / self._parent_name))
            for name, hierarchy in self._hierarchies.items()
            if not hierarchy.reason
        }

    @cached_property
    def parents(self) -> Sequence[str]:
        """The directories that hold this server's groups."""
        return [parent for _, parent in dict.fromkeys(self._usable.values())]

    def directories(self, sandbox: str) -> list[str]:
        """Return the directories of a sandbox's group, whether they exist or not."""
        return [f"{parent}/{sandbox}" for parent in self.parents]

    def create(self, sandbox: str, limits: Limits) -> list[str]:
        """Make a sandbox's group and return the files that a process of one thread joins it by. Raises ``OSError``."""
        # Without Path, which would take half of the time.
        for parent in self.parents:
            os.mkdir(f"{parent}/{sandbox}")
        for name, (version, parent) in self._usable.items():
            directory = f"{parent}/{sandbox}"
            for file, value in _settings(name, version, limits, directory):
                kernel_files.write(f"{directory}/{file}", value)
        # `cgroup.procs` waits for a grace period of the kernel, some 10 ms; `tasks` moves a thread and does not wait.
        names = {parent: "tasks" if version == 1 else "cgroup.procs" for version, parent in self._usable.values()}
        return [f"{parent}/{sandbox}/{name}" for parent, name in names.items()]

    def members(self, sandbox: str) -> str | None:
        """Return the file with the processes of a sandbox's group; None where there is no group."""
        return f"{self.parents[0]}/{sandbox}/cgroup.procs" if self.parents else None

    def account(self, sandbox: str) -> GroupAccount | None:
        """Return the counters of a sandbox's processor time; None unless groups count its use and limit it.

        Without a group, processes choose by their priority how long they wait, and the use of those that ended is lost.
        """
        cpu = self._hierarchies.get("cpu")
        if cpu is None or cpu.reason:
            return None
        counted = self._hierarchies.get(_ACCOUNTING) if cpu.version == 1 else cpu
        if counted is None or counted.reason:
            return None
        usage, limit = (hierarchy.own / self._parent_name / sandbox for hierarchy in (counted, cpu))
        return GroupAccount(cpu.version, usage, limit)

    def close(self) -> None:
        """Remove the parents, except those that still hold a group; a sweep removes them later."""
        for parent in self.parents:
            _rmdir(parent)

    def _prepare(self, name: str, hierarchy: _Hierarchy) -> str:
        """Make the parent group and try a limit in it; return the reason of a failure, or an empty string."""
        parent = hierarchy.own / self._parent_name
        try:
            if hierarchy.version == 2:
                _delegate(hierarchy.own, name)
            parent.mkdir(exist_ok=True)
            if hierarchy.version == 2:
                (parent / "cgroup.subtree_control").write_text(f"+{name}")
            trial = parent / "trial"
            trial.mkdir()
            try:
                for file, value in _settings(name, hierarchy.version, Limits(), str(trial)):
                    kernel_files.write(f"{trial}/{file}", value)
            finally:
                trial.rmdir()
        except OSError as error:
            _rmdir(str(parent))
            return f"{hierarchy.own} cannot be used: {error.strerror}"
        return ""


def make_room(system: Path = Path("/")) -> None:
    """Move this process and its descendants out of the way of groups that processes it starts later will make.

    Each of several servers in one group would find the others there, and leave them where they are. What cannot be done
    is reported by the servers.
    """
    for name, hierarchy in _find(system).items():
        if hierarchy.version == 2 and not hierarchy.reason:
            with contextlib.suppress(OSError):
                _delegate(hierarchy.own, name)


def _find(system: Path) -> dict[str, _Hierarchy]:
    try:
        memberships = (system / "proc/self/cgroup").read_text().splitlines()
        mounts = (system / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return {}
    own: dict[str, str] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    hierarchies: dict[str, _Hierarchy] = {}
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup":
            for name in (*CONTROLLERS, _ACCOUNTING):
                if name in options.split(",") and name in own:
                    hierarchies[name] = _Hierarchy(1, _below(system, point, root, own[name]))
        elif kind == "cgroup2" and "" in own:
            directory = _below(system, point, root, own[""])
            if directory.name == LEAF and set(CONTROLLERS) & set(_words(directory.parent / "cgroup.subtree_control")):
                directory = directory.parent  # a server has moved this process's parent here, or this process
            available = _words(directory / "cgroup.controllers")
            for name in CONTROLLERS:
                if name in available and name not in hierarchies:
                    hierarchies[name] = _Hierarchy(2, directory)
                elif name not in hierarchies and not any(name in controllers for controllers in own):
                    hierarchies[name] = _Hierarchy(2, directory, f"{directory} is not given the {name} controller")
    return hierarchies


def _quotas(hierarchies: Mapping[str, _Hierarchy]) -> list[Quota]:
    """Return the processor limits of this process's group and of those above it, as far as they can be seen."""
    cpu, usage = hierarchies.get("cpu"), hierarchies.get(_ACCOUNTING)
    if cpu is None or (cpu.version == 1 and usage is None):
        return []
    found: list[Quota] = []
    limited, counted = cpu.own, cpu.own if cpu.version == 2 or usage is None else usage.own
    while limited != limited.parent:
        if cpu.version == 2:
            quota, period = [*_words(limited / "cpu.max"), "", ""][:2]
        else:
            quota, period = (" ".join(_words(limited / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if not quota:
            break
        # A group that is counted elsewhere is the same one where its name is.
        if quota.isdigit() and (limited == counted or limited.name == counted.name):
            found.append(Quota(GroupAccount(cpu.version, counted, limited), int(quota) / int(period)))
        limited, counted = limited.parent, counted.parent
    return found


def _below(system: Path, point: str, root: str, path: str) -> Path:
    """Return the directory of group ``path``, seen through a mount of ``root`` at ``point``."""
    mounted = system / point.lstrip("/")
    inside = path if root == "/" else path.removeprefix(root)
    found = mounted / inside.lstrip("/")
    return found if found.is_dir() else mounted


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _delegate(own: Path, name: str) -> None:
    """Let groups below ``own`` use a version 2 controller.

    A group with processes cannot have such groups below it (except for the root). So its processes move into a group
    below; only if all of them are this process or its descendants, as in a service or a container.
    """
    control = own / "cgroup.subtree_control"
    if name in _words(control):
        return
    try:
        control.write_text(f"+{name}")
        return
    except OSError as error:
        members = [int(word) for word in _words(own / "cgroup.procs")]
        if not members or not all(_is_ours(member) for member in members):
            raise OSError(error.errno, f"{error.strerror} (other processes are in this group)") from error
    leaf = own / LEAF
    leaf.mkdir(exist_ok=True)
    for member in members:
        (leaf / "cgroup.procs").write_text(str(member))
    control.write_text(f"+{name}")


def _is_ours(process: int) -> bool:
    """Return whether ``process`` is this one or descends from it."""
    while process > 1:
        if process == os.getpid():
            return True
        try:
            process = process_status(process).parent
        except OSError:
            return True  # it has ended
    return os.getpid() == 1 and process == 1


def _settings(name: str, version: int, limits: Limits, directory: str) -> list[tuple[str, str]]:
    """Return the files of a group and their content, in the order of writing."""
    processes = str(limits.pids + _OUR_PROCESSES)
    memory = str(charged_memory(limits))
    quota = str(max(1000, round(limits.cpu * _PERIOD)))
    if name == _ACCOUNTING:
        return []
    if name == "pids":
        return [("pids.max", processes)]
    if name == "cpu":
        if version == 2:
            return [("cpu.max", f"{quota} {_PERIOD}")]
        return [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", quota)]
    if version == 2:
        swap = [("memory.swap.max", "0")] if _exists(f"{directory}/memory.swap.max") else []
        return [("memory.max", memory), *swap]
    swap = "memory.memsw.limit_in_bytes"
    return [("memory.limit_in_bytes", memory), *([(swap, memory)] if _exists(f"{directory}/{swap}") else [])]


def _exists(file: str) -> bool:
    return os.access(file, os.F_OK)


def _rmdir(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


async def remove_group(directories: Sequence[str], *, patience: float = 5.0) -> bool:
    """End the processes of a group and remove it; return whether that took at most ``patience`` seconds.

    After the last process of a group has ended, the kernel keeps the group busy for a moment.
    """
    remaining = list(directories)
    pause = 0.001
    while True:
        remaining = [directory for directory in remaining if not _rmdir(directory)]
        if not remaining:
            return True
        if patience <= 0:
            return False
        if pause > 0.01:  # then processes are left in it, against expectation
            for directory in remaining:
                for process in _words(Path(directory, "cgroup.procs")):
                    try:
                        os.kill(int(process), signal.SIGKILL)
                    except (ProcessLookupError, PermissionError):
                        continue
        await asyncio.sleep(pause)
        patience -= pause
        pause = min(pause * 2, 0.1)
