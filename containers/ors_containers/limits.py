"""Limits of a sandbox, and how a runtime enforces each of them.

``Limits`` is the caller's request; ``Enforcement`` tells how one of them is enforced on this machine. Invariant: an
enforcement that ``holds`` is kept by the kernel for the sandbox as a whole. A limit that the kernel counts per process
(an rlimit) never holds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from ors_containers.errors import InvalidLimits

__all__ = ["LIMIT_NAMES", "Enforcement", "LimitName", "Limits"]

MIB = 2**20

LimitName = Literal["memory", "pids", "cpu", "disk", "network", "wall", "output"]
#: The limits whose enforcement a runtime describes, in the order in which they are shown.
LIMIT_NAMES: tuple[LimitName, ...] = ("memory", "pids", "cpu", "disk", "network", "wall", "output")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox.

    Raises ``InvalidLimits`` for values in which no program can run.
    """

    #: Bytes of memory its processes may use; files count against ``disk`` instead.
    memory: int = 1024 * MIB
    #: Processes and threads at a time, the shell included.
    pids: int = 256
    #: Processor cores; 0.5 is half of the time of one core.
    cpu: float = 1.0
    #: Bytes of files it may write anywhere in its root, ``/tmp`` and ``/dev/shm`` included.
    disk: int = 512 * MIB
    #: Seconds from its start after which it is stopped; None for no limit.
    wall: float | None = None
    #: Bytes of a command's output that are kept: half from its beginning, half from its end.
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
        """Files and directories it may make; even an empty file costs the kernel memory."""
        return self.disk // 8192 + 4096


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The enforcement of one limit on this machine."""

    limit: LimitName
    #: The mechanism: ``cgroup v1``, ``tmpfs``, ``rlimit``, …; ``nothing`` where it is not enforced.
    by: str
    #: Whether it holds for the sandbox as a whole.
    holds: bool
    #: What to install or set for a better enforcement; empty where nothing is missing.
    remedy: str = ""
