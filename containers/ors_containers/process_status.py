"""What the kernel says of a process in ``/proc/PID/stat``.

The second field is the program's name, in parentheses and of the program's choosing: it may hold spaces and parentheses
of its own. So the fields are counted from behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessStatus", "process_status", "read_status"]


class ProcessStatus(NamedTuple):
    """A process at one moment."""

    #: A letter of proc(5): ``Z`` and ``X`` have ended.
    state: str
    parent: int
    #: In clock ticks since boot: with the id, it names a process for good.
    started: int
    #: Where its arguments are in its memory; 0 where that may not be seen.
    arguments: tuple[int, int]


def process_status(process: int | str) -> ProcessStatus:
    """Of the process with this id, or ``self``. Raises ``OSError`` once there is none."""
    return read_status(Path(f"/proc/{process}/stat").read_bytes())


def read_status(content: bytes) -> ProcessStatus:
    """Read the content of a ``stat`` file."""
    fields = content.rpartition(b")")[2].split()
    return ProcessStatus(fields[0].decode(), int(fields[1]), int(fields[19]), (int(fields[45]), int(fields[46])))
