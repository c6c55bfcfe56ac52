"""The tasks of a run with their pass rates, in an order and with filters of the reader's choice, by cursor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Double, and_, cast, func, or_, select, true

from ors_server.rollouts.queries.listed import RolloutFilter
from ors_server.rollouts.queries.paging import Listing, cursor, read_cursor
from ors_server.rollouts.queries.runs import RunSummary, contains, statistics_by
from ors_server.rollouts.tables import rollouts

__all__ = ["ORDERS", "PASSING", "TaskFilter", "TaskOrder", "TaskSummary", "list_tasks", "names_of_tasks"]

TaskOrder = Literal["lowest", "highest", "disagreement", "lost", "name"]
Passing = Literal["always", "sometimes", "never", "unknown"]
ORDERS: tuple[TaskOrder, ...] = get_args(TaskOrder)
PASSING: tuple[Passing, ...] = get_args(Passing)


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Conditions on tasks; an empty one leaves it out."""

    #: A part of the task's name.
    search: str = ""
    passing: Passing | None = None
    #: Only tasks with a lost rollout.
    lost: bool = False


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """The rollouts of one task."""

    key: str
    label: str | None
    environment: str | None
    split: str | None
    num_rollouts: int
    num_rewarded: int
    num_passed: int
    num_lost: int
    mean_reward: float | None
    #: The share of pairs of rollouts of one group, the same step, of which one passed and the other did not.
    disagreement: float | None

    @property
    def pass_rate(self) -> float | None:
        """The share of rewarded rollouts that passed."""
        return self.num_passed / self.num_rewarded if self.num_rewarded else None


def list_tasks(
    connection: Connection,
    run: RunSummary,
    wanted: TaskFilter = TaskFilter(),
    *,
    order: TaskOrder = "lowest",
    owner: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Listing[TaskSummary]:
    """List the tasks of a run: by their pass rate, by disagreement within groups, by losses, or by name.

    Those without a pass rate or a group of two come last. Raises ``InvalidCursor``.
    """
    conditions = (
        *RolloutFilter(run=run.id, owner=owner).conditions(connection),
        rollouts.c.task_key.is_not(None),
    )
    named = bool(wanted.search) or order == "name"  # names are not in the index that statistics read
    key = rollouts.c.task_key.label("key")
    label = (func.max(rollouts.c.task_label).label("label"),) if named else ()
    tasks = select(key, *label, *statistics_by(run.rule)).where(*conditions).group_by(rollouts.c.task_key).subquery()
    apart = _disagreement(run, conditions)
    ordered, descending = _place(order, tasks.c, apart.c.disagreement)
    query = (
        select(*(tasks.c[name] for name in _COUNTED), apart.c.disagreement, ordered.label("place"))
        .join_from(tasks, apart, apart.c.key == tasks.c.key, isouter=True)
        .where(*_conditions(wanted, tasks.c))
        .order_by(ordered.desc() if descending else ordered, tasks.c.key)
        .limit(limit + 1)
    )
    if after is not None:
        at, last = read_cursor(after, str if order == "name" else float)
        beyond = ordered < at if descending else ordered > at
        query = query.where(or_(beyond, and_(ordered == at, tasks.c.key > last)))
    found = [dict(row) for row in connection.execute(query).mappings()]
    names = names_of_tasks(connection, [row["key"] for row in found])
    places = [row.pop("place") for row in found]
    rows = [TaskSummary(**row, **names[row["key"]]) for row in found]
    if len(rows) <= limit:
        return Listing(rows, None)
    return Listing(rows[:limit], cursor(places[limit - 1], rows[limit - 1].key))


_COUNTED = ("key", "num_rollouts", "num_rewarded", "num_passed", "num_lost", "mean_reward")


def _disagreement(run: RunSummary, conditions: Iterable[ColumnElement[bool]]) -> Any:
    _, rewarded, passed, _, _ = statistics_by(run.rule)
    groups = (
        select(rollouts.c.task_key.label("key"), rewarded, passed)
        .where(*conditions)
        .group_by(rollouts.c.task_key, rollouts.c.step)
        .subquery()
    )
    count, right = groups.c.num_rewarded, groups.c.num_passed
    share = cast(func.sum(2 * right * (count - right)), Double) / func.nullif(func.sum(count * (count - 1)), 0)
    return select(groups.c.key, share.label("disagreement")).group_by(groups.c.key).subquery()


def _place(order: TaskOrder, tasks: Any, disagreement: ColumnElement[Any]) -> tuple[ColumnElement[Any], bool]:
    """Return what tasks are ordered by, which is never NULL, and whether the largest comes first."""
    rate = cast(tasks.num_passed, Double) / func.nullif(tasks.num_rewarded, 0)
    match order:
        case "lowest":
            return func.coalesce(rate, 2.0), False
        case "highest":
            return func.coalesce(rate, -1.0), True
        case "disagreement":
            return func.coalesce(disagreement, -1.0), True
        case "lost":
            return cast(tasks.num_lost, Double), True
        case "name":
            return func.coalesce(tasks.label, tasks.key), False


def _conditions(wanted: TaskFilter, tasks: Any) -> Iterable[ColumnElement[bool]]:
    if wanted.search:
        yield contains(tasks.label, wanted.search)
    if wanted.lost:
        yield tasks.num_lost > 0
    rewarded, passed = tasks.num_rewarded, tasks.num_passed
    match wanted.passing:
        case None:
            yield true()
        case "always":
            yield and_(rewarded > 0, passed == rewarded)
        case "sometimes":
            yield and_(passed > 0, passed < rewarded)
        case "never":
            yield and_(rewarded > 0, passed == 0)
        case "unknown":
            yield rewarded == 0


def names_of_tasks(connection: Connection, keys: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return name, environment and split of tasks by their keys."""
    columns = {"label": rollouts.c.task_label, "environment": rollouts.c.environment, "split": rollouts.c.split}
    query = select(rollouts.c.task_key, *(func.max(column).label(name) for name, column in columns.items()))
    rows = connection.execute(query.where(rollouts.c.task_key.in_(keys)).group_by(rollouts.c.task_key)).mappings()
    return {row["task_key"]: {name: row[name] for name in columns} for row in rows}
