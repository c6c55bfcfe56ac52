"""Choice of the worker that answers a request for a page below ``/ui``.

The page of a task has the form that opens an episode of the playground, with the id of its session. The gateway makes
that id, as it does for ``/create_session``, so that the episode is found wherever workers come and go; an id that it
did not make belongs to an owner. Pages of what lives now are of one worker, which ``worker=SLOT`` names; they get the
slots and the environments of all workers in a header, so that they can say which worker they show and link to the
others. Stored rollouts are shown by the worker that keeps them. The worker of the sandboxes has the page of sandboxes
only.
"""

from __future__ import annotations

import urllib.parse

from ors_server.cluster.errors import NoWorker
from ors_server.cluster.gateway.members.placed_ids import PlacedIds
from ors_server.cluster.gateway.members.workers import Life, Worker, Workers
from ors_server.cluster.gateway.proxy.framing import Head

__all__ = ["is_page", "route_page"]

#: Headers of requests for pages, which only a gateway sets: slots, quoted names, and the id of a session to open.
WORKERS_HEADER, ENVIRONMENTS_HEADER, SESSION_HEADER = b"x-ors-workers", b"x-ors-environments", b"x-ors-new-session"
#: Slots and names that a header has at most: heads are limited.
_MOST = 256


def is_page(path: str) -> bool:
    """Return whether a path is one of pages."""
    return path == "/ui" or path.startswith("/ui/")


def route_page(workers: Workers, ids: PlacedIds, head: Head, path: str) -> Worker:
    """Return the worker that answers; ``head`` gets the headers of pages. Raises ``NoWorker``."""
    segments = path.split("/")[2:]
    slots = None
    if workers.in_pools:
        named = segments[1] if segments[:1] == ["environments"] and len(segments) > 1 else ""
        slots = workers.slots_of(named) or workers.default_slots
    others = frozenset[int]() if segments[:1] == ["sandboxes"] else workers.sandboxes
    worker: Worker | None
    if segments[:1] == ["environments"] and segments[2:3] == ["sessions"] and len(segments) > 3:
        worker = _owner(workers, ids, segments[3], slots)
    elif segments[:1] and segments[0].startswith(("run", "rollout")):
        worker = workers.keeper()
    else:
        slot = _slot(head)
        worker = (None if slot in others else workers.in_slot(slot)) or workers.serving("ui", slots)
    if worker is None:
        raise NoWorker()
    shown = [str(slot) for slot in workers.living_slots() if slot not in others]
    opened = workers.for_new_session(slots) if segments[2:] == ["task"] else None
    head.data = _with_headers(
        head,
        (SESSION_HEADER, "" if opened is None else ids.make(opened.place)),
        (WORKERS_HEADER, " ".join(shown[:_MOST])),
        (ENVIRONMENTS_HEADER, " ".join(urllib.parse.quote(name, safe="") for name in workers.environments[:_MOST])),
    )
    return worker


def _owner(workers: Workers, ids: PlacedIds, sid: str, slots: frozenset[int] | None) -> Worker | None:
    """Return the worker with the session ``sid``; one that knows no such session where its worker has ended."""
    place = ids.read(sid)
    if place is None:
        owners = [owner for owner in workers.owners(sid, slots) if owner is not None]
        return next((owner for owner in owners if owner.life is not Life.DEAD), None)
    return workers.at(place) or (None if workers.may_be_unknown(place) else workers.serving("ui", slots))


def _slot(head: Head) -> int:
    query = urllib.parse.parse_qs(head.target.partition(b"?")[2].decode("latin-1"))
    given = query.get("worker", [""])[-1]
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else -1


def _with_headers(head: Head, *headers: tuple[bytes, str]) -> bytes:
    data = head.without(*(name for name, _ in headers))
    return data[:-2] + b"".join(b"%b: %b\r\n" % (name, value.encode()) for name, value in headers) + b"\r\n"
