"""The inboxes of agents in terminals, in a database that several machines share."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables. A home of one machine leaves them empty: its inboxes are folders."""
    op.create_table(
        "inboxes",
        sa.Column("agent", TEXT, primary_key=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("reader", TEXT, nullable=False),
        sa.Column("until_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "inbox_envelopes",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        *(sa.Column(name, TEXT, nullable=False) for name in ("agent", "key")),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False, server_default=""),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('waiting', 'claimed', 'delivered', 'quarantined')", name="inbox_envelopes_state"),
        sqlite_autoincrement=True,
    )
    op.create_index("inbox_envelopes_by_key", "inbox_envelopes", ["agent", "key"], unique=True)
    op.create_index("inbox_envelopes_by_state", "inbox_envelopes", ["agent", "state", "number"])
