"""The first schema: turns and the workspace. Stores of this revision have a memory, too; 0008 makes it for new stores.

No migration reads `agent_runtime/store/schema.py`: that changes, and a migration never does.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# Text sorts by code points on both databases; only an INTEGER column of SQLite numbers its rows.
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STATUSES = "'running', 'interrupted', 'paused', 'succeeded', 'silent', 'failed', 'cancelled'"
_ORIGINS = "origin IN ('authored', 'agent-produced', 'imported', 'observed')"
_PROVENANCE = "origin <> 'agent-produced' OR turn_id <> ''"
_DECIDED = "(lifecycle = 'candidate') = (decided_at_us IS NULL) AND (lifecycle = 'candidate') = (decided_by = '')"


def upgrade() -> None:
    """Make the tables of turns, of their triggers and results, and of the workspace."""
    _make_turns()
    _make_triggers()
    _make_outcomes()
    _make_pages()
    _make_candidates()
    _make_effects()


def _make_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        *_texts("turn_id", "thread_id", "channel", "agent", "category", "grant_json", "trigger", "status"),
        *_flags("visible"),
        *_texts("fire_id"),
        *_numbers("attempt"),
        *_texts("task_id", "task_name", "kind", "prompt", "payload_json"),
        *_flags("read_only"),
        *_numbers("nominal_at_us", "due_at_us", "fired_at_us", nullable=True),
        *_texts("timezone", "catch_up"),
        *_numbers("stands_for"),
        *_numbers("first_nominal_at_us", "last_nominal_at_us", nullable=True),
        *_texts("traceparent"),
        *_numbers("started_at_us"),
        *_numbers("ended_at_us", nullable=True),
        *_texts("summary", "error", "answers_json", "resumes", "after_message"),
        *_numbers("paused_until_us", nullable=True),
        *_numbers("tries", "epoch", "tokens_in", "tokens_out"),
        sa.UniqueConstraint("turn_id"),
        sa.CheckConstraint(f"status IN ({_STATUSES})", name="turns_status"),
        sa.CheckConstraint("trigger IN ('fire', 'author')", name="turns_trigger"),
        sa.CheckConstraint("(trigger = 'fire') = (fire_id <> '')", name="turns_fire"),
    )
    op.create_index("turns_by_thread", "turns", ["thread_id", "number"])
    op.create_index("turns_by_channel", "turns", ["channel", "number"])
    op.create_index("turns_by_status", "turns", ["status"])


def _make_triggers() -> None:
    op.create_table("meta", *_keys("key"), *_texts("value"))
    op.create_table(
        "keys",
        *_keys("key"),
        *_texts("digest", "turn_id", "thread_id", "fire_id"),
        *_numbers("attempt"),
        *_texts("became", "into"),
        *_flags("released"),
        *_numbers("at_us"),
        sa.UniqueConstraint("turn_id"),
        sa.CheckConstraint("became IN ('turn', 'held', 'kept', 'answer', 'refused')", name="keys_became"),
    )
    op.create_index("keys_by_thread", "keys", ["thread_id", "became", "released"])
    op.create_index("keys_by_fire", "keys", ["fire_id", "attempt"])
    op.create_table(
        "kept_messages",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        *_texts("key", "thread_id", "trigger_json"),
        *_numbers("at_us"),
        sa.UniqueConstraint("key"),
    )
    op.create_index("kept_messages_by_thread", "kept_messages", ["thread_id", "number"])
    op.create_table("cancels", *_keys("turn_id"), *_texts("reason"), *_numbers("at_us"))


def _make_outcomes() -> None:
    op.create_table(
        "turn_events",
        sa.Column("sequence", _NUMBER, primary_key=True, autoincrement=True),
        *_texts("turn_id", "fire_id"),
        *_numbers("attempt"),
        *_texts("thread_id", "trigger", "state"),
        *_numbers("at_us"),
        *_texts("summary", "error", "held_by_json"),
        *_numbers("tokens_in", "tokens_out"),
        sqlite_autoincrement=True,
    )
    op.create_index("turn_events_by_turn", "turn_events", ["turn_id", "sequence"])
    op.create_table(
        "interrupts",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        *_texts("interrupt_id", "turn_id", "thread_id", "channel", "kind", "tool", "args_json", "args_hash"),
        *_texts("call_id", "missing_scope", "question"),
        *_flags("allows_text"),
        *_texts("status", "decision", "message", "edited_json"),
        *_flags("applied"),
        *_numbers("created_at_us"),
        *_numbers("resolved_at_us", nullable=True),
        sa.UniqueConstraint("interrupt_id"),
        sa.CheckConstraint("kind IN ('permission', 'proposal', 'question', 'pause')", name="interrupts_kind"),
        sa.CheckConstraint("status IN ('pending', 'resolved', 'void')", name="interrupts_status"),
    )
    op.create_index("interrupts_by_turn", "interrupts", ["turn_id", "number"])
    op.create_index("interrupts_by_status", "interrupts", ["status"])
    op.create_table(
        "messages",
        *_keys("turn_id"),
        sa.Column("position", sa.BigInteger(), primary_key=True),
        *_texts("role", "text", "tool_calls_json", "tool_call_id"),
        *_numbers("at_us"),
        sa.CheckConstraint("role IN ('author', 'agent', 'tool', 'trigger')", name="messages_role"),
    )


def _make_pages() -> None:
    words = ("title", "body", "tags", "origin", "lifecycle")
    op.create_table(
        "pages",
        *_keys("page_id"),
        *_texts(*words),
        *_numbers("version"),
        *_texts("turn_id", "candidate_id", "updated_by"),
        *_numbers("updated_at_us"),
        sa.CheckConstraint(_ORIGINS, name="pages_origin"),
        sa.CheckConstraint("lifecycle IN ('draft', 'canonical')", name="pages_lifecycle"),
        sa.CheckConstraint(_PROVENANCE, name="pages_provenance"),
        sa.CheckConstraint("origin <> 'agent-produced' OR candidate_id <> ''", name="pages_accepted"),
    )
    op.create_table(
        "page_versions",
        *_keys("page_id"),
        sa.Column("version", sa.BigInteger(), primary_key=True),
        *_texts(*words, "turn_id", "candidate_id", "updated_by"),
        *_numbers("updated_at_us"),
        sa.CheckConstraint(_ORIGINS, name="page_versions_origin"),
    )


def _make_candidates() -> None:
    op.create_table(
        "candidates",
        *_keys("candidate_id"),
        *_texts("kind", "channel", "page_id"),
        *_numbers("base_version"),
        *_texts("title", "body", "tags", "origin", "lifecycle", "turn_id", "thread_id", "agent", "task_name"),
        *_numbers("created_at_us"),
        *_numbers("decided_at_us", nullable=True),
        *_texts("decided_by", "note"),
        sa.CheckConstraint("kind IN ('candidate-page', 'candidate-summary')", name="candidates_kind"),
        sa.CheckConstraint(_ORIGINS, name="candidates_origin"),
        sa.CheckConstraint("lifecycle IN ('candidate', 'canonical', 'rejected')", name="candidates_lifecycle"),
        sa.CheckConstraint(_PROVENANCE, name="candidates_provenance"),
        sa.CheckConstraint(_DECIDED, name="candidates_decided"),
    )
    op.create_index("candidates_by_channel", "candidates", ["channel", "created_at_us"])
    op.create_index("candidates_by_turn", "candidates", ["turn_id"])


def _make_effects() -> None:
    op.create_table("effects", *_keys("effect_key"), *_texts("turn_id", "scope", "result_json"), *_numbers("at_us"))
    op.create_index("effects_by_turn", "effects", ["turn_id"])


def _keys(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, _TEXT, primary_key=True) for name in names]


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, _TEXT, nullable=False) for name in names]


def _numbers(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger(), nullable=nullable) for name in names]


def _flags(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Boolean(), nullable=False) for name in names]
