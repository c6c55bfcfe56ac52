"""Pages of the stored rollouts: runs with their curves and tasks, lists by cursor, one rollout, and a group of a task.

Invariants: a page shows what the visitor's key made; queries run on threads; a list costs the same wherever it lies.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ors_server.hosting.task_source import TASK_TOKEN
from ors_server.pages.context import RolloutContext, ServerContext, ViewRoute, visitor_of
from ors_server.pages.curves import Curve, Point
from ors_server.pages.responses import Rendering
from ors_server.pages.rollout_messages import shown_messages
from ors_server.pages.views.reward_reasons import reward_reason
from ors_server.rollouts.errors import RolloutError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ors_server.rollouts.queries.conversations import RolloutDetail
    from ors_server.rollouts.queries.listed import RolloutFilter
    from ors_server.rollouts.queries.statistics import CurvePoint

__all__ = ["RolloutViews"]

Result = TypeVar("Result")

#: Rows of a list, and rollouts that stand side by side.
_ROWS, _SIDE_BY_SIDE = 50, 8
_LONGEST_VALUE = 500
_FILTERS = ("run", "task_key", "environment", "step", "outcome", "source")


class RolloutViews:
    """The pages of runs and rollouts."""

    def __init__(self, context: ServerContext | RolloutContext, responses: Rendering) -> None:
        self._context = context
        self._responses = responses
        self.routes: list[ViewRoute] = [
            ("GET", "/ui/runs", self.runs),
            ("GET", "/ui/run", self.run),
            ("GET", "/ui/rollouts", self.rollouts),
            ("GET", "/ui/rollout", self.rollout),
            ("GET", "/ui/rollout-group", self.group),
            ("GET", "/ui/rollout-message", self.message),
        ]

    async def runs(self, request: Request) -> Response:
        """List the runs."""
        from ors_server.rollouts.queries.runs import list_runs

        search, after = _value(request, "search"), _value(request, "after")
        page = await self._read(
            lambda connection: list_runs(
                connection, search=search, owner=_owner(request), after=after or None, limit=_ROWS
            )
        )
        context = {
            "runs": [] if page is None else page.rows,
            "next": _next(request, page),
            "search": search,
            "first": not after,
        }
        return await self._responses.render(request, "runs.html", context)

    async def run(self, request: Request) -> Response:
        """Show a run: its curve, and the pass rates of its tasks."""
        from ors_server.rollouts.queries.runs import find_run
        from ors_server.rollouts.queries.statistics import reward_curve, task_summaries

        run, after, owner = _value(request, "run"), _value(request, "after"), _owner(request)

        def read(connection: Connection) -> dict[str, Any]:
            found = find_run(connection, run, owner=owner)
            counted: Any = {"owner": owner, "rule": found.rule}
            tasks = task_summaries(connection, found.id, **counted, after=after or None, limit=_ROWS)
            curve = [] if after else reward_curve(connection, found.id, **counted)
            return {"run": found, "tasks": tasks.rows, "next": _next(request, tasks), "curve": _curve(curve)}

        shown = await self._read(read)
        if shown is None:
            raise HTTPException(404, "No rollout was stored yet.")
        return await self._responses.render(request, "run.html", {**shown, "first": not after})

    async def rollouts(self, request: Request) -> Response:
        """List rollouts."""
        from ors_server.rollouts.queries.listed import list_rollouts

        after = _value(request, "after")
        wanted = self._filter(request)
        page = await self._read(lambda connection: list_rollouts(connection, wanted, after=after or None, limit=_ROWS))
        context = {
            "rollouts": [] if page is None else page.rows,
            "next": _next(request, page),
            "first": not after,
            "filters": {name: value for name in _FILTERS if (value := _value(request, name))},
        }
        return await self._responses.render(request, "rollouts.html", context)

    async def rollout(self, request: Request) -> Response:
        """Show one rollout."""
        from ors_server.rollouts.queries.conversations import read_rollout
        from ors_server.rollouts.queries.listed import group_of

        rollout, owner = _value(request, "id"), _owner(request)

        def read(connection: Connection) -> dict[str, Any]:
            found = read_rollout(connection, rollout, owner=owner)
            # Tests are the operator's: other visitors see them only where the operator says so.
            settings = self._context.settings
            hidden = (owner is not None or settings.insecure) and not settings.show_verdicts
            why = reward_reason(connection, found, owner=owner, hidden=hidden)
            return {**self._shown(found), "group": group_of(connection, found.summary), "why": why}

        shown = await self._read(_known(read))
        if shown is None:
            raise HTTPException(404, "No rollout was stored yet.")
        return await self._responses.render(request, "rollout.html", {**shown, "tokens": _tokens(request)})

    async def group(self, request: Request) -> Response:
        """Show the rollouts of one task side by side."""
        from ors_server.rollouts.queries.conversations import read_rollout
        from ors_server.rollouts.queries.listed import group_of

        rollout, owner, start = _value(request, "id"), _owner(request), _value(request, "start") or "0"
        if not start.isdecimal() or len(start) > 6:
            raise HTTPException(400, "A position is a whole number from 0.")
        first = int(start)

        def read(connection: Connection) -> dict[str, Any]:
            found = read_rollout(connection, rollout, owner=owner)
            group = group_of(connection, found.summary)
            columns = [
                self._shown(found if each.id == found.summary.id else read_rollout(connection, each.id, owner=owner))
                for each in group[first : first + _SIDE_BY_SIDE]
            ]
            return {"chosen": found.summary, "group": group, "columns": columns}

        shown = await self._read(_known(read))
        if shown is None:
            raise HTTPException(404, "No rollout was stored yet.")
        context = {**shown, "tokens": _tokens(request), "start": first, "side_by_side": _SIDE_BY_SIDE}
        return await self._responses.render(request, "group.html", context)

    async def message(self, request: Request) -> Response:
        """Send the whole text of a message as a file."""
        from ors_server.rollouts.queries.conversations import read_rollout

        rollout, number, owner = _value(request, "id"), _value(request, "number"), _owner(request)

        def read(connection: Connection) -> str | None:
            messages = shown_messages(read_rollout(connection, rollout, owner=owner).messages)
            return messages[int(number)].text if number.isdecimal() and int(number) < len(messages) else None

        text = await self._read(_known(read))
        if text is None:
            raise HTTPException(404)
        return PlainTextResponse(
            text.encode("utf-8", "replace"), headers={"content-disposition": 'attachment; filename="message.txt"'}
        )

    # --- details -----------------------------------------------------------------------------

    async def _read(self, query: Callable[[Connection], Result]) -> Result | None:
        """Run a query on a thread; None where nothing was ever stored."""

        def read() -> Result | None:
            with self._context.store.reading() as connection:
                return None if connection is None else query(connection)

        return await anyio.to_thread.run_sync(read)

    def _filter(self, request: Request) -> RolloutFilter:
        from ors_server.rollouts.queries.listed import RolloutFilter

        given = {name: _value(request, name) or None for name in _FILTERS}
        step = given.pop("step")
        if step is not None and not (step.isdecimal() and len(step) < 16):
            raise HTTPException(400, "A step is a whole number from 0.")
        return RolloutFilter(**given, step=None if step is None else int(step), owner=_owner(request))

    def _shown(self, found: RolloutDetail) -> dict[str, Any]:
        content = found.content
        return {
            "rollout": found.summary,
            "messages": shown_messages(found.messages),
            "task": self._public(found.summary.environment, content.get("task_spec")),
            "details": {
                name: value for name in ("metadata", "rollout_info", "run_info") if (value := content.get(name))
            },
            "seconds": _seconds(found),
        }

    def _public(self, environment: str | None, task: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a task without the fields that an environment of this server declares private."""
        private = {TASK_TOKEN, *(() if environment is None else self._context.private_fields(environment))}
        return {name: value for name, value in (task or {}).items() if name not in private}


def _known(query: Callable[[Connection], Result]) -> Callable[[Connection], Result]:
    """Return the query with an unknown rollout as a page of its own."""

    def known(connection: Connection) -> Result:
        try:
            return query(connection)
        except RolloutError as error:
            raise HTTPException(404, error.cause) from None

    return known


def _seconds(found: RolloutDetail) -> float | None:
    info: dict[str, Any] = found.content.get("rollout_info") or {}
    said = info.get("duration_ms")
    if isinstance(said, (int, float)) and not isinstance(said, bool):
        return said / 1000
    begun, ended = found.summary.created_at, found.summary.last_message_at
    return None if begun is None or ended is None else (ended - begun).total_seconds()


def _curve(points: list[CurvePoint]) -> Curve:
    times = [point.at for point in points if point.at is not None]
    seconds = (times[-1] - times[0]).total_seconds() if times else 0.0
    unit, name = (60.0, "minutes") if seconds >= 120 else (1.0, "seconds")
    shown: list[Point] = []
    for point in points:
        elapsed = 0.0 if point.at is None else (point.at - times[0]).total_seconds() / unit
        x = elapsed if point.step is None else float(point.step)
        shown.append(Point(x, point.mean_reward, point.num_passed / point.num_rewarded, point.num_rewarded))
    return Curve(shown, name if times else "step")


def _value(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if len(value) > _LONGEST_VALUE or "\x00" in value:
        raise HTTPException(400, "The address of this page has a value that cannot be one.")
    return value


def _owner(request: Request) -> str | None:
    return visitor_of(request).name or None


def _tokens(request: Request) -> bool:
    return _value(request, "tokens") == "1"


def _next(request: Request, page: Any) -> str | None:
    """Return the query of the next page of a list."""
    if page is None or page.next is None:
        return None
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "after"]
    return urllib.parse.urlencode([*kept, ("after", page.next)])
