"""The first schema: the runtime's tables and its world's."""

from alembic import op

from agent_runtime.store import schema as runtime_tables
from agent_runtime.store import workspace_schema as world_tables

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    assert runtime_tables.metadata is world_tables.metadata
    runtime_tables.metadata.create_all(op.get_bind())
