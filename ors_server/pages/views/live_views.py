"""The page of the sessions that live now, with what each waits for, kept up to date by events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ors_server.pages.context import ServerContext, ViewRoute, visitor_of
from ors_server.pages.playground import Playground
from ors_server.pages.responses import Responses
from ors_server.sessions.session import Session, State

__all__ = ["LiveViews"]

#: Sessions that a page shows, those with a call first.
_MOST = 200
#: Seconds between events.
_INTERVAL = 1.0
#: Seconds of one stream of events.
_LONGEST_STREAM = 600.0


class LiveViews:
    """The page of sessions."""

    def __init__(self, context: ServerContext, responses: Responses, playground: Playground) -> None:
        self._context = context
        self._responses = responses
        self._playground = playground
        self.routes: list[ViewRoute] = [
            ("GET", "/ui/sessions", self.sessions),
            ("GET", "/ui/sessions/events", self.session_events),
        ]

    async def sessions(self, request: Request) -> Response:
        """List the sessions that live."""
        return await self._responses.render(request, "sessions.html", self._sessions_now(request))

    async def session_events(self, request: Request) -> Response:
        """Send the list of sessions again whenever it has changed."""
        from sse_starlette.sse import AppStatus, EventSourceResponse

        if getattr(AppStatus, "should_exit_event", None) is not None:
            # Version 2 keeps an event of the first loop that used it, and fails on every other one.
            AppStatus.should_exit_event = None

        async def events() -> AsyncGenerator[dict[str, str]]:
            closing = self._context.sessions.closing
            # A browser connects again, and shows its log-in again.
            end = time.monotonic() + _LONGEST_STREAM
            while not closing.is_set() and time.monotonic() < end and self._may_look(request):
                yield {"event": "rows", "data": await self._rows(request)}
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(closing.wait(), _INTERVAL)

        return EventSourceResponse(events())

    def _may_look(self, request: Request) -> bool:
        """Return whether the visitor's key is still valid: a stream outlives the request's own check."""
        keys = self._context.authenticator.keys
        keys.refresh()
        visitor = visitor_of(request)
        # Another key may have its name by now.
        return keys.current(visitor) is not None if visitor.name else not keys.wanted

    async def _rows(self, request: Request) -> str:
        return await self._responses.fragment(request, "session_rows.html", self._sessions_now(request))

    def _sessions_now(self, request: Request) -> dict[str, Any]:
        now = time.monotonic()
        owner = visitor_of(request).name
        owned = [session for session in self._context.sessions if session.owner == owner]
        states: dict[str, int] = {}
        for session in owned:
            states[session.state.value] = states.get(session.state.value, 0) + 1
        owned.sort(key=lambda session: (not session.running_calls, now - session.last_seen))
        return {
            "sessions": [
                {**_row(session, now), "played": self._playground.find(session.sid, owner) is not None}
                for session in owned[:_MOST]
            ],
            "total": len(owned),
            "states": states,
            "calls": sum(len(session.running_calls) for session in owned),
            "ttl": self._context.settings.session_ttl,
        }


def _row(session: Session, now: float) -> dict[str, Any]:
    last = session.last_call
    return {
        "sid": session.sid,
        "rollout": None if session.recording is None else session.recording.stored.rollout_id,
        "environment": None if session.hosted is None else session.hosted.name,
        "state": session.state.value,
        "age": now - session.opened,
        "idle": now - session.last_seen,
        "last_call": None if last is None else {"tool": last[0], "ago": now - last[1]},
        "waits": _waits_for(session, now),
        "busy": session.busy,
    }


def _waits_for(session: Session, now: float) -> str:
    running = session.running_calls
    if running:
        name, started = running[0]
        more = f" and {len(running) - 1} more" if len(running) > 1 else ""
        return f"tool {name}{more}, for {now - started:.1f} s"
    if session.state is State.READY:
        return "the model"
    if session.state is State.SETTING_UP:
        waiting = session.hosted.waiting_for_room if session.hosted is not None else 0
        return "set-up; sessions of this environment wait for room on the machine" if waiting else "set-up"
    return {
        State.UNBOUND: "a request that names its environment",
        State.CREATING: "the constructor",
        State.FAILED: "its end: set-up failed",
        State.ENDING: "teardown",
    }.get(session.state, "")
