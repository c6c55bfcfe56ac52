"""Sessions that are opened before their episodes begin, so that sandbox and prompt are there when one does.

A run that knows its next episodes expects them here, in their order, and takes each session when its episode begins.
While episodes are played, the sessions of the next ones are opened, at most so many ahead, and their prompts are read.

Opening ahead gives way: nothing more is opened ahead while an episode waits for its session, the server admits
sandboxes of sessions that are opened ahead after all others (``X-Session-Ahead``), and an episode that waits for a
place on the server gets that of a session that was opened ahead. It loses nothing either: where a session could not be
opened ahead, or has ended since, its episode opens one of its own.

Ends do not wait: closing an episode's session ends it in the background. Invariant: every session that was opened has
ended, or is being ended by the keep-alive thread, when ``close`` has returned or was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from ors_clients.errors import ClientError, ConfigurationError
from ors_clients.models import ToolResult
from ors_clients.rollouts.episode import EpisodeSession
from ors_server import Message, TerminalToolSpec, ToolSpec

__all__ = ["AheadSession", "SessionsAhead"]

logger = logging.getLogger("ors_clients.rollouts.sessions_ahead")

#: Sessions that are opened at once: at least, and as a part of those that may be ahead.
_AT_ONCE, _PART = 4, 8
#: Sessions that are created at once for episodes that wait for them.
_ENTRANCE = 8
#: Seconds without another try after one failed.
_PAUSE = 5.0
#: Seconds that an episode waits for a place on the server before it gets that of a session that was opened ahead.
_PATIENCE = 1.0


class AheadSession(EpisodeSession, Protocol):
    """A session that can be opened ahead (``AsyncSession``)."""

    async def open_ahead(self) -> Any:
        """Open it for an episode that begins later. Raises ``ClientError``, at once where the server has no room."""
        ...

    async def begin(self) -> None:
        """Say that its episode begins. Raises ``ClientError`` where it has ended."""
        ...


class SessionsAhead:
    """The sessions of a run on one event loop; at most ``ahead`` are opened ahead, 0 for none. An asynchronous context.

    Raises ``ConfigurationError`` for a negative number.
    """

    def __init__(self, ahead: int) -> None:
        if ahead < 0:
            raise ConfigurationError(f"{ahead} sessions cannot be opened ahead", "Give 0 for none.")
        self._most = ahead
        self._expected: OrderedDict[Hashable, Callable[[], AheadSession]] = OrderedDict()
        self._ahead: OrderedDict[Hashable, _Session] = OrderedDict()
        #: Sessions that an episode waits for, and those that are being opened ahead.
        self._waiting: set[_Session] = set()
        self._opening: set[_Session] = set()
        self._ending: set[asyncio.Task[None]] = set()
        #: Sessions are created a few at a time: in a burst the first would else ask for their prompts after the last
        #: was created, and the server be busy with creating while it could set up.
        self.entrance = asyncio.Semaphore(_ENTRANCE)
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        #: Why the server did not take all sessions that were to be opened ahead; None if it did.
        self.problem: str | None = None

    @property
    def ahead(self) -> int:
        """The number of sessions that are open, or being opened, for episodes that have not begun."""
        return len(self._ahead)

    def expect(self, episodes: Iterable[tuple[Hashable, Callable[[], AheadSession]]]) -> None:
        """Add the next episodes, in their order, each with what makes its session."""
        self._expected.update(episodes)

    def take(self, episode: Hashable, make: Callable[[], AheadSession]) -> EpisodeSession:
        """Return the session of an episode that begins now, to be entered. ``make`` makes one that was not expected."""
        self._expected.pop(episode, None)
        return self._ahead.pop(episode, None) or _Session(self, episode, make)

    async def close(self) -> None:
        """Close what was opened ahead, and wait until all sessions have ended."""
        self._closed = True
        self._expected.clear()
        if self._timer is not None:
            self._timer.cancel()
        while self._ahead:
            self._ahead.popitem()[1].end()
        # A cancellation cancels the ends too: the keep-alive thread then sees to them.
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- for the sessions --------------------------------------------------------------------

    def waits(self, session: _Session) -> None:
        """Note that an episode waits for a session."""
        self._waiting.add(session)
        self._opening.discard(session)

    def waits_no_longer(self, session: _Session) -> None:
        """Note that it has its prompt, or has ended."""
        self._waiting.discard(session)
        self._open_more()

    def opened(self, session: _Session, error: ClientError | None) -> None:
        """Note the end of an opening ahead."""
        self._opening.discard(session)
        if error is not None and self._ahead.get(session.episode) is session:
            del self._ahead[session.episode]
            self._expected[session.episode] = session.make
            self._expected.move_to_end(session.episode, last=False)
        if error is not None:
            self._not_before = time.monotonic() + _PAUSE
            if self.problem is None:
                self.problem = (
                    f"{len(self._ahead)} of {self._most} sessions could be opened ahead: {error.cause.rstrip('.')}"
                )
                logger.warning("%s. Episodes without one open theirs when they begin.", self.problem)
        self._open_more()

    def make_room(self) -> None:
        """Close the session that was opened ahead for the last of the expected episodes."""
        for episode in reversed(self._ahead):
            session = self._ahead.pop(episode)
            self._expected[episode] = session.make
            self._expected.move_to_end(episode, last=False)
            self._not_before = time.monotonic() + _PAUSE
            session.end()
            return

    def end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run the end of a session in the background."""
        task = asyncio.ensure_future(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _open_more(self) -> None:
        at_once = max(_AT_ONCE, self._most // _PART)
        while self._expected and len(self._ahead) < self._most and len(self._opening) < at_once:
            if self._closed or self._waiting:
                return
            pause = self._not_before - time.monotonic()
            if pause > 0:
                if self._timer is None or self._timer.when() <= asyncio.get_running_loop().time():
                    self._timer = asyncio.get_running_loop().call_later(pause, self._open_more)
                return
            episode, make = self._expected.popitem(last=False)
            session = self._ahead[episode] = _Session(self, episode, make)
            self._opening.add(session)
            session.open_ahead()


async def _closed(session: EpisodeSession, opening: asyncio.Task[None] | None = None) -> None:
    """Close a session, whether it is open, being opened or neither."""
    if opening is not None and not opening.done():
        opening.cancel()
        await asyncio.wait([opening])
    with contextlib.suppress(ClientError):
        await session.close()


class _Session:
    """The session of one episode, opened ahead or not."""

    def __init__(self, owner: SessionsAhead, episode: Hashable, make: Callable[[], AheadSession]) -> None:
        self.episode = episode
        self.make = make
        self._owner = owner
        self._session = make()
        self._opening: asyncio.Task[None] | None = None
        #: What was read ahead.
        self._read: tuple[list[ToolSpec], list[Message]] | None = None

    def open_ahead(self) -> None:
        """Begin to open it."""
        self._opening = asyncio.create_task(self._open_ahead())

    async def _open_ahead(self) -> None:
        failure: ClientError | None = None
        try:
            await self._session.open_ahead()
            self._read = await self._session.tools(), await self._session.messages()
        except ClientError as error:
            failure = error
            self._owner.end(_closed(self._session))
        finally:
            self._owner.opened(self, failure)

    def end(self) -> None:
        """End it in the background."""
        self._owner.end(_closed(self._session, self._opening))

    # --- as an episode uses it ---------------------------------------------------------------

    @property
    def id(self) -> str | None:
        """The session's id, where it has one."""
        return getattr(self._session, "id", None)

    async def __aenter__(self) -> Self:
        if self._opening is not None:
            if await self._begin(self._opening):
                return self
            self._session, self._read = self.make(), None
        self._owner.waits(self)
        async with self._owner.entrance:
            self._be_patient()
            try:
                await self._session.__aenter__()
            finally:
                self._patience.cancel()
        return self

    def _be_patient(self) -> None:
        self._patience = asyncio.get_running_loop().call_later(_PATIENCE, self._lose_patience)

    def _lose_patience(self) -> None:
        self._owner.make_room()
        self._be_patient()

    async def _begin(self, opening: asyncio.Task[None]) -> bool:
        """Begin the episode of a session that was opened ahead; return whether it could be, and the session lives."""
        if not opening.done():
            self._owner.waits(self)
        try:
            await self._session.begin()
        except ClientError:
            self.end()
            return False
        await asyncio.wait([opening])
        opening.result()
        if self._read is None:
            return False
        self._owner.waits_no_longer(self)
        return True

    async def tools(self) -> list[ToolSpec]:
        """Return the tools of this task."""
        return await self._session.tools() if self._read is None else self._read[0]

    async def messages(self) -> list[Message]:
        """Return the opening conversation."""
        if self._read is not None:
            return self._read[1]
        try:
            return await self._session.messages()
        finally:
            self._owner.waits_no_longer(self)

    @property
    def terminal_tool(self) -> TerminalToolSpec | None:
        """The tool that takes a final message."""
        return self._session.terminal_tool

    async def call(self, name: str, input: Mapping[str, Any], /) -> ToolResult:
        """Run a tool. Raises ``ClientError``."""
        return await self._session.call(name, input)

    async def close(self) -> None:
        """End it in the background."""
        self._owner.waits_no_longer(self)
        self.end()
