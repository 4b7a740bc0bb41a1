"""The tables of what stands beside pages: what they come from, what contradicts or doubts them, files.

As in `agent_runtime/store/workspace_schema.py`, the constraints hold what the submit boundary promises, whoever writes.
"""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, String, Table, Text, text

from agent_runtime.store.metadata import metadata

# What a page was derived from, as it was when the page was last held against it. An author's page may name sources,
# an accepted candidate brings its own; from here it is known what a change makes doubtful.
page_links = Table(
    "page_links",
    metadata,
    Column("page_id", String(100), primary_key=True),
    Column("source", Text, primary_key=True),  # another page, or an address on the web
    Column("page_version", Integer, nullable=False),  # 0 for an address
    CheckConstraint("page_version >= 0 AND (page_version = 0) = (source LIKE '%://%')", name="page_links_version"),
    CheckConstraint("page_id <> source", name="page_links_other"),
    Index("page_links_by_source", "source"),
)

# Where something contradicts a canonical page. Nobody but an author closes one.
deviations = Table(
    "deviations",
    metadata,
    Column("deviation_id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("channel", String(128), nullable=False),  # whose conversation shows it
    Column("page_id", String(100), nullable=False),  # the canonical page
    Column("page_version", Integer, nullable=False),
    Column("says", Text, nullable=False),  # the statement of that page
    Column("found", Text, nullable=False),  # what contradicts it
    Column("source", Text, nullable=False),  # where that stands: a page or an address; empty: in the candidate
    Column("candidate_id", String(64), nullable=False),  # the proposal that it is about; empty for none
    Column("why", Text, nullable=False),  # what the agent said to it
    Column("origin", String(16), nullable=False),  # agent-produced: a tool recorded it; observed: the boundary did
    Column("lifecycle", String(16), nullable=False),
    Column("turn_id", String(128), nullable=False),
    Column("thread_id", String(256), nullable=False),
    Column("agent", String(32), nullable=False),
    Column("task_name", String(256), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("decided_at_us", BigInteger),
    Column("decided_by", String(64), nullable=False),
    Column("note", Text, nullable=False),
    CheckConstraint("kind IN ('contradiction', 'stale-base')", name="deviations_kind"),
    CheckConstraint("origin IN ('agent-produced', 'observed')", name="deviations_origin"),
    CheckConstraint("lifecycle IN ('open', 'kept', 'accepted')", name="deviations_lifecycle"),
    CheckConstraint("turn_id <> '' AND agent <> ''", name="deviations_provenance"),
    CheckConstraint(
        "(lifecycle = 'open') = (decided_at_us IS NULL) AND (lifecycle = 'open') = (decided_by = '')",
        name="deviations_decided",
    ),
    Index("deviations_by_channel", "channel", "created_at_us"),
    Index("deviations_by_turn", "turn_id"),
    Index("deviations_by_candidate", "candidate_id"),
    # The same contradiction is told once as long as it is open, and once for each candidate: each is decided by itself.
    Index(
        "deviations_open",
        *("page_id", "says", "found", "candidate_id"),
        unique=True,
        sqlite_where=text("lifecycle = 'open'"),
    ),
)

# Pages to be held against what they were derived from, because that changed. A new change replaces an item by a new
# one, so that no verdict about the text before it can settle it.
revalidations = Table(
    "revalidations",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("page_id", String(100), nullable=False),
    Column("cause", String(100), nullable=False),  # the page that changed
    Column("cause_version", Integer, nullable=False),
    Column("via", String(100), nullable=False),  # the page's own source on the way; the cause itself if direct
    Column("state", String(16), nullable=False),
    Column("result", String(16), nullable=False),
    Column("turn_id", String(128), nullable=False),  # that settled it
    Column("note", Text, nullable=False),
    Column("queued_at_us", BigInteger, nullable=False),
    Column("settled_at_us", BigInteger),
    CheckConstraint("state IN ('waiting', 'settled', 'replaced')", name="revalidations_state"),
    CheckConstraint("result IN ('', 'holds', 'deviation', 'candidate')", name="revalidations_result"),
    CheckConstraint(
        "(state = 'settled') = (result <> '') AND (state = 'settled') = (turn_id <> '') "
        "AND (state = 'settled') = (settled_at_us IS NOT NULL)",
        name="revalidations_settled",
    ),
    Index("revalidations_waiting", "page_id", "cause", unique=True, sqlite_where=text("state = 'waiting'")),
    sqlite_autoincrement=True,
)

# Files beside pages; only an author puts one there.
attachments = Table(
    "attachments",
    metadata,
    Column("page_id", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("content_type", String(100), nullable=False),
    Column("size", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("origin", String(16), nullable=False),
    Column("lifecycle", String(16), nullable=False),
    Column("added_by", String(64), nullable=False),
    Column("added_at_us", BigInteger, nullable=False),
    CheckConstraint("origin IN ('authored', 'imported')", name="attachments_origin"),
    CheckConstraint("lifecycle = 'canonical'", name="attachments_lifecycle"),
    CheckConstraint("size = length(data) AND added_by <> ''", name="attachments_size"),
)
