"""The state that each process of a shared database reports, and the process that reported its silence."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns."""
    op.add_column("nodes", sa.Column("owner", TEXT, nullable=False, server_default=""))
    op.add_column("nodes", sa.Column("facts_json", TEXT, nullable=False, server_default="{}"))
    op.add_column("nodes", sa.Column("alerted_us", sa.BigInteger(), nullable=False, server_default="0"))
