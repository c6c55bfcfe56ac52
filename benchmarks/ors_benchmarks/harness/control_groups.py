"""Processor time of a command with everything that it starts, wherever its containers are put: by control group.

Programs that start containers move them into groups of their own, beside the command's. So its time is that of a new
group for the command, and what every other group at the top has gained meanwhile, but those of the init system. Nothing
else should start containers beside it. Needs root.
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
#: Groups that an init system makes, whose processes are others'.
_OTHERS = {"init.scope", "system.slice", "user.slice"}


class NoControlGroups(OrsError):
    """The machine gives this user no control group that counts processor time."""


class ProcessorTime:
    """The processor time of one command."""

    def __init__(self, hierarchy: Path) -> None:
        """Make the command's group. Raises ``NoControlGroups``."""
        self._hierarchy = hierarchy
        self._group = hierarchy / f"ors-bench-{secrets.token_hex(4)}"
        try:
            self._group.mkdir()
        except OSError as error:
            raise NoControlGroups(
                f"{self._group} cannot be made: {error.strerror}", "Run it as root, outside a container."
            ) from error
        self._before = self._groups()

    def enter(self) -> None:
        """Move the calling process into the group; for ``preexec_fn``."""
        (self._group / "cgroup.procs").write_text(f"{os.getpid()}\n")

    def seconds(self) -> float:
        """Return the processor time since the group was made."""
        return sum(used - self._before.get(name, 0.0) for name, used in self._groups().items())

    def remove(self) -> None:
        """Remove the group; one in which processes are left stays."""
        with contextlib.suppress(OSError):
            self._group.rmdir()

    def _groups(self) -> dict[str, float]:
        """Return the seconds of each group at the top, those of its own groups included."""
        folders = (each for each in self._hierarchy.iterdir() if each.is_dir() and each.name not in _OTHERS)
        return {folder.name: used for folder in folders if (used := _used(folder)) is not None}


@contextlib.contextmanager
def processor_time() -> Generator[ProcessorTime]:
    """Count for a block. Raises ``NoControlGroups``."""
    root = next((each for each in _HIERARCHIES if _used(each) is not None), None)
    if root is None:
        raise NoControlGroups(
            "No hierarchy of control groups counts processor time", "Mount one with cpuacct, or cgroup2."
        )
    counted = ProcessorTime(root)
    try:
        yield counted
    finally:
        counted.remove()


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
