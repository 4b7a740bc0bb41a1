"""Handoffs, kept until a turn is shown them."""

import sqlalchemy as sa
from alembic import op

from agent_runtime.store.schema import handoffs

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table where it is missing: the baseline may have made it."""
    if not sa.inspect(op.get_bind()).has_table(handoffs.name):
        handoffs.create(op.get_bind())
