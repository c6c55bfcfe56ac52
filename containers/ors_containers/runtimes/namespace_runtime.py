"""A runtime whose sandboxes have namespaces of their own: its start, its description and its end.

How ids are mapped depends on the server's user: as root, a range high above every user of the host, and images keep
their owners (idmapped mounts); as an ordinary user with ranges in /etc/subuid, that range; else that one user alone.

Invariant: ``start`` starts a sandbox, so a runtime that has started isolates; ``describe`` says what that sandbox had.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ors_containers.container import Container, ContainerSettings
from ors_containers.errors import Overloaded, RuntimeUnavailable, StartFailed
from ors_containers.image import Image, host_image
from ors_containers.launcher.client import LauncherClient
from ors_containers.launcher.whole_files import SMALL_LAYER_FILES, SMALL_LAYER_SIZE
from ors_containers.limits import Enforcement, Limits
from ors_containers.linux.host_support import find_mapping, likely_remedy, linux_version
from ors_containers.linux.leases import Owner, make_state, state_directory, sweep
from ors_containers.linux.limits.cgroups import CONTROLLERS, ControlGroups, remove_group
from ors_containers.linux.limits.open_files import files_for_sandboxes, limit_files, raise_file_max
from ors_containers.runtime import Description, Runtime
from ors_containers.runtimes.containers.container_disks import find_mkfs
from ors_containers.runtimes.containers.namespace_container import NamespaceContainer
from ors_containers.runtimes.containers.open_network import why_not_open
from ors_containers.runtimes.runtime_state import RuntimeState

__all__ = ["NamespaceRuntime"]

logger = logging.getLogger("ors_containers.runtimes.namespace_runtime")

#: Seconds between two sweeps for what dead servers left behind.
_SWEEP_INTERVAL = 60.0
#: Bytes of the disk for containers that are left to the rest of the machine.
_LEAST_DISK = 1 << 30
#: Sandboxes that no machine runs at once.
_MANY = 100_000
_ACCOUNT_REMEDY = "For accounts of their own, start the server as root with CAP_SYS_PTRACE."
_DEVICES_REMEDY = "For devices of their own, start the server as root with CAP_MKNOD."
_TREES_REMEDY = "As an ordinary user, it does where nothing is mounted below."
_TRY_LINK = "ln /etc/hosts /etc/hosts-link && [ /etc/hosts -ef /etc/hosts-link ]"
_LINK_PATIENCE = 20.0
_GROUP_REMEDY = "Start the server as root, or under `systemd-run --user --scope -p Delegate=yes`"


class NamespaceRuntime(Runtime):
    """Base of the runtimes that start sandboxes through the launcher; a subclass names the program and the sandbox.

    ``state`` is the directory of leases, by default one directory a user. ``starts_at_once`` bounds how many sandboxes
    start at a time; the others wait, which is faster for all of them.
    """

    def __init__(self, state: Path | None = None, *, starts_at_once: int | None = None) -> None:
        self._given_state = state
        self._starts_at_once = starts_at_once or 2 * (os.cpu_count() or 1)
        self._state: RuntimeState | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._version = ""

    @abc.abstractmethod
    def _find_program(self) -> tuple[str, str]:
        """Return the program that makes the containers, and its version. Raises ``RuntimeUnavailable``."""

    async def start(self) -> None:
        program, self._version = await asyncio.to_thread(self._find_program)
        directory = self._given_state or state_directory()
        make_state(directory)
        await sweep(directory)
        owner = Owner(directory)
        groups = ControlGroups(owner.id)
        owner.describe([], groups.parents)  # before the launcher exists: the groups do already
        self._state = RuntimeState(
            program=program,
            directory=directory,
            mapping=find_mapping(),
            owner=owner,
            groups=groups,
            client=LauncherClient(),
            starting=asyncio.Semaphore(self._starts_at_once),
            disk_folder=str(self.policy.disk_folder) if os.geteuid() == 0 else "",
            hold_files=self.hold_files,
        )
        if "memory" in groups.enforced:  # otherwise nothing would bound what open files cost
            await asyncio.to_thread(raise_file_max)
        try:
            await self._try_links(self._state)
        except StartFailed as error:
            await self.close()
            raise RuntimeUnavailable(f"{self.name} cannot isolate here: {error}", likely_remedy(str(error))) from error
        except BaseException:  # a cancellation, too: a caller whose `start` did not return does not call `close`
            await self.close()
            raise
        self._sweeper = asyncio.create_task(_sweep_regularly(self._state))

    async def _try_links(self, state: RuntimeState) -> None:
        """Start a sandbox, and find out whether a hard link to a file of its image is the same file.

        The kernel does not report that it cannot find the originals of copied files, so this tries.
        """
        # Root inside owns the file.
        image = replace(self.host_image(), user=0, group=0, user_name="root", home="/root")
        async with self.sandbox(image) as sandbox:
            result = await sandbox.run(_TRY_LINK, timeout=_LINK_PATIENCE)
        if result.exit_status != 0:
            state.hard_links = "broken"
        elif state.mapping.by != "root":
            state.hard_links = "small layers"

    async def open_container(self, image: Image, settings: ContainerSettings | None = None) -> Container:
        state = self._require()
        settings = settings or ContainerSettings()
        network, notes = settings.network, list[str]()
        if network == "open" and (reason := why_not_open(self.policy.network == "open")):
            network = "none"
            notes.append(f"No open network: {reason}")
        _check_disk(state.disk_folder)
        container = NamespaceContainer(state, image, settings, network=network, notes=notes)
        for note in notes:
            logger.warning("a container has less than it asked for", extra={"container": container.id, "reason": note})
        await container.start()
        return container

    def describe(self) -> Description:
        state = self._require()
        enforced, missing = state.groups.enforced, state.groups.missing
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
        shared = tuple(sorted(state.common))
        return Description(
            self.name, self._version, tuple(enforcements), tuple(self._notes()), shared, state.hard_links
        )

    def _notes(self) -> Iterable[str]:
        """Yield what else a person should know of the runtime on this machine."""
        state = self._require()
        match state.mapping.by:
            case "root":
                yield "Ids inside are mapped to a range of the host's of their own, one a sandbox."
            case "helper":
                yield "Ids inside are mapped to this user's range in /etc/subuid, shared by all sandboxes."
            case _:
                yield (
                    "A sandbox has one user only, this one: files of others in an image seem to belong to the user "
                    "`nobody`. For more, install uidmap and add a range of 65536 for this user to /etc/subuid and "
                    "/etc/subgid."
                )
        if not state.mapping.own_account:
            yield (
                "Inotify instances, queued signals and message queues are bounded in each sandbox but counted as this "
                f"user's, too: many sandboxes can leave none. {_ACCOUNT_REMEDY}"
            )
        yield from self._notes_of_links()
        if not state.ipc_bounded:
            yield (
                "System V shared memory and messages are not bounded: they outlive what made them and use "
                "up the sandbox's memory. Linux 6.9 can bound them, where /proc/sys can be written."
            )
        yield _note_of_files()
        if "/dev" in state.common:
            yield f"Locks on and watches of /dev/null and the like are shared by all sandboxes. {_DEVICES_REMEDY}"
        if trees := sorted(state.common - {"/dev"}):
            yield (
                f"Locks on and watches of files in {', '.join(trees)} are shared by all sandboxes and the machine: "
                f"Linux mounts no overlay of that here. {_TREES_REMEDY}"
            )
        yield from self._notes_of_containers()
        if state.groups.account("") is None:
            yield (
                "Time limits count the time that other tenants of the machine take: without control groups for "
                f"processors it cannot be measured. {_GROUP_REMEDY}."
            )
        if linux_version() < (6, 6):
            yield "Linux before 6.6: a directory of the image cannot be removed and made again."

    def _notes_of_links(self) -> Iterable[str]:
        state = self._require()
        if state.hard_links == "small layers":
            yield (
                f"Layers of at most {SMALL_LAYER_SIZE >> 20} MiB and {SMALL_LAYER_FILES} files, and the objects of git "
                "repositories, are copied into each sandbox that starts. In a larger layer, a hard link to a file of "
                "the image is another file: `-ef`, `find -samefile`, `cp -al`, `rsync -H` and `tar` see two. A server "
                "that is root keeps hard links everywhere."
            )
        elif state.hard_links == "broken":
            yield (
                f"Linux keeps no hard links to files of images that are in {state.directory}: `ln` is refused, or "
                "makes another file. Keep it on ext4, xfs, btrfs or tmpfs; in a container: `docker run --tmpfs /run`."
            )

    def _notes_of_containers(self) -> Iterable[str]:
        folder = self._require().disk_folder
        if not folder:
            yield (
                "Files of docker-like containers are in memory, at most as many bytes as `memory`: only root can give "
                "them a disk."
            )
        elif find_mkfs() is None:
            yield "Docker-like containers cannot start: mkfs.ext4 is missing. apt install e2fsprogs"
        reason = why_not_open(self.policy.network == "open")
        network = f"no network: {reason}" if reason else "an open network where they ask for one"
        yield f"Docker-like containers have {network}."

    def host_image(self) -> Image:
        return host_image(self._require().directory)

    async def close(self) -> None:
        state, self._state = self._state, None
        if state is None:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        await asyncio.gather(*(sandbox.stop() for sandbox in list(state.sandboxes.values())))
        await asyncio.gather(*(container.close() for container in list(state.containers.values())))
        await state.disks.close()
        await asyncio.gather(state.client.close(), *state.retired)
        state.groups.close()
        state.owner.close()

    def _require(self) -> RuntimeState:
        if self._state is None:
            raise RuntimeUnavailable(f"The {self.name} runtime is not started", "Use it with `async with`")
        return self._state


def _note_of_files() -> str:
    pids = Limits().pids
    limit = limit_files(pids)
    at_once = files_for_sandboxes() // limit.total
    if at_once > _MANY:
        return "fs.file-max is larger than sandboxes can reach: their memory bounds their open files."
    return (
        f"Open files of all sandboxes have to fit fs.file-max: each process of a sandbox of {pids} may open "
        f"{limit.each}, and at most {at_once} such sandboxes run at once. As root, `sysctl "
        "fs.file-max=9223372036854775807` lifts both."
    )


def _check_disk(folder: str) -> None:
    """Raise ``Overloaded`` where the disk for containers is nearly full."""
    if not folder:
        return
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize < _LEAST_DISK:
        raise Overloaded(
            f"{folder} has less than {_LEAST_DISK >> 20} MiB left for the disks of containers",
            "Wait until containers have ended, or set ORS_SANDBOX_DISK to a folder of another disk.",
        )


async def _sweep_regularly(state: RuntimeState) -> None:
    """Free what dead servers left behind, and groups of this server that could not be removed with their sandbox."""
    while True:
        await asyncio.sleep(_SWEEP_INTERVAL)
        await sweep(state.directory)
        for sandbox in state.owner.leases():
            running = sandbox in state.sandboxes or sandbox in state.containers
            if not running and await remove_group(state.group_directories(sandbox)):
                state.owner.release(sandbox)
