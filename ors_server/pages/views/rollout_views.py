"""Pages of the stored rollouts: lists by cursor, one rollout, and a group of a task.

Invariants: a page shows what the visitor's key made; queries run on threads; a list costs the same wherever it lies.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ors_server.hosting.task_source import TASK_TOKEN
from ors_server.pages.context import RolloutContext, ServerContext, ViewRoute
from ors_server.pages.responses import Rendering
from ors_server.pages.rollout_messages import MOST_MARKDOWN, shown_messages
from ors_server.pages.views.reward_reasons import reward_reason
from ors_server.pages.views.stored import ROWS, chosen, hides_verdicts, next_page, owner_of, read_store, value_of
from ors_server.rollouts.errors import RolloutError
from ors_server.rollouts.reports.task_scores import LARGEST_REWARD

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ors_server.rollouts.queries.conversations import RolloutDetail
    from ors_server.rollouts.queries.listed import Passed, RolloutFilter, RolloutOrder

__all__ = ["RolloutViews"]

Result = TypeVar("Result")

#: Rollouts that stand side by side.
_SIDE_BY_SIDE = 8
_FILTERS = ("run", "task_key", "environment", "step", "outcome", "source", "search", "passed")
_EXACT = ("run", "task_key", "environment", "outcome", "source")
_ORDERS: tuple[RolloutOrder, ...] = ("newest", "highest", "lowest")
_GROUP_ORDERS = ("begun", "reward")
_PASSED: tuple[Passed, ...] = ("yes", "no", "unknown")


class RolloutViews:
    """The pages of rollouts."""

    def __init__(self, context: ServerContext | RolloutContext, responses: Rendering) -> None:
        self._context = context
        self._responses = responses
        self.routes: list[ViewRoute] = [
            ("GET", "/ui/rollouts", self.rollouts),
            ("GET", "/ui/rollout", self.rollout),
            ("GET", "/ui/rollout-group", self.group),
            ("GET", "/ui/rollout-message", self.message),
        ]

    async def rollouts(self, request: Request) -> Response:
        """List rollouts."""
        from ors_server.rollouts.queries.listed import list_rollouts
        from ors_server.rollouts.queries.runs import find_run

        after, order = value_of(request, "after"), chosen(request, "order", _ORDERS) or "newest"
        wanted = self._filter(request)
        if wanted.run is None and (order != "newest" or wanted.passed is not None):
            raise HTTPException(400, "A reward has no meaning across runs. Choose a run.")

        def read(connection: Connection) -> Any:
            run = None if wanted.run is None else find_run(connection, wanted.run, owner=wanted.owner)
            return run, list_rollouts(connection, wanted, order=order, after=after or None, limit=ROWS)

        run, page = await read_store(self._context.store, read) or (None, None)
        context: dict[str, Any] = {
            "rollouts": [] if page is None else page.rows,
            "next": next_page(request, page),
            "first": not after,
            "run": run,
            "order": order,
            "filters": (filters := {name: value_of(request, name) for name in _FILTERS}),
            "query": {name: value for name, value in (*filters.items(), ("order", order)) if value},
        }
        return await self._responses.render(request, "rollouts.html", context)

    async def rollout(self, request: Request) -> Response:
        """Show one rollout."""
        from ors_server.rollouts.queries.conversations import read_rollout
        from ors_server.rollouts.queries.listed import group_of

        rollout, owner = value_of(request, "id"), owner_of(request)

        def read(connection: Connection) -> dict[str, Any]:
            found = read_rollout(connection, rollout, owner=owner)
            hidden = hides_verdicts(request, self._context.settings)
            why = reward_reason(connection, found, owner=owner, hidden=hidden)
            return {**self._shown(found), "group": group_of(connection, found.summary), "why": why}

        shown = await read_store(self._context.store, _known(read))
        if shown is None:
            raise HTTPException(404, "No rollout was stored yet.")
        return await self._responses.render(
            request, "rollout.html", {**shown, "tokens": _tokens(request), "raw": _raw(request)}
        )

    async def group(self, request: Request) -> Response:
        """Show the rollouts of one task side by side."""
        from ors_server.rollouts.queries.conversations import read_rollout
        from ors_server.rollouts.queries.listed import group_of

        rollout, owner, start = value_of(request, "id"), owner_of(request), value_of(request, "start") or "0"
        if not start.isdecimal() or len(start) > 6:
            raise HTTPException(400, "A position is a whole number from 0.")
        first, order = int(start), chosen(request, "order", _GROUP_ORDERS) or "begun"

        def read(connection: Connection) -> dict[str, Any]:
            found = read_rollout(connection, rollout, owner=owner)
            group = group_of(connection, found.summary)
            if order == "reward":
                group.sort(key=lambda each: (each.reward is None, -(each.reward or 0.0)))
            columns = [
                self._shown(
                    found if each.id == found.summary.id else read_rollout(connection, each.id, owner=owner),
                    columns=_SIDE_BY_SIDE,
                )
                for each in group[first : first + _SIDE_BY_SIDE]
            ]
            return {"chosen": found.summary, "group": group, "columns": columns}

        shown = await read_store(self._context.store, _known(read))
        if shown is None:
            raise HTTPException(404, "No rollout was stored yet.")
        rewards = [each.reward for each in shown["group"] if each.reward is not None]
        fields = {"order": order, "start": first, "side_by_side": _SIDE_BY_SIDE, "spread": _spread(rewards)}
        context = {**shown, **fields, "tokens": _tokens(request), "raw": _raw(request)}
        return await self._responses.render(request, "group.html", context)

    async def message(self, request: Request) -> Response:
        """Send the whole text of a message as a file."""
        from ors_server.rollouts.queries.conversations import read_rollout

        rollout, number, owner = value_of(request, "id"), value_of(request, "number"), owner_of(request)

        def read(connection: Connection) -> str | None:
            messages = shown_messages(read_rollout(connection, rollout, owner=owner).messages)
            return messages[int(number)].text if number.isdecimal() and int(number) < len(messages) else None

        text = await read_store(self._context.store, _known(read))
        if text is None:
            raise HTTPException(404)
        return PlainTextResponse(
            text.encode("utf-8", "replace"), headers={"content-disposition": 'attachment; filename="message.txt"'}
        )

    # --- details -----------------------------------------------------------------------------

    def _filter(self, request: Request) -> RolloutFilter:
        from ors_server.rollouts.queries.listed import RolloutFilter

        step = value_of(request, "step")
        if step and not (step.isdecimal() and len(step) < 16):
            raise HTTPException(400, "A step is a whole number from 0.")
        return RolloutFilter(
            **{name: value_of(request, name) or None for name in _EXACT},
            step=int(step) if step else None,
            search=value_of(request, "search"),
            passed=chosen(request, "passed", _PASSED),
            owner=owner_of(request),
        )

    def _shown(self, found: RolloutDetail, columns: int = 1) -> dict[str, Any]:
        content = found.content
        return {
            "rollout": found.summary,
            "messages": shown_messages(found.messages, most=MOST_MARKDOWN // columns),
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


def _spread(rewards: Sequence[float]) -> dict[str, Any] | None:
    """Return the mean of rewards and their standard deviation, as trainers take it; None of fewer than two."""
    if len(rewards) < 2 or max(map(abs, rewards)) > LARGEST_REWARD:
        return None
    return {"mean": statistics.fmean(rewards), "deviation": statistics.stdev(rewards)}


def _raw(request: Request) -> bool:
    return value_of(request, "raw") == "1"


def _tokens(request: Request) -> bool:
    return value_of(request, "tokens") == "1"
