"""Under which code of its graph the newest turn of an owned thread began."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column. Of turns before it is not known."""
    op.add_column("threads", sa.Column("graph_digest", TEXT, nullable=False, server_default=""))
