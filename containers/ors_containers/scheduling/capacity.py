"""Free memory, process ids and files, of the machine and of the control groups this process is in."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ors_containers.linux import kernel_files
from ors_containers.linux.limits.cgroups import LEAF
from ors_containers.linux.limits.open_files import share_of_sandboxes

__all__ = ["Capacity", "CapacityReader"]

#: Files with the memory that a group uses, in version 2 and 1.
_USAGE = ("memory.current", "memory.usage_in_bytes")
_UNLIMITED = 2**60  # version 1 says "no limit" with a number near 2**63
#: Seconds for which a limit that was read is taken to be the same: limits are set by hand.
_LIMIT_LIFETIME = 5.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Memory and process ids that are free, and in all."""

    #: Bytes of memory.
    memory: int
    memory_total: int
    #: Process ids.
    pids: int
    pids_total: int
    #: Percent of the last ten seconds in which work waited for a processor; 0 where the kernel does not measure it.
    pressure: float = 0.0
    #: Files that all sandboxes may have open together.
    files: int = 1 << 60


class CapacityReader:
    """A reader of the machine's figures. ``system`` is the root of its file system; tests pass one of their own.

    ``sandbox_memory`` is the number of bytes that sandboxes may use together: those of all servers in this process's
    control group, which are measured by the groups that ``linux.cgroups`` makes below it.
    """

    def __init__(self, system: Path = Path("/"), *, sandbox_memory: int | None = None) -> None:
        self._proc = str(system / "proc")
        self._memory_groups = list(_groups(system, "memory"))
        # Files by their paths, and those that exist: capacity is read for each start.
        self._memory_limits = [
            (_first(group, "memory.max", "memory.limit_in_bytes"), _first(group, *_USAGE), f"{group}/memory.stat")
            for group in self._memory_groups
        ]
        self._sandbox_memory = sandbox_memory
        self._pids_limits = [(f"{group}/pids.max", f"{group}/pids.current") for group in _groups(system, "pids")]
        #: Limits, by their files, and when they were read.
        self._limits: dict[str, int] = {}
        self._limits_read = -math.inf

    @property
    def measures_sandboxes(self) -> bool:
        """True where sandboxes have control groups of memory."""
        return bool(self._parents_of_sandboxes())

    def read(self) -> Capacity:
        """Return the scarcest figures of the machine and its control groups; takes a fraction of a millisecond.

        A figure that cannot be read does not limit.
        """
        now = time.monotonic()
        if now - self._limits_read > _LIMIT_LIFETIME:
            self._limits, self._limits_read = {}, now
        memory, memory_total = self._machine_memory()
        for limit_file, usage, statistics in self._memory_limits:
            limit = self._limit(limit_file)
            if limit < _UNLIMITED:
                left = limit - max(0, _number(usage, default=0) - _reclaimable(statistics))
                if left < memory:
                    memory, memory_total = left, limit
        if self._sandbox_memory is not None:
            parents = self._parents_of_sandboxes()
            used = sum(_number(_first(parent, *_USAGE), default=0) for parent in parents)
            if self._sandbox_memory - used < memory:
                memory, memory_total = self._sandbox_memory - used, self._sandbox_memory
        pids, pids_total = self._machine_pids()
        for limit_file, usage in self._pids_limits:
            limit = self._limit(limit_file)
            if limit < _UNLIMITED:
                left = limit - _number(usage, default=0)
                if left < pids:
                    pids, pids_total = left, limit
        return Capacity(memory, memory_total, pids, pids_total, self._pressure(), self._files())

    def _limit(self, file: str) -> int:
        limit = self._limits.get(file)
        if limit is None:
            limit = self._limits[file] = _number(file)
        return limit

    def _parents_of_sandboxes(self) -> list[Path]:
        """Return the parent groups of the sandboxes of each server that makes them where this process would."""
        if not self._memory_groups:
            return []
        own = self._memory_groups[0]
        above = own.parent if own.name == LEAF else own
        return [path for path in above.glob("ors-*") if path.name != LEAF and path.is_dir()]

    def _machine_memory(self) -> tuple[int, int]:
        figures: dict[str, int] = {}
        for line in _lines(f"{self._proc}/meminfo"):
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                figures[name] = int(value.split()[0]) * 1024
        total = figures.get("MemTotal", _UNLIMITED)
        return figures.get("MemAvailable", total), total

    def _machine_pids(self) -> tuple[int, int]:
        kernel = f"{self._proc}/sys/kernel"
        total = min(self._limit(f"{kernel}/pid_max"), self._limit(f"{kernel}/threads-max"))
        words = _content(f"{self._proc}/loadavg").split()
        used = int(words[3].partition(b"/")[2]) if len(words) > 3 else 0
        return total - used, total

    def _files(self) -> int:
        return share_of_sandboxes(self._limit(f"{self._proc}/sys/fs/file-max"))

    def _pressure(self) -> float:
        for line in _lines(f"{self._proc}/pressure/cpu"):
            if line.startswith("some"):
                return float(line.split()[1].partition("=")[2])
        return 0.0


def _content(file: str) -> bytes:
    """Return the content of a file of the kernel; empty where it cannot be read."""
    try:
        return kernel_files.read(file)
    except OSError:
        return b""


def _lines(file: str) -> list[str]:
    return _content(file).decode().splitlines()


def _number(file: str, default: int = _UNLIMITED) -> int:
    """Return the number in a file; ``max`` is not a number."""
    try:
        return int(_content(file))
    except ValueError:
        return default


def _first(folder: Path, *names: str) -> str:
    """Return the path of the first of these files that exists, or of the last."""
    return str(next((folder / name for name in names if (folder / name).exists()), folder / names[-1]))


def _reclaimable(file: str) -> int:
    """Return the bytes of a group's memory that hold files and that the kernel frees when memory is short."""
    figures = dict(line.split()[:2] for line in _lines(file))
    return int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))


def _groups(system: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of this process's groups of a controller, version 1 or 2, up to the visible root."""
    memberships = {
        name: path
        for line in _lines(f"{system}/proc/self/cgroup")
        for _, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    for line in _lines(f"{system}/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup" and controller in options.split(","):
            path = memberships.get(controller)
        elif kind == "cgroup2":
            path = memberships.get("")
        else:
            continue
        if path is None:
            continue
        mounted = system / point.lstrip("/")
        below = path if root == "/" else path.removeprefix(root)
        group = mounted / below.lstrip("/")
        if not group.is_dir():
            group = mounted
        while True:
            yield group
            if group == mounted:
                break
            group = group.parent
