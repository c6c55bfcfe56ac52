"""Routes of OpenReward's sandbox service: ``/create_sandbox``, and the requests of a sandbox.

Environments of ``openreward`` request sandboxes from the host of their sessions. Where the service is not served each
of its paths answers with 501: a 404 would look like a wrong address. ``/ping`` and ``/delete_session`` are shared with
sessions (``routes.episodes``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ors_server.http.errors import NoSandboxService
from ors_server.http.exchange import Exchange
from ors_server.http.responses import await_lost_twin, deliver
from ors_server.http.routes.table import Route, routes_of
from ors_server.sandbox_service.errors import InvalidSandbox
from ors_server.sandbox_service.files import commit_file, read_part, stat_file, write_part
from ors_server.sandbox_service.registry import SandboxSessions
from ors_server.sandbox_service.requests import CreateSandbox, NetworkPolicy, RunCommand, read_request
from ors_server.sandbox_service.session import SandboxSession
from ors_server.sessions.calls.call import Call
from ors_server.settings import Settings
from ors_server.wire.encoding import encode
from ors_server.wire.sse import error_frame

__all__ = ["SandboxRoutes"]

#: Longest part of a file in one response, in bytes.
_LONGEST_PART = 16 * 2**20
#: Seconds after which the client takes a silent stream for a broken one, less one.
_LONGEST_SILENCE = 29.0
_OK = b'{"status":"ok"}'


class SandboxRoutes:
    """Handlers over one server's sandboxes; None where they are not served."""

    def __init__(self, settings: Settings, sandboxes: SandboxSessions | None) -> None:
        self._settings = settings
        self._given = sandboxes
        self.table: dict[str, Route] = routes_of(self, "sandboxes")
        #: The two paths that sandboxes have in common with sessions, for an application without sessions.
        self.shared = {
            "ping": Route("POST", per_environment=False, handler=self.ping),
            "delete_session": Route("POST", per_environment=False, handler=self.delete_session),
        }

    @property
    def _sandboxes(self) -> SandboxSessions:
        if self._given is None:
            raise NoSandboxService()
        return self._given

    async def create_sandbox(self, exchange: Exchange) -> None:
        """Create a sandbox; the `task_id` of the stream is its session id."""
        sandboxes = self._sandboxes
        request = read_request(CreateSandbox, await exchange.body(self._settings.max_body))
        if request.task_id is None:
            # The secrets of X-Secrets stay outside: an agent could read them, and no proxy fills them in.
            session, call = sandboxes.create(request, key=exchange.key)
        else:
            session = sandboxes.find_creation(request.task_id, exchange.key.name)
            call = session.ledger.find(request.task_id)
        with session.in_use():
            await self._answer(exchange, session, call)

    async def run(self, exchange: Exchange) -> None:
        """Run a command in a new shell; with `task_id`, return the result of that command again."""
        owner = exchange.key.name
        session = self._sandboxes.find(exchange.session_id(), owner)
        with session.in_use():
            request = read_request(RunCommand, await exchange.body(self._settings.max_body))
            if request.task_id is None:
                await await_lost_twin(exchange, session.ledger, "run", request.arguments)
                self._sandboxes.find(session.sid, owner)
                call = session.start_command(request, lambda reason: self._sandboxes.lose(session, reason))
                await asyncio.sleep(0)  # its first step: a sandbox that is known to be dead gets a 410
                self._sandboxes.find(session.sid, owner)
            else:
                call = session.ledger.find(request.task_id)
            await self._answer(exchange, session, call)

    async def stat_file(self, exchange: Exchange) -> None:
        """Describe a regular file of a sandbox."""
        query = exchange.query()
        with self._session(exchange).in_use() as session:
            found = await stat_file(await session.container(), _path(query), digest=_flag(query, "sha256"))
        size = {"size": found.size}
        await exchange.json(encode(size if found.sha256 is None else {**size, "sha256": found.sha256}))

    async def read_file(self, exchange: Exchange) -> None:
        """Return a part of a regular file, and its size in `X-File-Size`."""
        session = self._session(exchange)
        query = exchange.query()
        length = _number(query, "length", _LONGEST_PART)
        if length > _LONGEST_PART:
            raise InvalidSandbox(f"length: {length} is more than {_LONGEST_PART} bytes")
        with session.in_use():
            data, size = await read_part(await session.container(), _path(query), _number(query, "offset", 0), length)
        await exchange.octets(data, [("X-File-Size", str(size))])

    async def write_file(self, exchange: Exchange) -> None:
        """Write a part of a file beside it, or with `commit` put what was written in its place."""
        session = self._session(exchange)
        query = exchange.query()
        path, offset = _path(query), _number(query, "offset", 0)
        with session.in_use():
            data = await exchange.body(self._settings.max_body)
            container = await session.container()
            if not _flag(query, "commit"):
                await write_part(container, path, offset, data, parents=_flag(query, "mkdirs"))
                await exchange.json(_OK)
                return
            async with session.committing:
                digest = await commit_file(container, path, _number(query, "size", None), session.committed)
            await exchange.json(encode({"sha256": digest}))

    async def set_network(self, exchange: Exchange) -> None:
        """Replace the network policy of a sandbox, where the new policy can hold."""
        with self._session(exchange).in_use() as session:
            await session.set_network(read_request(NetworkPolicy, await exchange.body(self._settings.max_body)))
            await exchange.json(_OK)

    async def ping(self, exchange: Exchange) -> None:
        """Keep a sandbox alive."""
        self._sandboxes.ping(exchange.session_id(), exchange.key.name)
        await exchange.json(_OK)

    async def delete_session(self, exchange: Exchange) -> None:
        """End a sandbox, or its creation; unknown ids are ignored."""
        sid = exchange.session_id()
        await self._sandboxes.delete(sid, exchange.key.name)
        await exchange.json(encode({"sid": sid}))

    def _session(self, exchange: Exchange) -> SandboxSession:
        return self._sandboxes.find(exchange.session_id(), exchange.key.name)

    async def _answer(self, exchange: Exchange, session: SandboxSession, call: Call | None) -> None:
        if call is None:
            # Not the words "unknown task_id", at which the client starts the command again.
            await exchange.events(error_frame("ResultExpired: the result was delivered and is no longer kept"))
            return
        await deliver(
            exchange,
            session.ledger,
            self._sandboxes.results,
            call,
            stream_after=self._settings.stream_after,
            heartbeat=min(self._settings.heartbeat, _LONGEST_SILENCE),
        )


def _path(query: Mapping[str, str]) -> str:
    path = query.get("path")
    if path is None:
        raise InvalidSandbox("path: Field required")
    return path


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") not in ("", "0", "false")


def _number(query: Mapping[str, str], name: str, default: int | None) -> int:
    text = query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidSandbox(f"{name}: {text!r} is not a number")
    return int(text)
