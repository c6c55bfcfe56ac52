"""All sandboxes of the service: create, find and end them, and end those whose clients are gone.

Invariants: a sandbox that was begun is ended exactly once, by ``/delete_session``, by the silence of its client, by its
own death or by the server's end; a request for a sandbox that has ended, or that this server never had, gets a 410, so
that no client starts a command again that may have run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from ors_server.errors import ServerBusy
from ors_server.keys.errors import KeyBusy
from ors_server.keys.key import ANYONE, Key
from ors_server.sandbox_service.data_folders import FindFolder
from ors_server.sandbox_service.plan import check_size, plan_container
from ors_server.sandbox_service.requests import CreateSandbox
from ors_server.sandbox_service.session import SandboxSession
from ors_server.sandboxes import close_sandbox_service, hold_sandbox_service, sandbox_service
from ors_server.sessions.calls.call import Call
from ors_server.sessions.calls.call_ledger import CallLedger
from ors_server.sessions.calls.call_slots import CallSlots
from ors_server.sessions.calls.result_store import ResultStore
from ors_server.sessions.errors import SessionGone, ShuttingDown
from ors_server.sessions.tombstones import Tombstones
from ors_server.settings import Settings

if TYPE_CHECKING:
    from ors_containers.container import Container
    from ors_containers.images.image_map import ImageMap

__all__ = ["SandboxSessions"]

logger = logging.getLogger("ors_server.sandbox_service.registry")

_LOST = "Sandbox lost: this server has no such sandbox. It has ended, or the server was started again"
#: Ended sandboxes that are remembered.
_TOMBSTONES = 65_536
_LONGEST_REASON = 500


class SandboxSessions:
    """The sandboxes of one server, on one event loop."""

    def __init__(
        self,
        settings: Settings,
        results: ResultStore,
        data_folder: FindFolder,
        make_id: Callable[[], str] = lambda: os.urandom(16).hex(),
    ) -> None:
        self.settings = settings
        self.results = results
        self._data_folder = data_folder
        self._make_id = make_id
        self._slots = CallSlots(total=settings.max_calls, per_session=settings.max_session_calls)
        self._sessions: dict[str, SandboxSession] = {}
        self._tombstones = Tombstones(_TOMBSTONES)
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._images: ImageMap | None = None
        self._maintainer: asyncio.Task[None] | None = None
        self._takes_new = True

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SandboxSession]:
        return iter(self._sessions.values())

    def take_no_more(self) -> None:
        """Refuse new sandboxes from now on; those that live go on."""
        self._takes_new = False

    def knows(self, sid: str, owner: str = "") -> bool:
        """Return whether the id is that of a sandbox of this owner, which may have ended."""
        return self._session(sid, owner) is not None or self._tombstones.get(_place(sid, owner)) is not None

    def _session(self, sid: str, owner: str) -> SandboxSession | None:
        """Return the sandbox of this id, if it belongs to this owner: another owner's is unknown."""
        session = self._sessions.get(sid)
        return session if session is not None and session.owner == owner else None

    # --- opening and finding -----------------------------------------------------------------

    def create(self, request: CreateSandbox, *, key: Key = ANYONE) -> tuple[SandboxSession, Call]:
        """Begin to create a sandbox; return its session and the call that ends when it is created.

        Raises ``ServerBusy`` and ``KeyBusy`` where there are too many, ``InvalidSandbox`` for one that is too large,
        and ``ShuttingDown``.
        """
        if not self._takes_new:
            raise ShuttingDown()
        check_size(request, key, self.settings.sandbox_memory)
        if sum(not session.end_reason for session in self._sessions.values()) >= self.settings.max_sandboxes:
            raise ServerBusy("sandboxes", self.settings.max_sandboxes, "ORS_MAX_SANDBOXES")
        limit = key.limits.sandboxes
        owned = sum(session.owner == key.name and not session.end_reason for session in self._sessions.values())
        if limit is not None and owned >= limit:
            raise KeyBusy(key.name, f"{limit} sandboxes at once")
        self._start_maintenance()
        sid = self._make_id()
        most = self.settings.max_output * 3 // 4  # base64 takes a third more
        session = SandboxSession(sid, request, CallLedger(self.results, self._slots), most, key.name)
        call = session.start(partial(self._open, key), lambda: self._bury(session))
        self._sessions[sid] = session
        return session, call

    def find(self, sid: str, owner: str = "") -> SandboxSession:
        """Return the sandbox of a request. Raises ``SessionGone``."""
        session = self._session(sid, owner)
        if session is None or session.end_reason:
            ended = self._tombstones.get(_place(sid, owner))
            raise SessionGone((session and session.end_reason) or ended or _LOST)
        return session

    def find_creation(self, task_id: str, owner: str = "") -> SandboxSession:
        """Return the sandbox of a creation, also of one that has failed. Raises ``SessionGone``."""
        session = self._session(task_id, owner)
        return self.find(task_id, owner) if session is None else session

    def ping(self, sid: str, owner: str = "") -> None:
        """Keep a sandbox alive. Raises ``SessionGone``."""
        self.find(sid, owner).last_seen = time.monotonic()

    async def _open(self, key: Key, request: CreateSandbox) -> Container:
        from ors_containers.errors import Overloaded
        from ors_containers.images.image_map import ImageMap

        service = await sandbox_service()
        if self._images is None:
            self._images = ImageMap(service.store)
        image, settings = await plan_container(request, self._images, self._data_folder, key)
        deadline = time.monotonic() + self.settings.setup_timeout
        while True:
            try:
                return await service.open_container(image, settings)
            except Overloaded as error:
                # The client waits: its stream is open, and a creation that was answered cannot be repeated.
                if time.monotonic() + error.retry_after > deadline:
                    raise
                await asyncio.sleep(error.retry_after)

    # --- ending ------------------------------------------------------------------------------

    async def delete(self, sid: str, owner: str = "") -> None:
        """End a sandbox, or its creation, and wait for its end. Unknown ids are ignored."""
        session = self._session(sid, owner)
        if session is None:
            return
        self.end(session, "Sandbox deleted")
        if sid in self._ending:
            await asyncio.wait((self._ending[sid],), timeout=self.settings.teardown_timeout)

    def end_of(self, owners: Collection[str]) -> None:
        """End the sandboxes of owners whose keys are no longer valid."""
        for session in list(self._sessions.values()) if owners else ():
            if session.owner in owners:
                self.end(session, "Sandbox deleted: its key was revoked")

    def end(self, session: SandboxSession, reason: str) -> None:
        """Begin to end a sandbox; later requests get the reason."""
        if session.sid in self._ending:
            return
        session.end_reason = session.end_reason or reason
        task = self._ending[session.sid] = asyncio.create_task(self._end(session))
        task.add_done_callback(lambda _: self._ending.pop(session.sid, None))

    def lose(self, session: SandboxSession, reason: str) -> None:
        """End a sandbox that was found to be dead."""
        logger.error("sandbox lost", extra={"sid": session.sid, "reason": reason})
        self.end(session, f"Sandbox lost: {reason}")

    async def _end(self, session: SandboxSession) -> None:
        try:
            await session.end(self.settings.teardown_timeout)
        except Exception as error:  # a fault in ending one sandbox must not keep its id in use
            logger.error("ending a sandbox failed", exc_info=error, extra={"sid": session.sid})
        self._bury(session)

    def _bury(self, session: SandboxSession) -> None:
        """Remember a sandbox as ended. A creation that failed keeps its result for a while, for its client."""
        self._tombstones.add(_place(session.sid, session.owner), session.end_reason[:_LONGEST_REASON])
        if session.sid in self._ending:
            self._sessions.pop(session.sid, None)

    # --- maintenance -------------------------------------------------------------------------

    def _start_maintenance(self) -> None:
        if self._maintainer is None or self._maintainer.done():
            # In a context of its own: it outlives the request whose ids its log lines would have.
            self._maintainer = asyncio.create_task(self._maintain(), context=Context())
            hold_sandbox_service(self, self.settings)

    async def _maintain(self) -> None:
        ttl = self.settings.sandbox_ttl
        while True:
            await asyncio.sleep(min(5.0, ttl / 4))
            try:
                now = time.monotonic()
                for session in list(self._sessions.values()):
                    if session.expired(now, ttl):
                        self.end(session, f"Sandbox deleted: no request or ping for {ttl:g} s (ORS_SANDBOX_TTL)")
                await self.results.sweep()
            except Exception:  # maintenance must go on whatever one sandbox did
                logger.exception("housekeeping failed")

    async def close(self) -> None:
        """End all sandboxes at once, and wait for them up to their limit."""
        self.take_no_more()
        if self._maintainer is not None:
            self._maintainer.cancel()
            await asyncio.wait((self._maintainer,))
        for session in list(self._sessions.values()):
            self.end(session, "Sandbox deleted: the server is shutting down")
        if self._ending:
            await asyncio.wait(set(self._ending.values()), timeout=self.settings.shutdown_timeout)
        await close_sandbox_service(self)


def _place(sid: str, owner: str) -> str:
    return f"{owner}\0{sid}"
