"""Events inside turns, for readers that ask for them by name."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "bridged_events",
        sa.Column("sequence", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("key", _TEXT, unique=True),
        *(sa.Column(name, _TEXT, nullable=False) for name in ("name", "turn_id")),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        *(sa.Column(name, _TEXT, nullable=False) for name in ("tool", "data_json")),
        sqlite_autoincrement=True,
    )
