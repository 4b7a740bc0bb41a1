"""Memory entries that an author wrote, or a graph as an object; longer keys."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_TEXTS = ("tier", "owner", "key", "text", "form", "origin", "written_by", "turn_id")
_KEPT = "entry_id, tier, owner, key, text, written_by, turn_id, created_at_us, updated_at_us"


def upgrade() -> None:
    """Make the table, with the rows of one in the old form. Stores of 0006 and 0007 may have the new form already."""
    store = sa.inspect(op.get_bind())
    present = {column["name"] for column in store.get_columns("memory")} if store.has_table("memory") else set()
    if "origin" in present:
        return
    if present:
        op.drop_index("memory_by_owner", "memory")
        op.drop_index("memory_by_age", "memory")
        op.rename_table("memory", "memory_before")
    _make_memory()
    if present:
        op.execute(
            f"INSERT INTO memory ({_KEPT}, form, origin) SELECT {_KEPT}, 'text', 'agent-produced' FROM memory_before"  # noqa: S608  constants
        )
        op.drop_table("memory_before")


def _make_memory() -> None:
    op.create_table(
        "memory",
        sa.Column("entry_id", _TEXT, primary_key=True),
        *(sa.Column(name, _TEXT, nullable=False) for name in _TEXTS),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("created_at_us", "updated_at_us")),
        sa.CheckConstraint("tier IN ('conversation', 'channel', 'workspace', 'account')", name="memory_tier"),
        sa.CheckConstraint("(tier IN ('conversation', 'channel')) = (owner <> '')", name="memory_owner"),
        sa.CheckConstraint("form IN ('text', 'json')", name="memory_form"),
        sa.CheckConstraint("origin IN ('authored', 'agent-produced')", name="memory_origin"),
        sa.CheckConstraint("written_by <> '' AND (origin = 'authored') = (turn_id = '')", name="memory_provenance"),
    )
    op.create_index("memory_by_owner", "memory", ["tier", "owner", "key"], unique=True)
    op.create_index("memory_by_age", "memory", ["tier", "owner", "updated_at_us"])
