"""The container that a request for a sandbox means: its image, its settings, and what this server does not offer."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ors_server.keys.key import Key
from ors_server.keys.machine_size import MachineSize
from ors_server.sandbox_service.data_folders import FindFolder
from ors_server.sandbox_service.errors import InvalidSandbox
from ors_server.sandbox_service.requests import CreateSandbox, NetworkPolicy, SidecarContainer

if TYPE_CHECKING:
    from ors_containers.container import ContainerSettings, Mount, Network, Sidecar
    from ors_containers.image import Image
    from ors_containers.images.image_map import ImageMap

__all__ = ["check_size", "plan_container", "refused_policy"]

logger = logging.getLogger("ors_server.sandbox_service.plan")


async def plan_container(
    request: CreateSandbox, images: ImageMap, data_folder: FindFolder, key: Key
) -> tuple[Image, ContainerSettings]:
    """Return the image, made where the image map says how, and the settings.

    Raises ``CallerError`` of ``ors_containers`` for an image that is missing and a mount that cannot be made, and
    its ``InfrastructureFailure``.
    """
    from ors_containers.container import ContainerSettings, HostAlias

    mounts = await asyncio.to_thread(_mounts, request, data_folder, key)
    image = await images.resolve(request.image)  # may take minutes
    sidecars = [await _sidecar(sidecar, images) for sidecar in request.sidecars or ()]
    aliases = [HostAlias(alias.ip, tuple(alias.hostnames)) for alias in request.host_aliases or ()]
    return image, ContainerSettings(
        memory=request.size.memory,
        cpus=request.size.cpus,
        environment=request.env or {},
        network=_network(request),
        host_aliases=tuple(aliases),
        mounts=tuple(mounts),
        sidecars=tuple(sidecars),
    )


def check_size(request: CreateSandbox, key: Key, most_memory: int | None = None) -> None:
    """Raise ``InvalidSandbox`` for a size above that of this machine, or above the limit of the key.

    ``most_memory`` is the number of bytes that all sandboxes may use together.
    """
    from ors_containers.scheduling.capacity import CapacityReader

    asked = request.size
    machine = MachineSize(len(os.sched_getaffinity(0)), CapacityReader(sandbox_memory=most_memory).read().memory_total)
    if not asked.fits(machine):
        raise InvalidSandbox(
            f"machine_size: {asked} is more than this machine has for a sandbox, which is {machine} (CPUS:GIGABYTES)",
            "Ask for a smaller size, or give the server a larger machine",
        )
    limit = key.limits.sandbox_size
    if limit is not None and not asked.fits(MachineSize.read(limit)):
        raise InvalidSandbox(
            f"machine_size: {asked} is more than the key {key.name!r} allows a sandbox: {limit} (CPUS:GIGABYTES)",
            "Ask for a smaller size, or for a key with a higher --sandbox-size",
        )


def refused_policy(policy: NetworkPolicy, network: Network) -> str:
    """Return why a sandbox that has ``network`` cannot have a policy; empty where the policy holds."""
    if not policy.enforce:
        return "" if network == "open" else "It lets everything through, and this sandbox was started without a network"
    if network == "open":
        return "This sandbox has an open network, which cannot be taken from it"
    return f"This server has no filter of requests for {policy.allows}" if policy.allows else ""


def _network(request: CreateSandbox) -> Network:
    policy = request.network
    if policy is not None and policy.enforce:
        if policy.allows:
            text = f"no network: this server has no filter of requests for {policy.allows}"
            logger.warning("a sandbox has less than it asked for", extra={"image": request.image, "reason": text})
        return "none"
    return "none" if request.block_network else "open"


def _mounts(request: CreateSandbox, data_folder: FindFolder, key: Key) -> list[Mount]:
    from ors_containers.container import Mount

    bucket = request.bucket_config
    if bucket is None:
        return []
    folder = data_folder(request.environment, key)
    folder.mkdir(parents=True, exist_ok=True)  # an environment without data has an empty folder
    mount = Mount(folder, bucket.mount_path.rstrip("/"), bucket.only_dir or "")
    mount.resolve()
    return [mount]


async def _sidecar(asked: SidecarContainer, images: ImageMap) -> Sidecar:
    from ors_containers.container import Sidecar
    from ors_containers.errors import InvalidImage

    image = await images.resolve(asked.image)
    config: Mapping[str, Any] = (await images.record(asked.image)).docker_config
    # As Kubernetes: a command replaces the entry point and the image's arguments.
    program = config.get("Entrypoint") or [] if asked.command is None else asked.command
    arguments = (config.get("Cmd") or [] if asked.command is None else []) if asked.args is None else asked.args
    if not (*program, *arguments):
        raise InvalidImage(f"The sidecar {asked.name} has no command, and its image {asked.image} has none either")
    return Sidecar(asked.name, image, (*program, *arguments), asked.env or {})
