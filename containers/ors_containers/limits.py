"""What a sandbox may use, and what a machine can make of that.

``Limits`` is what the caller wants; ``Enforcement`` is what a runtime really does about one of them on this machine.
Invariant: an enforcement that ``holds`` is kept by the kernel for the sandbox as a whole; a limit that counts per
process (an rlimit) never says so.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from ors_containers.errors import InvalidLimits
from ors_containers.linux.kernel_limits import LASTING_MEMORY

__all__ = ["LIMIT_NAMES", "Enforcement", "LimitName", "Limits"]

MIB = 2**20

LimitName = Literal["memory", "pids", "cpu", "disk", "network", "wall", "output"]
#: Everything a runtime says its enforcement of, in the order in which it is shown.
LIMIT_NAMES: tuple[LimitName, ...] = ("memory", "pids", "cpu", "disk", "network", "wall", "output")

_INODE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox.

    Raises ``InvalidLimits`` for values nothing can run in.
    """

    #: Bytes of memory its processes may use, files not counted (they have ``disk``).
    memory: int = 1024 * MIB
    #: Processes and threads at once, the shell among them.
    pids: int = 256
    #: Processor cores; 0.5 is half of one's time.
    cpu: float = 1.0
    #: Bytes of files it may write, anywhere in its root, ``/tmp`` and ``/dev/shm`` included.
    disk: int = 512 * MIB
    #: Seconds from its start after which it is stopped; None for no end.
    wall: float | None = None
    #: Bytes of one command's output that are kept, half from its beginning and half from its end.
    output: int = 50_000

    def __post_init__(self) -> None:
        least = {"memory": 16 * MIB, "pids": 4, "cpu": 0.01, "disk": MIB, "output": 2}
        for field in fields(self):
            value = getattr(self, field.name)
            minimum = least.get(field.name)
            if minimum is not None and value < minimum:
                raise InvalidLimits(f"The limit {field.name}={value} is below {minimum}")
        if self.wall is not None and self.wall <= 0:
            raise InvalidLimits(f"The limit wall={self.wall} leaves no time")

    @property
    def inodes(self) -> int:
        """Files and directories it may make: a file costs the kernel memory even where it is empty."""
        return self.disk // 8192 + 4096

    @property
    def charged_memory(self) -> int:
        """Bytes for the memory controller: what outlives processes is charged too, and a full disk must not kill."""
        return self.memory + self.disk + self.inodes * _INODE_BYTES + LASTING_MEMORY


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What keeps one limit on this machine."""

    limit: LimitName
    #: What keeps it: ``cgroup v1``, ``tmpfs``, ``rlimit``, …; ``nothing`` where nothing does.
    by: str
    #: Whether it holds for the sandbox as a whole.
    holds: bool
    #: What to install or set for more; empty where nothing is missing.
    remedy: str = ""
