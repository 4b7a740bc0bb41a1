"""Events that trigger tasks: the event that a task listens for, the recorded events, and the trigger of each entry."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
LONG_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column, the tables and their indexes; existing tasks listen for nothing."""
    op.add_column("tasks", sa.Column("listens", TEXT, nullable=True))
    op.create_index(
        "tasks_listens",
        "tasks",
        ["listens", "state"],
        sqlite_where=sa.text("listens IS NOT NULL"),
        postgresql_where=sa.text("listens IS NOT NULL"),
    )
    op.create_table(
        "events",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("events_at", "events", ["at_us"])
    op.create_table(
        "triggers",
        sa.Column("entry_id", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("fired", sa.Boolean(), nullable=False),
        sa.Column("event", TEXT, nullable=False),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("cause", TEXT, nullable=False),
        sa.Column("chain", LONG_TEXT, nullable=False),
    )
    op.create_index("triggers_task", "triggers", ["task_id", "entry_id"])


def downgrade() -> None:
    """Refuse: a program that does not know the tables would fire again for events that were accepted."""
    raise NotImplementedError("restore the backup that was made before the upgrade")
