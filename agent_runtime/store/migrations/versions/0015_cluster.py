"""The envelopes that wait for threads, the owners of threads, and whether the runner has read an outcome."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables and the column. Earlier outcomes count as read."""
    op.create_table(
        "envelopes",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("key", TEXT, nullable=False, unique=True),
        *(sa.Column(name, TEXT, nullable=False) for name in ("thread_id", "agent", "kind")),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False, server_default=""),
        sa.Column("not_before_us", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('fire', 'envelope', 'look')", name="envelopes_kind"),
        sa.CheckConstraint("state IN ('waiting', 'claimed', 'quarantined')", name="envelopes_state"),
        sqlite_autoincrement=True,
    )
    op.create_index("envelopes_by_thread", "envelopes", ["thread_id", "number"])
    for state in ("waiting", "claimed"):
        _partial(f"envelopes_{state}", "envelopes", "number", f"state = '{state}'")
    op.create_table(
        "threads",
        sa.Column("thread_id", TEXT, primary_key=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", TEXT, nullable=False),
    )
    _partial("threads_by_owner", "threads", "owner", "owner <> ''")
    op.create_table(
        "owners",
        sa.Column("owner", TEXT, primary_key=True),
        sa.Column("until_us", sa.BigInteger(), nullable=False),
    )
    op.add_column("turn_events", sa.Column("taken", sa.Boolean(), nullable=False, server_default=sa.true()))
    where = {"sqlite_where": sa.text("taken = 0"), "postgresql_where": sa.text("NOT taken")}
    op.create_index("turn_events_left", "turn_events", ["sequence"], **where)


def _partial(name: str, table: str, column: str, where: str) -> None:
    op.create_index(name, table, [column], sqlite_where=sa.text(where), postgresql_where=sa.text(where))
