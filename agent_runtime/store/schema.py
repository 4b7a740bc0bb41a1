"""The tables of `agent.db`: first the tables of the turns, then those of the workspace.

Instants are integer microseconds since 1970 in UTC. JSON is text with sorted keys. Empty strings mean "none", so that
no column of text is null.

The constraints of the workspace's tables enforce the guarantees of the submit boundary for every writer. No row exists
without an origin and a lifecycle. A row that an agent produced is canonical only if it holds an author's decision.
"""

from typing import Any

import sqlalchemy as sa

from turnkeeper.storage.chain import Chain, table_of
from turnkeeper.storage.server.handover import Handover, tables_of
from turnkeeper.storage.statements import NEVER_AGAIN, NUMBER, TEXT, numbers, partial, texts

metadata = sa.MetaData()
_STATUSES = "'running', 'interrupted', 'paused', 'succeeded', 'silent', 'failed', 'cancelled'"

# Facts about the store: `incarnation` (its random name) and `epoch` (the number of processes that have owned it).
meta = sa.Table("meta", metadata, sa.Column("key", TEXT, primary_key=True), sa.Column("value", TEXT, nullable=False))

# One row for each turn, written in one transaction with its key before the turn starts.
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),  # numbers turns in the order in which they began
    sa.Column("turn_id", TEXT, nullable=False, unique=True),
    *texts("thread_id", "channel", "agent", "category"),
    sa.Column("grant_json", TEXT, nullable=False),  # the category at the time of acceptance
    *texts("trigger", "status"),
    sa.Column("visible", sa.Boolean, nullable=False),  # shown in the conversation, unlike a silent turn
    sa.Column("fire_id", TEXT, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    *texts("task_id", "task_name"),
    sa.Column("kind", TEXT, nullable=False),  # the trigger's kind
    *texts("prompt", "payload_json"),
    sa.Column("read_only", sa.Boolean, nullable=False),
    *numbers("nominal_at_us", "due_at_us", "fired_at_us", nullable=True),
    *texts("timezone", "catch_up"),
    sa.Column("stands_for", sa.BigInteger, nullable=False),
    *numbers("first_nominal_at_us", "last_nominal_at_us", nullable=True),
    sa.Column("traceparent", TEXT, nullable=False),
    sa.Column("started_at_us", sa.BigInteger, nullable=False),
    sa.Column("ended_at_us", sa.BigInteger),
    *texts("summary", "error"),
    sa.Column("answers_json", TEXT, nullable=False),  # values by interrupt id, given by the newest resume; empty: none
    sa.Column("resumes", TEXT, nullable=False),  # the paused turn whose interrupt this turn resumed
    sa.Column("after_message", TEXT, nullable=False),  # this turn's messages begin after this message
    sa.Column("paused_until_us", sa.BigInteger),
    sa.Column(
        "tries", sa.BigInteger, nullable=False
    ),  # intervals begun since the last start or resume, except drained ones
    sa.Column("epoch", sa.BigInteger, nullable=False),  # the epoch of the process that ran the newest interval
    *numbers("tokens_in", "tokens_out"),
    sa.Column("wake_after_s", sa.BigInteger),  # time from the turn's end to the wake-up that its graph requested
    # Seconds from the question of an approval to its reminder, its alert and its expiry; 0 for never.
    *numbers("approval_reminder_s", "approval_escalation_s", "approval_timeout_s", server_default="0"),
    # The name of the turn's graph, or "" for the default graph; then JSON objects for the graph, each of them optional.
    *texts("graph", "context_json", "config_json", "input_json", server_default=""),
    sa.Column("via", TEXT, nullable=False, server_default=""),  # an author's channel: PROGRAM/SURFACE/KEY
    sa.Column("run_json", TEXT, nullable=False, server_default=""),  # the options of a client's run, if it is one
    sa.Column("models_json", TEXT, nullable=False, server_default=""),  # {model: {tokens_in, tokens_out}}; empty: none
    sa.CheckConstraint(f"status IN ({_STATUSES})", name="turns_status"),
    sa.CheckConstraint("trigger IN ('fire', 'author')", name="turns_trigger"),
    sa.CheckConstraint("(trigger = 'fire') = (fire_id <> '')", name="turns_fire"),
    sa.Index("turns_by_thread", "thread_id", "number"),
    sa.Index("turns_by_channel", "channel", "number"),
    sa.Index("turns_by_status", "status"),
)

# An author's settings of threads, also before their first turn. A thread without settings has no row.
thread_records = sa.Table(
    "thread_records",
    metadata,
    sa.Column("thread_id", TEXT, primary_key=True),
    sa.Column("channel", TEXT, nullable=False),
    sa.Column("metadata_json", TEXT, nullable=False),  # a JSON object
    sa.Column("via", TEXT, nullable=False),  # the channel of the last change
    *numbers("created_at_us", "updated_at_us"),
    sa.Column("withdrawn_at_us", sa.BigInteger),  # no list contains a withdrawn thread
)

# Assistants that LangGraph's clients made.
assistants = sa.Table(
    "assistants",
    metadata,
    sa.Column("assistant_id", TEXT, primary_key=True),
    sa.Column("versions_json", TEXT, nullable=False),  # a JSON list of objects, oldest first
    sa.Column("via", TEXT, nullable=False),  # the channel of the last change
    sa.Column("version", sa.BigInteger, nullable=False),  # the number of the current version
    sa.Column("created_at_us", sa.BigInteger, nullable=False),
    sa.Column("updated_at_us", sa.BigInteger, nullable=False),
)

# All used keys, kept permanently: a trigger with a used key is a duplicate.
keys = sa.Table(
    "keys",
    metadata,
    sa.Column("key", TEXT, primary_key=True),
    sa.Column("digest", TEXT, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False, unique=True),
    *texts("thread_id", "fire_id"),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("became", TEXT, nullable=False),
    sa.Column("into", TEXT, nullable=False),  # the turn that used the message as its answer; for a refusal, the field
    sa.Column("released", sa.Boolean, nullable=False),  # a held fire whose thread has been released since
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("became IN ('turn', 'held', 'kept', 'answer', 'refused')", name="keys_became"),
    sa.Index("keys_by_thread", "thread_id", "became", "released"),
    sa.Index("keys_by_fire", "fire_id", "attempt"),
)

# Authors' messages, in full, that wait until their thread is released.
kept_messages = sa.Table(
    "kept_messages",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("key", TEXT, nullable=False, unique=True),
    *texts("thread_id", "trigger_json"),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Index("kept_messages_by_thread", "thread_id", "number"),
)

# Cancels, written before they are acknowledged; also for turns that have not started.
cancels = sa.Table(
    "cancels",
    metadata,
    sa.Column("turn_id", TEXT, primary_key=True),
    sa.Column("reason", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
)

# The outcomes of turns, which the runner follows, and the outcomes of turns' proposals. On a file,
# numbers are in commit order.
turn_events = sa.Table(
    "turn_events",
    metadata,
    sa.Column("sequence", NUMBER, primary_key=True, autoincrement=True),
    *texts("turn_id", "fire_id"),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("thread_id", TEXT, nullable=False),
    sa.Column("trigger", TEXT, nullable=False),  # fire, author, answer, agent
    sa.Column("state", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    *texts("summary", "error"),
    sa.Column("held_by_json", TEXT, nullable=False),  # ids of interrupts; for a review, the id of its subject
    *numbers("tokens_in", "tokens_out"),
    sa.Column("wake_after_s", sa.BigInteger),
    # False until the runner has read the event, in a shared store; on a single machine, the runner stores its position
    sa.Column("taken", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("models_json", TEXT, nullable=False, server_default=""),  # as in the turn's row
    sa.Index("turn_events_by_turn", "turn_id", "sequence"),
    sa.Index("turn_events_left", "sequence", **partial("taken = 0")),
    **NEVER_AGAIN,
)

# A graph's questions to the author, and the author's decisions.
interrupts = sa.Table(
    "interrupts",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("interrupt_id", TEXT, nullable=False, unique=True),
    *texts("turn_id", "thread_id", "channel", "kind"),
    *texts("tool", "args_json", "args_hash", "call_id", "missing_scope", "question"),
    sa.Column("allows_text", sa.Boolean, nullable=False),
    *texts("status", "decision"),
    sa.Column("message", TEXT, nullable=False),  # the author's reason or answer
    sa.Column("edited_json", TEXT, nullable=False),  # the arguments that the author gave instead
    sa.Column("applied", sa.Boolean, nullable=False),  # the graph has received the decision
    sa.Column("created_at_us", sa.BigInteger, nullable=False),
    sa.Column("resolved_at_us", sa.BigInteger),
    # When the reminder and the alert are due, when each was sent, and when the question expires.
    *numbers("remind_at_us", "reminded_at_us", "escalate_at_us", "escalated_at_us", "expires_at_us", nullable=True),
    sa.Column("decided_by", TEXT, nullable=False, server_default=""),  # PROGRAM/SURFACE/KEY
    # For a tool call: digests of its tool and of each argument, and why the author must approve it each time.
    *texts("tool_hash", "arg_hashes_json", server_default=""),
    sa.Column("once_only", TEXT, nullable=False, server_default="an earlier version asked about it"),
    sa.Column("exception", sa.BigInteger, nullable=False, server_default="0"),  # the standing exception given or used
    sa.CheckConstraint("kind IN ('permission', 'proposal', 'question', 'pause')", name="interrupts_kind"),
    sa.CheckConstraint("status IN ('pending', 'resolved', 'void')", name="interrupts_status"),
    sa.Index("interrupts_by_turn", "turn_id", "number"),
    sa.Index("interrupts_by_status", "status"),
)

# Standing exceptions: calls of tasks that the author allowed in advance. A number is never used again.
exceptions = sa.Table(
    "exceptions",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("interrupt_id", TEXT, nullable=False),  # the approval that gave it
    *texts("task_id", "task_name"),
    # Copied from that approval; for an argument in `any_value`, only the name must match.
    *texts("kind", "tool", "missing_scope"),
    *texts("args_json", "args_hash", "tool_hash", "arg_hashes_json", "any_value_json", "category"),
    sa.Column("category_json", TEXT, nullable=False),  # the category's grants at that time
    sa.Column("given_by", TEXT, nullable=False),  # PROGRAM/SURFACE/KEY
    *numbers("given_at_us", "uses"),
    *numbers("last_used_at_us", "ended_at_us", nullable=True),
    *texts("ended_by", "ended_why"),
    sa.CheckConstraint("(ended_at_us IS NULL) = (ended_why = '')", name="exceptions_ended"),
    sa.CheckConstraint("task_id <> ''", name="exceptions_task"),
    sa.Index("exceptions_of_task", "task_id", **partial("ended_at_us IS NULL")),
    **NEVER_AGAIN,
)

# The recorded conversation. A replayed step writes the same positions again, never new ones.
messages = sa.Table(
    "messages",
    metadata,
    sa.Column("turn_id", TEXT, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True),  # 0 is the prompt; see POSITIONS_APART in turn_writes.py
    *texts("role", "text"),
    sa.Column("tool_calls_json", TEXT, nullable=False),  # a JSON array of {id, name, args}; empty: none
    sa.Column("tool_call_id", TEXT, nullable=False),  # the id of the call that a tool's message answers
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("role IN ('author', 'agent', 'tool', 'trigger')", name="messages_role"),
)

# Events inside turns, for tasks that an event triggers. The turn's own row contains the other facts. Numbers are
# in commit order on a file, and are never used again.
bridged_events = sa.Table(
    "bridged_events",
    metadata,
    sa.Column("sequence", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("key", TEXT, unique=True),  # null if the turn's own row changes with it, so that it occurs only once
    *texts("name", "turn_id"),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    *texts("tool", "data_json"),
    **NEVER_AGAIN,
)

# Tokens that all turns together used on a day: the sum of the increases of each turn's row. In a shared store, each
# session of the server counts in a row of its own, so that turn ends do not wait for each other.
token_days = sa.Table(
    "token_days",
    metadata,
    sa.Column("day", TEXT, primary_key=True),  # as 2026-11-21, or 2026-11-21 SESSION
    sa.Column("tokens", sa.BigInteger, nullable=False),
)

# Messages between agents: one row for each turn that answers one, written with the turn.
delegations = sa.Table(
    "delegations",
    metadata,
    sa.Column("turn_id", TEXT, primary_key=True),
    sa.Column("sender", TEXT, nullable=False),
    sa.Column("parent", TEXT, nullable=False),  # the sender's turn
    sa.Column("agent", TEXT, nullable=False),  # the recipient
    sa.Column("hops", sa.BigInteger, nullable=False),  # messages since an author or a fire
    # none: no answer expected; open: its turn is unfinished; owed: its turn has ended; answered: its answer is on disk
    sa.Column("state", TEXT, nullable=False),
    sa.CheckConstraint("state IN ('none', 'open', 'owed', 'answered')", name="delegations_state"),
    sa.Index("delegations_owed", "turn_id", **partial("state = 'owed'")),
)

# Fires that wait in the inbox of an agent in a terminal, and how they ended.
deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("key", TEXT, primary_key=True),
    sa.Column("digest", TEXT, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False, unique=True),  # the id in the receipt, which no turn has
    *texts("thread_id", "channel", "agent"),
    sa.Column("name", TEXT, nullable=False),  # the envelope's name when it was put
    sa.Column("fire_id", TEXT, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    *texts("task_name", "state", "reason"),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("settled_at_us", sa.BigInteger),
    sa.CheckConstraint("state IN ('waiting', 'delivered', 'cancelled', 'failed')", name="deliveries_state"),
    sa.Index("deliveries_waiting", "agent", **partial("state = 'waiting'")),
)

# The inboxes of agents in terminals, if machines share the store; on a single machine they are folders.
inboxes = sa.Table(
    "inboxes",
    metadata,
    sa.Column("agent", TEXT, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # rises with each reader
    sa.Column("reader", TEXT, nullable=False),  # the reader's name in messages
    sa.Column("until_us", sa.BigInteger, nullable=False),  # when its lease ends, by the database's clock
)
inbox_envelopes = sa.Table(
    "inbox_envelopes",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),  # the order in which they are read
    *texts("agent", "key"),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("reason", TEXT, nullable=False, server_default=""),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("state IN ('waiting', 'claimed', 'delivered', 'quarantined')", name="inbox_envelopes_state"),
    sa.Index("inbox_envelopes_by_key", "agent", "key", unique=True),
    sa.Index("inbox_envelopes_by_state", "agent", "state", "number"),
    **NEVER_AGAIN,
)

# Handoffs from one session of an agent to the next. From its start on, a turn owns its handoffs.
handoffs = sa.Table(
    "handoffs",
    metadata,
    sa.Column("key", TEXT, primary_key=True),  # the envelope's key, so that a repeat is not added; `mail.FOR_AUTHOR`
    *texts("agent", "kind", "sender", "text"),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),  # the turn that has the handoff; empty while the handoff waits
    sa.CheckConstraint("kind IN ('handoff', 'notes')", name="handoffs_kind"),
    sa.Index("handoffs_waiting", "agent", **partial("turn_id = ''")),
    sa.Index("handoffs_by_turn", "turn_id"),
)


_ORIGINS = "origin IN ('authored', 'agent-produced', 'imported', 'observed')"
_PROVENANCE = "origin <> 'agent-produced' OR turn_id <> ''"
_DECIDED = "(lifecycle = 'candidate') = (decided_at_us IS NULL) AND (lifecycle = 'candidate') = (decided_by = '')"


def _decision_columns() -> list[sa.Column[Any]]:
    """Return the columns for the proposing agent and turn, and for the author's decision."""
    return [
        *texts("turn_id", "thread_id", "agent", "task_name"),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("decided_at_us", sa.BigInteger),
        *texts("decided_by", "note"),
    ]


pages = sa.Table(
    "pages",
    metadata,
    sa.Column("page_id", TEXT, primary_key=True),
    *texts("title", "body"),
    sa.Column("tags", TEXT, nullable=False),  # a JSON array, sorted
    *texts("origin", "lifecycle"),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),  # the turn of the agent that produced it; empty if an author wrote it
    sa.Column("candidate_id", TEXT, nullable=False),  # the accepted proposal that became it; empty for an author's page
    sa.Column("updated_by", TEXT, nullable=False),
    sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint(_ORIGINS, name="pages_origin"),
    sa.CheckConstraint("lifecycle IN ('draft', 'canonical')", name="pages_lifecycle"),
    sa.CheckConstraint(_PROVENANCE, name="pages_provenance"),
    sa.CheckConstraint("origin <> 'agent-produced' OR candidate_id <> ''", name="pages_accepted"),
)

# Earlier versions of pages: an accepted proposal never destroys an author's text.
page_versions = sa.Table(
    "page_versions",
    metadata,
    sa.Column("page_id", TEXT, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True),
    *texts("title", "body", "tags", "origin", "lifecycle", "turn_id", "candidate_id", "updated_by"),
    sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint(_ORIGINS, name="page_versions_origin"),
)

candidates = sa.Table(
    "candidates",
    metadata,
    sa.Column("candidate_id", TEXT, primary_key=True),
    *texts("kind", "channel"),
    sa.Column("page_id", TEXT, nullable=False),  # the page that the proposal would become; empty for a summary
    sa.Column(
        "base_version", sa.BigInteger, nullable=False
    ),  # the version of that page when this was proposed; 0 if there was none
    *texts("title", "body", "tags", "origin", "lifecycle"),
    *_decision_columns(),
    sa.CheckConstraint("kind IN ('candidate-page', 'candidate-summary')", name="candidates_kind"),
    sa.CheckConstraint(_ORIGINS, name="candidates_origin"),
    sa.CheckConstraint("lifecycle IN ('candidate', 'canonical', 'rejected')", name="candidates_lifecycle"),
    sa.CheckConstraint(_PROVENANCE, name="candidates_provenance"),
    sa.CheckConstraint(_DECIDED, name="candidates_decided"),
    sa.Index("candidates_by_channel", "channel", "created_at_us"),
    sa.Index("candidates_by_turn", "turn_id"),
)

# The sources of a candidate when it was proposed: a page of the workspace and its version, or a web address.
derivations = sa.Table(
    "derivations",
    metadata,
    sa.Column("candidate_id", TEXT, primary_key=True),
    sa.Column("source", TEXT, primary_key=True),
    sa.Column("page_version", sa.BigInteger, nullable=False),  # 0 for an address
    sa.CheckConstraint("page_version >= 0 AND (page_version = 0) = (source LIKE '%://%')", name="derivations_version"),
    sa.Index("derivations_by_source", "source", "page_version"),
)

memory = sa.Table(
    "memory",
    metadata,
    sa.Column("entry_id", TEXT, primary_key=True),
    sa.Column("tier", TEXT, nullable=False),
    sa.Column("owner", TEXT, nullable=False),  # the thread or the channel; empty for a tier that exists once
    *texts("key", "text"),
    sa.Column("form", TEXT, nullable=False),  # json: the text of an object that a graph stored
    *texts("origin", "written_by"),
    sa.Column("turn_id", TEXT, nullable=False),  # empty if an author wrote the entry
    *numbers("created_at_us", "updated_at_us"),
    sa.Column("via", TEXT, nullable=False, server_default=""),  # the program that an author wrote it with
    sa.CheckConstraint("tier IN ('conversation', 'channel', 'workspace', 'account')", name="memory_tier"),
    sa.CheckConstraint("(tier IN ('conversation', 'channel')) = (owner <> '')", name="memory_owner"),
    sa.CheckConstraint("form IN ('text', 'json')", name="memory_form"),
    sa.CheckConstraint("origin IN ('authored', 'agent-produced')", name="memory_origin"),
    sa.CheckConstraint("written_by <> '' AND (origin = 'authored') = (turn_id = '')", name="memory_provenance"),
    sa.Index("memory_by_owner", "tier", "owner", "key", unique=True),
    sa.Index("memory_by_age", "tier", "owner", "updated_at_us"),
)

# One row for each write of a tool call: a repeated call gets its result from here.
effects = sa.Table(
    "effects",
    metadata,
    sa.Column("effect_key", TEXT, primary_key=True),
    *texts("turn_id", "scope", "result_json"),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Index("effects_by_turn", "turn_id"),
)


# The sources of a page at its last check, named by its author or by the accepted candidate. They show which pages to
# check again after a change.
page_links = sa.Table(
    "page_links",
    metadata,
    sa.Column("page_id", TEXT, primary_key=True),
    sa.Column("source", TEXT, primary_key=True),  # another page, or an address on the web
    sa.Column("page_version", sa.BigInteger, nullable=False),  # 0 for an address
    sa.CheckConstraint("page_version >= 0 AND (page_version = 0) = (source LIKE '%://%')", name="page_links_version"),
    sa.CheckConstraint("page_id <> source", name="page_links_other"),
    sa.Index("page_links_by_source", "source"),
)

# Contradictions of canonical pages. Only an author closes a contradiction.
deviations = sa.Table(
    "deviations",
    metadata,
    sa.Column("deviation_id", TEXT, primary_key=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("channel", TEXT, nullable=False),  # the channel of the conversation that shows it
    sa.Column("page_id", TEXT, nullable=False),  # the canonical page
    sa.Column("page_version", sa.BigInteger, nullable=False),
    sa.Column("says", TEXT, nullable=False),  # the statement of that page
    sa.Column("found", TEXT, nullable=False),  # the contradicting statement
    sa.Column("source", TEXT, nullable=False),  # the page or address of that statement; empty: the candidate
    sa.Column("candidate_id", TEXT, nullable=False),  # the proposal concerned; empty for none
    sa.Column("why", TEXT, nullable=False),  # the agent's comment
    sa.Column("origin", TEXT, nullable=False),  # agent-produced: by a tool; observed: by the boundary
    sa.Column("lifecycle", TEXT, nullable=False),
    *_decision_columns(),
    sa.CheckConstraint("kind IN ('contradiction', 'stale-base')", name="deviations_kind"),
    sa.CheckConstraint("origin IN ('agent-produced', 'observed')", name="deviations_origin"),
    sa.CheckConstraint("lifecycle IN ('open', 'kept', 'accepted')", name="deviations_lifecycle"),
    sa.CheckConstraint("turn_id <> '' AND agent <> ''", name="deviations_provenance"),
    sa.CheckConstraint(
        "(lifecycle = 'open') = (decided_at_us IS NULL) AND (lifecycle = 'open') = (decided_by = '')",
        name="deviations_decided",
    ),
    sa.Index("deviations_by_channel", "channel", "created_at_us"),
    sa.Index("deviations_by_turn", "turn_id"),
    sa.Index("deviations_by_candidate", "candidate_id"),
    # An open contradiction is recorded once, or once for each candidate, because an author decides each separately.
    sa.Index(
        "deviations_open", *("page_id", "says", "found", "candidate_id"), unique=True, **partial("lifecycle = 'open'")
    ),
)

# Pages to check against their sources, because a source changed. If a source changes again, a new item replaces the old
# item, so that a verdict about the earlier text cannot settle the new item.
revalidations = sa.Table(
    "revalidations",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("page_id", TEXT, nullable=False),
    sa.Column("cause", TEXT, nullable=False),  # the page that changed
    sa.Column("cause_version", sa.BigInteger, nullable=False),
    sa.Column("via", TEXT, nullable=False),  # the page's own source that leads to the cause, or the cause itself
    *texts("state", "result"),
    sa.Column("turn_id", TEXT, nullable=False),  # the turn that settled the item
    sa.Column("note", TEXT, nullable=False),
    sa.Column("queued_at_us", sa.BigInteger, nullable=False),
    sa.Column("settled_at_us", sa.BigInteger),
    sa.CheckConstraint("state IN ('waiting', 'settled', 'replaced')", name="revalidations_state"),
    sa.CheckConstraint("result IN ('', 'holds', 'deviation', 'candidate')", name="revalidations_result"),
    sa.CheckConstraint(
        "(state = 'settled') = (result <> '') AND (state = 'settled') = (turn_id <> '') "
        "AND (state = 'settled') = (settled_at_us IS NOT NULL)",
        name="revalidations_settled",
    ),
    sa.Index("revalidations_waiting", "page_id", "cause", unique=True, **partial("state = 'waiting'")),
    **NEVER_AGAIN,
)

# Files attached to pages; only an author attaches a file.
attachments = sa.Table(
    "attachments",
    metadata,
    sa.Column("page_id", TEXT, primary_key=True),
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("content_type", TEXT, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("sha256", TEXT, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    *texts("origin", "lifecycle", "added_by"),
    sa.Column("added_at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("origin IN ('authored', 'imported')", name="attachments_origin"),
    sa.CheckConstraint("lifecycle = 'canonical'", name="attachments_lifecycle"),
    sa.CheckConstraint("size = length(data) AND added_by <> ''", name="attachments_size"),
)

# The chain of hashes over the ends of turns, the author's decisions, and accepted proposals.
audit = Chain(table_of(metadata), "agent-runtime")

# The envelopes that wait for threads, and the owners of threads, if several machines share the store.
envelopes, threads, owners = tables_of(metadata)
handover = Handover(envelopes, owners, cancels)
