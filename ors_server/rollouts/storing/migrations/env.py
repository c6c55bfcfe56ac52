"""Alembic's entry: run the migrations on the connection that ``rollouts.migrating`` has opened.

`alembic revision` needs no database: a migration is written by hand.
"""

from __future__ import annotations

from alembic import context

from ors_server.rollouts.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
