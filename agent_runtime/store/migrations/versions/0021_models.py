"""The tokens of each model, in a turn's row and in its outcomes."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns. The models of earlier turns are not known."""
    for table in ("turns", "turn_events"):
        op.add_column(table, sa.Column("models_json", TEXT, nullable=False, server_default=""))
