"""Fires for agents that the runtime does not host, and messages between agents."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the tables."""
    before = ("digest", "turn_id", "thread_id", "channel", "agent", "name", "fire_id")
    op.create_table(
        "deliveries",
        sa.Column("key", _TEXT, primary_key=True),
        *(sa.Column(name, _TEXT, nullable=False) for name in before),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        *(sa.Column(name, _TEXT, nullable=False) for name in ("task_name", "state", "reason")),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("settled_at_us", sa.BigInteger()),
        sa.UniqueConstraint("turn_id"),
        sa.CheckConstraint("state IN ('waiting', 'delivered', 'cancelled', 'failed')", name="deliveries_state"),
    )
    op.create_table(
        "delegations",
        sa.Column("turn_id", _TEXT, primary_key=True),
        *(sa.Column(name, _TEXT, nullable=False) for name in ("sender", "parent", "agent")),
        sa.Column("hops", sa.BigInteger(), nullable=False),
        sa.Column("state", _TEXT, nullable=False),
        sa.CheckConstraint("state IN ('none', 'open', 'owed', 'answered')", name="delegations_state"),
    )
    waiting, owed = sa.text("state = 'waiting'"), sa.text("state = 'owed'")
    op.create_index("deliveries_waiting", "deliveries", ["agent"], sqlite_where=waiting, postgresql_where=waiting)
    op.create_index("delegations_owed", "delegations", ["turn_id"], sqlite_where=owed, postgresql_where=owed)
