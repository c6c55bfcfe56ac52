"""Add the reports of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "reports",
        sa.Column("run_id", _TEXT, nullable=False),
        sa.Column("owner", _TEXT, nullable=False),
        sa.Column("sent_at", _NUMBER, nullable=False),
        sa.Column("digest", _TEXT, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("version", _NUMBER, nullable=False),
        sa.Column("report", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "owner"),
    )
