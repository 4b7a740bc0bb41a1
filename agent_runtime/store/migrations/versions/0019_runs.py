"""The options of a client's run in a turn's row, and threads that a client has withdrawn."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns. Earlier turns have no such options, and no earlier thread is withdrawn."""
    op.add_column("turns", sa.Column("run_json", TEXT, nullable=False, server_default=""))
    op.add_column("thread_records", sa.Column("withdrawn_at_us", sa.BigInteger()))
