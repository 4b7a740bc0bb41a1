"""Assistants that LangGraph's clients made."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "assistants",
        sa.Column("assistant_id", TEXT, primary_key=True),
        *(sa.Column(name, TEXT, nullable=False) for name in ("versions_json", "via")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("version", "created_at_us", "updated_at_us")),
    )
