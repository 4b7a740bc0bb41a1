"""Numbers of turns and turn events no longer follow commits. Readers of earlier versions would skip rows."""

revision = "0022"
down_revision = "0021"
oldest_reader = "0022"


def upgrade() -> None:
    """Change no table."""
