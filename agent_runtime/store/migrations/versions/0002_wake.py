"""The wake-up time that a turn's graph asked for, in the turn's row and in the event of its end."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns."""
    for table in ("turns", "turn_events"):
        op.add_column(table, sa.Column("wake_after_s", sa.BigInteger()))
