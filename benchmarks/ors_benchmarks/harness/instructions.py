"""Instructions of a process: other work on the machine slows them down, but adds none.

They are counted by ``perf`` (Linux), where it is installed, the kernel permits it, and the machine has counters.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Generator
from dataclasses import dataclass

__all__ = ["Counted", "counting", "rate_of"]

#: Seconds that ``perf`` may take to write its counts.
_PATIENCE = 5.0


@dataclass
class Counted:
    """Counts of a block that has ended."""

    #: Instructions per second of CPU time, those of the kernel too if ``perf`` may count them. None if there are none.
    rate: float | None = None


@contextlib.contextmanager
def counting(pid: int) -> Generator[Counted]:
    """Count the instructions of a process, all its threads, while the block runs."""
    counted = Counted()
    program = shutil.which("perf")
    if program is None:
        yield counted
        return
    command = [program, "stat", "--field-separator", ";", "--event", "instructions,task-clock", "--pid", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield counted
        finally:
            process.send_signal(signal.SIGINT)
            try:
                counted.rate = rate_of(process.communicate(timeout=_PATIENCE)[1])
            except subprocess.TimeoutExpired:
                process.kill()


def rate_of(output: str) -> float | None:
    """Return the instructions per second of CPU time that ``perf stat`` wrote; None where it has none."""
    counts: dict[str, float] = {}
    for line in output.splitlines():
        value, _, rest = line.partition(";")
        with contextlib.suppress(ValueError, IndexError):
            counts[rest.split(";")[1].partition(":")[0]] = float(value)  # the kernel's may be left out: instructions:u
    instructions, milliseconds = counts.get("instructions"), counts.get("task-clock")
    return instructions / milliseconds * 1000 if instructions and milliseconds else None
