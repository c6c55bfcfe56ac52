"""Pages of the playground: a session that a person opens, and its tools as forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ors_server.errors import OrsError
from ors_server.keys.credentials import credential_of
from ors_server.pages.context import ServerContext, ViewRoute, visitor_of
from ors_server.pages.episode_records import EpisodeCall
from ors_server.pages.forms import Field, fields_of, read_input
from ors_server.pages.playground import Episode, Playground
from ors_server.pages.responses import Responses
from ors_server.pages.views.stored import hides_verdicts
from ors_server.sessions.session import State

__all__ = ["PlaygroundViews"]

#: Seconds that a page waits for a call, and that it waits before it looks again.
_WAIT = 3.0
_SID = "/ui/environments/{environment}/sessions/{sid}"
_SECRET = "secret."  # noqa: S105 - the prefix of a form's fields
_LONGEST_ID = 200
_NO_EPISODE = (
    "The server has no record of this episode. Its process has ended since, or later episodes have taken its room, or "
    "another key opened it. Open the task again to play it."
)


class PlaygroundViews:
    """The pages of sessions that were opened here."""

    def __init__(self, context: ServerContext, responses: Responses, playground: Playground) -> None:
        self._context = context
        self._responses = responses
        self._playground = playground
        self.routes: list[ViewRoute] = [
            ("POST", f"{_SID}/open", self.open),
            ("GET", _SID, self.episode),
            ("GET", f"{_SID}/now", self.now),
            ("POST", f"{_SID}/tool", self.call),
            ("POST", f"{_SID}/end", self.end),
            ("GET", f"{_SID}/outputs/{{number}}", self.output),
        ]

    async def open(self, request: Request) -> Response:
        """Open a session on a task."""
        form = await self._responses.form(request)
        index = form.get("index", "")
        if not index.isdecimal() or len(index) > 15:
            raise HTTPException(400, "The task's index is a whole number from 0.")
        secrets = {
            name.removeprefix(_SECRET): value for name, value in form.items() if name.startswith(_SECRET) and value
        }
        sid = request.path_params["sid"]
        if len(sid) > _LONGEST_ID:
            raise HTTPException(404)
        hosted = self._context.catalogue.by_path(request.path_params["environment"])
        self._take_turn(request)
        await self._playground.open(sid, visitor_of(request), hosted.name, form.get("split", ""), int(index), secrets)
        return self._responses.redirect(request, f"/environments/{hosted.name}/sessions/{sid}")

    async def episode(self, request: Request) -> Response:
        """Show an episode: its prompt, what was called, and the forms of its tools."""
        episode = self._find(request)
        return await self._responses.render(request, "episode.html", self._context_of(request, episode))

    async def now(self, request: Request) -> Response:
        """Show the part of an episode that changes while something runs."""
        return await self._responses.render(
            request, "episode_body.html", self._context_of(request, self._find(request))
        )

    async def call(self, request: Request) -> Response:
        """Call a tool."""
        episode = self._find(request)
        form = await self._responses.form(request)
        name = form.get("tool", "")
        tool = next((tool for tool in episode.tools or () if tool["name"] == name), None)
        if tool is None:
            raise HTTPException(400, "The session has no such tool.")
        fields = fields_of(tool["input_schema"])
        given = read_input(fields, form)
        problem = ""
        if given is not None:
            try:
                self._take_turn(request)
                await self._playground.call(episode, name, given, _WAIT)
                fields = fields_of(tool["input_schema"])
            except OrsError as error:
                problem = error.text
        if request.headers.get("hx-request") != "true" and given is not None and not problem:
            place = f"/environments/{episode.environment}/sessions/{episode.sid}"
            return self._responses.redirect(request, f"{place}#newest")
        context = {**self._context_of(request, episode, name, fields), "problem": problem}
        template = "episode_body.html" if request.headers.get("hx-request") == "true" else "episode.html"
        return await self._responses.render(request, template, context)

    async def end(self, request: Request) -> Response:
        """End the session."""
        episode = self._find(request)
        await self._responses.form(request)
        await self._playground.end(episode)
        return self._responses.redirect(request, f"/environments/{episode.environment}/sessions/{episode.sid}")

    async def output(self, request: Request) -> Response:
        """Send the whole text of an output as a file."""
        episode = self._find(request)
        number = request.path_params["number"]
        found = next((call for call in episode.calls if call.task_id == number), None)
        if found is None:
            raise HTTPException(404)
        return PlainTextResponse(
            found.text.encode("utf-8", "replace"), headers={"content-disposition": 'attachment; filename="output.txt"'}
        )

    def _take_turn(self, request: Request) -> None:
        """Count a request of a log-in as one of its key, as those that carry a key were. Raises ``KeyBusy``."""
        if not credential_of(request.scope["headers"]):
            self._context.sessions.usage.take_turn(visitor_of(request))

    def _find(self, request: Request) -> Episode:
        episode = self._playground.find(request.path_params["sid"], visitor_of(request).name)
        if episode is None:
            raise HTTPException(404, _NO_EPISODE)
        return episode

    def _context_of(
        self, request: Request, episode: Episode, tool: str = "", fields: list[Field] | None = None
    ) -> dict[str, Any]:
        try:
            session = self._context.sessions.peek(episode.sid, episode.key.name)
            state, reason = session.state, session.end_reason
        except OrsError as error:
            state, reason = State.ENDING, error.text
        tools = [
            {
                **each,
                "fields": fields if fields is not None and each["name"] == tool else fields_of(each["input_schema"]),
            }
            for each in episode.tools or ()
        ]
        hidden = hides_verdicts(request, self._context.settings)
        return {
            # Copies: the episode goes on while a thread renders it.
            "episode": replace(episode, calls=[_shown(call, hidden=hidden) for call in episode.calls]),
            "hidden": hidden,
            "state": "ended" if state is State.ENDING else state.value,
            "alive": state is not State.ENDING,
            "reason": reason,
            "tools": tools,
            "chosen": tool,
            "problem": "",
            "ttl": self._context.settings.session_ttl,
        }


def _shown(call: EpisodeCall, *, hidden: bool) -> EpisodeCall:
    """Return a copy of a call for a visitor."""
    return replace(call, verdict=call.verdict.without_texts() if hidden and call.verdict is not None else call.verdict)
