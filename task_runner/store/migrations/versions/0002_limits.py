"""Retries, failures in a row, and the usage of turns."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns; existing rows have no retries left and no usage."""
    op.add_column("tasks", sa.Column("failures", NUMBER, nullable=False, server_default="0"))
    op.add_column("tasks", sa.Column("usage", LONG_TEXT, nullable=True))
    op.add_column("fires", sa.Column("retries", NUMBER, nullable=False, server_default="0"))
    op.add_column("fires", sa.Column("spent_us", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("fires", sa.Column("tokens", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Refuse: a program that does not know the columns would lose their values."""
    raise NotImplementedError("restore the backup that was made before the upgrade")
