"""Make the tables of ors-server 0.2: uploaded rollouts in a SQLite file."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

_TABLES = (
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE rollouts (
        id TEXT PRIMARY KEY,
        run_id TEXT REFERENCES runs (id),
        name TEXT,
        environment TEXT,
        variant TEXT,
        split TEXT,
        step INTEGER,
        started_at INTEGER,
        first_message_at INTEGER,
        last_message_at INTEGER,
        num_messages INTEGER NOT NULL DEFAULT 0,
        max_reward REAL,
        finished INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER GENERATED ALWAYS AS (coalesce(started_at, first_message_at)) VIRTUAL,
        task_spec TEXT,
        metadata TEXT,
        run_info TEXT,
        environment_id TEXT,
        variant_id TEXT,
        other TEXT
    )
    """,
    "CREATE INDEX rollouts_by_run ON rollouts (run_id, created_at)",
    "CREATE INDEX rollouts_by_time ON rollouts (created_at)",
    """
    CREATE TABLE messages (
        id TEXT PRIMARY KEY,
        rollout_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        sent_at INTEGER NOT NULL,
        reward REAL,
        finished INTEGER NOT NULL,
        type TEXT NOT NULL,
        name TEXT,
        call_id TEXT,
        summary TEXT,
        content_reference TEXT,
        environment_id TEXT,
        metadata TEXT,
        other TEXT,
        content TEXT
    )
    """,
    "CREATE INDEX messages_by_rollout ON messages (rollout_id, position, sent_at, reward, finished)",
    """
    CREATE TABLE updates (
        rollout_id TEXT NOT NULL,
        sent_at INTEGER NOT NULL,
        rollout_info TEXT NOT NULL,
        PRIMARY KEY (rollout_id, sent_at, rollout_info)
    ) WITHOUT ROWID
    """,
)


def upgrade() -> None:
    """Make the tables."""
    for statement in _TABLES:
        op.execute(statement)
