"""What an author says about a thread, and by what his messages and his entries in the memory came.

Of those before it is not known by what they came.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns and the table."""
    for table in ("turns", "memory"):
        op.add_column(table, sa.Column("via", TEXT, nullable=False, server_default=""))
    op.create_table(
        "thread_records",
        sa.Column("thread_id", TEXT, primary_key=True),
        *(sa.Column(name, TEXT, nullable=False) for name in ("channel", "metadata_json", "via")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("created_at_us", "updated_at_us")),
    )
