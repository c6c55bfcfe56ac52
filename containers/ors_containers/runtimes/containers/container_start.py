"""The start of a container's namespaces: its root, its limits and its files in /etc."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from dataclasses import replace

from ors_containers.container import ContainerSettings, Network
from ors_containers.errors import StartFailed
from ors_containers.image import Image
from ors_containers.launcher.container import REFUSING_SERVER
from ors_containers.launcher.messages import Bind, Root, StartContainer
from ors_containers.limits import MIB, Limits
from ors_containers.linux.fd_passing import receive
from ors_containers.linux.limits.cgroups import Controller
from ors_containers.linux.limits.open_files import limit_files
from ors_containers.runtimes.containers.container_user import container_user
from ors_containers.runtimes.containers.open_network import NAME_SERVER, blocked_networks
from ors_containers.runtimes.containers.refused_names import RefusedNames
from ors_containers.runtimes.namespaces import Namespaces, root_of, shared_places
from ors_containers.runtimes.runtime_state import RuntimeState

__all__ = [
    "container_limits",
    "container_resources",
    "start_namespaces",
]

#: The end of what the launcher's child and process 1 write when process 1 runs.
_READY = b"}\n\n"
_LEAST_SHARED_MEMORY = 64 * MIB


def container_limits(settings: ContainerSettings, runtime: RuntimeState) -> Limits:
    """Return the limits that the control groups of a container enforce."""
    if runtime.disk_folder:
        return settings.limits
    return replace(settings.limits, disk=min(settings.disk, settings.memory))


def container_resources(settings: ContainerSettings, runtime: RuntimeState) -> dict[str, int]:
    """Return the rlimits of a process: of open files, and of what no control group enforces."""
    enforced = runtime.groups.enforced
    bounds: dict[Controller, tuple[str, int]] = {
        "memory": ("DATA", settings.memory),
        "pids": ("NPROC", settings.pids),
    }
    unenforced = {resource: value for name, (resource, value) in bounds.items() if name not in enforced}
    return {"NOFILE": limit_files(settings.pids, container=True).each, **unenforced}


async def start_namespaces(
    part: Namespaces,
    main: Namespaces | None,
    image: Image,
    settings: ContainerSettings,
    runtime: RuntimeState,
    group_files: list[str],
    slot: int,
    network: Network,
) -> list[int]:
    """Start process 1 of a container, or of a sidecar of the container ``main``; return the processes to lease.

    Raises ``StartFailed``, ``InvalidMount``, ``ProgramMissing``, ``OperationFailed``, ``LauncherGone`` and ``OSError``.
    """
    root = await _root(image, settings, runtime, slot)
    with contextlib.ExitStack() as stack:
        refuse_names = settings.refuse_names and network == "none" and main is None
        here, there = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        descriptors = [there.fileno()]
        if root.disk_folder:
            descriptors.append(await runtime.disks.template(settings.disk))
        if main is not None:
            descriptors.append(main.process_1)
        request = StartContainer(
            root=root,
            groups=group_files,
            host_name=settings.host_name,
            files=_files(settings, network),
            blocked=blocked_networks() if network == "open" and main is None else [],
            shared_memory=max(_LEAST_SHARED_MEMORY, settings.memory // 2),
            main=0 if main is None else main.process,
            refuse_names=refuse_names,
        )
        text = await part.launch(request, _READY, descriptors)
        _, (part.disk, *names) = receive(here, 16, 2)  # sent before the text
        if names:
            part.refused_names = RefusedNames(names[0])
    runtime.common |= shared_places(text)
    found = re.search(rb'"child-pid": (\d+)', text)
    if found is None:
        raise StartFailed("The launcher did not report the id of process 1")
    part.attach(int(found[1]), part.monitor_process)
    return [part.monitor_process, part.process]


async def _root(image: Image, settings: ContainerSettings, runtime: RuntimeState, slot: int) -> Root:
    user = container_user(image, settings, runtime, "none")
    # The directories that a sandbox's user owns belong to the user of the container's commands.
    used = replace(image, user=user.id, group=user.group) if image.user != user.id else image
    root = await root_of(used, settings.limits, runtime)
    mounts = await asyncio.to_thread(lambda: [(mount.resolve(), mount.target) for mount in settings.mounts])
    return root._replace(
        binds=[*root.binds, *(Bind(str(source), target, True) for source, target in mounts)],
        mapping=runtime.mapping.of_sandbox(slot),
        # In memory, it is bounded by as much again as its processes may use.
        disk=settings.disk if runtime.disk_folder else min(settings.disk, settings.memory),
        inodes=max(16384, settings.disk // 16384),
        disk_folder=runtime.disk_folder,
        setuid=True,
    )


def _files(settings: ContainerSettings, network: Network) -> dict[str, str]:
    """Return the files that Docker writes for each container."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", f"127.0.1.1\t{settings.host_name}"]
    lines += [f"{alias.address}\t{' '.join(alias.names)}" for alias in settings.host_aliases]
    server = NAME_SERVER if network == "open" else REFUSING_SERVER if settings.refuse_names else ""
    return {
        "hosts": "\n".join(lines) + "\n",
        "hostname": f"{settings.host_name}\n",
        "resolv.conf": f"nameserver {server}\n" if server else "",
    }
