"""The bubblewrap runtime: namespaces, a copy-on-write root in memory, and a process that only waits.

A sandbox is started by the launcher: it makes a user namespace whose ids are nobody's on the host, mounts the image
under an overlay whose upper layer is a tmpfs of the disk limit's size (``preparation``), and becomes ``bwrap``, which
makes the other namespaces and runs ``holder`` as process 1.

How ids are mapped depends on who the server is: as root, a range high above every user of the host, and images keep
their owners (idmapped mounts); as an ordinary user with ranges in /etc/subuid, that range; else the one user alone.

Invariant: ``start`` tries a sandbox, so a runtime that has started isolates; what it enforces is what was tried.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from ors_containers.errors import RuntimeUnavailable, StartFailed
from ors_containers.image import Image, host_image
from ors_containers.launcher.client import LauncherClient
from ors_containers.limits import Enforcement, Limits
from ors_containers.linux.cgroups import CONTROLLERS, ControlGroups, remove_group
from ors_containers.linux.host_support import (
    bubblewrap_version,
    find_bubblewrap,
    find_mapping,
    likely_remedy,
    linux_version,
)
from ors_containers.linux.leases import Owner, make_state, state_directory, sweep
from ors_containers.runtime import Description, Runtime
from ors_containers.runtimes.namespace_sandbox import BubblewrapSandbox, Shared

__all__ = ["BubblewrapRuntime"]

_SWEEP_EVERY = 60.0
_ACCOUNT_REMEDY = "For accounts of their own, start the server as root with CAP_SYS_PTRACE."
_DEVICES_REMEDY = "For devices of their own, start the server as root with CAP_MKNOD."
_TREES_REMEDY = "As an ordinary user, it does where nothing is mounted below."
_GROUP_REMEDY = "Start the server as root, or under `systemd-run --user --scope -p Delegate=yes`"


class BubblewrapRuntime(Runtime):
    """Sandboxes through bubblewrap: no daemon, as root and as an ordinary user.

    ``state`` is where leases lie, by default one directory a user. ``starts_at_once`` bounds how many sandboxes are
    being started at a time; the others wait their turn, which is faster for all of them.
    """

    name: ClassVar[str] = "bubblewrap"

    def __init__(self, state: Path | None = None, *, starts_at_once: int | None = None) -> None:
        self._given_state = state
        self._starts_at_once = starts_at_once or 2 * (os.cpu_count() or 1)
        self._shared: Shared | None = None
        self._janitor: asyncio.Task[None] | None = None
        self._version = ""

    async def start(self) -> None:
        """See ``Runtime``."""
        program, self._version = await asyncio.to_thread(self._find_program)
        state = self._given_state or state_directory()
        make_state(state)
        await sweep(state)
        owner = Owner(state)
        groups = ControlGroups(owner.id)
        # Before the launcher exists: groups are there already.
        owner.describe([], groups.parents)
        shared = Shared(
            program=program,
            state=state,
            mapping=find_mapping(),
            owner=owner,
            groups=groups,
            client=LauncherClient(),
            starting=asyncio.Semaphore(self._starts_at_once),
        )
        self._shared = shared
        try:
            async with self.sandbox(self.host_image()):
                pass
        except StartFailed as error:
            await self.close()
            raise RuntimeUnavailable(f"{self.name} cannot isolate here: {error}", likely_remedy(str(error))) from error
        except BaseException:  # a cancellation, too: who did not get a started runtime does not close it
            await self.close()
            raise
        self._janitor = asyncio.create_task(self._sweep_regularly(shared))

    def _find_program(self) -> tuple[str, str]:
        """The program that makes the containers, and its version. Raises ``RuntimeUnavailable``."""
        program = find_bubblewrap()
        return program, bubblewrap_version(program)

    def describe(self) -> Description:
        """See ``Runtime``."""
        groups = self._require().groups
        enforced, missing = groups.enforced, groups.missing
        weaker = {"memory": "rlimit of each process", "pids": "rlimit of its user", "cpu": "nothing"}
        enforcements = [
            Enforcement(name, enforced[name], True)
            if name in enforced
            else Enforcement(name, weaker[name], False, f"{missing[name]}. {_GROUP_REMEDY}")
            for name in CONTROLLERS
        ]
        enforcements += [
            Enforcement("disk", "tmpfs", True),
            Enforcement("network", "namespace", True),
            Enforcement("wall", "server", True),
            Enforcement("output", "server", True),
        ]
        shared = tuple(sorted(self._require().common))
        return Description(self.name, self._version, tuple(enforcements), tuple(self._notes()), shared)

    def _notes(self) -> Iterable[str]:
        match self._require().mapping.by:
            case "root":
                yield "Ids inside are mapped to a range of the host's of their own, one a sandbox."
            case "helper":
                yield "Ids inside are mapped to this user's range in /etc/subuid, shared by all sandboxes."
            case _:
                yield (
                    "A sandbox has one user only, this one: files of others in an image seem to be nobody's. For more, "
                    "install uidmap and add a range of 65536 for this user to /etc/subuid and /etc/subgid."
                )
        if not self._require().mapping.own_account:
            yield (
                "Inotify instances, queued signals and message queues are bounded in each sandbox but counted as this "
                f"user's, too: many sandboxes can leave none. {_ACCOUNT_REMEDY}"
            )
        if not self._require().ipc_bounded:
            yield (
                "System V shared memory and messages are not bounded: they outlive what made them and use "
                "up the sandbox's memory. Linux 6.9 can bound them, where /proc/sys can be written."
            )
        common = self._require().common
        if "/dev" in common:
            yield f"Locks on and watches of /dev/null and the like are shared by all sandboxes. {_DEVICES_REMEDY}"
        if trees := sorted(common - {"/dev"}):
            yield (
                f"Locks on and watches of files in {', '.join(trees)} are shared by all sandboxes and the machine: "
                f"Linux mounts no overlay of that here. {_TREES_REMEDY}"
            )
        if linux_version() < (6, 6):
            yield "Linux before 6.6: a directory of the image cannot be removed and made again."

    def host_image(self) -> Image:
        """See ``Runtime``."""
        return host_image(self._require().state)

    def sandbox(self, image: Image, limits: Limits | None = None) -> BubblewrapSandbox:
        """See ``Runtime``."""
        return BubblewrapSandbox(self._require(), image, limits or Limits())

    async def close(self) -> None:
        """See ``Runtime``."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if self._janitor is not None:
            self._janitor.cancel()
            await asyncio.wait([self._janitor])
        await asyncio.gather(*(sandbox.stop() for sandbox in list(shared.sandboxes.values())))
        await asyncio.gather(shared.client.close(), *shared.retired)
        shared.groups.close()
        shared.owner.close()

    def _require(self) -> Shared:
        if self._shared is None:
            raise RuntimeUnavailable(f"The {self.name} runtime is not started", "Use it with `async with`")
        return self._shared

    async def _sweep_regularly(self, shared: Shared) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            await sweep(shared.state)
            # Of our own: groups that could not be removed when their sandbox was stopped.
            for sandbox in shared.owner.leases():
                if sandbox not in shared.sandboxes and await remove_group(shared.group_directories(sandbox)):
                    shared.owner.release(sandbox)
