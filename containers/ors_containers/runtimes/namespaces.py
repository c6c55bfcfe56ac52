"""One container seen from the server: started through the launcher, watched through a pidfd of its process 1.

Two processes are of interest: process 1 of the container's namespaces, and its *monitor*, the launcher's child that
became bwrap, Apptainer or ``linux.monitor_program`` and ends after process 1.

Invariant: process 1 is named by a pidfd, so a reused process id cannot lead to another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import time
from collections.abc import Sequence

from ors_containers.errors import ServerExhausted, StartFailed
from ors_containers.image import Image
from ors_containers.launcher.client import LauncherClient
from ors_containers.launcher.messages import (
    Bind,
    Root,
    RootDirectory,
    StartApptainer,
    StartBubblewrap,
    StartContainer,
    Started,
)
from ors_containers.launcher.mounts.loop_disk import device_of
from ors_containers.limits import Limits
from ors_containers.linux import kernel_files
from ors_containers.linux.confinement.hidden_paths import hidden_in
from ors_containers.linux.limits.proc_stat import ProcessStatus, process_status, read_status
from ors_containers.runtimes.containers.object_stores import object_stores_in
from ors_containers.runtimes.containers.refused_names import RefusedNames
from ors_containers.runtimes.runtime_state import RuntimeState

__all__ = ["Namespaces", "read_until", "root_of", "shared_places"]

_START_PATIENCE = 60.0
_STOP_PATIENCE = 10.0
_POLL_INTERVAL = 0.01
#: The text that ``launcher.rootfs.shared_text`` writes.
_SHARED = re.compile(rb"\[shared (\[.*?\])\]")


class Namespaces:
    """Process 1 of a sandbox and its namespaces."""

    def __init__(self, client: LauncherClient) -> None:
        self.client = client
        #: A pidfd of process 1; -1 before it is known, and after ``stop``.
        self.process_1 = -1
        #: Its process id.
        self.process = 0
        self.monitor_process = 0
        #: Done when the monitor has ended; None before it was started.
        self.monitor: asyncio.Future[int] | None = None
        self._proc = -1  # /proc of the container
        #: The file with the processes of its control group, where it has one, and the id of its shell.
        self.members: str | None = None
        self.shell_process = 0
        #: An examination has hidden its processes from one another: the next shell shows them.
        self.hides_processes = False
        #: The directory of a container's files, which the owner of this object frees; -1 without one.
        self.disk = -1
        #: A container's answers to name lookups, which the owner of this object closes.
        self.refused_names: RefusedNames | None = None

    async def launch(
        self,
        request: StartBubblewrap | StartApptainer | StartContainer,
        ready_text: bytes,
        descriptors: Sequence[int] = (),
    ) -> bytes:
        """Start the monitor; return its output up to ``ready_text``, which says that process 1 runs.

        ``descriptors`` are those of the request after its two pipes.

        Raises ``StartFailed``, ``OperationFailed`` and ``LauncherGone``.
        """
        ready, ready_there = os.pipe()
        errors, errors_there = os.pipe()
        try:
            try:
                started = await self.client.request(request, (ready_there, errors_there, *descriptors), Started)
            finally:
                os.close(ready_there)
                os.close(errors_there)
            self.monitor_process = started.process
            self.monitor = self.client.exit_of(self.monitor_process)
            text = await read_until(ready, ready_text)
            if not text.endswith(ready_text):
                await asyncio.wait([self.monitor], timeout=_STOP_PATIENCE)
                raise StartFailed(f"The sandbox did not come up: {_read_available(errors) or 'it ended at once'}")
            return text
        finally:
            os.close(ready)
            os.close(errors)

    def attach(self, process: int, parent: int) -> None:
        """Take ``process``, a child of ``parent``, as process 1. Raises ``StartFailed`` and ``OSError``."""
        self.process_1 = os.pidfd_open(process)
        self.process = process
        # Only its parent reaps it: as long as it has this parent, the process id was not reused.
        if process_status(process).parent != parent:
            raise StartFailed("The sandbox ended as it started")
        self._proc = os.open(f"/proc/{process}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def processes(self, shell: int) -> dict[int, int]:
        """Return the start time of each process but process 1 and ``shell``, by process id inside."""
        if self._proc == -1 or self._is_alone():
            return {}
        found: dict[int, int] = {}
        try:
            names = os.listdir(self._proc)  # noqa: PTH208 - of a descriptor
        except OSError as error:
            if error.errno in ServerExhausted.NUMBERS:  # what is not listed would be ended with the next command
                raise
            return found  # process 1 has just ended
        for name in names:
            if name.isdigit() and int(name) not in (1, shell):
                try:
                    found[int(name)] = _status(name, self._proc).started
                except OSError as error:
                    if error.errno in ServerExhausted.NUMBERS:
                        raise
        return found

    def _is_alone(self) -> bool:
        """Return whether its control group has no process but the monitor, process 1 and the shell, by their ids.

        Most commands start in such a container, where to list /proc takes five times as long. The file is opened each
        time: to one that stays open, version 1 shows the same list again.
        """
        if self.members is None:
            return False
        try:
            content = kernel_files.read(self.members)
        except OSError:  # its group has just been removed
            return False
        known = {self.monitor_process, self.process, self.shell_process}
        return known.issuperset(map(int, content.split()))

    def is_running(self, process: int) -> bool:
        """Return whether the process with this id inside has not ended."""
        try:
            return not _status(str(process), self._proc).ended
        except OSError as error:
            if error.errno in ServerExhausted.NUMBERS:
                raise
            return False

    async def notice_end(self, patience: float) -> None:
        """Wait up to ``patience`` seconds for process 1 to end; if it has, wait for the monitor too."""
        deadline = time.monotonic() + patience
        while self.monitor is not None and self.process_1 != -1:
            if self._is_ending():
                await asyncio.wait([self.monitor], timeout=_STOP_PATIENCE)
                return
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_POLL_INTERVAL)

    def _is_ending(self) -> bool:
        """Return whether process 1 has ended, or kills the other processes of the container at its end."""
        if _has_ended(self.process_1):
            return True
        try:
            return process_status(self.process).exiting
        except OSError:
            return True

    async def stop(self) -> None:
        """Kill process 1, and with it every process of the container; close what this side holds."""
        if self.process_1 != -1:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.process_1, signal.SIGKILL)
        elif self.monitor is not None and not self.monitor.done():
            os.kill(self.monitor_process, signal.SIGKILL)
        if self.monitor is not None:
            await asyncio.wait([self.monitor], timeout=_STOP_PATIENCE)
            if not self.monitor.done():
                os.kill(self.monitor_process, signal.SIGKILL)
                await asyncio.wait([self.monitor], timeout=_STOP_PATIENCE)
            self.client.forget(self.monitor_process)
        for descriptor in (self.process_1, self._proc):
            if descriptor != -1:
                os.close(descriptor)
        self.process_1 = self._proc = -1


async def root_of(image: Image, limits: Limits, runtime: RuntimeState) -> Root:
    """Describe the root of a new sandbox."""
    layers = [str(layer) for layer in image.layers]
    held = [layer for layer in image.layers if layer.is_relative_to("/proc")]
    binds = [(source, target, source.is_dir()) for source, target in image.binds]
    trees = [str(source if is_directory else source.parent) for source, _, is_directory in binds]
    user = (0, 0) if runtime.mapping.one_id else (image.user, image.group)  # as the outer namespace numbers it
    return Root(
        stage=str(runtime.directory / "stage"),
        layers=layers,
        binds=[Bind(str(source), target, is_directory) for source, target, is_directory in binds],
        hidden=dict(await hidden_in((*layers, *trees))),
        directories=[
            RootDirectory(directory.path, directory.mode, *(user if directory.owned else (0, 0)))
            for directory in image.directories
        ],
        mapping=runtime.mapping.of_sandbox(runtime.next_slot()),
        disk=limits.disk,
        inodes=limits.inodes,
        frozen={str(layer): device for layer in held if (device := device_of(layer)) is not None},
        object_stores=[] if runtime.mapping.by == "root" else await object_stores_in(layers),
    )


def shared_places(text: bytes) -> set[str]:
    """Return the places that a sandbox shares with the machine, from the text of its start."""
    return {place for places in _SHARED.findall(text) for place in json.loads(places)}


async def read_until(descriptor: int, ready_text: bytes, patience: float = _START_PATIENCE) -> bytes:
    """Read a pipe until ``ready_text`` or its end, for at most ``patience`` seconds; return what was read."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    text = bytearray()
    done = asyncio.Event()

    def take() -> None:
        try:
            piece = os.read(descriptor, 4096)
        except BlockingIOError:
            return
        text.extend(piece)
        if not piece or text.endswith(ready_text):
            loop.remove_reader(descriptor)
            done.set()

    loop.add_reader(descriptor, take)
    timer = loop.call_later(patience, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()
        loop.remove_reader(descriptor)
    return bytes(text)


def _read_available(descriptor: int) -> str:
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 4096).decode(errors="replace").strip()
    except BlockingIOError:
        return ""


def _has_ended(pidfd: int) -> bool:
    """Return whether the process has ended, reaped by its parent or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _status(name: str, directory: int) -> ProcessStatus:
    descriptor = os.open(f"{name}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return read_status(os.read(descriptor, 4096))
    finally:
        os.close(descriptor)
