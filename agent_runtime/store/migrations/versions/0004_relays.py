"""Fires for agents that the runtime does not host, and messages between agents."""

import sqlalchemy as sa
from alembic import op

from agent_runtime.store.schema import delegations, deliveries

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables where they are missing: the baseline may have made them."""
    for table in (deliveries, delegations):
        if not sa.inspect(op.get_bind()).has_table(table.name):
            table.create(op.get_bind())
