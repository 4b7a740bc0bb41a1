"""What happened inside turns, for whoever asked for it by name."""

import sqlalchemy as sa
from alembic import op

from agent_runtime.store.schema import bridged_events

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table where it is missing: the baseline may have made it."""
    if not sa.inspect(op.get_bind()).has_table(bridged_events.name):
        bridged_events.create(op.get_bind())
