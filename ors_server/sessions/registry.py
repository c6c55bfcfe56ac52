"""All sessions of a server: open, find and end them, and end those whose time to live has passed.

Invariants: an id has at most one session, however many ``/create`` come at once; each session that was ever built is
ended exactly once, by ``/delete``, by its time to live, by a lost machine or by the server's shutdown; the id of an
ended session is remembered, so that its late requests get the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextvars import Context
from typing import Any

from ors_server.errors import InfrastructureFailure, MachineBusy, OrsError, ServerBusy
from ors_server.hosting.catalogue import Catalogue, HostedEnvironment
from ors_server.hosting.executors import ThreadPool
from ors_server.keys.key import ANYONE, Key
from ors_server.keys.usage import Kind, Usage
from ors_server.protocol import CreateSession
from ors_server.rollouts.aggregates.derived_columns import LOST, Outcome
from ors_server.rollouts.recorder import Recorder
from ors_server.sandboxes import close_sandbox_service, hold_sandbox_service
from ors_server.sessions.calls.call_slots import CallSlots
from ors_server.sessions.calls.result_store import ResultStore
from ors_server.sessions.errors import (
    LOST_WITH_WORKER,
    EnvironmentConflict,
    SessionExists,
    SessionGone,
    ShuttingDown,
    UnknownSession,
)
from ors_server.sessions.session import Session, SessionContext, State
from ors_server.sessions.setup import TaskChoice
from ors_server.sessions.tombstones import Tombstones
from ors_server.settings import Settings
from ors_server.telemetry.definitions import OTHER
from ors_server.worker import identity

__all__ = ["Sessions"]

logger = logging.getLogger("ors_server.sessions.registry")


#: Sessions that are counted between two turns of the event loop.
_TURN = 2000
#: Longest text that is kept of the reason of a session's end, in characters.
_LONGEST_REASON = 500


class Sessions:
    """The sessions of one server, on one event loop."""

    def __init__(
        self, catalogue: Catalogue, settings: Settings, tools_pool: ThreadPool, lifecycle_pool: ThreadPool
    ) -> None:
        self.catalogue = catalogue
        self.settings = settings
        self.results = ResultStore(settings, lifecycle_pool)
        self.call_slots = CallSlots(total=settings.max_calls, per_session=settings.max_session_calls)
        #: What each key uses of its limits.
        worker = identity()
        self.usage = Usage() if worker is None else Usage(worker.folder, worker.slot)
        #: Records the sessions; set by a server that is to record them.
        self.recorder: Recorder | None = None
        #: Called with each instance that its session holds no longer, and every few seconds; set by a serving process.
        self.on_left: Callable[[Any], None] | None = None
        self.maintenance: Callable[[], None] | None = None
        self._context = SessionContext(
            settings,
            self.call_slots,
            self.usage,
            self.results,
            on_lost=self._lose,
            on_unbuilt=self._discard,
            on_left=self._left,
            recorder=lambda: self.recorder,
        )
        self._sessions: dict[str, Session] = {}
        #: Set when the server begins to shut down.
        self.closing = asyncio.Event()
        self._takes_new = True
        self._tombstones = Tombstones(settings.tombstones)
        self._ending: set[asyncio.Task[None]] = set()
        #: Until then an unknown id may be that of a session which an earlier worker of the same slot held.
        self._former_until = 0.0
        if worker is not None and worker.restarted:
            self._former_until = time.monotonic() + settings.session_ttl
        #: Closed after the last session and before the results.
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self._pools = (tools_pool, lifecycle_pool)
        self._maintainer: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    async def tally(self) -> dict[tuple[str, str], int]:
        """Count the sessions by their environment and state, in pieces: there may be tens of thousands."""
        states = [state.value.replace(" ", "_") for state in State]
        counts = {(hosted.name, state): 0 for hosted in self.catalogue.environments for state in states}
        for position, session in enumerate(list(self._sessions.values())):
            name = OTHER if session.hosted is None else session.hosted.name
            key = (name, session.state.value.replace(" ", "_"))
            counts[key] = counts.get(key, 0) + 1
            if position % _TURN == _TURN - 1:
                await asyncio.sleep(0)
        return counts

    def take_no_more(self) -> None:
        """Refuse new sessions from now on; those that live go on."""
        self._takes_new = False

    def check_open(self) -> None:
        """Raise ``ShuttingDown`` where no new session is taken."""
        if self.closing.is_set() or not self._takes_new:
            raise ShuttingDown()

    # --- opening and finding -----------------------------------------------------------------

    async def create(
        self,
        sid: str,
        request: CreateSession,
        secrets: dict[str, str],
        deployment: str | None,
        key: Key = ANYONE,
        *,
        ahead: bool = False,
    ) -> None:
        """Open a session, which belongs to ``key``. The same request again gets the same answer. ``ahead``: for an
        episode that begins later.

        Raises ``SessionExists`` for another request with the same id, ``InvalidToolset``, ``UnknownEnvironment``,
        ``ServerBusy``, ``KeyBusy`` and ``MachineBusy`` where there is no room, ``ShuttingDown``, and what building the
        instance raises.
        """
        if self.closing.is_set():
            raise ShuttingDown()
        self._start_maintenance()
        hosted: HostedEnvironment | None
        if request.env_name is not None:
            hosted = self.catalogue.by_path(request.env_name)
        else:
            hosted = self.catalogue.by_deployment(deployment)
            named = bool(deployment)
            if hosted is None and (named or len(self.catalogue.environments) == 1):
                hosted = self.catalogue.default
        fingerprint = _fingerprint(hosted, request, secrets)
        place = _place(sid, key.name)
        session = self._sessions.get(place)
        if session is None:
            self.check_open()
            if len(self._sessions) >= self.settings.max_sessions:
                raise ServerBusy("sessions", self.settings.max_sessions, "ORS_MAX_SESSIONS")
            if hosted is not None and hosted.waiting_for_room:
                raise MachineBusy(
                    f"{hosted.waiting_for_room} sessions of {hosted.name!r} wait for room on this machine already",
                    "Retry, or give the server a larger machine.",
                    retry_after=2.0,
                )
            choice = TaskChoice(request.task_spec, request.split, request.index, request.toolset_name)
            self.usage.begin(key, Kind.SESSIONS)
            session = Session(self._context, sid, hosted, choice, secrets, fingerprint, key, ahead=ahead)
            self._sessions[place] = session
            self._tombstones.discard(place)
            if hosted is None:
                return
            await session.construct()
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("session created", extra={"sid": sid, "environment": hosted.name})
            return
        if session.fingerprint != fingerprint:
            raise SessionExists()
        session.touch()
        if session.state is not State.UNBOUND:
            await session.construct()

    async def find(self, sid: str, segment: str | None, owner: str = "") -> Session:
        """Return the session of a request; ``segment`` is the environment that its path names, if any.

        Each ``owner``, the name of a key, has ids of its own: another owner's are unknown.

        Raises ``UnknownEnvironment``, ``UnknownSession``, ``SessionGone``, ``EnvironmentConflict``, and, for a
        session that this request binds, what building the instance raises.
        """
        place = f"{owner}\0{sid}" if owner else sid  # as ``_place``, without its call
        session = self._sessions.get(place)
        if session is not None and session.state is State.READY:  # nearly every request
            if segment is not None:
                self._check_segment(session, segment)
            session.last_seen = time.monotonic()
            return session
        hosted = None if segment is None else self.catalogue.by_path(segment)
        if session is None:
            raise self._unknown(place)
        session.touch()
        if session.state is State.UNBOUND:
            await session.construct(hosted or self.catalogue.default)
        elif segment is not None:
            self._check_segment(session, segment)
        if session.state is State.CREATING:
            await session.construct()
        if session.state is State.ENDING:
            raise SessionGone(session.end_reason)
        return session

    def peek(self, sid: str, owner: str = "") -> Session:
        """Return a session without a request of its client. Raises ``UnknownSession`` and ``SessionGone``."""
        place = _place(sid, owner)
        session = self._sessions.get(place)
        if session is None:
            raise self._unknown(place)
        return session

    def ping(self, sid: str, owner: str = "", *, begins: bool = False) -> None:
        """Keep a session alive; ``begins``: the episode begins that it was opened for ahead.

        Raises ``UnknownSession``, ``SessionGone``, and the failure of its set-up.
        """
        place = _place(sid, owner)
        session = self._sessions.get(place)
        if session is None:
            raise self._unknown(place)
        session.touch()
        if begins and session.ahead is not None:
            session.ahead.begun = True
        if session.state is not State.CREATING and session.state is not State.UNBOUND:
            session.check()

    def _check_segment(self, session: Session, segment: str) -> None:
        hosted = session.hosted
        assert hosted is not None
        if segment != hosted.name:
            named = self.catalogue.by_path(segment)
            if named is not hosted:
                raise EnvironmentConflict(named.name, hosted.name)

    def _unknown(self, place: str) -> OrsError:
        reason = self._tombstones.get(place)
        if reason is None and time.monotonic() < self._former_until:
            reason = LOST_WITH_WORKER
        return UnknownSession() if reason is None else SessionGone(reason)

    # --- ending ------------------------------------------------------------------------------

    async def delete(self, sid: str, owner: str = "") -> None:
        """End a session and wait for its teardown, up to its time limit. Unknown ids are ignored."""
        session = self._sessions.get(_place(sid, owner))
        if session is None:
            return
        ending = self._end(session, "Session deleted")
        if ending is not None:
            await asyncio.wait((ending,), timeout=self.settings.teardown_timeout)

    def end_of(self, owners: Collection[str]) -> None:
        """End the sessions of owners whose keys are no longer valid."""
        for session in list(self._sessions.values()) if owners else ():
            if session.owner in owners:
                self._end(session, "Session deleted: its key was revoked")

    def _lose(self, session: Session, error: InfrastructureFailure) -> None:
        logger.error("session lost", extra={"sid": session.sid, "reason": error.text})
        self._end(session, f"Session lost: {error.detail}", LOST, current=asyncio.current_task())

    def _discard(self, session: Session) -> None:
        place = _place(session.sid, session.owner)
        if self._sessions.get(place) is session:
            del self._sessions[place]
            self.usage.end(session.key, Kind.SESSIONS)

    def _left(self, instance: Any) -> None:
        if self.on_left is not None:
            self.on_left(instance)

    def _end(
        self, session: Session, reason: str, outcome: Outcome = "deleted", current: asyncio.Task[Any] | None = None
    ) -> asyncio.Task[None] | None:
        if session.state is State.ENDING:
            return session.ending
        if session.hosted is not None and session.hosted.counts is not None:
            session.hosted.counts.ended[outcome] += 1
        session.end_reason, session.end_outcome = reason, outcome
        if session.state is State.READY and session.at_rest:
            # Nothing to wait for, so no task.
            session.close()
            self._forget(session)
            return None
        session.state = State.ENDING
        session.ending = asyncio.create_task(self._end_now(session, current))
        self._ending.add(session.ending)
        session.ending.add_done_callback(self._ending.discard)
        return session.ending

    async def _end_now(self, session: Session, current: asyncio.Task[Any] | None) -> None:
        try:
            await session.end(current)
        except Exception as error:  # a fault in ending one session must not keep its id in use
            logger.error("ending a session failed", exc_info=error, extra={"sid": session.sid})
        finally:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        session.end_record()
        self._discard(session)
        self._tombstones.add(_place(session.sid, session.owner), session.end_reason[:_LONGEST_REASON])

    # --- maintenance -------------------------------------------------------------------------

    def _start_maintenance(self) -> None:
        # Started by the first session and not by the lifespan: ``Server.app`` works without a lifespan.
        if self._maintainer is None or self._maintainer.done():
            # In a context of its own: it outlives the request whose ids its log lines would have.
            self._maintainer = asyncio.create_task(self._maintain(), context=Context())
            hold_sandbox_service(self, self.settings)

    async def _maintain(self) -> None:
        settings = self.settings
        interval = min(5.0, settings.session_ttl / 4, settings.call_timeout / 4, settings.result_ttl / 4)
        while True:
            await asyncio.sleep(interval)
            try:
                now = time.monotonic()
                for session in list(self._sessions.values()):
                    session.expire_calls(now)
                    if now - session.last_seen > settings.session_ttl and not session.busy:
                        self._end(
                            session,
                            f"Session deleted: no request or ping for {settings.session_ttl:g} s (ORS_SESSION_TTL)",
                            "expired",
                        )
                await self.results.sweep()
                if self.maintenance is not None:
                    self.maintenance()
            except Exception:  # maintenance must go on whatever one session did
                logger.exception("housekeeping failed")

    async def close(self) -> None:
        """End all sessions at once, and wait for them up to their limits."""
        self.closing.set()
        if self._maintainer is not None:
            self._maintainer.cancel()
            await asyncio.wait((self._maintainer,))
            self._maintainer = None
        for session in list(self._sessions.values()):
            self._end(session, "Session deleted: the server is shutting down", "stopped")
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=self.settings.shutdown_timeout)
        for close in self.closers:
            await close()
        await close_sandbox_service(self)
        self.abandon()

    def abandon(self) -> None:
        """Release the disk and the threads without waiting for any session."""
        self.results.close()
        for pool in self._pools:
            pool.abandoned = True
            pool.close()


def _place(sid: str, owner: str) -> str:
    # No header has a NUL, so no id of one owner is that of another.
    return f"{owner}\0{sid}" if owner else sid


def _fingerprint(hosted: HostedEnvironment | None, request: CreateSession, secrets: dict[str, str]) -> int:
    name = "" if hosted is None else hosted.name
    chosen = [request.split, request.index, request.task_spec, request.toolset_name, secrets]
    return hash((name, json.dumps(chosen, sort_keys=True)))
