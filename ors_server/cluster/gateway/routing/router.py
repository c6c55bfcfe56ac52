"""Choice of what answers a request: a worker, or the gateway itself.

A request of a session or a sandbox goes to the worker of its id; of an id that does not name a worker the possible
owners are searched. Other requests go to a worker that is the same for all clients, so that they see one listing of
tasks. The gateway answers ``/create_session``, ``/health``, ``/ready``, listings of several pools, and for workers that
have ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from ors_server.cluster.errors import NoWorker
from ors_server.cluster.gateway.members.placed_ids import SLOTS, Place, PlacedIds
from ors_server.cluster.gateway.members.workers import Life, Worker, Workers
from ors_server.cluster.gateway.proxy.answers import error_response, events_response, own_response, platform_response
from ors_server.cluster.gateway.proxy.framing import Head
from ors_server.cluster.gateway.proxy.targets import path_of, query_of, text_in, text_of
from ors_server.cluster.gateway.proxy.templates import Templates
from ors_server.cluster.gateway.routing.auth import credential_in
from ors_server.cluster.gateway.routing.discovery import list_environments
from ors_server.cluster.gateway.routing.metrics import GatewayCounts, GatewayMetrics
from ors_server.cluster.gateway.routing.page_routing import is_page, route_page
from ors_server.cluster.gateway.routing.routes import Later, Own, Private, Route, WithBody
from ors_server.cluster.gateway.routing.session_lookup import Search
from ors_server.errors import InfrastructureFailure, OrsError
from ors_server.hosting.errors import UnknownEnvironment
from ors_server.http.errors import AmbiguousSession, MissingSession
from ors_server.http.routes.operations import OPERATIONS
from ors_server.keys.authentication import FILES
from ors_server.sessions.errors import LOST_WITH_WORKER, SessionGone, ShuttingDown
from ors_server.wire.sse import session_frames

__all__ = ["Router"]

_OF_SESSIONS = frozenset(
    name for name, operation in OPERATIONS.items() if operation.tag in ("sessions", "episodes")
) - {"create_session"}
_ENDINGS = frozenset(("delete", "delete_session"))
_OF_SANDBOXES = frozenset(name for name, operation in OPERATIONS.items() if operation.tag == "sandboxes")
_OF_ENVIRONMENTS = frozenset(name for name, operation in OPERATIONS.items() if operation.per_environment)
#: The value of X-Deployment that TRL sends where no environment was configured.
_UNNAMED = "env"
#: The place in ids of sessions that are created before their environment is known, where pools have different ones.
UNBOUND = Place(SLOTS - 1, 0)
#: Sessions whose workers are remembered: found by searches, and named by ids.
_FOUND = _PLACED = 65_536
#: Longest ids with keys that are remembered, in characters: clients choose them.
_LONGEST = 256


class Router:
    """The routing of one gateway."""

    def __init__(self, workers: Workers, ids: PlacedIds, private: Private | None = None, max_body: int = 2**24) -> None:
        self._workers = workers
        self._ids = ids
        self._private = private
        self._max_body = max_body
        self.counts = GatewayCounts()
        self.templates = Templates()
        #: Workers by ids that name them; all are forgotten when there are more.
        self.placed: dict[bytes, Worker] = {}
        #: Answers ``/metrics``; None where workers answer it, as if metrics were off.
        self.metrics: GatewayMetrics | None = None
        #: Workers in which a search has found sessions, by id and key, the last used last.
        self._found: OrderedDict[tuple[str, bytes], Worker] = OrderedDict()

    def route(self, head: Head) -> Route:
        """Return the worker that answers a request, or the gateway's own response. Raises ``BadRequest``."""
        path = path_of(head.target)
        last = path[path.rfind("/") + 1 :]
        try:
            return self._route(head, path, last)
        except OrsError as error:
            return Own(platform_response(error) if path.startswith("/v1/") else error_response(error))

    def _route(self, head: Head, path: str, last: str) -> Route:
        if path.startswith("/_ors/"):
            if self._private is not None:
                return self._private.route(head, path)
            return Own(own_response(404, {"detail": "Not Found"}))
        if is_page(path):
            # With the body, so that the head can be changed before anything is sent.
            return WithBody(lambda _: self._page(head, path), self._max_body)
        if last in _OF_SESSIONS:
            return self._of_session(head, path, last)
        if self._workers.sandboxes and (path.startswith(FILES) or path[1:] in _OF_SANDBOXES):
            return self._of_sandbox(head, path, last)
        if path == "/create_session" and head.method == b"POST":
            return self._create_session(head)
        if path == "/health" and head.method == b"GET":
            if self._workers.serving() is None:
                raise self._no_worker()
            return Own(own_response(200, {"status": "ok"}))
        if path == "/ready" and head.method == b"GET":
            if not self._workers.accepting():
                raise self._no_worker()
            return Own(own_response(200, {"status": "ready"}))
        if path == "/metrics" and head.method == b"GET" and self.metrics is not None:
            return Later(partial(self.metrics.respond, head))
        if path == "/list_environments" and head.method == b"GET" and self._workers.in_pools:
            return Own(own_response(200, self._workers.environments))
        if path == "/v1/environments" and head.method == b"GET" and self._workers.in_pools:
            asked = (self._workers.serving("v1", group) for group in self._workers.groups)
            listed = [worker for worker in asked if worker is not None]
            return Later(partial(list_environments, listed, query_of(head.target), credential_in(head)))
        if path.startswith(("/v1/rollouts", "/v1/runs")):
            slots, worker = None, self._workers.keeper()
        else:
            slots = (self._named(head, path) or self._workers.default_slots) if self._workers.in_pools else None
            worker = self._workers.serving(path.split("/")[1], slots)
        if worker is None:
            raise self._no_worker(slots)
        return worker

    def _no_worker(self, slots: frozenset[int] | None = None) -> OrsError:
        """Return the error where no worker of these slots can answer."""
        if not self._workers.takes_new:
            return ShuttingDown()
        reason = self._workers.why_out(slots)
        return InfrastructureFailure(reason, "Its messages are in the server's log.") if reason else NoWorker()

    def _page(self, head: Head, path: str) -> Own | Worker:
        try:
            return route_page(self._workers, self._ids, head, path)
        except OrsError as error:
            return Own(error_response(error))

    def _named(self, head: Head, path: str) -> frozenset[int] | None:
        """Return the slots of the environment that a request names; None where it names none.

        Raises ``UnknownEnvironment``.
        """
        owner, _, last = path[1:].rpartition("/")
        if path.startswith("/v1/environments/"):
            # The name may have a path of its own after it.
            names = path.split("/")[3:]
            found = next(filter(None, map(self._workers.slots_of, names)), None)
            return found or self._slots_of("/".join(names[:2]))
        if owner and last in _OF_ENVIRONMENTS and "/" not in owner:
            return self._slots_of(owner)
        name = text_of(next(iter(head.values(b"x-deployment")), b"")).strip()
        return None if name.lower() in ("", _UNNAMED) else self._slots_of(name)

    def _slots_of(self, name: str) -> frozenset[int]:
        slots = self._workers.slots_of(name)
        if slots is None:
            unavailable = self._workers.unavailable
            reason = unavailable.get(name.lower()) or unavailable.get(name.lower().rpartition("/")[2], "")
            raise UnknownEnvironment(name, self._workers.environments, reason)
        return slots

    # --- sandboxes ---------------------------------------------------------------------------

    def _of_sandbox(self, head: Head, path: str, last: str) -> Route:
        """Route a request for a sandbox to the worker of its id, and one for a new sandbox, or for files, to any."""
        if last == "create_sandbox":
            return WithBody(self._place_sandbox, self._max_body)
        sid = "" if path.startswith("/v1/") else text_of(next(iter(head.values(b"x-session-id")), b"")).strip()
        return self._sandbox_worker(sid, last)

    def _place_sandbox(self, body: bytes) -> Own | Worker:
        try:
            # A client whose connection broke has nothing but the id of the creation.
            return self._sandbox_worker(text_in(body, "task_id") or "", "create_sandbox")
        except OrsError as error:
            return Own(error_response(error))

    def _sandbox_worker(self, sid: str, last: str) -> Own | Worker:
        place = self._ids.read(sid)
        if place is not None:
            return self._workers.at(place) or _lost(sid, last)
        worker = self._workers.serving(among=self._workers.sandboxes)  # it refuses an id that it never made
        if worker is None or (worker.draining and last == "create_sandbox"):
            raise self._no_worker(self._workers.sandboxes)
        return worker

    # --- sessions ----------------------------------------------------------------------------

    def _of_session(self, head: Head, path: str, last: str) -> Route:
        values = head.values(b"x-session-id")
        if len(values) > 1:
            raise AmbiguousSession()
        worker = self.placed.get(values[0]) if values else None
        if worker is not None and not worker.dead:
            head.placed = True
            return worker
        sid = text_of(values[0]).strip() if values else ""
        if not sid:
            raise MissingSession()
        place = self._ids.read(sid)
        if place is None or place == UNBOUND:
            return self._of_unplaced(head, path, last, sid)
        worker = self._workers.at(place)
        if worker is not None:
            if len(self.placed) >= _PLACED:
                self.placed.clear()
            self.placed[sid.encode()] = worker
            return worker
        if self._workers.may_be_unknown(place):
            raise NoWorker()
        return _lost(sid, last)

    def _of_unplaced(self, head: Head, path: str, last: str, sid: str) -> Route:
        """Route a request of a session whose id does not name its worker."""
        if not self._workers.complete:
            raise NoWorker()
        credential = credential_in(head)
        worker = self._found.get((sid, credential))
        if worker is not None:
            if self._workers.at(worker.place) is worker:
                self._found.move_to_end((sid, credential))
                return worker
            del self._found[sid, credential]
            if last != "create":
                return _lost(sid, last)
        if not self._workers.in_pools:
            return self._search(sid, credential, self._workers.owners(sid), last)
        if last != "create":
            slots = self._named(head, path)
            owners = self._workers.possible_owners(sid) if slots is None else self._workers.owners(sid, slots)
            return self._search(sid, credential, owners, last)

        def choose(body: bytes) -> Own | Worker | Search:
            name = text_in(body, "env_name")
            try:
                slots = (self._slots_of(name) if name else self._named(head, path)) or self._workers.default_slots
                return self._search(sid, credential, self._workers.owners(sid, slots), last, slots)
            except OrsError as error:
                return Own(error_response(error))

        return WithBody(choose, self._max_body)

    def _search(
        self,
        sid: str,
        credential: bytes,
        owners: Sequence[Worker | None],
        last: str,
        slots: frozenset[int] | None = None,
    ) -> Own | Worker | Search:
        if len(owners) > 1:
            return Search(sid, owners, last == "create", credential)
        worker = owners[0] if owners else None
        if worker is not None and worker.life is not Life.DEAD:
            return worker
        if last == "create":
            raise self._no_worker(slots)
        return _lost(sid, last)

    def note(self, search: Search, worker: Worker) -> None:
        """Remember in which worker a search has found a session."""
        if len(search.sid) + len(search.credential) > _LONGEST:
            return
        self._found[search.sid, search.credential] = worker
        self._found.move_to_end((search.sid, search.credential))
        if len(self._found) > _FOUND:
            self._found.popitem(last=False)

    def _create_session(self, head: Head) -> Own:
        slots = self._named(head, "/create_session") if self._workers.in_pools else None
        if self._workers.in_pools and slots is None:
            # Which workers can take it is known once /create names the environment.
            if self._workers.serving() is None:
                raise self._no_worker()
            place = UNBOUND
        else:
            worker = self._workers.for_new_session(slots)
            if worker is None:
                raise self._no_worker(slots)
            place = worker.place
        sid = self._ids.make(place)
        if any(b"text/event-stream" in value for value in head.values(b"accept")):
            return Own(events_response(session_frames(sid)))
        return Own(own_response(200, {"sid": sid}))

    def not_found(self, search: Search, head: Head, error: OrsError) -> Own:
        """Answer a request whose session was searched in vain."""
        last = path_of(head.target).rpartition("/")[2]
        if isinstance(error, SessionGone) and last in _ENDINGS:
            return _lost(search.sid, last)
        return Own(error_response(error))

    def without_worker(self, head: Head, *, ended: bool) -> Own:
        """Answer a request whose worker cannot be reached or has ``ended``, before any of it was sent."""
        values = head.values(b"x-session-id")
        of_session = path_of(head.target).rpartition("/")[2] in _OF_SESSIONS | _OF_SANDBOXES
        if ended and of_session and values and self._ids.read(text_of(values[0]).strip()):
            return Own(error_response(SessionGone(LOST_WITH_WORKER)))
        return Own(error_response(NoWorker()))


def _lost(sid: str, last: str) -> Own:
    if last in _ENDINGS:
        return Own(own_response(200, {"sid": sid}))  # what has ended need not be ended
    raise SessionGone(LOST_WITH_WORKER)
