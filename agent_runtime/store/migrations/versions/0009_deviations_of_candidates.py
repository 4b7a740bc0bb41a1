"""A deviation for each candidate that contradicts a page, even if two do so in the same words."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the index of open records, which older stores have without the candidate; existing rows fit."""
    op.drop_index("deviations_open", "deviations", if_exists=True)
    op.create_index(
        "deviations_open",
        "deviations",
        ["page_id", "says", "found", "candidate_id"],
        unique=True,
        sqlite_where=sa.text("lifecycle = 'open'"),
        postgresql_where=sa.text("lifecycle = 'open'"),
    )
