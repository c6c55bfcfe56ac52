"""The search for the worker of a session whose id does not say where it lives.

Such an id has one owner, but an earlier owner may have its session. The gateway then asks these workers
(``GET /_ors/session``) before it passes the request on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ors_server.cluster.errors import NoWorker
from ors_server.cluster.gateway.members.workers import Life, Worker
from ors_server.cluster.gateway.proxy.worker_requests import ask, key_lines
from ors_server.sessions.errors import LOST_WITH_WORKER, SessionGone

__all__ = ["Search", "find"]


@dataclass(frozen=True, slots=True)
class Search:
    """The workers that may have a session, the owner of its id first; an owner that has ended is None."""

    sid: str
    owners: Sequence[Worker | None]
    #: Whether the request creates the session.
    creates: bool
    #: The key of the request: another key's session of this id is not the one.
    credential: bytes = b""


async def find(search: Search) -> tuple[Worker, bool]:
    """Return the worker that answers, and whether the session lives there. Raises ``NoWorker``, ``SessionGone``."""
    living = [worker for worker in search.owners if worker is not None and worker.life is not Life.DEAD]
    statuses = await asyncio.gather(*(_ask(worker, search) for worker in living))
    by_status = dict(zip(reversed(statuses), reversed(living), strict=True))
    if 200 in by_status:
        return by_status[200], True
    if 0 in by_status:
        raise NoWorker()  # it may be the one
    owner = search.owners[0] if search.owners else None
    if search.creates:
        if owner is None or owner.life is Life.DEAD:
            raise NoWorker()
        return owner, False
    if 410 in by_status:
        return by_status[410], False
    if len(living) < len(search.owners) or owner is None:
        raise SessionGone(LOST_WITH_WORKER)
    return owner, False


async def _ask(worker: Worker, search: Search) -> int:
    """Return 200 where the worker has the session, 410 where it ended there, 404, or 0 where it does not answer."""
    status, _ = await ask(worker, "/_ors/session", f"x-session-id: {search.sid}", *key_lines(search.credential))
    return status
