"""A Debian root file system, for images that are the same for every candidate."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ors_server.errors import OrsError

__all__ = ["ROOT_VARIABLE", "NoDebian", "debian_root"]

#: Names a folder with such a root file system, which spares the minutes of debootstrap.
ROOT_VARIABLE = "ORS_TEST_ROOTFS"


class NoDebian(OrsError):
    """There is no Debian root file system, and none can be made."""


def debian_root(folder: Path) -> Path:
    """Return a folder with a root file system with git and pytest, made in ``folder`` where none is named.

    Raises ``NoDebian``.
    """
    if os.geteuid() != 0:
        raise NoDebian("Only root can make and read a root file system with the owners of its files", "Run it as root.")
    if given := os.environ.get(ROOT_VARIABLE):
        missing = [name for name in ("usr/bin/git", "usr/bin/pytest-3") if not Path(given, name).exists()]
        if missing:
            raise NoDebian(f"{given} has no {' and no '.join(missing)}", f"Name another folder in {ROOT_VARIABLE}.")
        return Path(given)
    remedy = f"Install debootstrap, or name a folder with a Debian root file system in {ROOT_VARIABLE}."
    if shutil.which("debootstrap") is None:
        raise NoDebian("debootstrap is not installed", remedy)
    root = folder / "debian"
    command = ("debootstrap", "--variant=minbase", "--include=git,python3-pytest", "bookworm", str(root))
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise NoDebian(f"debootstrap failed, as without a mirror: {' '.join(made.stdout.split()[-20:])}", remedy)
    return root
