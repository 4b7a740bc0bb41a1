"""The world's tables. Their constraints hold what the submit boundary promises, whoever writes.

Instants are integer microseconds since 1970 in UTC. No row exists without an origin and a lifecycle, and none that an
agent produced is canonical unless an author's decision stands in the same row.
"""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, String, Table, Text

from agent_runtime.store.metadata import metadata

_ORIGINS = "origin IN ('authored', 'agent-produced', 'imported', 'observed')"
_PROVENANCE = "origin <> 'agent-produced' OR turn_id <> ''"
_DECIDED = "(lifecycle = 'candidate') = (decided_at_us IS NULL) AND (lifecycle = 'candidate') = (decided_by = '')"

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
    Column("turn_id", String(128), nullable=False),
    Column("thread_id", String(256), nullable=False),
    Column("agent", String(32), nullable=False),
    Column("task_name", String(256), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("decided_at_us", BigInteger),
    Column("decided_by", String(64), nullable=False),
    Column("note", Text, nullable=False),
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
