"""The tokens that all turns together used on each day."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "token_days", sa.Column("day", _TEXT, primary_key=True), sa.Column("tokens", sa.BigInteger(), nullable=False)
    )
