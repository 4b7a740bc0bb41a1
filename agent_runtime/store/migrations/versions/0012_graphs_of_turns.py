"""The graph of a turn, by its name, and the graph's input. Earlier turns ran the default graph without such input."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns."""
    for name in ("graph", "context_json", "config_json", "input_json"):
        op.add_column("turns", sa.Column(name, TEXT, nullable=False, server_default=""))
