"""The times of approvals: a reminder, an alert and the expiry. Approvals that are open stay without a limit."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the columns."""
    for name in ("approval_reminder_s", "approval_escalation_s", "approval_timeout_s"):
        op.add_column("turns", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    for name in ("remind_at_us", "reminded_at_us", "escalate_at_us", "escalated_at_us", "expires_at_us"):
        op.add_column("interrupts", sa.Column(name, sa.BigInteger()))
