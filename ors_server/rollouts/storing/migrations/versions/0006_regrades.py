"""Add the verdicts of episodes that were graded again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_REAL: sa.Double[float] = sa.Double()
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "regrades",
        sa.Column("session", _TEXT, nullable=False),
        sa.Column("state", _TEXT, nullable=False),
        sa.Column("tests", _TEXT, nullable=False),
        sa.Column("reward", _REAL, nullable=False),
        sa.Column("previous_reward", _REAL),
        sa.Column("verdict_mark", _TEXT),
        sa.Column("graded_at", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("session", "state", "tests"),
    )
