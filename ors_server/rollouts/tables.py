"""The tables of the rollouts' database, the same in SQLite and PostgreSQL.

Times are milliseconds since 1970, by the clients' clocks. What is an object in an event is JSON text: it may hold what
PostgreSQL's own JSON types refuse. ``migrations`` changes a database of an earlier version into these tables, and a
test compares the outcome with them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
)

__all__ = [
    "METADATA",
    "VERSION",
    "batches",
    "messages",
    "recorders",
    "regrades",
    "reports",
    "rollouts",
    "runs",
    "updates",
]

#: The version of these tables: the revision of the newest migration, and ``user_version`` of a SQLite file.
VERSION = 8

METADATA = MetaData()

_NUL, _MARK = "\x00", "\ue000"


class _AnyText(TypeDecorator[str]):
    """Text that may hold NUL, which PostgreSQL cannot store: a mark and a digit stand for it, and for the mark."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if isinstance(value, str) and (_NUL in value or _MARK in value):
            return value.replace(_MARK, f"{_MARK}1").replace(_NUL, f"{_MARK}0")
        return value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if isinstance(value, str) and _MARK in value:
            return value.replace(f"{_MARK}0", _NUL).replace(f"{_MARK}1", _MARK)
        return value


# Compared byte by byte in both: a PostgreSQL of another language would order ids and updates in another way.
_TEXT = Text().with_variant(_AnyText(collation="C"), "postgresql")
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_REAL: Double[float] = Double()

runs = Table(
    "runs",
    METADATA,
    Column("id", _TEXT, primary_key=True),
    Column("name", _TEXT, nullable=False),  # the id is made from it, so it is unique too
    sqlite_with_rowid=False,
)

rollouts = Table(
    "rollouts",
    METADATA,
    Column("id", _TEXT, primary_key=True),
    Column("run_id", _TEXT, ForeignKey("runs.id")),  # none until the rollout's own event has come
    Column("name", _TEXT),
    Column("environment", _TEXT),
    Column("variant", _TEXT),
    Column("split", _TEXT),
    Column("step", _NUMBER),
    Column("started_at", _NUMBER),
    Column("first_message_at", _NUMBER),
    Column("last_message_at", _NUMBER),
    Column("num_messages", _NUMBER, nullable=False, server_default="0"),
    Column("max_reward", _REAL),
    Column("finished", Integer, nullable=False, server_default="0"),
    Column("created_at", _NUMBER, Computed("coalesce(started_at, first_message_at)", persisted=True)),
    Column("task_spec", _TEXT),
    Column("metadata", _TEXT),
    Column("run_info", _TEXT),
    Column("environment_id", _TEXT),
    Column("variant_id", _TEXT),
    Column("other", _TEXT),
    #: The name of the key that made it.
    Column("owner", _TEXT),
    #: ``upload``, or ``session`` for a session that the server recorded.
    Column("source", _TEXT, nullable=False, server_default="upload"),
    #: The id of the session that was recorded, or that an upload says it played.
    Column("session", _TEXT),
    #: The sum of the rewards. It and ``max_reward`` are none where the rollout was lost.
    Column("total_reward", _REAL),
    #: The same for all rollouts of one task: a digest.
    Column("task_key", _TEXT),
    #: The task as people call it: its id, else its index.
    Column("task_label", _TEXT),
    Column("task_index", _NUMBER),
    #: How it ended (``queries.Outcome``); none while it goes on, and where no client has said so.
    Column("outcome", _TEXT),
    Column("outcome_reason", _TEXT),
    #: The process that records it, until its end.
    Column("recorder", _TEXT),
    #: Messages that were left out because too many waited to be stored.
    Column("dropped", _NUMBER, nullable=False, server_default="0"),
    Column("response_characters", _NUMBER, nullable=False, server_default="0"),
)
Index("rollouts_by_run", rollouts.c.run_id, rollouts.c.created_at, rollouts.c.id)
Index("rollouts_by_time", rollouts.c.created_at, rollouts.c.id)
Index("rollouts_by_task", rollouts.c.task_key, rollouts.c.created_at, rollouts.c.id)
Index("rollouts_by_recorder", rollouts.c.recorder)
Index("rollouts_by_session", rollouts.c.session, rollouts.c.source, rollouts.c.owner)
# What statistics of a run read, so that they do not read the rows, which are long.
Index(
    "rollouts_statistics",
    rollouts.c.run_id,
    rollouts.c.task_key,
    rollouts.c.step,
    rollouts.c.max_reward,
    rollouts.c.num_messages,
    rollouts.c.outcome,
    rollouts.c.created_at,
    rollouts.c.started_at,
    rollouts.c.last_message_at,
    rollouts.c.owner,
    rollouts.c.total_reward,
    rollouts.c.source,
    rollouts.c.session,
)

messages = Table(
    "messages",
    METADATA,
    Column("id", _TEXT, primary_key=True),
    Column("rollout_id", _TEXT, nullable=False),
    Column("position", _NUMBER, nullable=False),
    Column("sent_at", _NUMBER, nullable=False),
    Column("reward", _REAL),
    Column("finished", Integer, nullable=False),
    Column("type", _TEXT, nullable=False),
    Column("name", _TEXT),
    Column("call_id", _TEXT),
    Column("summary", _TEXT),
    Column("content_reference", _TEXT),
    Column("environment_id", _TEXT),
    Column("metadata", _TEXT),
    Column("other", _TEXT),
    Column("content", _TEXT),
)
# All that a rollout's row says of its messages, so that counting does not read what they say.
Index(
    "messages_by_rollout",
    messages.c.rollout_id,
    messages.c.position,
    messages.c.sent_at,
    messages.c.reward,
    messages.c.finished,
)

#: Events of recorded sessions: what one session did between two writes, as JSON (``recording.events``). A row for each
#: message would cost more than the call that it tells of.
batches = Table(
    "batches",
    METADATA,
    Column("rollout_id", _TEXT, nullable=False),
    Column("number", _NUMBER, nullable=False),
    Column("num_messages", _NUMBER, nullable=False),
    Column("messages", _TEXT, nullable=False),
    PrimaryKeyConstraint("rollout_id", "number"),
)

updates = Table(
    "updates",
    METADATA,
    Column("rollout_id", _TEXT, nullable=False),
    Column("sent_at", _NUMBER, nullable=False),
    Column("digest", _TEXT, nullable=False),  # of ``rollout_info``, which is too long for a key
    Column("rollout_info", _TEXT, nullable=False),
    PrimaryKeyConstraint("rollout_id", "sent_at", "digest"),
    sqlite_with_rowid=False,
)

#: Verdicts of episodes that were graded again after a test was repaired (``storing.regrade_rows``).
regrades = Table(
    "regrades",
    METADATA,
    Column("session", _TEXT, nullable=False),
    Column("state", _TEXT, nullable=False),
    Column("tests", _TEXT, nullable=False),
    Column("reward", _REAL, nullable=False),
    Column("previous_reward", _REAL),
    Column("verdict_mark", _TEXT),
    Column("graded_at", _NUMBER, nullable=False),
    #: What the grader found, as JSON (``verdicts``); none of those that were graded before it was kept.
    Column("verdict", _TEXT),
    PrimaryKeyConstraint("session", "state", "tests"),
)

#: The newest report of each run, of each key that sent one.
reports = Table(
    "reports",
    METADATA,
    Column("run_id", _TEXT, nullable=False),
    Column("owner", _TEXT, nullable=False),  # empty where the server has no keys
    Column("sent_at", _NUMBER, nullable=False),
    Column("digest", _TEXT, nullable=False),  # decides between two of the same time
    Column("kind", _TEXT, nullable=False),
    Column("version", _NUMBER, nullable=False),
    Column("report", _TEXT, nullable=False),
    PrimaryKeyConstraint("run_id", "owner"),
)

#: The processes that record sessions, each with the time at which it was last seen, by the database's clock.
recorders = Table(
    "recorders",
    METADATA,
    Column("id", _TEXT, primary_key=True),
    Column("seen_at", _NUMBER, nullable=False),
)
