"""The origin of the author's decision about an interrupt; unknown for earlier decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column."""
    op.add_column("interrupts", sa.Column("decided_by", TEXT, nullable=False, server_default=""))
