"""The outbox, and the position up to which the turn events were read."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXTS = ("kind", "state", "target", "address", "task_id", "task", "channel", "fire_id", "turn_id", "body", "reason")


def upgrade() -> None:
    op.create_table(
        "deliveries",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("key", TEXT, nullable=False, unique=True),
        *(sa.Column(name, TEXT, nullable=False) for name in _TEXTS),
        sa.Column("tries", sa.BigInteger(), nullable=False),
        sa.Column("next_us", sa.BigInteger()),
        sa.Column("made_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger()),
        sqlite_autoincrement=True,
    )
    where = sa.text("next_us IS NOT NULL")
    op.create_index("deliveries_due", "deliveries", ["next_us"], sqlite_where=where, postgresql_where=where)
    op.create_index("deliveries_of_fire", "deliveries", ["fire_id"])
    op.create_table(
        "followed",
        sa.Column("peer", TEXT, primary_key=True),
        sa.Column("incarnation", TEXT, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
    )
