"""A deviation for each candidate that contradicts a page, also where two do so in the same words."""

from alembic import op

from agent_runtime.store.schema import deviations

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the index of open records anew, with the candidate in it; what is there fits, for it was fewer."""
    (index,) = (index for index in deviations.indexes if index.name == "deviations_open")
    index.drop(op.get_bind(), checkfirst=True)
    index.create(op.get_bind())
