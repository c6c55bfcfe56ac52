"""Removal of what the sandboxes of dead workers left on this machine: processes, control groups, folders.

A worker's sandboxes are recorded in leases, from which any process of the same user can free them
(``ors_containers.linux.leases``). Servers with sandboxes do that once a minute. The supervisor does it when a worker
ends.
"""

from __future__ import annotations

import asyncio
import logging

__all__ = ["sweep_dead_workers"]

logger = logging.getLogger("ors_server.supervisor")


async def sweep_dead_workers() -> None:
    """Free what workers left that have ended. Raises nothing."""
    # In a thread with a loop of its own: the sweep reads files, and the supervisor answers meanwhile.
    try:
        freed = await asyncio.to_thread(_sweep)
    except Exception as error:  # noqa: BLE001 - whatever it is: servers with sandboxes sweep again each minute
        logger.warning("what dead workers left cannot be freed", extra={"reason": str(error)})
        return
    if freed:
        logger.info("freed the sandboxes of dead workers", extra={"sandboxes": len(freed)})


def _sweep() -> list[str]:
    # Imported here: a server without sandboxes does not need ``ors_containers`` before a worker dies.
    from ors_containers.linux.leases import state_directory, sweep

    return asyncio.run(sweep(state_directory()))
