"""The runtime's own tables in `agent.db`.

Instants are integer microseconds since 1970 in UTC. JSON is text with sorted keys. Empty strings stand for "none", so
that no column of text is null. The tables of pages and memory stand in `agent_runtime/store/workspace_schema.py`.
"""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()
_STATUSES = "'running', 'interrupted', 'paused', 'succeeded', 'silent', 'failed', 'cancelled'"

# Facts about the file itself: `incarnation` (random, of this store) and `epoch` (counts the processes that owned it).
meta = Table(
    "meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

# One row for each turn, written in one transaction with its key before the turn starts.
turns = Table(
    "turns",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),  # in the order in which turns began
    Column("turn_id", String(64), nullable=False, unique=True),
    Column("thread_id", String(128), nullable=False),
    Column("channel", String(128), nullable=False),
    Column("agent", String(32), nullable=False),
    Column("category", String(64), nullable=False),
    Column("grant_json", Text, nullable=False),  # the category as it was at acceptance
    Column("trigger", String(8), nullable=False),
    Column("status", String(16), nullable=False),
    Column("visible", Boolean, nullable=False),  # shown in the conversation; a silent turn is not
    Column("fire_id", String(256), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("task_id", String(128), nullable=False),
    Column("task_name", String(128), nullable=False),
    Column("kind", String(32), nullable=False),  # of the fire
    Column("prompt", Text, nullable=False),
    Column("payload_json", Text, nullable=False),
    Column("read_only", Boolean, nullable=False),
    Column("nominal_at_us", BigInteger),
    Column("due_at_us", BigInteger),
    Column("fired_at_us", BigInteger),
    Column("timezone", String(64), nullable=False),
    Column("catch_up", String(16), nullable=False),
    Column("stands_for", Integer, nullable=False),
    Column("first_nominal_at_us", BigInteger),
    Column("last_nominal_at_us", BigInteger),
    Column("traceparent", String(128), nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("ended_at_us", BigInteger),
    Column("summary", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("answers_json", Text, nullable=False),  # {interrupt id: value} given by the newest resume; empty: none
    Column("resumes", String(64), nullable=False),  # the paused turn whose interrupt this one resumed
    Column("after_message", String(128), nullable=False),  # the message after which this turn's messages begin
    Column("paused_until_us", BigInteger),
    Column("tries", Integer, nullable=False),  # intervals begun since the last start or resume, without drained ones
    Column("epoch", Integer, nullable=False),  # of the process that ran the newest interval
    Column("tokens_in", Integer, nullable=False),
    Column("tokens_out", Integer, nullable=False),
    Column("wake_after_s", BigInteger),  # when the graph asked to be woken, counted from the turn's end
    CheckConstraint(f"status IN ({_STATUSES})", name="turns_status"),
    CheckConstraint("trigger IN ('fire', 'author')", name="turns_trigger"),
    CheckConstraint("(trigger = 'fire') = (fire_id <> '')", name="turns_fire"),
    Index("turns_by_thread", "thread_id", "number"),
    Index("turns_by_channel", "channel", "number"),
    Index("turns_by_status", "status"),
)

# What has been taken, for ever: the authority on duplicates.
keys = Table(
    "keys",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("turn_id", String(64), nullable=False, unique=True),
    Column("thread_id", String(128), nullable=False),
    Column("fire_id", String(256), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("became", String(16), nullable=False),
    Column("into", String(64), nullable=False),  # the turn that took it as its answer
    Column("released", Boolean, nullable=False),  # a held fire whose thread has been released since
    Column("at_us", BigInteger, nullable=False),
    CheckConstraint("became IN ('turn', 'held', 'kept', 'answer', 'refused')", name="keys_became"),
    Index("keys_by_thread", "thread_id", "became", "released"),
    Index("keys_by_fire", "fire_id", "attempt"),
)

# Author messages that wait until their thread is released, whole.
kept_messages = Table(
    "kept_messages",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("key", String(256), nullable=False, unique=True),
    Column("thread_id", String(128), nullable=False),
    Column("trigger_json", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Index("kept_messages_by_thread", "thread_id", "number"),
)

# Cancels, written before they are acknowledged; also of turns that have not started.
cancels = Table(
    "cancels",
    metadata,
    Column("turn_id", String(64), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)

# The outcomes of turns, which the runner follows. Numbers are assigned in commit order, by the one writer.
turn_events = Table(
    "turn_events",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("turn_id", String(64), nullable=False),
    Column("fire_id", String(256), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("thread_id", String(128), nullable=False),
    Column("trigger", String(8), nullable=False),  # fire, author, answer, agent
    Column("state", String(16), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("summary", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("held_by_json", Text, nullable=False),
    Column("tokens_in", Integer, nullable=False),
    Column("tokens_out", Integer, nullable=False),
    Column("wake_after_s", BigInteger),
    Index("turn_events_by_turn", "turn_id", "sequence"),
    sqlite_autoincrement=True,
)

# What a graph asked the author, and what the author decided.
interrupts = Table(
    "interrupts",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("interrupt_id", String(128), nullable=False, unique=True),
    Column("turn_id", String(64), nullable=False),
    Column("thread_id", String(128), nullable=False),
    Column("channel", String(128), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("tool", String(128), nullable=False),
    Column("args_json", Text, nullable=False),
    Column("args_hash", String(64), nullable=False),
    Column("call_id", String(128), nullable=False),
    Column("missing_scope", String(256), nullable=False),
    Column("question", Text, nullable=False),
    Column("allows_text", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("decision", String(16), nullable=False),
    Column("message", Text, nullable=False),  # the author's reason or answer
    Column("edited_json", Text, nullable=False),  # the arguments that the author gave instead
    Column("applied", Boolean, nullable=False),  # the graph has gone on with the decision
    Column("created_at_us", BigInteger, nullable=False),
    Column("resolved_at_us", BigInteger),
    CheckConstraint("kind IN ('permission', 'proposal', 'question', 'pause')", name="interrupts_kind"),
    CheckConstraint("status IN ('pending', 'resolved', 'void')", name="interrupts_status"),
    Index("interrupts_by_turn", "turn_id", "number"),
    Index("interrupts_by_status", "status"),
)

# The conversation, as it was produced. A replayed step writes the same positions again, never new ones.
messages = Table(
    "messages",
    metadata,
    Column("turn_id", String(64), primary_key=True),
    Column("position", Integer, primary_key=True),  # 0 is the prompt; see POSITIONS_APART in turn_writes.py
    Column("role", String(8), nullable=False),
    Column("text", Text, nullable=False),
    Column("tool_calls_json", Text, nullable=False),  # a JSON array of {id, name, args}; empty: none
    Column("tool_call_id", String(128), nullable=False),  # of the call that a tool's message answers
    Column("at_us", BigInteger, nullable=False),
    CheckConstraint("role IN ('author', 'agent', 'tool', 'trigger')", name="messages_role"),
)

# What happens inside turns, for tasks that an event triggers. The turn's own row holds the rest. Numbers are assigned
# in commit order, by the one writer, and never again.
bridged_events = Table(
    "bridged_events",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("key", String(160), unique=True),  # null where the turn's own row changes with the event: it comes once
    Column("name", String(32), nullable=False),
    Column("turn_id", String(64), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("tool", String(128), nullable=False),
    Column("data_json", Text, nullable=False),
    sqlite_autoincrement=True,
)

# What all turns together used on a day: the sum of what each turn's row grew by.
token_days = Table(
    "token_days",
    metadata,
    Column("day", String(10), primary_key=True),  # as 2026-11-21
    Column("tokens", BigInteger, nullable=False),
)

# Messages between agents: one row for each turn that answers one, written with the turn.
delegations = Table(
    "delegations",
    metadata,
    Column("turn_id", String(64), primary_key=True),
    Column("sender", String(32), nullable=False),
    Column("parent", String(64), nullable=False),  # the sender's turn
    Column("agent", String(32), nullable=False),  # whom it was sent to
    Column("hops", Integer, nullable=False),  # messages since an author or a fire
    # none: no answer is expected; open: its turn goes on; owed: it is over; answered: its answer is on disk
    Column("state", String(16), nullable=False),
    CheckConstraint("state IN ('none', 'open', 'owed', 'answered')", name="delegations_state"),
    Index("delegations_owed", "turn_id", sqlite_where=Column("state") == "owed"),
)

# Fires that wait in the inbox of an agent in a terminal, and how they ended.
deliveries = Table(
    "deliveries",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("turn_id", String(64), nullable=False, unique=True),  # named in the receipt; there is never such a turn
    Column("thread_id", String(128), nullable=False),
    Column("channel", String(128), nullable=False),
    Column("agent", String(32), nullable=False),
    Column("name", String(256), nullable=False),  # of the envelope, as it was put
    Column("fire_id", String(256), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("task_name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("settled_at_us", BigInteger),
    CheckConstraint("state IN ('waiting', 'delivered', 'cancelled', 'failed')", name="deliveries_state"),
    Index("deliveries_waiting", "agent", sqlite_where=Column("state") == "waiting"),
)

# What one session of an agent leaves to the next. A row belongs to the turn that is shown it, from its begin on.
handoffs = Table(
    "handoffs",
    metadata,
    Column("key", String(256), primary_key=True),  # of the envelope: what comes twice is one row
    Column("agent", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("sender", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("turn_id", String(64), nullable=False),  # that is shown it; empty until one is
    CheckConstraint("kind IN ('handoff', 'notes')", name="handoffs_kind"),
    Index("handoffs_waiting", "agent", sqlite_where=Column("turn_id") == ""),
    Index("handoffs_by_turn", "turn_id"),
)
