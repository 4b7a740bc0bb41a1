"""The state that runners of one database share: the running processes, and the pace of catch-up."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "nodes",
        sa.Column("node_id", TEXT, primary_key=True),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("beat_us", sa.BigInteger(), nullable=False),
        sa.Column("offset_us", sa.BigInteger(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    slots = op.create_table(
        "slots",
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("holder", TEXT, nullable=False),
        sa.Column("until_us", sa.BigInteger(), nullable=False),
    )
    op.bulk_insert(slots, [{"name": "catch-up", "holder": "", "until_us": 0}])
