"""Files that an ended container has written, as a layer that other containers start over.

A container's disk outlives its processes as long as the server holds its directory, so nothing is copied where there is
one. Files in memory belong to namespaces that are gone, and are copied.

Invariants: the layer is as one of the store: owners as inside, and no setuid bits, devices or sockets. Nothing that a
container can do to its files lets this fail.
"""

from __future__ import annotations

import os
from pathlib import Path

from ors_containers.container import FrozenFiles
from ors_containers.errors import StoreFailed
from ors_containers.layers.deep_folders import remove_deep_folders
from ors_containers.layers.ownership import LayerOwners
from ors_containers.layers.tree import clean_layer
from ors_containers.runtimes.opened_file import in_thread
from ors_containers.runtimes.runtime_state import RuntimeState

__all__ = ["freeze_files"]


async def freeze_files(disk: int, folder: Path, runtime: RuntimeState, started: float) -> FrozenFiles:
    """Return the upper directory in ``disk``, a descriptor that is taken over, as a layer; below ``folder`` if copied.

    ``started`` is when the container did. Raises ``StoreFailed``.
    """
    freed = False

    async def free() -> None:
        nonlocal freed
        if not freed:
            freed = True
            runtime.disks.free(disk)

    try:
        if runtime.disk_folder:
            size = await in_thread(disk, _clean)
            return FrozenFiles(_upper(disk), size, started, free)
        size = await LayerOwners(runtime.mapping).keep("upper", folder / "upper", directory=disk)
        await free()
        return FrozenFiles(folder / "upper", size, started, free)
    except OSError as error:
        await free()
        raise StoreFailed(f"A container's files cannot be kept: {error}") from error
    except BaseException:  # also of a cancelled call
        await free()
        raise


def _upper(disk: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{disk}/upper")


def _clean(disk: int) -> int:
    """Make what the container wrote a layer; return its bytes."""
    remove_deep_folders(_upper(disk))
    # Root inside may have given / to another user, but never the disk.
    return clean_layer(_upper(disk), shift=os.fstat(disk).st_uid)
