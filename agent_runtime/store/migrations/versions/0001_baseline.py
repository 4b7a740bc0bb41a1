"""The first schema: the runtime's tables and its world's."""

from alembic import op

from agent_runtime.store import schema

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    schema.metadata.create_all(op.get_bind())
