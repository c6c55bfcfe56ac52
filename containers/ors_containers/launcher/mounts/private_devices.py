"""Device files that only one sandbox has, with locks and watches of their own (see ``overlays``)."""

from __future__ import annotations

import contextlib
import os
import stat

__all__ = ["DEVICES", "OWN_DEVICES", "has_own_devices", "make_own_devices"]

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: Below ``stage``, where there are devices of the sandbox's own.
OWN_DEVICES = "devices"


def make_own_devices(stage: str, owner: int) -> None:
    """Make devices that no other sandbox has, as the host's root; none where a container's root may not."""
    folder = f"{stage}/{OWN_DEVICES}"
    os.mkdir(folder, 0o755)
    try:
        for name in DEVICES:
            device = f"{folder}/{name}"
            os.mknod(device, stat.S_IFCHR | 0o666, os.stat(f"/dev/{name}").st_rdev)
            os.chmod(device, 0o666)  # noqa: S103 - as devices are
            os.chown(device, owner, owner)
        os.chown(folder, owner, owner)
        # A container may let its root make devices that no process can open.
        os.close(os.open(f"{folder}/{DEVICES[0]}", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        for name in DEVICES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")
        os.rmdir(folder)


def has_own_devices() -> bool:
    """Return whether ``make_own_devices`` could make the sandbox's own devices in this folder, ``stage``."""
    return os.path.exists(f"{OWN_DEVICES}/{DEVICES[-1]}")
