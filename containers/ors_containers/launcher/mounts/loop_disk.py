"""The disk of a container: an ext4 file system in a file without a name, mounted through a loop device.

Its size bounds what the container writes, and its blocks are on the host's disk only once they are written. Only the
host's root can mount one.

Invariant: nothing has to be removed. The file has no name, and the kernel detaches the loop device and frees the file
when the last mount of it is gone, however the container ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

from ors_containers.linux import syscalls as system

__all__ = ["device_of", "mount_disk", "mount_frozen"]

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_LO_FLAGS_DIRECT_IO = 16
#: ``struct loop_config``: descriptor, block size, ``struct loop_info64`` and 64 reserved bytes.
_CONFIG = struct.Struct("=II 8x8x8x8x8x I I I I 64x 64x 32x 16x 64x")
_LOOP_MAJOR = 7
#: Without barriers: the last unmount would else wait for an fsync of the host's file system.
_OPTIONS = "errors=remount-ro,noinit_itable,nobarrier"
_FLAGS = system.MS_NOSUID | system.MS_NODEV | system.MS_NOATIME
_ATTEMPTS = 64


def mount_disk(template: int, folder: str, target: str, owner: int) -> None:
    """Mount a new disk with the content of the file ``template`` at ``target``; ``owner`` owns its root directory.

    As the host's root. Its file is made in ``folder``. Raises ``OSError``.
    """
    disk = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    device = -1
    try:
        _copy_sparse(template, disk)
        number, device = _attach(disk)
        system.mount(f"/dev/loop{number}", target, "ext4", _FLAGS, _OPTIONS)
    finally:
        os.close(disk)
        if device != -1:
            os.close(device)
    os.chown(target, owner, owner)
    Path(target).chmod(0o755)


def device_of(path: Path) -> str | None:
    """Return the name of the loop device of the file system a path is on; None for another file system."""
    device = path.stat().st_dev
    if os.major(device) != _LOOP_MAJOR:
        return None
    try:
        return Path(f"/sys/dev/block/{_LOOP_MAJOR}:{os.minor(device)}").readlink().name
    except OSError:  # where /sys is not mounted
        return f"loop{os.minor(device)}"


def mount_frozen(device: str, target: str) -> None:
    """Mount the disk of an ended container again, which the server holds; as the host's root. Raises ``OSError``.

    Its own mount is in no namespace any longer, so no other mount can be made of it.
    """
    os.close(_open_device(int(device.removeprefix("loop"))))
    system.mount(f"/dev/{device}", target, "ext4", _FLAGS, _OPTIONS)


def _copy_sparse(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    place = 0
    while place < size:
        try:
            place = os.lseek(source, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data up to the end
                return
            raise
        end = os.lseek(source, place, os.SEEK_HOLE)
        os.lseek(target, place, os.SEEK_SET)
        while place < end:
            # Not `lseek` of the source: other children share its position.
            piece = os.pread(source, min(1 << 20, end - place), place)
            place += os.write(target, piece)


def _attach(file: int) -> tuple[int, int]:
    """Attach a file to a free loop device; return its number and a descriptor of it."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = _open_device(number)
            for flags in (_LO_FLAGS_AUTOCLEAR | _LO_FLAGS_DIRECT_IO, _LO_FLAGS_AUTOCLEAR):
                try:
                    fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(file, 4096, 0, 0, 0, flags))
                except OSError as error:
                    if error.errno == errno.EBUSY:  # another process was faster
                        break
                    if flags & _LO_FLAGS_DIRECT_IO:
                        continue
                    os.close(device)
                    raise
                return number, device
            os.close(device)
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _open_device(number: int) -> int:
    path = f"/dev/loop{number}"
    if not Path(path).exists():
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, number))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
