"""Outages of the agent runtime."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table; earlier outages are not recorded."""
    op.create_table(
        "outages",
        sa.Column("number", NUMBER, sa.Identity(), primary_key=True),
        sa.Column("from_us", sa.BigInteger(), nullable=False),
        sa.Column("to_us", sa.BigInteger(), nullable=False),
        sa.Column("lasts", sa.Boolean(), nullable=False),
    )


def downgrade() -> None:
    """An earlier program ignores the table."""
    op.drop_table("outages")
