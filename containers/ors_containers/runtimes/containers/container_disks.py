"""The disks of a runtime's containers: a file system of each size to copy, and the end of those that are done with.

Making an ext4 file system takes tens of milliseconds, copying one that has no files takes one: it has a few hundred
kilobytes in a file of gigabytes. Unmounting one takes as long, and seconds where much was written, all of it waiting in
the kernel. So a container's disk outlives its processes for a moment: the server holds its directory until then.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

from ors_containers.errors import ProgramMissing, StartFailed
from ors_containers.runtimes.opened_file import OwnedDescriptor

__all__ = ["ContainerDisks", "find_mkfs"]

_OPTIONS = (
    *("-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal,^resize_inode,sparse_super2,uninit_bg"),
    *("-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"),
)
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
#: Disks that are unmounted at a time.
_UNMOUNTING = 4


def find_mkfs() -> str | None:
    """Return the path of ``mkfs.ext4``; None where it is not installed."""
    return shutil.which("mkfs.ext4") or shutil.which("mkfs.ext4", path=_PATH)


class ContainerDisks:
    """File systems to copy, by size, each a file in memory; and the disks that are being unmounted."""

    def __init__(self) -> None:
        self._making: dict[int, asyncio.Task[int]] = {}
        self._unmounting = ThreadPoolExecutor(_UNMOUNTING, "ors-unmount")

    async def template(self, size: int) -> int:
        """Return a descriptor of a new file system of ``size`` bytes. Raises ``ProgramMissing`` and ``StartFailed``."""
        making = self._making.get(size)
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = self._making[size] = asyncio.create_task(_make(size))
        return await asyncio.shield(making)

    def free(self, disk: int) -> None:
        """Close the directory ``disk``, which alone keeps a container's disk mounted, in a thread."""
        owned = OwnedDescriptor(disk)
        try:
            self._unmounting.submit(owned.close)
        except RuntimeError:  # after `close`, or no thread can be started; a later one would find it in the queue
            owned.close()

    async def close(self) -> None:
        """Free every file system, and wait until every disk is unmounted."""
        await asyncio.to_thread(self._unmounting.shutdown)
        for making in self._making.values():
            await asyncio.wait([making])
            if not making.cancelled() and making.exception() is None:
                os.close(making.result())
        self._making.clear()


async def _make(size: int) -> int:
    program = find_mkfs()
    if program is None:
        raise ProgramMissing("mkfs.ext4 is not installed, and a container's disk needs it", "apt install e2fsprogs")
    descriptor = os.memfd_create("ors-disk")
    try:
        os.ftruncate(descriptor, size // 4096 * 4096)
        process = await asyncio.create_subprocess_exec(
            *(program, *_OPTIONS, f"/proc/self/fd/{descriptor}"),
            pass_fds=(descriptor,),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise StartFailed(f"{program} failed: {output.decode(errors='replace').strip()}")
    except BaseException:  # also of a cancelled call
        os.close(descriptor)
        raise
    return descriptor
