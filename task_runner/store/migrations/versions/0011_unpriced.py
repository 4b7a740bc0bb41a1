"""Tokens that had no price when their turn ended, which count at a price that is written later."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
LONG_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column."""
    op.add_column("tasks", sa.Column("unpriced", LONG_TEXT, nullable=True))
