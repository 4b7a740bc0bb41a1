"""Tasks, their revisions, the ledger of fires, the outbox and the position in the runtime's events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _make_fires()
    _make_follow()
    _make_outbox()
    _make_revisions()
    _make_tasks()


def downgrade() -> None:
    """There is nothing before the first revision."""
    raise NotImplementedError("restore the backup that was made before the upgrade")


def _make_fires() -> None:
    op.create_table(
        "fires",
        sa.Column("entry_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("fire_id", sa.String(), nullable=True),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("nominal_us", sa.BigInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("covers", sa.BigInteger(), nullable=False),
        sa.Column("first_us", sa.BigInteger(), nullable=False),
        sa.Column("last_us", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("caught_up", sa.Boolean(), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.Column("send_by_us", sa.BigInteger(), nullable=True),
        sa.Column("ready_us", sa.BigInteger(), nullable=True),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.Column("fired_us", sa.BigInteger(), nullable=True),
        sa.Column("accepted_us", sa.BigInteger(), nullable=True),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("entry_id"),
    )
    op.create_index("fires_fire_id", "fires", ["fire_id"], unique=True, sqlite_where=sa.text("fire_id IS NOT NULL"))
    op.create_index("fires_history", "fires", ["task_id", "entry_id"], unique=False)
    op.create_index("fires_open", "fires", ["task_id"], unique=False, sqlite_where=sa.text("is_open = 1"))
    op.create_index(
        "fires_outcome", "fires", ["outcome", "entry_id"], unique=False, sqlite_where=sa.text("is_open = 1")
    )
    op.create_index(
        "fires_ready",
        "fires",
        ["caught_up", "ready_us", "entry_id"],
        unique=False,
        sqlite_where=sa.text("ready_us IS NOT NULL"),
    )
    op.create_index(
        "fires_request", "fires", ["task_id", "request_id"], unique=True, sqlite_where=sa.text("request_id IS NOT NULL")
    )


def _make_follow() -> None:
    op.create_table(
        "follow",
        sa.Column("peer", sa.String(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("peer"),
    )


def _make_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("entry_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("entry_id"),
    )


def _make_revisions() -> None:
    op.create_table(
        "revisions",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("valid_from_us", sa.BigInteger(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "revision"),
    )


def _make_tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("category", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("cursor_us", sa.BigInteger(), nullable=False),
        sa.Column("wake_us", sa.BigInteger(), nullable=True),
        sa.Column("rewound_us", sa.BigInteger(), nullable=True),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("fires", sa.Integer(), nullable=False),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.Column("tail_entry", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("tasks_cursor", "tasks", ["cursor_us"], unique=False)
    op.create_index("tasks_name", "tasks", ["name"], unique=True, sqlite_where=sa.text("state <> 'deleted'"))
    op.create_index("tasks_wake", "tasks", ["wake_us"], unique=False, sqlite_where=sa.text("wake_us IS NOT NULL"))
