"""What a turn runs: a graph by its name, and what it is given. Those before ran the default graph, without more."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns."""
    for name in ("graph", "context_json", "config_json", "input_json"):
        op.add_column("turns", sa.Column(name, TEXT, nullable=False, server_default=""))
