"""Add what the grader found when episodes were graded again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column."""
    op.add_column("regrades", sa.Column("verdict", _TEXT))
