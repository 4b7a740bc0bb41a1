"""The digest of the graph's code with which the newest turn of an owned thread began."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column, which is empty for threads of earlier turns."""
    op.add_column("threads", sa.Column("graph_digest", TEXT, nullable=False, server_default=""))
