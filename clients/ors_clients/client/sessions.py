"""A session: one episode, as the client of a server sees it.

Every opened session is ended: by ``close``, or by the keep-alive thread if ``close`` is cancelled or never called.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ors_clients.client.keepalive import ENDS, KEEP_ALIVE, Heartbeat
from ors_clients.client.session_calls import FRESH_ENOUGH, SessionCalls
from ors_clients.errors import (
    ClientError,
    ConfigurationError,
    DeadlineExceeded,
    NotFound,
    ServerUnavailable,
    SessionLost,
)
from ors_clients.models import (
    Block,
    ToolListing,
    ToolResult,
    read_blocks,
    read_messages,
    read_tools,
)
from ors_clients.transport.base import ConnectionLost, Headers, Response
from ors_clients.transport.connection import Connection, RetryPolicy, dumps, is_retryable_refusal
from ors_clients.transport.json_codec import read_json
from ors_clients.transport.sse import CallEvents
from ors_server.protocol import Message, TerminalToolSpec, ToolSpec

__all__ = ["AsyncSession"]

#: Seconds that ending a session may take; servers give a teardown 30.
_CLOSE_LIMIT = 90.0
#: Seconds in which the server says whether a session that was opened ahead still lives.
_BEGIN_LIMIT = 30.0
#: Headers of ``/create`` and ``/ping``: its episode has not begun, and begins.
_AHEAD, _BEGINS = (Headers([("X-Session-Ahead", value)]) for value in ("true", "false"))


class AsyncSession:
    """One episode. ``async with environment.session(…) as session``, or ``open`` and ``close``.

    Nothing is sent before it is opened. Calls of one session may overlap. A closed session cannot be opened again.
    """

    _beat: Heartbeat | None = None
    _closed = False
    #: Whether it is opened for an episode that has not begun, and whether the server has it.
    _ahead = False
    _created = False

    def __init__(
        self,
        connection: Connection,
        environment: str | None,
        headers: Headers,
        choice: Mapping[str, Any],
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._environment = environment
        self._path = "" if environment is None else f"/{environment}"
        self._environment_headers = headers
        self._choice = dict(choice)
        self._secrets = dict(secrets or {})
        self._secret_headers = (_secret_headers(self._secrets),) if self._secrets else ()
        #: Texts that are redacted in errors.
        self._hidden = (
            *self._secrets.values(),
            *(header for block in self._secret_headers for _, header in block.items),
        )
        self._id: str | None = None
        self._headers: tuple[Headers, ...] = ()
        #: The requests that end it.
        self._ends: Sequence[str] = ENDS
        self._calls: SessionCalls | None = None
        self._listing: ToolListing | None = None
        self._prompt_only = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._beat is not None else "new"
        return f"<{type(self).__name__} {self._id or ''} of {self._environment or 'the default environment'}, {state}>"

    @property
    def id(self) -> str:
        """The session's id. Raises ``ConfigurationError`` before it is opened."""
        if self._id is None:
            raise ConfigurationError("The session is not open", "Use `async with`, or await session.open().")
        return self._id

    @property
    def finished(self) -> bool:
        """True if a tool has ended the episode."""
        return self._calls is not None and self._calls.finished

    @property
    def terminal_tool(self) -> TerminalToolSpec | None:
        """The tool that the assistant's last message goes to; known once ``tools`` was asked for."""
        return None if self._listing is None else self._listing.terminal_tool

    # --- opening and closing -----------------------------------------------------------------

    async def open(self) -> Self:
        """Create the session. Its set-up may still be running then; prompt, tools and calls wait for it.

        Raises ``ConfigurationError`` for one that was opened before, and for a task or secrets that cannot be sent;
        ``RequestRefused`` for a task or environment the server does not have; and ``InfrastructureFailure``.
        """
        if self._id is not None or self._closed:
            raise ConfigurationError("The session was opened before", "Make a new one.")
        policy = self._connection.retry_policy()
        while True:
            try:
                await self._create(policy)
                return self
            except ConnectionLost as lost:
                # It is unknown whether the session exists. End it, and create another under another id.
                self._abandon()
                await policy.after_loss(lost)
            except BaseException:  # a cancellation too: a half-opened session would stay open
                self._abandon()
                raise

    async def open_ahead(self) -> Self:
        """Create the session for an episode that begins later: until ``begin``, a server of this project starts the
        sandboxes of others before its own.

        Raises what ``open`` raises, and where the server has no room it does so at once.
        """
        self._ahead = True
        return await self.open()

    async def begin(self) -> None:
        """Say that the episode of a session that was opened ahead begins. Raises ``InfrastructureFailure`` where the
        session has ended."""
        ahead, self._ahead = self._ahead, False
        if ahead and self._created:
            await self._say_that_it_begins()

    async def _say_that_it_begins(self) -> None:
        beat, connection = self._usable(), self._connection
        try:
            response = await connection.once(
                "POST",
                "/ping",
                headers=(*self._headers, _BEGINS),
                deadline=time.monotonic() + _BEGIN_LIMIT,
                longest_idle=FRESH_ENOUGH,
            )
        except ConnectionLost as lost:
            raise connection.unreachable(lost, 1) from None
        if response.status != 200:
            raise connection.error(response, session=True, secrets=self._hidden)
        beat.last_sent = time.monotonic()

    async def _create(self, policy: RetryPolicy) -> None:
        connection = self._connection
        secrets = self._secret_headers
        allocated = CallEvents()
        while True:
            try:
                response = await connection.once(
                    "POST",
                    "/create_session",
                    headers=(self._environment_headers, *secrets),
                    deadline=policy.deadline,
                    on_data=allocated.feed,
                )
            except ConnectionLost as lost:
                await policy.after_loss(lost)
                allocated = CallEvents()
                continue
            if response.status == 200:
                break
            await self._refused(policy, response, session=False)
        sid = _session_id(allocated, response)
        headers = Headers([("X-Session-ID", sid), *self._environment_headers.items])
        self._id, self._headers = sid, (headers,)
        beat = self._beat = Heartbeat(connection, headers)
        calls = self._calls = SessionCalls(connection, beat, f"{self._path}/call", headers, self._hidden)
        body = dict(self._choice)
        if self._secrets:
            body["secrets"] = self._secrets  # the specification's way, and the only one that ors-sdk's server reads
        while True:
            content = dumps(body)
            ahead = self._ahead
            response = await connection.once(
                "POST",
                "/create",
                content,
                (headers, *secrets, *((_AHEAD,) if ahead else ())),
                deadline=policy.deadline,
                longest_idle=FRESH_ENOUGH,
            )
            if response.status == 200:
                break
            if response.status == 422 and "secrets" in body:
                del body["secrets"]  # openreward's server reads the header, and refuses this
                continue
            await self._refused(policy, response, session=True)
        calls.keyed = response.headers.get("x-idempotent-calls", "").lower() == "true"
        self._ends = ENDS[:1] if response.headers.get("x-delete-ends-session", "").lower() == "true" else ENDS
        KEEP_ALIVE.add(beat)
        self._created = True
        if ahead and not self._ahead:  # it began meanwhile
            await self._say_that_it_begins()

    async def _refused(self, policy: RetryPolicy, response: Response, *, session: bool) -> None:
        if self._ahead and is_retryable_refusal(response):
            raise self._connection.error(response, session=session, secrets=self._hidden)
        await policy.after_refusal(response, session=session, secrets=self._hidden)

    def _abandon(self) -> None:
        """End the session in the background if it was opened, and forget it."""
        if self._beat is not None:
            KEEP_ALIVE.end(self._beat)
        self._id, self._headers, self._beat, self._calls = None, (), None, None

    async def close(self) -> None:
        """End the session on the server. Raises nothing except a cancellation, and ends the session even then."""
        if self._closed or self._beat is None:
            self._closed = True
            return
        self._closed = True
        beat = self._beat
        KEEP_ALIVE.discard(beat)
        if not beat.ours:
            return  # a parent process opened it, and may still use it
        try:
            policy = RetryPolicy(self._connection, time.monotonic() + _CLOSE_LIMIT)
            with contextlib.suppress(ClientError):  # it is gone, or it will expire on the server
                for path in self._ends:
                    await self._connection.json("POST", path, headers=self._headers, session=True, policy=policy)
        except BaseException:  # a cancellation: the background thread ends the session
            KEEP_ALIVE.end(beat)
            raise

    def __del__(self) -> None:
        if not self._closed and self._beat is not None:
            KEEP_ALIVE.end(self._beat)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- reading -----------------------------------------------------------------------------

    async def prompt(self) -> list[Block]:
        """Return the task as the model reads it; waits for set-up. Raises ``InfrastructureFailure``."""
        return read_blocks(await self._read("/prompt"))

    async def messages(self) -> list[Message]:
        """Return the task as a conversation: one user message where the server knows only prompts."""
        if not self._prompt_only:
            try:
                return read_messages(await self._read("/messages"))
            except NotFound as error:
                if error.detail_text != "Not Found":
                    raise
                self._prompt_only = True  # ors-sdk's server
        return [Message(role="user", blocks=await self.prompt())]

    async def tools(self) -> list[ToolSpec]:
        """Return the tools of this session, its task's own among them."""
        if self._listing is None:
            self._listing = read_tools(await self._read("/task_tools"))
        return self._listing.tools

    async def _read(self, path: str) -> Any:
        beat = self._usable()
        value = await self._connection.json(
            "GET", self._path + path, headers=self._headers, session=True, secrets=self._hidden
        )
        beat.last_sent = time.monotonic()
        return value

    def _usable(self) -> Heartbeat:
        if self._beat is None:
            raise ConfigurationError("The session is not open", "Use `async with`, or await session.open().")
        if self._closed:
            raise SessionLost("The session was closed by this client")
        self._beat.last_sent = time.monotonic()
        return self._beat

    # --- calls -------------------------------------------------------------------------------

    async def call(
        self, name: str, input: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool and wait for its result, at most ``timeout`` seconds (None: as long as the server lets it run).

        A call that ran no tool is a result too (``ToolResult.error``). Raises ``ToolFailed`` where the tool raised,
        and ``InfrastructureFailure`` (``SessionLost``, ``CallOutcomeUnknown``, ``ServerUnavailable``,
        ``DeadlineExceeded``; as it is for a reward that is not a finite number).
        """
        self._usable()
        assert self._calls is not None
        if input is None:
            input = {}
        if timeout is None:
            return await self._calls.run(name, input)
        late = asyncio.timeout(timeout)
        try:
            async with late:
                return await self._calls.run(name, input)
        except TimeoutError:
            if not late.expired():
                raise
            raise DeadlineExceeded(
                f"Tool {name!r} gave no result within {timeout:g} s", "It may still be running on the server."
            ) from None


def _secret_headers(secrets: Mapping[str, str]) -> Headers:
    values = {name: {"value": value} for name, value in secrets.items()}
    return Headers([("X-Secrets", base64.b64encode(json.dumps(values).encode()).decode())])


def _session_id(events: CallEvents, response: Response) -> str:
    """Return the id in an answer to ``/create_session``: events as in both SDKs, or JSON as in the specification."""
    sid: Any = events.task_id
    if events.data or response.body:
        try:
            value: Any = read_json(events.data or response.body)
            sid = value.get("sid", sid)
        except (ValueError, AttributeError):
            pass  # the id stands in the first event
    if not isinstance(sid, str) or not sid.strip():
        raise ServerUnavailable(
            "The server gave no id for a new session",
            "Is this the address of an ORS server, and not of a page before it?",
        )
    return sid
