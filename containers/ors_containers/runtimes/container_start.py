"""The start of a container's namespaces: its root, its user, its variables and its files in /etc."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Mapping
from dataclasses import replace

from ors_containers.container import ContainerSettings, Network
from ors_containers.errors import StartFailed
from ors_containers.image import Image
from ors_containers.launcher.messages import Bind, Program, Root, StartContainer, User
from ors_containers.limits import MIB, Limits
from ors_containers.linux.capabilities import CONTAINER_CAPABILITIES, NET_RAW
from ors_containers.linux.cgroups import Controller
from ors_containers.linux.fd_passing import receive
from ors_containers.linux.kernel_limits import RESOURCES
from ors_containers.linux.open_files import limit_files
from ors_containers.runtimes.namespaces import Namespaces, root_of, shared_places
from ors_containers.runtimes.open_network import NAME_SERVER, blocked_networks
from ors_containers.runtimes.runtime_state import RuntimeState

__all__ = [
    "container_limits",
    "container_program",
    "container_resources",
    "container_user",
    "start_namespaces",
]

#: The end of what the launcher's child and process 1 write when process 1 runs.
_READY = b"}\n\n"
_LEAST_SHARED_MEMORY = 64 * MIB


def container_user(image: Image, settings: ContainerSettings | None, runtime: RuntimeState, network: Network) -> User:
    """Return the user of a container's commands: the settings', else the image's, else root."""
    user, group, groups = (image.user, image.group, image.groups) if image.names_user else (0, 0, ())
    if settings is not None and settings.user is not None:
        user = settings.user
        group, groups = (image.group, image.groups) if user == image.user else (0 if user == 0 else user, ())
    if settings is not None and settings.group is not None:
        group = settings.group
    capabilities = CONTAINER_CAPABILITIES
    if network == "open":
        capabilities = [capability for capability in capabilities if capability != NET_RAW]
    return User(user, group, runtime.mapping.one_id, capabilities, list(groups))


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


def container_program(
    image: Image, user: User, environment: Mapping[str, str], resources: Mapping[str, int]
) -> Program:
    """Return what every program of a container has: its variables, directory, user and rlimits."""
    variables = dict(image.variables)
    if user.id != image.user or user.one_id:
        root = user.id == 0 or user.one_id
        own = {"HOME": "/root" if root else "/", "USER": "root" if root else str(user.id)}
        variables |= own | {"LOGNAME": own["USER"]} | dict(image.environment)
    return Program(
        arguments=[],
        environment=variables | dict(environment),
        directory=image.directory or "/",
        user=user,
        resources={"CORE": 0, **RESOURCES, **resources},
    )


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
        descriptors: list[int] = []
        here = None
        if root.disk_folder:
            here, there = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            descriptors += [await runtime.disks.template(settings.disk), there.fileno()]
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
        )
        text = await part.launch(request, _READY, descriptors)
        if here is not None:  # sent before the text
            _, (part.disk,) = receive(here, 16, 1)
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
    return {
        "hosts": "\n".join(lines) + "\n",
        "hostname": f"{settings.host_name}\n",
        "resolv.conf": f"nameserver {NAME_SERVER}\n" if network == "open" else "",
    }
