"""The tables of the runner's store. Instants are integer microseconds since 1970 in UTC, and end in `_us`."""

from sqlalchemy import BigInteger, Boolean, Column, Identity, Index, LargeBinary, MetaData, Table, false

from turnkeeper.storage.chain import Chain, table_of
from turnkeeper.storage.nodes import table_of as nodes_of
from turnkeeper.storage.statements import NUMBER, TEXT, partial

metadata = MetaData()

tasks = Table(
    "tasks",
    metadata,
    Column("id", TEXT, primary_key=True),
    Column("name", TEXT, nullable=False),
    Column("state", TEXT, nullable=False),
    Column("reason", TEXT, nullable=False),
    Column("category", TEXT, nullable=False),
    Column("channel", TEXT, nullable=False),
    Column("definition", TEXT, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("cursor_us", BigInteger, nullable=False),
    Column("wake_us", BigInteger),
    Column("rewound_us", BigInteger),
    Column("accepted", BigInteger, nullable=False),
    Column("fires", BigInteger, nullable=False),
    Column("missed", BigInteger, nullable=False),
    Column("tail_entry", BigInteger),
    Column("failures", BigInteger, nullable=False, server_default="0"),
    Column("usage", TEXT),
    Column("pacing", TEXT),
    Column("paced_thread", TEXT),  # of a self-paced task, to notice an author's message there
    Column("made_by", TEXT),  # the agent that made it
    Column("ephemeral", Boolean, nullable=False, server_default=false()),
    Column("listens", TEXT),  # the name of the events that trigger it
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
    Column("kind", TEXT, nullable=False),
    Column("outcome", TEXT, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("reason", TEXT, nullable=False),
    Column("nominal_us", BigInteger, nullable=False),
    Column("due_us", BigInteger, nullable=False),
    Column("covers", BigInteger, nullable=False),
    Column("first_us", BigInteger, nullable=False),
    Column("last_us", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("policy", TEXT, nullable=False),
    Column("caught_up", Boolean, nullable=False),
    Column("released", Boolean, nullable=False),
    Column("send_by_us", BigInteger),
    Column("ready_us", BigInteger),
    Column("refusals", BigInteger, nullable=False),
    Column("fired_us", BigInteger),
    Column("accepted_us", BigInteger),
    Column("started_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("turn_id", TEXT, nullable=False),
    Column("retries", BigInteger, nullable=False, server_default="0"),
    Column("spent_us", BigInteger, nullable=False, server_default="0"),
    Column("tokens", BigInteger, nullable=False, server_default="0"),
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
    Column("from_us", BigInteger, nullable=False),
    Column("to_us", BigInteger, nullable=False),
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
    Column("from_us", BigInteger, nullable=False),
    Column("to_us", BigInteger, nullable=False),
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
    Column("event", TEXT, nullable=False),
    Column("event_id", TEXT, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("cause", TEXT, nullable=False),
    Column("chain", TEXT, nullable=False),
    Index("triggers_task", "task_id", "entry_id"),
)

# The processes that share the database, and when each was last seen, by the database's clock.
nodes = nodes_of(metadata)

# Work that one runner does at a time. `until_us` is the earliest time at which a runner may do it again.
slots = Table(
    "slots",
    metadata,
    Column("name", TEXT, primary_key=True),
    Column("holder", TEXT, nullable=False),
    Column("until_us", BigInteger, nullable=False),
)

# The chain of hashes over the ends of fires.
audit = Chain(table_of(metadata), "task-runner")
