"""Call the table of recorded events what the code calls it: ``batches``, which was ``pieces``."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Rename the table, and on PostgreSQL its key."""
    op.rename_table("pieces", "batches")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER INDEX pieces_pkey RENAME TO batches_pkey")
