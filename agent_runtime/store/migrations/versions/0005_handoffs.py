"""Handoffs, kept until a turn is shown them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "handoffs",
        sa.Column("key", _TEXT, primary_key=True),
        *(sa.Column(name, _TEXT, nullable=False) for name in ("agent", "kind", "sender", "text")),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("turn_id", _TEXT, nullable=False),
        sa.CheckConstraint("kind IN ('handoff', 'notes')", name="handoffs_kind"),
    )
    waiting = sa.text("turn_id = ''")
    op.create_index("handoffs_waiting", "handoffs", ["agent"], sqlite_where=waiting, postgresql_where=waiting)
    op.create_index("handoffs_by_turn", "handoffs", ["turn_id"])
