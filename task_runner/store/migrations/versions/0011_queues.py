"""The queues of tasks, whose limits earlier runners do not keep."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
oldest_reader = "0011"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column."""
    op.add_column("tasks", sa.Column("queue", TEXT, nullable=True))
