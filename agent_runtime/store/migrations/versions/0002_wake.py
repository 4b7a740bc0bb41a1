"""When a turn's graph asked to be woken, in its row and in the event of its end."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns where they are missing: the baseline makes each table as it is described now."""
    for table in ("turns", "turn_events"):
        present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
        if "wake_after_s" not in present:
            op.add_column(table, sa.Column("wake_after_s", sa.BigInteger()))
