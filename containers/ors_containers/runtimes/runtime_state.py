"""State that the sandboxes of one runtime share: its launcher, its control groups and its leases."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ors_containers.container import Container
from ors_containers.launcher.client import LauncherClient
from ors_containers.linux.host_support import IDS, IdMapping
from ors_containers.linux.leases import Owner
from ors_containers.linux.limits.cgroups import ControlGroups
from ors_containers.linux.limits.processor_time import WaitMeter
from ors_containers.runtime import HardLinks
from ors_containers.runtimes.containers.container_disks import ContainerDisks
from ors_containers.runtimes.shells.time_limit import TimeLimit
from ors_containers.sandbox import Sandbox

__all__ = ["RuntimeState", "examination_of"]

#: Host ids given out to sandboxes as root: above those of users, of systemd's dynamic users and of its containers.
_FIRST_ID, _LAST_ID = 0x8000_0000, 0xFFFE_0000


def examination_of(sandbox: str) -> str:
    """Return the name of the control group of a sandbox's examination."""
    return f"{sandbox}-examination"


def _random_slot() -> int:
    return _FIRST_ID + secrets.randbelow((_LAST_ID - _FIRST_ID) // IDS) * IDS


@dataclass(slots=True)
class RuntimeState:
    """The state of one started runtime."""

    #: The path of the program that makes containers.
    program: str
    #: The directory of leases and of ``stage``, where launchers mount.
    directory: Path
    mapping: IdMapping
    owner: Owner
    groups: ControlGroups
    client: LauncherClient
    #: Bounds how many sandboxes start at a time.
    starting: asyncio.Semaphore
    #: Called with the number of files that a sandbox may open, when it starts, and with its negative when it has ended.
    hold_files: Callable[[int], None]
    sandboxes: dict[str, Sandbox] = field(default_factory=dict[str, Sandbox])
    containers: dict[str, Container] = field(default_factory=dict[str, Container])
    disks: ContainerDisks = field(default_factory=ContainerDisks)
    #: The folder of the host for the disks of containers; empty where their files are in memory.
    disk_folder: str = ""
    #: As ``Description.hard_links``.
    hard_links: HardLinks = "whole"
    #: False once the kernel has refused to bound System V IPC.
    ipc_bounded: bool = True
    #: Places of sandboxes whose inodes are the machine's, as far as sandboxes have reported any.
    common: set[str] = field(default_factory=set[str])
    #: Clean-up of launchers that ended by themselves.
    retired: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _slot: int = field(default_factory=_random_slot)

    def living_client(self) -> LauncherClient:
        """Return the launcher, or a new one if it has ended, and its sandboxes with it."""
        if self.client.ended:
            self.retired.add(asyncio.create_task(self.client.close()))
            self.client = LauncherClient()
            self.client.start()
            self.owner.describe([self.client.process], self.groups.parents)
        return self.client

    def group_directories(self, sandbox: str) -> list[str]:
        """Return every control group that a sandbox may have: its own, and that of its examination."""
        return [*self.groups.directories(sandbox), *self.groups.directories(examination_of(sandbox))]

    def time_limit(
        self, what: str, seconds: float, group: str, beside: str | None = None, *, starting: bool = False
    ) -> TimeLimit:
        """Return a limit that begins now, for work in a sandbox's control group ``group``.

        ``beside`` is another group of the same sandbox. With ``starting`` the launcher is still on its way into the
        group.
        """

        def new_meter() -> WaitMeter | None:
            account = self.groups.account(group)
            other = None if beside is None else self.groups.account(beside)
            if account is None:
                return None
            return WaitMeter(self.groups.machine, account, [other] if other else [], starting=starting)

        return TimeLimit(what, seconds, new_meter)

    def next_slot(self) -> int:
        """Return the first host id of the next sandbox's range.

        Two servers may choose the same range: then their sandboxes share what the kernel counts by user, no more.
        """
        self._slot = self._slot + IDS if self._slot + IDS < _LAST_ID else _FIRST_ID
        return self._slot
