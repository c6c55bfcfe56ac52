"""The runtime and the images of one event loop, which all containers of a runner's plug-in share.

A runner starts and stops environments one by one and says neither when the first begins nor when the last has ended. So
a task of the loop has the runtime: ``asyncio.run`` cancels it at its end, and the runtime ends its containers.

Invariant: at most one runtime is started by an event loop; one that could not start is tried again with the next call.
"""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ors_containers.container import Container, ContainerPolicy, ContainerSettings
from ors_containers.distribution import install_command
from ors_containers.errors import InvalidLimits
from ors_containers.image import Image
from ors_containers.images import ImageMap, ImageStore
from ors_containers.images.progress import Progress
from ors_containers.runtime import Description
from ors_containers.runtimes.bubblewrap import BubblewrapRuntime

__all__ = ["SharedRuntime", "import_runner"]


def import_runner(module: str, extra: str) -> Any:
    """Return a module of a runner. Raises ``ImportError`` with how to install it.

    The runners are not installed beside this package's tools, so what is imported is ``Any`` to a type checker.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"Cannot import {module}: {error}. Install it: {install_command(extra)}") from error


def _policy() -> ContainerPolicy:
    """Return the operator's rules, from the variables that the server reads too. Raises ``InvalidLimits``."""
    network = os.environ.get("ORS_SANDBOX_NETWORK", "none")
    if network not in ("none", "open"):
        raise InvalidLimits(f"ORS_SANDBOX_NETWORK is {network!r}", "Set it to none or open")
    return ContainerPolicy(network, Path(os.environ.get("ORS_SANDBOX_DISK", ContainerPolicy().disk_folder)))


class SharedRuntime:
    """A started runtime, and the images of this machine. ``SharedRuntime.of_this_loop()`` returns the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.store = ImageStore()
        self.images = ImageMap(self.store)
        self._started: asyncio.Future[BubblewrapRuntime] = loop.create_future()
        self._keeper = loop.create_task(self._keep())

    @classmethod
    async def of_this_loop(cls) -> SharedRuntime:
        """Return the shared runtime of the running loop, started. Raises ``RuntimeUnavailable``."""
        loop = asyncio.get_running_loop()
        shared = _by_loop.get(loop)
        if shared is None or shared._keeper.done():
            shared = _by_loop[loop] = cls(loop)
        await asyncio.shield(shared._started)
        return shared

    async def _keep(self) -> None:
        try:
            runtime = BubblewrapRuntime()
            runtime.policy = _policy()
            async with runtime:
                self._started.set_result(runtime)
                await asyncio.Event().wait()
        except Exception as error:  # whatever it is, the calls that wait for the start get it
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            self._started.cancel()  # no effect on one that is done
            self.store.close()

    @property
    def description(self) -> Description:
        """The limits that are enforced on this machine."""
        return self._started.result().describe()

    async def close(self) -> None:
        """End the runtime and its containers; the next call of ``of_this_loop`` starts another."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])

    async def open(self, image: Image, settings: ContainerSettings) -> Container:
        """Return a new container. Raises the errors of ``Runtime.open_container``."""
        return await self._started.result().open_container(image, settings)

    async def image(self, name: str) -> Image:
        """Return the image that stands for a name in the image map. Raises the errors of ``ImageMap.resolve``."""
        return self._started.result().host_image() if name == "host" else await self.images.resolve(name)

    async def build(
        self, dockerfile: Path, name: str, *, network: bool = False, progress: Progress | None = None
    ) -> Image:
        """Build a Dockerfile in its folder, as docker would run it; ``FROM`` finds the names of the image map.

        Raises the errors of ``ImageStore.build_dockerfile``.
        """
        await self.store.build_dockerfile(
            dockerfile,
            dockerfile.parent,
            name=name,
            network=network,
            find_base=self.images.record,
            progress=progress,
        )
        return self.store.docker_image(self.store.record(name))


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedRuntime] = WeakKeyDictionary()
