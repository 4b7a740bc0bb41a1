"""The tables of the workspace in `agent.db`: pages, proposals, memory, sources, deviations, files.

Their constraints hold what the submit boundary promises, whoever writes. Instants are integer microseconds since 1970
in UTC. No row exists without an origin and a lifecycle. None that an agent produced is canonical unless the same row
holds an author's decision.
"""

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, String, Table, Text, text

from agent_runtime.store.schema import metadata

_ORIGINS = "origin IN ('authored', 'agent-produced', 'imported', 'observed')"
_PROVENANCE = "origin <> 'agent-produced' OR turn_id <> ''"
_DECIDED = "(lifecycle = 'candidate') = (decided_at_us IS NULL) AND (lifecycle = 'candidate') = (decided_by = '')"


def _decision_columns() -> list[Column[Any]]:
    """Return the columns that say who proposed something in which turn, and how the author decided."""
    return [
        Column("turn_id", String(128), nullable=False),
        Column("thread_id", String(256), nullable=False),
        Column("agent", String(32), nullable=False),
        Column("task_name", String(256), nullable=False),
        Column("created_at_us", BigInteger, nullable=False),
        Column("decided_at_us", BigInteger),
        Column("decided_by", String(64), nullable=False),
        Column("note", Text, nullable=False),
    ]


pages = Table(
    "pages",
    metadata,
    Column("page_id", String(100), primary_key=True),
    Column("title", String(200), nullable=False),
    Column("body", Text, nullable=False),
    Column("tags", Text, nullable=False),  # a JSON array, sorted
    Column("origin", String(16), nullable=False),
    Column("lifecycle", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("turn_id", String(128), nullable=False),  # of the agent that produced it; empty for an author's
    Column("candidate_id", String(64), nullable=False),  # the proposal it was accepted from; empty likewise
    Column("updated_by", String(64), nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    CheckConstraint(_ORIGINS, name="pages_origin"),
    CheckConstraint("lifecycle IN ('draft', 'canonical')", name="pages_lifecycle"),
    CheckConstraint(_PROVENANCE, name="pages_provenance"),
    CheckConstraint("origin <> 'agent-produced' OR candidate_id <> ''", name="pages_accepted"),
)

# What a page was before it was put or accepted anew: an accepted proposal never destroys an author's words.
page_versions = Table(
    "page_versions",
    metadata,
    Column("page_id", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("title", String(200), nullable=False),
    Column("body", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("origin", String(16), nullable=False),
    Column("lifecycle", String(16), nullable=False),
    Column("turn_id", String(128), nullable=False),
    Column("candidate_id", String(64), nullable=False),
    Column("updated_by", String(64), nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    CheckConstraint(_ORIGINS, name="page_versions_origin"),
)

candidates = Table(
    "candidates",
    metadata,
    Column("candidate_id", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("channel", String(128), nullable=False),
    Column("page_id", String(100), nullable=False),  # the page it would become; empty for a summary
    Column("base_version", Integer, nullable=False),  # of that page when it was proposed; 0 when there was none
    Column("title", String(200), nullable=False),
    Column("body", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("origin", String(16), nullable=False),
    Column("lifecycle", String(16), nullable=False),
    *_decision_columns(),
    CheckConstraint("kind IN ('candidate-page', 'candidate-summary')", name="candidates_kind"),
    CheckConstraint(_ORIGINS, name="candidates_origin"),
    CheckConstraint("lifecycle IN ('candidate', 'canonical', 'rejected')", name="candidates_lifecycle"),
    CheckConstraint(_PROVENANCE, name="candidates_provenance"),
    CheckConstraint(_DECIDED, name="candidates_decided"),
    Index("candidates_by_channel", "channel", "created_at_us"),
    Index("candidates_by_turn", "turn_id"),
)

# What a candidate was derived from, as it was then: a page of the workspace and its version, or an address on the web.
derivations = Table(
    "derivations",
    metadata,
    Column("candidate_id", String(64), primary_key=True),
    Column("source", Text, primary_key=True),
    Column("page_version", Integer, nullable=False),  # 0 for an address
    CheckConstraint("page_version >= 0 AND (page_version = 0) = (source LIKE '%://%')", name="derivations_version"),
    Index("derivations_by_source", "source", "page_version"),
)

memory = Table(
    "memory",
    metadata,
    Column("entry_id", String(64), primary_key=True),
    Column("tier", String(16), nullable=False),
    Column("owner", String(256), nullable=False),  # thread, channel, or empty for the tiers of which there is one
    Column("key", String(200), nullable=False),
    Column("text", Text, nullable=False),
    Column("form", String(8), nullable=False),  # json: the text of an object that a graph stored
    Column("origin", String(16), nullable=False),
    Column("written_by", String(64), nullable=False),
    Column("turn_id", String(128), nullable=False),  # empty for an author's
    Column("created_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    CheckConstraint("tier IN ('conversation', 'channel', 'workspace', 'account')", name="memory_tier"),
    CheckConstraint("(tier IN ('conversation', 'channel')) = (owner <> '')", name="memory_owner"),
    CheckConstraint("form IN ('text', 'json')", name="memory_form"),
    CheckConstraint("origin IN ('authored', 'agent-produced')", name="memory_origin"),
    CheckConstraint("written_by <> '' AND (origin = 'authored') = (turn_id = '')", name="memory_provenance"),
    Index("memory_by_owner", "tier", "owner", "key", unique=True),
    Index("memory_by_age", "tier", "owner", "updated_at_us"),
)

# One row for each write that a tool call made: the same call, run again, finds its answer here.
effects = Table(
    "effects",
    metadata,
    Column("effect_key", String(512), primary_key=True),
    Column("turn_id", String(128), nullable=False),
    Column("scope", String(64), nullable=False),
    Column("result_json", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Index("effects_by_turn", "turn_id"),
)


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
    *_decision_columns(),
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
    # An open contradiction is recorded once, and once for each candidate: each is decided by itself.
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

# Files attached to pages; only an author adds one.
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
