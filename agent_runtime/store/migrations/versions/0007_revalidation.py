"""Links between pages, deviations, the re-validation queue, attachments."""

import sqlalchemy as sa
from alembic import op

from agent_runtime.store import schema

revision = "0007"
down_revision = "0006"

# What was accepted before pages had links of their own was derived from what its candidate names.
_INHERITED = """
INSERT OR IGNORE INTO page_links (page_id, source, page_version)
SELECT pages.page_id, derivations.source, derivations.page_version
FROM pages JOIN derivations ON derivations.candidate_id = pages.candidate_id
WHERE pages.candidate_id <> '' AND derivations.source <> pages.page_id
"""


def upgrade() -> None:
    """Add the tables where they are missing: the baseline may have made them."""
    for table in (
        schema.page_links,
        schema.deviations,
        schema.revalidations,
        schema.attachments,
    ):
        if not sa.inspect(op.get_bind()).has_table(table.name):
            table.create(op.get_bind())
    op.execute(_INHERITED)
