"""The tables of the runner's store. Instants are integer microseconds since 1970 in UTC, and end in `_us`."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text, text

metadata = MetaData()

tasks = Table(
    "tasks",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("category", String, nullable=False),
    Column("channel", String, nullable=False),
    Column("definition", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("cursor_us", BigInteger, nullable=False),
    Column("wake_us", BigInteger),
    Column("rewound_us", BigInteger),
    Column("accepted", Integer, nullable=False),
    Column("fires", Integer, nullable=False),
    Column("missed", BigInteger, nullable=False),
    Column("tail_entry", BigInteger),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("usage", Text),
    Column("pacing", Text),
    Column("paced_thread", String),  # of a self-paced task, so that an author who writes there is noticed
    Column("made_by", String),  # the agent that made it
    Column("ephemeral", Boolean, nullable=False, server_default="0"),
    Column("listens", String),  # the name of the events it fires for
    Index("tasks_name", "name", unique=True, sqlite_where=text("state <> 'deleted'")),
    # The tick is a range scan of this index: tasks that need nothing cost it nothing.
    Index("tasks_wake", "wake_us", sqlite_where=text("wake_us IS NOT NULL")),
    Index("tasks_cursor", "cursor_us"),
    Index("tasks_paced", "paced_thread", sqlite_where=text("paced_thread IS NOT NULL")),
    Index("tasks_made_by", "made_by", sqlite_where=text("made_by IS NOT NULL")),
    Index("tasks_ephemeral", "ephemeral", sqlite_where=text("ephemeral = 1")),
    # An event looks here for who listens: tasks that do not cost it nothing.
    Index("tasks_listens", "listens", "state", sqlite_where=text("listens IS NOT NULL")),
)

revisions = Table(
    "revisions",
    metadata,
    Column("task_id", String, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("valid_from_us", BigInteger, nullable=False),
    Column("definition", Text, nullable=False),
)

fires = Table(
    "fires",
    metadata,
    Column("entry_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("task_id", String, nullable=False),
    Column("fire_id", String),
    Column("request_id", String),
    Column("kind", String, nullable=False),
    Column("outcome", String, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("nominal_us", BigInteger, nullable=False),
    Column("due_us", BigInteger, nullable=False),
    Column("covers", BigInteger, nullable=False),
    Column("first_us", BigInteger, nullable=False),
    Column("last_us", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("policy", String, nullable=False),
    Column("caught_up", Boolean, nullable=False),
    Column("released", Boolean, nullable=False),
    Column("send_by_us", BigInteger),
    Column("ready_us", BigInteger),
    Column("refusals", Integer, nullable=False),
    Column("fired_us", BigInteger),
    Column("accepted_us", BigInteger),
    Column("started_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("turn_id", String, nullable=False),
    Column("retries", Integer, nullable=False, server_default="0"),
    Column("spent_us", BigInteger, nullable=False, server_default="0"),
    Column("tokens", BigInteger, nullable=False, server_default="0"),
    Index("fires_fire_id", "fire_id", unique=True, sqlite_where=text("fire_id IS NOT NULL")),
    Index("fires_request", "task_id", "request_id", unique=True, sqlite_where=text("request_id IS NOT NULL")),
    Index("fires_history", "task_id", "entry_id"),
    Index("fires_open", "task_id", sqlite_where=text("is_open = 1")),
    Index("fires_outcome", "outcome", "entry_id", sqlite_where=text("is_open = 1")),
    Index("fires_ready", "caught_up", "ready_us", "entry_id", sqlite_where=text("ready_us IS NOT NULL")),
)

outbox = Table(
    "outbox",
    metadata,
    Column("entry_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("request", LargeBinary, nullable=False),
)

follow = Table(
    "follow",
    metadata,
    Column("peer", String, primary_key=True),
    Column("incarnation", String, nullable=False),
    Column("sequence", BigInteger, nullable=False),
)

# Events that were taken in, so that each counts once.
events = Table(
    "events",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Index("events_at", "at_us"),
)

# What triggered the entries that an event made.
triggers = Table(
    "triggers",
    metadata,
    Column("entry_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("task_id", String, nullable=False),
    Column("fired", Boolean, nullable=False),
    Column("event", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("cause", String, nullable=False),
    Column("chain", Text, nullable=False),
    Index("triggers_task", "task_id", "entry_id"),
)
