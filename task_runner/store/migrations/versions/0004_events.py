"""Tasks that events set off: which listen for what, which events were taken in, what triggered each entry."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, the tables and their indexes; what was there listens for nothing."""
    op.add_column("tasks", sa.Column("listens", sa.String(), nullable=True))
    op.create_index("tasks_listens", "tasks", ["listens", "state"], sqlite_where=sa.text("listens IS NOT NULL"))
    op.create_table(
        "events",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("events_at", "events", ["at_us"])
    op.create_table(
        "triggers",
        sa.Column("entry_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("fired", sa.Boolean(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("chain", sa.Text(), nullable=False),
    )
    op.create_index("triggers_task", "triggers", ["task_id", "entry_id"])


def downgrade() -> None:
    """A program that does not know the tables would fire again for what was taken in."""
    raise NotImplementedError("restore the backup that was made before the upgrade")
