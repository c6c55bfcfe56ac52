"""All sessions of a server: opening, finding, ending, and ending those that nobody uses any more.

Invariants: an id has at most one session, however many ``/create`` come at once; each session that was ever built is
ended exactly once, by ``/delete``, by its time to live, by a lost machine or by the server's shutdown; the id of an
ended session is remembered, so that its late requests learn what happened.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from ors_server.errors import (
    EnvironmentConflict,
    EnvironmentFailed,
    InfrastructureFailure,
    MachineBusy,
    OrsError,
    RequestError,
    ServerBusy,
    SessionExists,
    SessionGone,
    UnknownSession,
)
from ors_server.hosting.catalogue import Catalogue, HostedEnvironment
from ors_server.hosting.executors import ThreadPool
from ors_server.http.gc_tuning import Collector
from ors_server.protocol import CreateSession
from ors_server.sandboxes import close_sandbox_service, hold_sandbox_service
from ors_server.sessions.call_ledger import ResultStore
from ors_server.sessions.session import Session, State, TaskChoice, describe_error
from ors_server.settings import Settings

__all__ = ["Sessions"]

logger = logging.getLogger("ors_server.sessions.registry")


#: Characters kept of why a session ended.
_LONGEST_REASON = 500


class Tombstones:
    """The last ``size`` ended sessions, and what to tell their late requests.

    Two generations instead of one queue: forgetting is dropping the older one, and costs nothing a session. Ids are
    kept as their hash, which the process's random key makes unguessable.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[int, str] = {}
        self._old: dict[int, str] = {}

    def add(self, sid: str, reason: str) -> None:
        """Remember that a session has ended, and why."""
        self._young[hash(sid)] = reason
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}

    def discard(self, sid: str) -> None:
        """Forget an id that is in use again."""
        self._young.pop(hash(sid), None)
        self._old.pop(hash(sid), None)

    def get(self, sid: str) -> str | None:
        """Why the session ended; None for an id that never was or is forgotten."""
        key = hash(sid)
        return self._young.get(key) or self._old.get(key)


class Sessions:
    """The sessions of one server, on one event loop."""

    def __init__(
        self, catalogue: Catalogue, settings: Settings, tools_pool: ThreadPool, lifecycle_pool: ThreadPool
    ) -> None:
        self.catalogue = catalogue
        self.settings = settings
        self.results = ResultStore(settings, lifecycle_pool)
        #: Where the whole process is a server.
        self.collector: Collector | None = None
        self._sessions: dict[str, Session] = {}
        #: Calls of all sessions whose code runs.
        self.calls_running = 0
        self._closing = False
        self._tombstones = Tombstones(settings.tombstones)
        self._ending: set[asyncio.Task[None]] = set()
        self._pools = (tools_pool, lifecycle_pool)
        self._keeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    # --- opening and finding -----------------------------------------------------------------

    async def create(self, sid: str, request: CreateSession, secrets: dict[str, str], deployment: str | None) -> None:
        """Open a session.

        The same request again is answered as the first was. Raises ``SessionExists`` for another request with the
        same id, ``InvalidToolset``, ``UnknownEnvironment``, ``ServerBusy`` and ``MachineBusy`` where there is no room,
        ``InfrastructureFailure`` while the server shuts down, and what building the instance raises.
        """
        if self._closing:
            raise InfrastructureFailure("The server is shutting down", "Retry on another one, or when it is back.")
        self._keep_house()
        hosted: HostedEnvironment | None
        if request.env_name is not None:
            hosted = self.catalogue.by_path(request.env_name)
        else:
            hosted = self.catalogue.by_deployment(deployment)
            named = bool(deployment)
            if hosted is None and (named or len(self.catalogue.environments) == 1):
                hosted = self.catalogue.default
        fingerprint = _fingerprint(hosted, request, secrets)
        session = self._sessions.get(sid)
        if session is None:
            if len(self._sessions) >= self.settings.max_sessions:
                raise ServerBusy("sessions", self.settings.max_sessions, "ORS_MAX_SESSIONS")
            if hosted is not None and hosted.held_back:
                raise MachineBusy(
                    f"{hosted.held_back} sessions of {hosted.name!r} wait for room on this machine already",
                    "Retry, or give the server a larger machine.",
                    retry_after=2.0,
                )
            choice = TaskChoice(request.task_spec, request.split, request.index, request.toolset_name)
            session = Session(self, sid, hosted, choice, secrets, fingerprint)
            self._sessions[sid] = session
            self._tombstones.discard(sid)
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

    async def find(self, sid: str, segment: str | None) -> Session:
        """The session of a request whose path names the environment ``segment``, or none.

        Raises ``UnknownEnvironment``, ``UnknownSession``, ``SessionGone``, ``EnvironmentConflict``, and, for a
        session that this request binds, what building the instance raises.
        """
        session = self._sessions.get(sid)
        if session is not None and session.state is State.READY:  # nearly every request
            if segment is not None:
                self._check_segment(session, segment)
            session.last_seen = time.monotonic()
            return session
        hosted = None if segment is None else self.catalogue.by_path(segment)
        if session is None:
            raise self._unknown(sid)
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

    def ping(self, sid: str) -> None:
        """Keep a session alive. Raises ``UnknownSession``, ``SessionGone``, and the failure of its set-up."""
        session = self._sessions.get(sid)
        if session is None:
            raise self._unknown(sid)
        session.touch()
        if session.state is not State.CREATING and session.state is not State.UNBOUND:
            session.check()

    def _check_segment(self, session: Session, segment: str) -> None:
        hosted = session.hosted
        assert hosted is not None
        if segment != hosted.name:
            named = self.catalogue.by_path(segment)
            if named is not hosted:
                raise EnvironmentConflict(named.name, hosted.name)

    def _unknown(self, sid: str) -> OrsError:
        reason = self._tombstones.get(sid)
        return UnknownSession() if reason is None else SessionGone(reason)

    # --- ending ------------------------------------------------------------------------------

    async def delete(self, sid: str) -> None:
        """End a session, waiting for its teardown up to its time limit; unknown ids are ignored."""
        session = self._sessions.get(sid)
        if session is None:
            return
        ending = self._end(session, "Session deleted")
        if ending is not None:
            await asyncio.wait((ending,), timeout=self.settings.teardown_timeout)

    def lose(self, session: Session, error: InfrastructureFailure) -> None:
        """The machine failed under a session: end it, and tell later requests."""
        logger.error("session lost", extra={"sid": session.sid, "reason": error.text})
        self._end(session, f"Session lost: {error.detail}", current=asyncio.current_task())

    def discard(self, session: Session) -> None:
        """A session whose instance could not be built: it never existed."""
        if self._sessions.get(session.sid) is session:
            del self._sessions[session.sid]

    def _end(
        self, session: Session, reason: str, current: asyncio.Task[Any] | None = None
    ) -> asyncio.Task[None] | None:
        if session.state is State.ENDING:
            return session.ending
        session.end_reason = reason
        if session.state is State.READY and session.at_rest:
            # Nothing runs and there is nothing to tear down: no task, no waiting.
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
        except Exception as error:  # a fault in ending one session must not keep its id forever
            logger.error("ending a session failed", exc_info=error, extra={"sid": session.sid})
        finally:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        self.discard(session)
        self._tombstones.add(session.sid, session.end_reason[:_LONGEST_REASON])

    # --- errors ------------------------------------------------------------------------------

    def failure(self, error: BaseException, session: Session, where: str) -> OrsError:
        """An exception of an environment's code as the error a request gets."""
        if isinstance(error, (InfrastructureFailure, MachineBusy, RequestError)):
            return error
        return EnvironmentFailed(self.describe(error, session, where))

    def describe(self, error: BaseException, session: Session, where: str) -> str:
        """An exception of an environment's code as the text a client gets; the log gets all of it."""
        environment = session.hosted.name if session.hosted is not None else ""
        logger.error(
            "environment failed", exc_info=error, extra={"sid": session.sid, "environment": environment, "in": where}
        )
        return describe_error(error, self.settings.return_errors)

    # --- housekeeping ------------------------------------------------------------------------

    def _keep_house(self) -> None:
        # Started by the first session and not by the lifespan, because ``Server.app`` works without one.
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._housekeeping())
            hold_sandbox_service(self, self.settings)

    async def _housekeeping(self) -> None:
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
                        )
                await self.results.sweep()
                if self.collector is not None:
                    self.collector.keep_house()
            except Exception:  # housekeeping must go on whatever one session did
                logger.exception("housekeeping failed")

    async def close(self) -> None:
        """End every session, all at once; none may take longer than its limits."""
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
            self._keeper = None
        for session in list(self._sessions.values()):
            self._end(session, "Session deleted: the server is shutting down")
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=self.settings.shutdown_timeout)
        await close_sandbox_service(self)
        self.abandon()

    def abandon(self) -> None:
        """Wait for nothing any more."""
        self.results.close()
        for pool in self._pools:
            pool.abandoned = True
            pool.close()


def _fingerprint(hosted: HostedEnvironment | None, request: CreateSession, secrets: dict[str, str]) -> int:
    name = "" if hosted is None else hosted.name
    chosen = [request.split, request.index, request.task_spec, request.toolset_name, secrets]
    return hash((name, json.dumps(chosen, sort_keys=True)))
