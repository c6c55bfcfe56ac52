"""Run code that calls a model, turn by turn: each request is held until the player answers it.

An Atropos environment is a coroutine that calls its model as often as it likes and returns scored data. A trainer that
generates text itself, or a client of an ORS server, wants the opposite: to be shown the request and to answer when it
can. ``InterceptedEpisode`` runs the coroutine as a task. A request of its model suspends that task, and ``start`` and
``answer`` return the request as a ``Turn``; the answer resumes the task where it stood. Nothing is replayed, so any
number of turns is right, and side effects happen once.

Which episode a request belongs to is known from the task's context, so one environment can serve any number of
episodes at once, whatever tasks of its own it starts.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ors_clients.errors import ClientError, InfrastructureFailure
from ors_clients.rollouts.messages import ChatMessage

__all__ = ["EpisodeFailed", "InterceptedEpisode", "Turn", "current_episode"]

Outcome = TypeVar("Outcome")

_episode: ContextVar[InterceptedEpisode[Any] | None] = ContextVar("ors_parked_episode", default=None)


def current_episode() -> InterceptedEpisode[Any] | None:
    """Return the episode on whose behalf the caller runs; None outside of any."""
    return _episode.get()


class EpisodeFailed(InfrastructureFailure):
    """The code that plays the episode raised, or ended without what it owes. There is no score to learn from."""


@dataclass(frozen=True)
class Turn(Generic[Outcome]):
    """The next request for the model, or the episode's outcome once it is ``over``."""

    #: The conversation as the code shows it to its model, from the beginning.
    messages: list[ChatMessage]
    #: The part of it that was not shown before; all of it where the code rewrote its history.
    new_messages: list[ChatMessage]
    #: The tools that the request offers, in the OpenAI form.
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    over: bool = False
    #: What the code returned; None before the end.
    outcome: Outcome | None = None


@dataclass(frozen=True)
class _Request:
    messages: list[ChatMessage]
    #: A completion request: one text instead of messages.
    prompt: str | None
    tools: list[dict[str, Any]]
    answer: asyncio.Future[str]


class InterceptedEpisode(Generic[Outcome]):
    """One run of ``play``, a coroutine function that asks its model through ``ask``.

    All methods belong to one event loop. ``start`` once, ``answer`` until a turn is ``over``, ``close`` in any case.
    """

    def __init__(self, play: Callable[[], Awaitable[Outcome]]) -> None:
        self._play = play
        self._task: asyncio.Task[Outcome] | None = None
        self._asked: asyncio.Queue[_Request] = asyncio.Queue()
        self._open: _Request | None = None
        self._messages: list[ChatMessage] = []
        self._prompt = ""
        #: The answers given so far.
        self.replies: list[str] = []
        #: Numbers of the members of a group, which play the same task side by side; only the first is asked.
        self.members = itertools.count()

    # --- the side that answers ---------------------------------------------------------------

    async def start(self) -> Turn[Outcome]:
        """Run until the first request, or to the end. Raises ``EpisodeFailed``, and the code's own ``ClientError``."""
        context = copy_context()
        context.run(_episode.set, self)
        self._task = asyncio.create_task(self._run(), context=context)
        return await self._next()

    async def answer(self, text: str) -> Turn[Outcome]:
        """Answer the open request; run until the next one, or to the end. Raises as ``start`` does."""
        request, self._open = self._open, None
        if request is None:
            raise EpisodeFailed("The episode has no open request", "Answer each turn once, and none after the last")
        self.replies.append(text)
        if not request.answer.done():  # done: the code did not wait for the answer (a time limit of its own)
            request.answer.set_result(text)
        return await self._next()

    async def close(self) -> None:
        """End the task if it still runs, and wait until it has cleaned up. More than once is fine."""
        self._open = None
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> Outcome:
        return await self._play()

    async def _next(self) -> Turn[Outcome]:
        assert self._task is not None
        while True:
            asked = asyncio.ensure_future(self._asked.get())
            try:
                await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
                if self._task.done():
                    return self._end(self._task)
                request = asked.result()
            finally:
                asked.cancel()
            if not request.answer.done():  # done: cancelled before the player saw it
                self._open = request
                return self._show(request)

    def _end(self, task: asyncio.Task[Outcome]) -> Turn[Outcome]:
        reply: list[ChatMessage] = [{"role": "assistant", "content": self.replies[-1]}] if self.replies else []
        if task.cancelled():
            raise EpisodeFailed("The environment cancelled its own episode")
        error = task.exception()
        if isinstance(error, ClientError):
            raise error
        if error is not None:
            raise EpisodeFailed(f"The environment raised {type(error).__name__} while it played the episode") from error
        return Turn([*self._messages, *reply], [], over=True, outcome=task.result())

    def _show(self, request: _Request) -> Turn[Outcome]:
        reply = self.replies[-1] if self.replies else ""
        if request.prompt is None:
            new = _unseen(self._messages, request.messages)
            self._messages = list(request.messages)
        else:
            before, now = self._prompt + reply, request.prompt
            grown = bool(self._prompt) and now.startswith(before)
            new = [{"role": "user", "content": now[len(before) :] if grown else now}]
            spoken = [{"role": "assistant", "content": reply}, *new]
            self._messages = [*self._messages, *spoken] if grown else new
            self._prompt = now
        return Turn(list(self._messages), new, request.tools)

    # --- the side that asks ------------------------------------------------------------------

    async def ask(
        self, messages: Sequence[ChatMessage] = (), *, prompt: str | None = None, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        """Park a request, of messages or of one text, until it is answered."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(_Request([dict(message) for message in messages], prompt, list(tools), answer))
        return await answer


def _unseen(before: list[ChatMessage], now: list[ChatMessage]) -> list[ChatMessage]:
    """Return the part of a conversation behind the messages that were shown and the answer to them."""
    if not before or now[: len(before)] != before:
        return now
    rest = now[len(before) :]
    return rest[1:] if rest and rest[0].get("role") == "assistant" else rest
