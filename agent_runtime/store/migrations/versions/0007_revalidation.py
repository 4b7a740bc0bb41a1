"""Links between pages, deviations, the re-validation queue, attachments."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_VERSION = "page_version >= 0 AND (page_version = 0) = (source LIKE '%://%')"
# A page that was accepted before pages had links was derived from the sources that its candidate names.
_INHERITED = """
INSERT INTO page_links (page_id, source, page_version)
SELECT pages.page_id, derivations.source, derivations.page_version
FROM pages JOIN derivations ON derivations.candidate_id = pages.candidate_id
WHERE pages.candidate_id <> '' AND derivations.source <> pages.page_id
"""


def upgrade() -> None:
    """Add the tables. The table of derivations came without a revision: stores of 0004 to 0006 may have it."""
    _make_links()
    _make_deviations()
    _make_revalidations()
    _make_attachments()
    op.execute(_INHERITED)


def _make_links() -> None:
    for table, key, existing in (("derivations", "candidate_id", True), ("page_links", "page_id", False)):
        op.create_table(
            table,
            sa.Column(key, _TEXT, primary_key=True),
            sa.Column("source", _TEXT, primary_key=True),
            *_numbers("page_version"),
            sa.CheckConstraint(_VERSION, name=f"{table}_version"),
            *([] if existing else [sa.CheckConstraint("page_id <> source", name="page_links_other")]),
            if_not_exists=existing,
        )
    op.create_index("derivations_by_source", "derivations", ["source", "page_version"], if_not_exists=True)
    op.create_index("page_links_by_source", "page_links", ["source"])


def _make_deviations() -> None:
    op.create_table(
        "deviations",
        sa.Column("deviation_id", _TEXT, primary_key=True),
        *_texts("kind", "channel", "page_id"),
        *_numbers("page_version"),
        *_texts("says", "found", "source", "candidate_id", "why", "origin", "lifecycle"),
        *_texts("turn_id", "thread_id", "agent", "task_name"),
        *_numbers("created_at_us"),
        sa.Column("decided_at_us", sa.BigInteger()),
        *_texts("decided_by", "note"),
        sa.CheckConstraint("kind IN ('contradiction', 'stale-base')", name="deviations_kind"),
        sa.CheckConstraint("origin IN ('agent-produced', 'observed')", name="deviations_origin"),
        sa.CheckConstraint("lifecycle IN ('open', 'kept', 'accepted')", name="deviations_lifecycle"),
        sa.CheckConstraint("turn_id <> '' AND agent <> ''", name="deviations_provenance"),
        sa.CheckConstraint(
            "(lifecycle = 'open') = (decided_at_us IS NULL) AND (lifecycle = 'open') = (decided_by = '')",
            name="deviations_decided",
        ),
    )
    op.create_index("deviations_by_channel", "deviations", ["channel", "created_at_us"])
    op.create_index("deviations_by_turn", "deviations", ["turn_id"])
    op.create_index("deviations_by_candidate", "deviations", ["candidate_id"])


def _make_revalidations() -> None:
    op.create_table(
        "revalidations",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        *_texts("page_id", "cause"),
        *_numbers("cause_version"),
        *_texts("via", "state", "result", "turn_id", "note"),
        *_numbers("queued_at_us"),
        sa.Column("settled_at_us", sa.BigInteger()),
        sa.CheckConstraint("state IN ('waiting', 'settled', 'replaced')", name="revalidations_state"),
        sa.CheckConstraint("result IN ('', 'holds', 'deviation', 'candidate')", name="revalidations_result"),
        sa.CheckConstraint(
            "(state = 'settled') = (result <> '') AND (state = 'settled') = (turn_id <> '') "
            "AND (state = 'settled') = (settled_at_us IS NOT NULL)",
            name="revalidations_settled",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "revalidations_waiting",
        "revalidations",
        ["page_id", "cause"],
        unique=True,
        sqlite_where=sa.text("state = 'waiting'"),
        postgresql_where=sa.text("state = 'waiting'"),
    )


def _make_attachments() -> None:
    op.create_table(
        "attachments",
        sa.Column("page_id", _TEXT, primary_key=True),
        sa.Column("name", _TEXT, primary_key=True),
        *_texts("content_type"),
        *_numbers("size"),
        *_texts("sha256"),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        *_texts("origin", "lifecycle", "added_by"),
        *_numbers("added_at_us"),
        sa.CheckConstraint("origin IN ('authored', 'imported')", name="attachments_origin"),
        sa.CheckConstraint("lifecycle = 'canonical'", name="attachments_lifecycle"),
        sa.CheckConstraint("size = length(data) AND added_by <> ''", name="attachments_size"),
    )


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, _TEXT, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]
