"""Rollouts with their conversations, as plain dictionaries: the JSON of routes, commands and exports."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from ors_server.rollouts.aggregates.derived_columns import LOST, merged
from ors_server.rollouts.aggregates.finite_sums import bounded_total
from ors_server.rollouts.aggregates.reward_rule import RunRules
from ors_server.rollouts.errors import RolloutError
from ors_server.rollouts.queries.counterparts import counterparts
from ors_server.rollouts.queries.listed import RolloutFilter, RolloutSummary, find_summary
from ors_server.rollouts.queries.paging import iso_time
from ors_server.rollouts.queries.regrades import Regrade, regraded_verdict, regrades_of
from ors_server.rollouts.queries.runs import owned
from ors_server.rollouts.recording.batches import messages_of_batches
from ors_server.rollouts.tables import batches, messages, rollouts, runs, updates
from ors_server.rollouts.verdicts import split_verdict

__all__ = ["RolloutDetail", "every_rollout", "find_rollout", "messages_of", "read_rollout"]

#: Rollouts that an export reads at a time.
_AT_A_TIME = 50


@dataclass(frozen=True, slots=True)
class RolloutDetail:
    """A rollout with its conversation.

    ``content`` is the dictionary of ``find_rollout``: ``messages``, ``task_spec``, ``metadata``, ``run_info``,
    ``rollout_info`` and the rest.
    """

    summary: RolloutSummary
    content: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its messages, as ``messages_of`` returns them."""
        return self.content["messages"]


def read_rollout(connection: Connection, rollout: str, *, owner: str | None = None) -> RolloutDetail:
    """Read a rollout with its conversation, by its id or the beginning of it.

    Raises ``RolloutError``, also where ``owner`` did not make it.
    """
    content = find_rollout(connection, rollout, owner=owner)
    return RolloutDetail(find_summary(connection, content["id"], owner=owner), content)


def find_rollout(connection: Connection, rollout: str, *, owner: str | None = None) -> dict[str, Any]:
    """Find a rollout with its conversation, by its id or the beginning of its id; ``owner`` sees its own only.

    Raises ``RolloutError``.
    """
    # The id itself, where there is one, comes before everything that begins with it.
    beginning = rollouts.c.id.between(rollout, f"{rollout}\U0010ffff")
    query = select(rollouts.c.id).where(beginning, owned(owner))
    ids = list(connection.scalars(query.order_by(rollouts.c.id).limit(2)))
    if not ids:
        raise RolloutError(f"There is no rollout {rollout!r}", "`ors-server rollouts list` shows their ids.")
    if len(ids) > 1 and ids[0] != rollout:
        raise RolloutError(f"Several rollouts begin with {rollout!r}", f"Give more of the id, for example {ids[0]}.")
    row = connection.execute(_WHOLE.where(rollouts.c.id == ids[0])).mappings().one()
    return _rollout(connection, row, RunRules(connection, owner))


def every_rollout(connection: Connection, run: str | None) -> Generator[dict[str, Any]]:
    """Yield the rollouts of a run, or all rollouts, with their conversations, the oldest first, as of this moment."""
    rules = RunRules(connection)
    query = _WHOLE.where(*RolloutFilter(run=run).conditions(connection)).order_by(rollouts.c.created_at, rollouts.c.id)
    # An option of this query, and not of the connection: there it would open a cursor for each conversation too.
    with connection.execute(query, execution_options={"yield_per": _AT_A_TIME}) as found:
        for row in found.mappings():
            yield _rollout(connection, row, rules)
    connection.rollback()


_WHOLE = select(rollouts, runs.c.name.label("run_name")).join_from(
    rollouts, runs, rollouts.c.run_id == runs.c.id, isouter=True
)


def _rollout(connection: Connection, row: RowMapping, rules: RunRules) -> dict[str, Any]:
    conversation = list(messages_of(connection, row["id"], row["source"]))
    rewards = [message["reward"] for message in conversation if message["reward"] is not None]
    if row["outcome"] == LOST:
        rewards = []
    highest, total = max(rewards, default=None), bounded_total(rewards) if rewards else None
    rule = rules.of(row["run_id"])
    reward = rule.choose(highest=highest, total=total)
    other = counterparts(connection, [row], rules).get(row["id"])
    again = regrades_of(connection, [row]).get(row["id"])
    return {
        "id": row["id"],
        "run_id": row["run_id"],
        "run_name": row["run_name"],
        "rollout_name": row["name"],
        "environment": row["environment"],
        "variant": row["variant"],
        "split": row["split"],
        "step": row["step"],
        "created_at": iso_time(row["created_at"]),
        "num_messages": len(conversation),
        "finished": bool(row["finished"]),
        "reward": reward,
        "passed": rule.passes(reward),
        "max_reward": highest,
        "total_reward": total,
        "outcome": row["outcome"],
        "outcome_reason": row["outcome_reason"],
        "source": row["source"],
        "owner": row["owner"],
        "dropped": row["dropped"],
        "counterpart": None if other is None else other.as_json(),
        "regrade": None if again is None else {**again.as_json(), "verdict": _graded_again(connection, again)},
        "task_spec": _object(row["task_spec"]),
        "metadata": _object(row["metadata"]),
        "run_info": _object(row["run_info"]),
        "rollout_info": _rollout_info(connection, row["id"]),
        "messages": conversation,
    }


def _rollout_info(connection: Connection, rollout: str) -> dict[str, Any] | None:
    query = select(updates.c.sent_at, updates.c.rollout_info).where(updates.c.rollout_id == rollout)
    return merged((at, info) for at, info in connection.execute(query)) or None


def _graded_again(connection: Connection, again: Regrade) -> dict[str, Any] | None:
    verdict = regraded_verdict(connection, again)
    return None if verdict is None else verdict.as_json()


# --- messages ------------------------------------------------------------------------------------

_MESSAGE = (
    messages.c.position,
    messages.c.type,
    messages.c.content,
    messages.c.summary,
    messages.c.content_reference,
    messages.c.name,
    messages.c.call_id,
    messages.c.reward,
    messages.c.finished,
    messages.c.metadata,
    messages.c.sent_at,
)


def messages_of(connection: Connection, rollout: str, source: str) -> Iterable[dict[str, Any]]:
    """Return the conversation of a rollout, in its order."""
    if source != "upload":
        query = select(batches.c.messages).where(batches.c.rollout_id == rollout).order_by(batches.c.number)
        recorded = messages_of_batches(connection.scalars(query))
        return [{**message, "sent_at": iso_time(message["sent_at"])} for message in recorded]
    query = select(*_MESSAGE).where(messages.c.rollout_id == rollout)
    query = query.order_by(messages.c.position, messages.c.sent_at, messages.c.id)
    return [_uploaded(row) for row in connection.execute(query).mappings()]


def _uploaded(row: RowMapping) -> dict[str, Any]:
    metadata, verdict = split_verdict(_object(row["metadata"]))
    return {
        "index": row["position"],
        "type": row["type"],
        "content": row["content"],
        "summary": row["summary"],
        "content_reference": row["content_reference"],
        "name": row["name"],
        "call_id": row["call_id"],
        "reward": row["reward"],
        "is_finished": bool(row["finished"]),
        "metadata": metadata,
        "verdict": None if verdict is None else verdict.as_json(),
        "sent_at": iso_time(row["sent_at"]),
    }


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else json.loads(text)
    except ValueError:  # earlier versions damaged a record's task whose text had a secret of its session
        return None
