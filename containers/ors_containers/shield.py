"""For the program of an examination: keep the programs it starts out of its memory and its descriptors.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import shield``).

The program of an examination has a capability that no process of the agent has, and the kernel lets nobody inspect a
process who has less than it. The programs it starts get that capability too, unless ``up`` was called: then they have
none, and a program of the agent that a test starts can neither read nor change the tests, the verdict and the
interpreter of the one that started it. Its user is still the same, so it may send signals, and read and write every
file the user may: files with expected results are deleted before.
"""

import ctypes
import os
from pathlib import Path

__all__ = ["up"]

_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def up() -> None:
    """From now on the programs this process starts cannot inspect it. Raises ``OSError`` where that cannot be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_CAP_AMBIENT): {os.strerror(number)}")
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if int(fields["CapPrm"], 16) == 0 or int(fields["CapAmb"], 16) != 0:
        raise OSError("this is no examination: the process has nothing that its children would lack")
