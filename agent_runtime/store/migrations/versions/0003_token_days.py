"""How many tokens all turns together used on each day."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table where it is missing: the baseline may have made it."""
    if not sa.inspect(op.get_bind()).has_table("token_days"):
        op.create_table(
            "token_days",
            sa.Column("day", sa.String(10), primary_key=True),
            sa.Column("tokens", sa.BigInteger(), nullable=False),
        )
