"""Standing exceptions. A call of an earlier question can be approved only once: its tool is not on record."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_ASKED = ("interrupt_id", "task_id", "task_name", "kind", "tool", "missing_scope", "args_json", "args_hash")
_HELD = ("tool_hash", "arg_hashes_json", "any_value_json", "category", "category_json", "given_by")


def upgrade() -> None:
    """Add the columns and the table."""
    before = {"tool_hash": "", "arg_hashes_json": "", "once_only": "an earlier version asked about it"}
    for name, value in before.items():
        op.add_column("interrupts", sa.Column(name, TEXT, nullable=False, server_default=value))
    op.add_column("interrupts", sa.Column("exception", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "exceptions",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        *(sa.Column(name, TEXT, nullable=False) for name in (*_ASKED, *_HELD)),
        sa.Column("given_at_us", sa.BigInteger(), nullable=False),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at_us", sa.BigInteger()),
        sa.Column("ended_at_us", sa.BigInteger()),
        sa.Column("ended_by", TEXT, nullable=False),
        sa.Column("ended_why", TEXT, nullable=False),
        sa.CheckConstraint("(ended_at_us IS NULL) = (ended_why = '')", name="exceptions_ended"),
        sa.CheckConstraint("task_id <> ''", name="exceptions_task"),
        sqlite_autoincrement=True,
    )
    where = sa.text("ended_at_us IS NULL")
    op.create_index("exceptions_of_task", "exceptions", ["task_id"], sqlite_where=where, postgresql_where=where)
