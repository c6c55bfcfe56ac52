"""Device files that only one sandbox has, with locks and watches of their own (see ``overlays``)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["DEVICES", "OWN_DEVICES", "has_own_devices", "make_own_devices"]

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: Below ``stage``, where there are devices of the sandbox's own.
OWN_DEVICES = "devices"


def make_own_devices(stage: Path, owner: int) -> None:
    """Make devices that no other sandbox has, as the host's root; none where a container's root may not."""
    folder = stage / OWN_DEVICES
    folder.mkdir(0o755)
    try:
        for name in DEVICES:
            status = Path("/dev", name).stat()
            os.mknod(folder / name, stat.S_IFCHR | 0o666, status.st_rdev)
            (folder / name).chmod(0o666)
            os.chown(folder / name, owner, owner)
        os.chown(folder, owner, owner)
        # A container may let its root make devices that no process can open.
        os.close(os.open(folder / DEVICES[0], os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        for name in DEVICES:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def has_own_devices(stage: Path) -> bool:
    """Return whether ``make_own_devices`` could make the sandbox's own devices, in ``OWN_DEVICES`` below ``stage``."""
    return (stage / OWN_DEVICES / DEVICES[-1]).exists()
