"""Processor time of a command with everything that it starts, wherever its containers are put: by control group.

podman moves containers into groups of its own, beside the command's. So with ``beside`` its time is that of a new group
for the command, and what podman's have gained meanwhile. Nothing else should start containers with it then. Our own
sandboxes are below the command's group. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator
from pathlib import Path

from ors_server.errors import OrsError

__all__ = ["NoControlGroups", "ProcessorTime", "processor_time"]

#: The hierarchies, of version 1 and 2.
_HIERARCHIES = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup"))
#: Groups at the top in which podman makes those of its containers, without systemd and with it.
_CONTAINERS = ("libpod_parent", "machine.slice")


class NoControlGroups(OrsError):
    """The machine gives this user no control group that counts processor time."""


class ProcessorTime:
    """The processor time of one command."""

    def __init__(self, hierarchy: Path, within: str = "/") -> None:
        """Make the command's group in the group ``within``, the caller's. Raises ``NoControlGroups``."""
        self._hierarchy = hierarchy
        self._within = hierarchy / within.lstrip("/")
        self._group = self._within / f"ors-bench-{secrets.token_hex(4)}"
        try:
            self._group.mkdir()
        except OSError as error:
            raise NoControlGroups(
                f"{self._group} cannot be made: {error.strerror}", "Run it as root, outside a container."
            ) from error
        self._before = self._of_containers()

    def enter(self) -> None:
        """Move the calling process into the group; for ``preexec_fn``."""
        (self._group / "cgroup.procs").write_text(f"{os.getpid()}\n")

    def seconds(self, *, beside: bool) -> float:
        """Return the processor time since the group was made."""
        own = _used(self._group) or 0.0
        return own + (self._of_containers() - self._before if beside else 0.0)

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """Keep the calling process in the group for a block, with what it starts meanwhile. Raises ``OSError``."""
        self.enter()
        try:
            yield
        finally:
            (self._within / "cgroup.procs").write_text(f"{os.getpid()}\n")

    def remove(self) -> None:
        """Remove the group; one in which processes are left stays."""
        with contextlib.suppress(OSError):
            self._group.rmdir()

    def _of_containers(self) -> float:
        return sum(_used(self._hierarchy / name) or 0.0 for name in _CONTAINERS)


@contextlib.contextmanager
def processor_time() -> Generator[ProcessorTime]:
    """Count for a block. Raises ``NoControlGroups``."""
    root = next((each for each in _HIERARCHIES if _used(each) is not None), None)
    if root is None:
        raise NoControlGroups(
            "No hierarchy of control groups counts processor time", "Mount one with cpuacct, or cgroup2."
        )
    counted = ProcessorTime(root, _own_group())
    try:
        yield counted
    finally:
        counted.remove()


def _own_group() -> str:
    """Return the path of this process's group in the hierarchy that counts: that of ``cpuacct``, or version 2's."""
    lines = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return next(
        (path for controllers, path in lines if "cpuacct" in controllers.split(",")),
        next((path for controllers, path in lines if not controllers), "/"),
    )


def _used(group: Path) -> float | None:
    """Return the seconds that a group has used; None for a group that does not count, or has gone."""
    try:
        return int((group / "cpuacct.usage").read_text()) / 1e9
    except OSError:
        pass
    try:
        lines = (group / "cpu.stat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec ")), None)
