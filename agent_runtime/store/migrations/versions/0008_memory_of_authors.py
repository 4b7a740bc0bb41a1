"""Memory entries that an author wrote, or a graph as an object; longer keys."""

import sqlalchemy as sa
from alembic import op

from agent_runtime.store.schema import memory

revision = "0008"
down_revision = "0007"
_KEPT = "entry_id, tier, owner, key, text, written_by, turn_id, created_at_us, updated_at_us"


def upgrade() -> None:
    """Make the table anew where it is of the old form, with what is in it: SQLite changes no constraint in place."""
    connection = op.get_bind()
    if any(column["name"] == "origin" for column in sa.inspect(connection).get_columns(memory.name)):
        return
    for index in memory.indexes:
        op.drop_index(index.name, memory.name)
    op.rename_table(memory.name, "memory_before")
    memory.create(connection)
    op.execute(
        f"INSERT INTO memory ({_KEPT}, form, origin) SELECT {_KEPT}, 'text', 'agent-produced' FROM memory_before"  # noqa: S608  constants
    )
    op.drop_table("memory_before")
