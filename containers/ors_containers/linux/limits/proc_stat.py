"""Read ``/proc/PID/stat`` and ``mountinfo``.

The second field of ``stat`` is the program's name in parentheses, which the program chooses: it may contain spaces and
parentheses. So the fields are counted after it.
"""

from __future__ import annotations

from typing import NamedTuple

from ors_containers.linux import kernel_files

__all__ = ["ProcessStatus", "mount_points", "process_status", "read_status"]

_EXITING = 0x4


class ProcessStatus(NamedTuple):
    """A process at one moment."""

    #: A letter of proc(5); ``Z`` and ``X`` if its first thread has ended.
    state: str
    parent: int
    #: In clock ticks since boot: with the id, it names a process for good.
    started: int
    #: Where its arguments are in its memory; 0 where that may not be seen.
    arguments: tuple[int, int]
    #: Whether it is exiting (``PF_EXITING``): it no longer executes instructions of its program.
    exiting: bool
    #: Its threads, the first one among them even if that has ended.
    threads: int
    session: int

    @property
    def ended(self) -> bool:
        """True if none of its threads runs any longer."""
        return self.state in "ZX" and self.threads <= 1


def process_status(process: int | str) -> ProcessStatus:
    """Return the status of the process with this id, or ``self``. Raises ``OSError`` if there is none."""
    return read_status(kernel_files.read(f"/proc/{process}/stat"))


def read_status(content: bytes) -> ProcessStatus:
    """Read the content of a ``stat`` file."""
    fields = content.rpartition(b")")[2].split()
    arguments = int(fields[45]), int(fields[46])
    exiting = bool(int(fields[6]) & _EXITING)
    return ProcessStatus(
        state=fields[0].decode(),
        parent=int(fields[1]),
        started=int(fields[19]),
        arguments=arguments,
        exiting=exiting,
        threads=int(fields[17]),
        session=int(fields[3]),
    )


def mount_points(table: str) -> list[str]:
    """Return the mount points of a ``mountinfo``, in its order, which has white space and backslashes in octal."""
    points: list[str] = []
    for line in table.splitlines():
        point = line.split()[4]
        for number in (0o40, 0o11, 0o12, 0o134):
            point = point.replace(f"\\{number:03o}", chr(number))
        points.append(point)
    return points
