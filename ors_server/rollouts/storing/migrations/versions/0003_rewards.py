"""Make the index that statistics read cover the sum of rewards too. No row is written."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the index again."""
    op.execute("DROP INDEX rollouts_statistics")
    op.execute(
        "CREATE INDEX rollouts_statistics ON rollouts (run_id, task_key, step, max_reward, num_messages, outcome, "
        "created_at, started_at, last_message_at, owner, total_reward)"
    )
