"""Times in which fires could not be sent, or a task was stopped, for a cause other than an outage of the runtime."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "stoppages",
        sa.Column("number", NUMBER, sa.Identity(), primary_key=True),
        sa.Column("cause", TEXT, nullable=False),
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("why", TEXT, nullable=False),
        sa.Column("from_us", sa.BigInteger(), nullable=False),
        sa.Column("to_us", sa.BigInteger(), nullable=False),
        sa.Column("lasts", sa.Boolean(), nullable=False),
    )
