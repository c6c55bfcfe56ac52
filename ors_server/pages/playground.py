"""Episodes that a person plays: a session of the registry, and what was said in it so far.

A session is opened and its tools are called as by any client, through the registry and the ledger. Invariants: an
episode is found only by the owner that opened it; its records take a bounded amount of memory, the oldest episode going
first; a call goes on when its page is closed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ors_server.errors import OrsError
from ors_server.keys.key import Key
from ors_server.pages.episode_records import EpisodeCall, read_frames
from ors_server.protocol import VERDICT, CreateSession
from ors_server.sessions.calls.call import Call
from ors_server.sessions.calls.call_ledger import ResultExpired
from ors_server.sessions.registry import Sessions
from ors_server.sessions.secrets import fill_secrets
from ors_server.sessions.session import Session
from ors_server.telemetry.redaction import forms_of, redact_value

__all__ = ["Episode", "Playground"]

#: Episodes that are remembered, calls of one, and characters of all of them together.
_EPISODES = 200
_CALLS = 500
_CHARACTERS = 64 * 2**20
#: Seconds between looks at a call that runs.
_LOOK = 10.0


@dataclass(eq=False)
class Episode:
    """An episode of the playground."""

    sid: str
    key: Key
    environment: str
    split: str
    index: int
    #: Its secrets, which a verdict does not show (``redaction.forms_of``).
    secrets: Sequence[bytes]
    opened: float = field(default_factory=time.time)
    #: The opening as messages, once the session is set up.
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    #: Why it could not be opened.
    failure: str = ""
    calls: list[EpisodeCall] = field(default_factory=list[EpisodeCall])
    opening: asyncio.Task[None] | None = None

    @property
    def reward(self) -> float | None:
        """The sum of the rewards; None where no call has given one."""
        rewards = [call.reward for call in self.calls if call.reward is not None]
        return sum(rewards) if rewards else None

    @property
    def finished(self) -> bool:
        """True once a tool has ended the episode."""
        return any(call.finished for call in self.calls)

    @property
    def characters(self) -> int:
        """The characters that its calls take."""
        return sum(call.characters for call in self.calls)

    @property
    def running(self) -> bool:
        """True while it is opened or a call runs: its page looks again."""
        opening = self.messages is None and not self.failure
        return opening or any(not call.done for call in self.calls)


class _Page:
    """The recipient of a result that goes to a page; it does not disconnect."""

    disconnected = False


class Playground:
    """The episodes of one server's pages."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._episodes: OrderedDict[tuple[str, str], Episode] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()

    def find(self, sid: str, owner: str) -> Episode | None:
        """Return the episode of a session, if this owner opened it here."""
        return self._episodes.get((owner, sid))

    async def open(
        self, sid: str, key: Key, environment: str, split: str, index: int, secrets: Mapping[str, str]
    ) -> Episode:
        """Open a session on a task. The same request again finds the same episode. Raises ``OrsError``."""
        request = CreateSession(env_name=environment, split=split, index=index)
        filled = fill_secrets(secrets, self._sessions.settings.secrets_file, key)
        known = self.find(sid, key.name)
        await self._create(sid, key, request, filled)
        if known is not None:
            return known
        episode = Episode(sid, key, environment, split, index, forms_of(filled.values()))
        self._episodes[key.name, sid] = episode
        self._bound()
        episode.opening = self._start(self._read_opening(episode))
        return episode

    async def _create(self, sid: str, key: Key, request: CreateSession, secrets: dict[str, str]) -> None:
        await self._sessions.create(sid, request, secrets, None, key)

    async def _read_opening(self, episode: Episode) -> None:
        try:
            session = await self._session(episode)
            await session.ready()
            messages = json.loads(await session.messages())
            episode.tools = json.loads(await session.task_tools())["tools"]
            episode.messages = messages
        except OrsError as error:
            episode.failure = error.text

    async def _session(self, episode: Episode) -> Session:
        return await self._sessions.find(episode.sid, None, episode.key.name)

    async def call(self, episode: Episode, name: str, arguments: dict[str, Any], seconds: float) -> EpisodeCall:
        """Call a tool and wait for its result, at most ``seconds``. Raises ``OrsError``."""
        session = await self._session(episode)
        session.check()
        try:
            call = session.start_call(name, arguments, None)
        except ResultExpired:  # only for a key that was used before, and there is none
            raise AssertionError from None
        call.recorded_for_page = True
        record = EpisodeCall(call.task_id, name, arguments)
        if len(episode.calls) >= _CALLS:
            del episode.calls[0]
        episode.calls.append(record)
        following = self._start(self._follow(episode, session, call, record))
        await asyncio.wait((following,), timeout=seconds)
        return record

    async def _follow(self, episode: Episode, session: Session, call: Call, record: EpisodeCall) -> None:
        page = _Page()
        ledger = session.ledger
        ledger.begin_response(call, page)
        try:
            while not call.done:
                await call.wait(_LOOK)
            frames = call.frames  # in memory: a result that is being read is not moved to the disk
            record.take(read_frames(frames or b""), time.monotonic() - call.started, _verdict(call, episode.secrets))
        finally:
            ledger.end_response(call, page, delivered=True)
        self._bound()

    async def end(self, episode: Episode) -> None:
        """End the session; its records stay."""
        await self._sessions.delete(episode.sid, episode.key.name)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _bound(self) -> None:
        while len(self._episodes) > _EPISODES:
            self._episodes.popitem(last=False)
        while sum(episode.characters for episode in self._episodes.values()) > _CHARACTERS:
            oldest = next(iter(self._episodes.values()))
            if len(self._episodes) > 1:
                self._episodes.popitem(last=False)
            elif len(oldest.calls) > 1:
                del oldest.calls[0]
            else:
                return


def _verdict(call: Call, secrets: Sequence[bytes]) -> object:
    """Return the verdict that a call has given; None for none."""
    result = None if call.recorded is None else read_frames(call.recorded)
    return redact_value(result["output"]["metadata"][VERDICT], secrets) if isinstance(result, dict) else None
