"""Records of threads, and the origin (`via`) of each message and memory entry of an author.

`via` is empty in rows from before this migration.
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
