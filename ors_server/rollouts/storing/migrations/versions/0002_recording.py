"""Add what recording and the pages need: owner, source, task, outcome and total reward of a rollout.

What can be known of the stored rollouts is computed from them. Nothing is removed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict

import sqlalchemy as sa
from alembic import op

from ors_server.rollouts.aggregates.derived_columns import ended, merged, task_of

revision = "0002"
down_revision = "0001"

_COLUMNS = (
    sa.Column("owner", sa.Text),
    sa.Column("source", sa.Text, nullable=False, server_default="upload"),
    sa.Column("total_reward", sa.REAL),
    sa.Column("task_key", sa.Text),
    sa.Column("task_label", sa.Text),
    sa.Column("task_index", sa.Integer),
    sa.Column("outcome", sa.Text),
    sa.Column("outcome_reason", sa.Text),
    sa.Column("recorder", sa.Text),
    sa.Column("dropped", sa.Integer, nullable=False, server_default="0"),
    sa.Column("response_characters", sa.Integer, nullable=False, server_default="0"),
)
_STATEMENTS = (
    """
    UPDATE rollouts SET total_reward = (
        SELECT min(max(sum(reward), -1.7976931348623157e308), 1.7976931348623157e308) FROM messages
        WHERE messages.rollout_id = rollouts.id
    ) WHERE num_messages > 0
    """,
    "DROP INDEX rollouts_by_run",
    "DROP INDEX rollouts_by_time",
    "CREATE INDEX rollouts_by_run ON rollouts (run_id, created_at, id)",
    "CREATE INDEX rollouts_by_time ON rollouts (created_at, id)",
    "CREATE INDEX rollouts_by_task ON rollouts (task_key, created_at, id)",
    "CREATE INDEX rollouts_by_recorder ON rollouts (recorder)",
    """
    CREATE INDEX rollouts_statistics ON rollouts (run_id, task_key, step, max_reward, num_messages, outcome, created_at,
        started_at, last_message_at, owner)
    """,
    """
    CREATE TABLE pieces (
        rollout_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        num_messages INTEGER NOT NULL,
        messages TEXT NOT NULL,
        PRIMARY KEY (rollout_id, number)
    )
    """,
    "CREATE TABLE recorders (id TEXT NOT NULL PRIMARY KEY, seen_at INTEGER NOT NULL)",
    # Its key had the whole text of an update, which is too long for a key of PostgreSQL.
    "ALTER TABLE updates RENAME TO former_updates",
    """
    CREATE TABLE updates (
        rollout_id TEXT NOT NULL,
        sent_at INTEGER NOT NULL,
        digest TEXT NOT NULL,
        rollout_info TEXT NOT NULL,
        PRIMARY KEY (rollout_id, sent_at, digest)
    ) WITHOUT ROWID
    """,
)
_TASK = sa.text(
    "UPDATE rollouts SET task_key = :key, task_label = :label, task_index = :index, outcome = :outcome, "
    "outcome_reason = :reason WHERE id = :id"
)
_UPDATE = sa.text("INSERT INTO updates VALUES (:rollout_id, :sent_at, :digest, :rollout_info)")
_MANY = 1000


def upgrade() -> None:
    """Add the columns and tables, and fill them from what is stored."""
    for column in _COLUMNS:
        op.add_column("rollouts", column)
    for statement in _STATEMENTS:
        op.execute(statement)
    connection = op.get_bind()
    _copy_updates(connection)
    _fill_tasks(connection)


def _copy_updates(connection: sa.Connection) -> None:
    found = connection.execute(sa.text("SELECT rollout_id, sent_at, rollout_info FROM former_updates"))
    for some in found.mappings().partitions(_MANY):
        rows = [{**row, "digest": hashlib.sha256(row["rollout_info"].encode()).hexdigest()} for row in some]
        connection.execute(_UPDATE, rows)
    op.execute("DROP TABLE former_updates")


def _fill_tasks(connection: sa.Connection) -> None:
    ids = list(connection.scalars(sa.text("SELECT id FROM rollouts")))
    query = sa.text("SELECT environment, variant, split, task_spec FROM rollouts WHERE id = :id")
    said = sa.text("SELECT sent_at, rollout_info FROM updates WHERE rollout_id = :id")
    for rollout in ids:
        info = merged((at, text) for at, text in connection.execute(said, {"id": rollout}))
        environment, variant, split, task_spec = connection.execute(query, {"id": rollout}).one()
        task = task_of(environment, variant, split, task_spec, info)
        outcome, reason = ended(info)
        if task.key is not None or outcome is not None:
            values = {"id": rollout, **asdict(task), "outcome": outcome, "reason": reason}
            connection.execute(_TASK, values)
