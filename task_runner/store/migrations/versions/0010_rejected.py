"""Fires whose approval was rejected or expired end as `rejected`, an outcome that earlier runners do not know."""

revision = "0010"
down_revision = "0009"
oldest_reader = "0010"


def upgrade() -> None:
    """Change no table: outcomes are stored as text."""
