"""The tables of the runner's store. Instants are integer microseconds since 1970 in UTC, and end in `_us`."""

from sqlalchemy import BigInteger, Boolean, Column, Identity, Index, LargeBinary, MetaData, Table, false

from turnkeeper.storage.chain import Chain, table_of
from turnkeeper.storage.nodes import table_of as nodes_of
from turnkeeper.storage.statements import NUMBER, TEXT, numbers, partial, texts

metadata = MetaData()

tasks = Table(
    "tasks",
    metadata,
    Column("id", TEXT, primary_key=True),
    *texts("name", "state", "reason", "category", "channel", "definition"),
    *numbers("revision", "created_us", "cursor_us"),
    *numbers("wake_us", "rewound_us", nullable=True),
    *numbers("accepted", "fires", "missed"),
    Column("tail_entry", BigInteger),
    Column("failures", BigInteger, nullable=False, server_default="0"),
    Column("usage", TEXT),
    Column("unpriced", TEXT),  # the tokens of `usage` that had no price
    Column("pacing", TEXT),
    Column("paced_thread", TEXT),  # the thread of a self-paced task, to notice an author's message there
    Column("made_by", TEXT),  # the agent that made it
    Column("ephemeral", Boolean, nullable=False, server_default=false()),
    Column("listens", TEXT),  # the name of the events that trigger it
    Column("queue", TEXT),  # the queue whose limits its turns share
    Index("tasks_name", "name", unique=True, **partial("state <> 'deleted'")),
    # The tick is a range scan of this index, so idle tasks cost nothing.
    Index("tasks_wake", "wake_us", **partial("wake_us IS NOT NULL")),
    Index("tasks_cursor", "cursor_us"),
    Index("tasks_paced", "paced_thread", **partial("paced_thread IS NOT NULL")),
    Index("tasks_made_by", "made_by", **partial("made_by IS NOT NULL")),
    Index("tasks_ephemeral", "ephemeral", **partial("ephemeral = 1")),
    # An event finds its listeners in this index, so other tasks cost nothing.
    Index("tasks_listens", "listens", "state", **partial("listens IS NOT NULL")),
)

revisions = Table(
    "revisions",
    metadata,
    Column("task_id", TEXT, primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("valid_from_us", BigInteger, nullable=False),
    Column("definition", TEXT, nullable=False),
)

fires = Table(
    "fires",
    metadata,
    Column("entry_id", NUMBER, Identity(), primary_key=True),
    Column("task_id", TEXT, nullable=False),
    Column("fire_id", TEXT),
    Column("request_id", TEXT),
    *texts("kind", "outcome"),
    Column("is_open", Boolean, nullable=False),
    Column("reason", TEXT, nullable=False),
    *numbers("nominal_us", "due_us", "covers", "first_us", "last_us", "attempt"),
    Column("policy", TEXT, nullable=False),
    Column("caught_up", Boolean, nullable=False),
    Column("released", Boolean, nullable=False),
    *numbers("send_by_us", "ready_us", nullable=True),
    Column("refusals", BigInteger, nullable=False),
    *numbers("fired_us", "accepted_us", "started_us", "ended_us", nullable=True),
    Column("turn_id", TEXT, nullable=False),
    *numbers("retries", "spent_us", "tokens", server_default="0"),
    Index("fires_fire_id", "fire_id", unique=True, **partial("fire_id IS NOT NULL")),
    Index("fires_request", "task_id", "request_id", unique=True, **partial("request_id IS NOT NULL")),
    Index("fires_history", "task_id", "entry_id"),
    Index("fires_open", "task_id", **partial("is_open = 1")),
    Index("fires_outcome", "outcome", "entry_id", **partial("is_open = 1")),
    Index("fires_ready", "caught_up", "ready_us", "entry_id", **partial("ready_us IS NOT NULL")),
)

outbox = Table(
    "outbox",
    metadata,
    Column("entry_id", NUMBER, primary_key=True, autoincrement=False),
    Column("request", LargeBinary, nullable=False),
)

follow = Table(
    "follow",
    metadata,
    Column("peer", TEXT, primary_key=True),
    Column("incarnation", TEXT, nullable=False),
    Column("sequence", BigInteger, nullable=False),
)

# Outages of the agent runtime; the end is the time of the last failed try while an outage lasts.
outages = Table(
    "outages",
    metadata,
    Column("number", NUMBER, Identity(), primary_key=True),
    *numbers("from_us", "to_us"),
    Column("lasts", Boolean, nullable=False),
)

# Times in which fires could not be sent, or a task was stopped, for a cause other than an outage of the runtime.
stoppages = Table(
    "stoppages",
    metadata,
    Column("number", NUMBER, Identity(), primary_key=True),
    Column("cause", TEXT, nullable=False),
    Column("task_id", TEXT, nullable=False),  # empty: every task
    Column("why", TEXT, nullable=False),
    *numbers("from_us", "to_us"),
    Column("lasts", Boolean, nullable=False),
)

# Events that were accepted, so that each counts once.
events = Table(
    "events",
    metadata,
    Column("id", TEXT, primary_key=True),
    Column("name", TEXT, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Index("events_at", "at_us"),
)

# The triggers of entries that an event triggered.
triggers = Table(
    "triggers",
    metadata,
    Column("entry_id", NUMBER, primary_key=True, autoincrement=False),
    Column("task_id", TEXT, nullable=False),
    Column("fired", Boolean, nullable=False),
    *texts("event", "event_id"),
    Column("at_us", BigInteger, nullable=False),
    *texts("cause", "chain"),
    Index("triggers_task", "task_id", "entry_id"),
)

# The processes that share the database, and when each was last seen, by the database's clock.
nodes = nodes_of(metadata)

# Work that one runner does at a time. `until_us` is the earliest time when a runner may do it again.
slots = Table(
    "slots",
    metadata,
    Column("name", TEXT, primary_key=True),
    Column("holder", TEXT, nullable=False),
    Column("until_us", BigInteger, nullable=False),
)

# The chain of hashes over the ends of fires.
audit = Chain(table_of(metadata), "task-runner")
