"""Routes of sessions and episodes."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable

from ors_server.http.errors import InvalidIdempotencyKey
from ors_server.http.exchange import Exchange, parse
from ors_server.http.responses import await_lost_twin, deliver
from ors_server.http.routes.table import routes_of
from ors_server.protocol import CreateSession, ScoreGroup, ToolCall
from ors_server.sandbox_service.registry import SandboxSessions
from ors_server.sessions.calls.call import Call
from ors_server.sessions.calls.call_ledger import ResultExpired
from ors_server.sessions.registry import Sessions
from ors_server.sessions.secrets import fill_secrets, read_secrets
from ors_server.sessions.session import Session
from ors_server.wire.encoding import encode
from ors_server.wire.sse import error_frame, session_frames

__all__ = ["EpisodeRoutes"]

_OK = b'{"status":"ok"}'
#: How many times ``stream_after`` a call with an ``Idempotency-Key`` waits for its end: each response that is a stream
#: takes a write more, and on a busy machine most calls of a sandbox take longer than a moment.
_PATIENCE_OF_KEYS = 20
#: Seconds that this makes it at most: clients and proxies give up a connection that stays silent.
_LONGEST_PATIENCE = 1.0
#: Longest ``Idempotency-Key``, in characters: keys are kept as long as their session.
_LONGEST_KEY = 255
#: Header of ``/create`` and ``/ping``: whether the session's episode begins later (``true``), or now (``false``).
_AHEAD = b"x-session-ahead"
#: Headers of ``/create``: a repeated call with the same ``Idempotency-Key`` never runs twice in its session, and after
#: ``/delete`` a ``/delete_session`` has nothing left to do.
_PROMISE = (("X-Idempotent-Calls", "true"), ("X-Delete-Ends-Session", "true"))


class EpisodeRoutes:
    """Handlers over one server's sessions."""

    def __init__(self, sessions: Sessions, sandboxes: SandboxSessions | None = None) -> None:
        self._sessions = sessions
        #: The sandboxes of the service, which share two paths with sessions; None where it is not served.
        self._sandboxes = sandboxes
        self._settings = sessions.settings
        self.table = routes_of(self, "sessions", "episodes")

    # --- sessions ----------------------------------------------------------------------------

    async def create_session(self, exchange: Exchange) -> None:
        """Allocate a session id: as events where the client accepts them, else as `{"sid": …}`."""
        sid = str(uuid.uuid4())
        accept = exchange.header(b"accept")
        if accept is not None and "text/event-stream" in accept:
            await exchange.events(session_frames(sid))
        else:
            await exchange.json(b'{"sid":"%b"}' % sid.encode())

    async def create(self, exchange: Exchange) -> None:
        """Bind the session to a task: given whole, or by split and index."""
        sid = exchange.session_id()
        request = await exchange.model(CreateSession, self._settings.max_body)
        secrets = read_secrets(exchange.header(b"x-secrets"), request.secrets)
        secrets = fill_secrets(secrets, self._settings.secrets_file, exchange.key)
        deployment, ahead = exchange.header(b"x-deployment"), exchange.header(_AHEAD) == "true"
        await self._sessions.create(sid, request, secrets, deployment, exchange.key, ahead=ahead)
        await exchange.json(encode({"sid": sid}), headers=_PROMISE)

    async def delete(self, exchange: Exchange) -> None:
        """End the session; unknown ids are ignored."""
        sid = exchange.session_id()
        await self._sessions.delete(sid, exchange.key.name)
        await exchange.json(encode({"sid": sid}))

    async def delete_session(self, exchange: Exchange) -> None:
        """Acknowledge the end of a session, and end a sandbox or its creation."""
        sid = exchange.session_id()
        if self._sandboxes is not None:
            await self._sandboxes.delete(sid, exchange.key.name)
        await exchange.json(encode({"sid": sid}))

    async def ping(self, exchange: Exchange) -> None:
        """Keep the session or sandbox alive."""
        sid = exchange.session_id()
        owner = exchange.key.name
        if self._sandboxes is not None and self._sandboxes.knows(sid, owner):
            self._sandboxes.ping(sid, owner)
        else:
            self._sessions.ping(sid, owner, begins=exchange.header(_AHEAD) == "false")
        await exchange.json(_OK)

    # --- the episode -------------------------------------------------------------------------

    async def prompt(self, exchange: Exchange) -> None:
        """Return the task as blocks, once the session is set up."""
        session = await self._ready(exchange)
        await exchange.json(await session.prompt())

    async def messages(self, exchange: Exchange) -> None:
        """Return the task as a conversation, once the session is set up."""
        session = await self._ready(exchange)
        await exchange.json(await session.messages())

    async def task_tools(self, exchange: Exchange) -> None:
        """List the session's tools."""
        session = await self._sessions.find(exchange.session_id(), exchange.environment, exchange.key.name)
        session.check()
        await exchange.json(await session.task_tools())

    async def _ready(self, exchange: Exchange) -> Session:
        session = await self._sessions.find(exchange.session_id(), exchange.environment, exchange.key.name)
        agent = exchange.header(b"user-agent") or ""
        # openreward retries a 503 for minutes. Other clients fail after three retries, so they wait longer here.
        keeps_retrying = agent.startswith("openreward")
        await session.ready(self._settings.setup_wait if keeps_retrying else self._settings.setup_wait_long)
        return session

    async def call(self, exchange: Exchange) -> None:
        """Run a tool; with `task_id`, return the result of that call again."""
        sid = exchange.session_id()
        body = await exchange.body(self._settings.max_body)
        request = parse(ToolCall, body)
        session = await self._sessions.find(sid, exchange.environment, exchange.key.name)
        if request.task_id is not None:
            await self._resume(exchange, session, request.task_id)
            return
        session.check()
        key = _key(exchange)
        if key is None and exchange.delivery is not None:
            await await_lost_twin(exchange, session.ledger, request.name, request.input)
            session.check()
        name, input = request.name, request.input
        del request  # the response may be a stream that stays open for long
        try:
            call = session.start_call(name, input, key, body)
        except ResultExpired:
            await exchange.events(error_frame("ResultExpired: this call ran and its result was delivered long ago"))
            return
        del body
        await self._deliver(exchange, session, call)

    async def score_group(self, exchange: Exchange) -> None:
        """Score the rollouts of a group against each other."""
        sid = exchange.session_id()
        request = await exchange.model(ScoreGroup, self._settings.max_body)
        session = await self._sessions.find(sid, exchange.environment, exchange.key.name)
        if request.task_id is not None:
            await self._resume(exchange, session, request.task_id)
            return
        session.check()
        await self._deliver(exchange, session, session.start_scoring(request))

    async def _resume(self, exchange: Exchange, session: Session, task_id: str) -> None:
        call = session.ledger.find(task_id)
        if call is None:
            # Clients compare this text. It is the same for the call of another session.
            await exchange.events(error_frame("unknown task_id"))
            return
        await self._deliver(exchange, session, call)

    def _deliver(self, exchange: Exchange, session: Session, call: Call) -> Awaitable[None]:
        settings = self._settings
        # A client that sent a key finds its call by that, so nothing is lost where `task_id` comes later.
        stream_after = settings.stream_after
        if call.key:
            stream_after = max(stream_after, min(_PATIENCE_OF_KEYS * stream_after, _LONGEST_PATIENCE))
        return deliver(
            exchange,
            session.ledger,
            self._sessions.results,
            call,
            stream_after=stream_after,
            heartbeat=settings.heartbeat,
        )


def _key(exchange: Exchange) -> str | None:
    key = exchange.header(b"idempotency-key")
    if key is not None and len(key) > _LONGEST_KEY:
        raise InvalidIdempotencyKey(_LONGEST_KEY)
    return key or None
