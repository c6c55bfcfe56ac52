"""Add the session of a rollout, by which an upload and the recorded session of one episode are matched.

No row is written: rollouts of earlier versions name no session, so all of them are counted as before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column and its index, and make the index that statistics read cover it."""
    op.add_column("rollouts", sa.Column("session", sa.Text().with_variant(sa.Text(collation="C"), "postgresql")))
    op.execute("CREATE INDEX rollouts_by_session ON rollouts (session, source, owner)")
    op.execute("DROP INDEX rollouts_statistics")
    op.execute(
        "CREATE INDEX rollouts_statistics ON rollouts (run_id, task_key, step, max_reward, num_messages, outcome, "
        "created_at, started_at, last_message_at, owner, total_reward, source, session)"
    )
