"""Tasks, their revisions, the ledger of fires, the outbox and the position in the runtime's events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
LONG_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    _make_fires()
    _index_fires()
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
        sa.Column("entry_id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("fire_id", TEXT, nullable=True),
        sa.Column("request_id", TEXT, nullable=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("reason", LONG_TEXT, nullable=False),
        sa.Column("nominal_us", sa.BigInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("covers", sa.BigInteger(), nullable=False),
        sa.Column("first_us", sa.BigInteger(), nullable=False),
        sa.Column("last_us", sa.BigInteger(), nullable=False),
        sa.Column("attempt", NUMBER, nullable=False),
        sa.Column("policy", TEXT, nullable=False),
        sa.Column("caught_up", sa.Boolean(), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.Column("send_by_us", sa.BigInteger(), nullable=True),
        sa.Column("ready_us", sa.BigInteger(), nullable=True),
        sa.Column("refusals", NUMBER, nullable=False),
        sa.Column("fired_us", sa.BigInteger(), nullable=True),
        sa.Column("accepted_us", sa.BigInteger(), nullable=True),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("turn_id", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("entry_id"),
    )


def _index_fires() -> None:
    op.create_index(
        "fires_fire_id",
        "fires",
        ["fire_id"],
        unique=True,
        sqlite_where=sa.text("fire_id IS NOT NULL"),
        postgresql_where=sa.text("fire_id IS NOT NULL"),
    )
    op.create_index("fires_history", "fires", ["task_id", "entry_id"], unique=False)
    op.create_index(
        "fires_open",
        "fires",
        ["task_id"],
        unique=False,
        sqlite_where=sa.text("is_open = 1"),
        postgresql_where=sa.text("is_open"),
    )
    op.create_index(
        "fires_outcome",
        "fires",
        ["outcome", "entry_id"],
        unique=False,
        sqlite_where=sa.text("is_open = 1"),
        postgresql_where=sa.text("is_open"),
    )
    op.create_index(
        "fires_ready",
        "fires",
        ["caught_up", "ready_us", "entry_id"],
        unique=False,
        sqlite_where=sa.text("ready_us IS NOT NULL"),
        postgresql_where=sa.text("ready_us IS NOT NULL"),
    )
    op.create_index(
        "fires_request",
        "fires",
        ["task_id", "request_id"],
        unique=True,
        sqlite_where=sa.text("request_id IS NOT NULL"),
        postgresql_where=sa.text("request_id IS NOT NULL"),
    )


def _make_follow() -> None:
    op.create_table(
        "follow",
        sa.Column("peer", TEXT, nullable=False),
        sa.Column("incarnation", TEXT, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("peer"),
    )


def _make_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("entry_id", NUMBER, nullable=False, autoincrement=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("entry_id"),
    )


def _make_revisions() -> None:
    op.create_table(
        "revisions",
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("revision", NUMBER, nullable=False),
        sa.Column("valid_from_us", sa.BigInteger(), nullable=False),
        sa.Column("definition", LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("task_id", "revision"),
    )


def _make_tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reason", LONG_TEXT, nullable=False),
        sa.Column("category", TEXT, nullable=False),
        sa.Column("channel", TEXT, nullable=False),
        sa.Column("definition", LONG_TEXT, nullable=False),
        sa.Column("revision", NUMBER, nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("cursor_us", sa.BigInteger(), nullable=False),
        sa.Column("wake_us", sa.BigInteger(), nullable=True),
        sa.Column("rewound_us", sa.BigInteger(), nullable=True),
        sa.Column("accepted", NUMBER, nullable=False),
        sa.Column("fires", NUMBER, nullable=False),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.Column("tail_entry", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("tasks_cursor", "tasks", ["cursor_us"], unique=False)
    op.create_index(
        "tasks_name",
        "tasks",
        ["name"],
        unique=True,
        sqlite_where=sa.text("state <> 'deleted'"),
        postgresql_where=sa.text("state <> 'deleted'"),
    )
    op.create_index(
        "tasks_wake",
        "tasks",
        ["wake_us"],
        unique=False,
        sqlite_where=sa.text("wake_us IS NOT NULL"),
        postgresql_where=sa.text("wake_us IS NOT NULL"),
    )
