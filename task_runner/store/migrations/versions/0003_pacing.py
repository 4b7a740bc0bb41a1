"""Self-paced tasks, the agent that made a task, and tasks that end with the daemon."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
LONG_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns and their indexes. Existing tasks are not self-paced, agent-made or ephemeral."""
    op.add_column("tasks", sa.Column("pacing", LONG_TEXT, nullable=True))
    op.add_column("tasks", sa.Column("paced_thread", TEXT, nullable=True))
    op.add_column("tasks", sa.Column("made_by", TEXT, nullable=True))
    op.add_column("tasks", sa.Column("ephemeral", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index(
        "tasks_paced",
        "tasks",
        ["paced_thread"],
        sqlite_where=sa.text("paced_thread IS NOT NULL"),
        postgresql_where=sa.text("paced_thread IS NOT NULL"),
    )
    op.create_index(
        "tasks_made_by",
        "tasks",
        ["made_by"],
        sqlite_where=sa.text("made_by IS NOT NULL"),
        postgresql_where=sa.text("made_by IS NOT NULL"),
    )
    op.create_index(
        "tasks_ephemeral",
        "tasks",
        ["ephemeral"],
        sqlite_where=sa.text("ephemeral = 1"),
        postgresql_where=sa.text("ephemeral"),
    )


def downgrade() -> None:
    """Refuse: a program that does not know the columns would lose their values."""
    raise NotImplementedError("restore the backup that was made before the upgrade")
