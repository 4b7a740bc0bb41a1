"""The queues of tasks, whose limits earlier runners do not keep."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
oldest_reader = "0012"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column."""
    op.add_column("tasks", sa.Column("queue", TEXT, nullable=True))
