"""The folder of the image store: its subfolders, the conditions on it, and the errors of its file system."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path

from ors_containers.errors import StoreFailed
from ors_containers.linux.public_folders import make_folder

__all__ = ["default_root", "prepare_folder", "store_errors"]

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
#: File systems on which the files of a layer cannot have owners of their own, or on which overlayfs cannot write.
_UNSUITABLE = ("overlay", "nfs", "nfs4", "cifs", "9p", "virtiofs", "vfat", "exfat")
_SUBFOLDERS = (
    ("layers", 0o755),
    ("images", 0o755),
    ("locks", 0o700),
    ("pool", 0o700),
    ("leases", 0o700),
    ("holds", 0o700),
    ("tmp", 0o711),
)


def default_root() -> Path:
    """Return ``$ORS_IMAGES``, else ``$XDG_CACHE_HOME/ors-server/images``, else ``~/.cache/ors-server/images``.

    Raises ``StoreFailed`` for a user without a home.
    """
    given = os.environ.get("ORS_IMAGES")
    if given:
        return Path(given).absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "ors-server" / "images"
    except RuntimeError as error:
        raise StoreFailed("This user has no home for the store of images", "Set ORS_IMAGES to a folder") from error


def prepare_folder(root: Path, *, set_owners: bool) -> None:
    """Create the subfolders. With ``set_owners`` this process chowns the files of layers itself, as root.

    Raises ``StoreFailed`` for a folder that others can write, and for a file system on which files cannot be chowned.
    """
    if not root.is_dir():  # one that is there may be closed to others on purpose
        make_folder(root)
    for name, mode in _SUBFOLDERS:
        make_folder(root / name, mode)
    found = root.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StoreFailed(
            f"{root} is not this user's alone", "Set ORS_IMAGES to a folder of your own that others cannot write"
        )
    kind = _file_system(root)
    if set_owners and kind in _UNSUITABLE:
        raise StoreFailed(
            f"{root} is on {kind}, where files cannot be given to the ids of sandboxes",
            "Set ORS_IMAGES to a folder on ext4, xfs, btrfs or tmpfs; in a container, to a volume",
        )


def _file_system(path: Path) -> str:
    """Return the type of the file system a folder is on; empty where it cannot be read."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


@contextlib.contextmanager
def store_errors(root: Path) -> Generator[None]:
    """Raise ``StoreFailed`` with a remedy for an ``OSError`` of the store's file system."""
    try:
        yield
    except OSError as error:
        # Errors of this package that are ``OSError`` as well carry a ``cause``.
        if error.errno is None or isinstance(error, TimeoutError) or hasattr(error, "cause"):
            raise
        remedy = "Set ORS_IMAGES to a folder that can be written"
        if error.errno in _DISK_FULL:
            remedy = "Free some space (`ors-server image prune`), or set ORS_IMAGES to a folder on another disk"
        elif error.errno == errno.ENOTSUP:
            remedy = "Set ORS_IMAGES to a folder on a file system with extended attributes: ext4, xfs or btrfs"
        place = f": {error.filename}" if error.filename else ""
        raise StoreFailed(f"The store in {root} cannot be written: {error.strerror}{place}", remedy) from error
