"""The tables of `agent.db`: first the turns', then the workspace's.

Instants are integer microseconds since 1970 in UTC. JSON is text with sorted keys. Empty strings stand for "none", so
that no column of text is null.

The constraints of the workspace's tables hold what the submit boundary promises, whoever writes. No row exists without
an origin and a lifecycle. None that an agent produced is canonical unless the same row holds an author's decision.
"""

from typing import Any

import sqlalchemy as sa

from turnkeeper.storage.chain import Chain, table_of
from turnkeeper.storage.server.handover import Handover, tables_of
from turnkeeper.storage.statements import NEVER_AGAIN, NUMBER, TEXT, partial

metadata = sa.MetaData()
_STATUSES = "'running', 'interrupted', 'paused', 'succeeded', 'silent', 'failed', 'cancelled'"

# Facts about the file itself: `incarnation` (random, of this store) and `epoch` (counts the processes that owned it).
meta = sa.Table("meta", metadata, sa.Column("key", TEXT, primary_key=True), sa.Column("value", TEXT, nullable=False))

# One row for each turn, written in one transaction with its key before the turn starts.
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),  # in the order in which turns began
    sa.Column("turn_id", TEXT, nullable=False, unique=True),
    sa.Column("thread_id", TEXT, nullable=False),
    sa.Column("channel", TEXT, nullable=False),
    sa.Column("agent", TEXT, nullable=False),
    sa.Column("category", TEXT, nullable=False),
    sa.Column("grant_json", TEXT, nullable=False),  # the category as it was at acceptance
    sa.Column("trigger", TEXT, nullable=False),
    sa.Column("status", TEXT, nullable=False),
    sa.Column("visible", sa.Boolean, nullable=False),  # shown in the conversation; a silent turn is not
    sa.Column("fire_id", TEXT, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("task_id", TEXT, nullable=False),
    sa.Column("task_name", TEXT, nullable=False),
    sa.Column("kind", TEXT, nullable=False),  # of the fire
    sa.Column("prompt", TEXT, nullable=False),
    sa.Column("payload_json", TEXT, nullable=False),
    sa.Column("read_only", sa.Boolean, nullable=False),
    sa.Column("nominal_at_us", sa.BigInteger),
    sa.Column("due_at_us", sa.BigInteger),
    sa.Column("fired_at_us", sa.BigInteger),
    sa.Column("timezone", TEXT, nullable=False),
    sa.Column("catch_up", TEXT, nullable=False),
    sa.Column("stands_for", sa.BigInteger, nullable=False),
    sa.Column("first_nominal_at_us", sa.BigInteger),
    sa.Column("last_nominal_at_us", sa.BigInteger),
    sa.Column("traceparent", TEXT, nullable=False),
    sa.Column("started_at_us", sa.BigInteger, nullable=False),
    sa.Column("ended_at_us", sa.BigInteger),
    sa.Column("summary", TEXT, nullable=False),
    sa.Column("error", TEXT, nullable=False),
    sa.Column("answers_json", TEXT, nullable=False),  # {interrupt id: value} given by the newest resume; empty: none
    sa.Column("resumes", TEXT, nullable=False),  # the paused turn whose interrupt this one resumed
    sa.Column("after_message", TEXT, nullable=False),  # the message after which this turn's messages begin
    sa.Column("paused_until_us", sa.BigInteger),
    sa.Column(
        "tries", sa.BigInteger, nullable=False
    ),  # intervals begun since the last start or resume, drained ones aside
    sa.Column("epoch", sa.BigInteger, nullable=False),  # of the process that ran the newest interval
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("wake_after_s", sa.BigInteger),  # when the graph asked to be woken, counted from the turn's end
    # How long its approvals wait, from when they are asked: until a reminder, an alert, their end; 0 for never.
    sa.Column("approval_reminder_s", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("approval_escalation_s", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("approval_timeout_s", sa.BigInteger, nullable=False, server_default="0"),
    # What it runs: the name of a graph, empty for the default one, and JSON objects that the graph is given, or empty.
    sa.Column("graph", TEXT, nullable=False, server_default=""),
    sa.Column("context_json", TEXT, nullable=False, server_default=""),
    sa.Column("config_json", TEXT, nullable=False, server_default=""),
    sa.Column("input_json", TEXT, nullable=False, server_default=""),
    sa.Column("via", TEXT, nullable=False, server_default=""),  # of an author's, by what it came: PROGRAM/SURFACE/KEY
    sa.CheckConstraint(f"status IN ({_STATUSES})", name="turns_status"),
    sa.CheckConstraint("trigger IN ('fire', 'author')", name="turns_trigger"),
    sa.CheckConstraint("(trigger = 'fire') = (fire_id <> '')", name="turns_fire"),
    sa.Index("turns_by_thread", "thread_id", "number"),
    sa.Index("turns_by_channel", "channel", "number"),
    sa.Index("turns_by_status", "status"),
)

# What an author said about threads, also before their first turn. A thread of which nothing was said has no row.
thread_records = sa.Table(
    "thread_records",
    metadata,
    sa.Column("thread_id", TEXT, primary_key=True),
    sa.Column("channel", TEXT, nullable=False),
    sa.Column("metadata_json", TEXT, nullable=False),  # a JSON object
    sa.Column("via", TEXT, nullable=False),  # by what it was last put
    sa.Column("created_at_us", sa.BigInteger, nullable=False),
    sa.Column("updated_at_us", sa.BigInteger, nullable=False),
)

# What has been taken, for ever: the authority on duplicates.
keys = sa.Table(
    "keys",
    metadata,
    sa.Column("key", TEXT, primary_key=True),
    sa.Column("digest", TEXT, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False, unique=True),
    sa.Column("thread_id", TEXT, nullable=False),
    sa.Column("fire_id", TEXT, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("became", TEXT, nullable=False),
    sa.Column("into", TEXT, nullable=False),  # the turn that took it as its answer; of what was refused, the field
    sa.Column("released", sa.Boolean, nullable=False),  # a held fire whose thread has been released since
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("became IN ('turn', 'held', 'kept', 'answer', 'refused')", name="keys_became"),
    sa.Index("keys_by_thread", "thread_id", "became", "released"),
    sa.Index("keys_by_fire", "fire_id", "attempt"),
)

# Author messages that wait until their thread is released, whole.
kept_messages = sa.Table(
    "kept_messages",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("key", TEXT, nullable=False, unique=True),
    sa.Column("thread_id", TEXT, nullable=False),
    sa.Column("trigger_json", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Index("kept_messages_by_thread", "thread_id", "number"),
)

# Cancels, written before they are acknowledged; also of turns that have not started.
cancels = sa.Table(
    "cancels",
    metadata,
    sa.Column("turn_id", TEXT, primary_key=True),
    sa.Column("reason", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
)

# The outcomes of turns, which the runner follows, and what became of what turns proposed. Numbers are assigned in
# commit order, by the one writer.
turn_events = sa.Table(
    "turn_events",
    metadata,
    sa.Column("sequence", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("turn_id", TEXT, nullable=False),
    sa.Column("fire_id", TEXT, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("thread_id", TEXT, nullable=False),
    sa.Column("trigger", TEXT, nullable=False),  # fire, author, answer, agent
    sa.Column("state", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("summary", TEXT, nullable=False),
    sa.Column("error", TEXT, nullable=False),
    sa.Column("held_by_json", TEXT, nullable=False),  # ids of interrupts; of a review, of what it is about
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("wake_after_s", sa.BigInteger),
    # False until a runner of several machines took it in; a runner of this machine remembers how far it read.
    sa.Column("taken", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Index("turn_events_by_turn", "turn_id", "sequence"),
    sa.Index("turn_events_left", "sequence", **partial("taken = 0")),
    **NEVER_AGAIN,
)

# What a graph asked the author, and what the author decided.
interrupts = sa.Table(
    "interrupts",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("interrupt_id", TEXT, nullable=False, unique=True),
    sa.Column("turn_id", TEXT, nullable=False),
    sa.Column("thread_id", TEXT, nullable=False),
    sa.Column("channel", TEXT, nullable=False),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("tool", TEXT, nullable=False),
    sa.Column("args_json", TEXT, nullable=False),
    sa.Column("args_hash", TEXT, nullable=False),
    sa.Column("call_id", TEXT, nullable=False),
    sa.Column("missing_scope", TEXT, nullable=False),
    sa.Column("question", TEXT, nullable=False),
    sa.Column("allows_text", sa.Boolean, nullable=False),
    sa.Column("status", TEXT, nullable=False),
    sa.Column("decision", TEXT, nullable=False),
    sa.Column("message", TEXT, nullable=False),  # the author's reason or answer
    sa.Column("edited_json", TEXT, nullable=False),  # the arguments that the author gave instead
    sa.Column("applied", sa.Boolean, nullable=False),  # the graph has gone on with the decision
    sa.Column("created_at_us", sa.BigInteger, nullable=False),
    sa.Column("resolved_at_us", sa.BigInteger),
    # When the author is to be reminded of it and when he was; likewise of an alert; when it ends unanswered.
    sa.Column("remind_at_us", sa.BigInteger),
    sa.Column("reminded_at_us", sa.BigInteger),
    sa.Column("escalate_at_us", sa.BigInteger),
    sa.Column("escalated_at_us", sa.BigInteger),
    sa.Column("expires_at_us", sa.BigInteger),
    sa.Column("decided_by", TEXT, nullable=False, server_default=""),  # PROGRAM/SURFACE/KEY
    # Of a tool call: digests of its tool and of each argument, and why it can be approved only each time.
    sa.Column("tool_hash", TEXT, nullable=False, server_default=""),
    sa.Column("arg_hashes_json", TEXT, nullable=False, server_default=""),
    sa.Column("once_only", TEXT, nullable=False, server_default="an earlier version asked about it"),
    sa.Column("exception", sa.BigInteger, nullable=False, server_default="0"),  # given with the decision, or behind it
    sa.CheckConstraint("kind IN ('permission', 'proposal', 'question', 'pause')", name="interrupts_kind"),
    sa.CheckConstraint("status IN ('pending', 'resolved', 'void')", name="interrupts_status"),
    sa.Index("interrupts_by_turn", "turn_id", "number"),
    sa.Index("interrupts_by_status", "status"),
)

# Calls of tasks that their author allowed from now on. Their numbers are theirs for ever.
exceptions = sa.Table(
    "exceptions",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("interrupt_id", TEXT, nullable=False),  # with whose approval it was given
    sa.Column("task_id", TEXT, nullable=False),
    sa.Column("task_name", TEXT, nullable=False),
    # As in that question; of an argument in `any_value` only the name counts.
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("tool", TEXT, nullable=False),
    sa.Column("missing_scope", TEXT, nullable=False),
    sa.Column("args_json", TEXT, nullable=False),
    sa.Column("args_hash", TEXT, nullable=False),
    sa.Column("tool_hash", TEXT, nullable=False),
    sa.Column("arg_hashes_json", TEXT, nullable=False),
    sa.Column("any_value_json", TEXT, nullable=False),
    sa.Column("category", TEXT, nullable=False),
    sa.Column("category_json", TEXT, nullable=False),  # what it granted then
    sa.Column("given_by", TEXT, nullable=False),  # PROGRAM/SURFACE/KEY
    sa.Column("given_at_us", sa.BigInteger, nullable=False),
    sa.Column("uses", sa.BigInteger, nullable=False),
    sa.Column("last_used_at_us", sa.BigInteger),
    sa.Column("ended_at_us", sa.BigInteger),
    sa.Column("ended_by", TEXT, nullable=False),
    sa.Column("ended_why", TEXT, nullable=False),
    sa.CheckConstraint("(ended_at_us IS NULL) = (ended_why = '')", name="exceptions_ended"),
    sa.CheckConstraint("task_id <> ''", name="exceptions_task"),
    sa.Index("exceptions_of_task", "task_id", **partial("ended_at_us IS NULL")),
    **NEVER_AGAIN,
)

# The conversation, as it was produced. A replayed step writes the same positions again, never new ones.
messages = sa.Table(
    "messages",
    metadata,
    sa.Column("turn_id", TEXT, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True),  # 0 is the prompt; see POSITIONS_APART in turn_writes.py
    sa.Column("role", TEXT, nullable=False),
    sa.Column("text", TEXT, nullable=False),
    sa.Column("tool_calls_json", TEXT, nullable=False),  # a JSON array of {id, name, args}; empty: none
    sa.Column("tool_call_id", TEXT, nullable=False),  # of the call that a tool's message answers
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("role IN ('author', 'agent', 'tool', 'trigger')", name="messages_role"),
)

# What happens inside turns, for tasks that an event triggers. The turn's own row holds the rest. Numbers are assigned
# in commit order, by the one writer, and never again.
bridged_events = sa.Table(
    "bridged_events",
    metadata,
    sa.Column("sequence", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("key", TEXT, unique=True),  # null where the turn's own row changes with it: it comes once
    sa.Column("name", TEXT, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("tool", TEXT, nullable=False),
    sa.Column("data_json", TEXT, nullable=False),
    **NEVER_AGAIN,
)

# What all turns together used on a day: the sum of what each turn's row grew by.
token_days = sa.Table(
    "token_days",
    metadata,
    sa.Column("day", TEXT, primary_key=True),  # as 2026-11-21
    sa.Column("tokens", sa.BigInteger, nullable=False),
)

# Messages between agents: one row for each turn that answers one, written with the turn.
delegations = sa.Table(
    "delegations",
    metadata,
    sa.Column("turn_id", TEXT, primary_key=True),
    sa.Column("sender", TEXT, nullable=False),
    sa.Column("parent", TEXT, nullable=False),  # the sender's turn
    sa.Column("agent", TEXT, nullable=False),  # whom it was sent to
    sa.Column("hops", sa.BigInteger, nullable=False),  # messages since an author or a fire
    # none: no answer is expected; open: its turn goes on; owed: it is over; answered: its answer is on disk
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
    sa.Column("turn_id", TEXT, nullable=False, unique=True),  # named in the receipt; no such turn exists
    sa.Column("thread_id", TEXT, nullable=False),
    sa.Column("channel", TEXT, nullable=False),
    sa.Column("agent", TEXT, nullable=False),
    sa.Column("name", TEXT, nullable=False),  # of the envelope, as it was put
    sa.Column("fire_id", TEXT, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("task_name", TEXT, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("reason", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("settled_at_us", sa.BigInteger),
    sa.CheckConstraint("state IN ('waiting', 'delivered', 'cancelled', 'failed')", name="deliveries_state"),
    sa.Index("deliveries_waiting", "agent", **partial("state = 'waiting'")),
)

# The inboxes of agents in terminals, where machines share the store; on one machine they are folders.
inboxes = sa.Table(
    "inboxes",
    metadata,
    sa.Column("agent", TEXT, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # rises with each reader
    sa.Column("reader", TEXT, nullable=False),  # what a person is told of it
    sa.Column("until_us", sa.BigInteger, nullable=False),  # when its lease ends, by the database's clock
)
inbox_envelopes = sa.Table(
    "inbox_envelopes",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),  # the order in which they are read
    sa.Column("agent", TEXT, nullable=False),
    sa.Column("key", TEXT, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("reason", TEXT, nullable=False, server_default=""),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("state IN ('waiting', 'claimed', 'delivered', 'quarantined')", name="inbox_envelopes_state"),
    sa.Index("inbox_envelopes_by_key", "agent", "key", unique=True),
    sa.Index("inbox_envelopes_by_state", "agent", "state", "number"),
    **NEVER_AGAIN,
)

# What one session of an agent leaves to the next. A row belongs to the turn that is shown it, from its begin on.
handoffs = sa.Table(
    "handoffs",
    metadata,
    sa.Column("key", TEXT, primary_key=True),  # of the envelope: what comes twice is one row; `mail.FOR_AUTHOR`
    sa.Column("agent", TEXT, nullable=False),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("sender", TEXT, nullable=False),
    sa.Column("text", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),  # that is shown it; empty until one is
    sa.CheckConstraint("kind IN ('handoff', 'notes')", name="handoffs_kind"),
    sa.Index("handoffs_waiting", "agent", **partial("turn_id = ''")),
    sa.Index("handoffs_by_turn", "turn_id"),
)


_ORIGINS = "origin IN ('authored', 'agent-produced', 'imported', 'observed')"
_PROVENANCE = "origin <> 'agent-produced' OR turn_id <> ''"
_DECIDED = "(lifecycle = 'candidate') = (decided_at_us IS NULL) AND (lifecycle = 'candidate') = (decided_by = '')"


def _decision_columns() -> list[sa.Column[Any]]:
    """Return the columns that say who proposed something in which turn, and how the author decided."""
    return [
        sa.Column("turn_id", TEXT, nullable=False),
        sa.Column("thread_id", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("task_name", TEXT, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("decided_at_us", sa.BigInteger),
        sa.Column("decided_by", TEXT, nullable=False),
        sa.Column("note", TEXT, nullable=False),
    ]


pages = sa.Table(
    "pages",
    metadata,
    sa.Column("page_id", TEXT, primary_key=True),
    sa.Column("title", TEXT, nullable=False),
    sa.Column("body", TEXT, nullable=False),
    sa.Column("tags", TEXT, nullable=False),  # a JSON array, sorted
    sa.Column("origin", TEXT, nullable=False),
    sa.Column("lifecycle", TEXT, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),  # of the agent that produced it; empty for an author's
    sa.Column("candidate_id", TEXT, nullable=False),  # the proposal it was accepted from; empty likewise
    sa.Column("updated_by", TEXT, nullable=False),
    sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint(_ORIGINS, name="pages_origin"),
    sa.CheckConstraint("lifecycle IN ('draft', 'canonical')", name="pages_lifecycle"),
    sa.CheckConstraint(_PROVENANCE, name="pages_provenance"),
    sa.CheckConstraint("origin <> 'agent-produced' OR candidate_id <> ''", name="pages_accepted"),
)

# What a page was before it was put or accepted anew: an accepted proposal never destroys an author's words.
page_versions = sa.Table(
    "page_versions",
    metadata,
    sa.Column("page_id", TEXT, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True),
    sa.Column("title", TEXT, nullable=False),
    sa.Column("body", TEXT, nullable=False),
    sa.Column("tags", TEXT, nullable=False),
    sa.Column("origin", TEXT, nullable=False),
    sa.Column("lifecycle", TEXT, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),
    sa.Column("candidate_id", TEXT, nullable=False),
    sa.Column("updated_by", TEXT, nullable=False),
    sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint(_ORIGINS, name="page_versions_origin"),
)

candidates = sa.Table(
    "candidates",
    metadata,
    sa.Column("candidate_id", TEXT, primary_key=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("channel", TEXT, nullable=False),
    sa.Column("page_id", TEXT, nullable=False),  # the page it would become; empty for a summary
    sa.Column(
        "base_version", sa.BigInteger, nullable=False
    ),  # of that page when it was proposed; 0 when there was none
    sa.Column("title", TEXT, nullable=False),
    sa.Column("body", TEXT, nullable=False),
    sa.Column("tags", TEXT, nullable=False),
    sa.Column("origin", TEXT, nullable=False),
    sa.Column("lifecycle", TEXT, nullable=False),
    *_decision_columns(),
    sa.CheckConstraint("kind IN ('candidate-page', 'candidate-summary')", name="candidates_kind"),
    sa.CheckConstraint(_ORIGINS, name="candidates_origin"),
    sa.CheckConstraint("lifecycle IN ('candidate', 'canonical', 'rejected')", name="candidates_lifecycle"),
    sa.CheckConstraint(_PROVENANCE, name="candidates_provenance"),
    sa.CheckConstraint(_DECIDED, name="candidates_decided"),
    sa.Index("candidates_by_channel", "channel", "created_at_us"),
    sa.Index("candidates_by_turn", "turn_id"),
)

# What a candidate was derived from, as it was then: a page of the workspace and its version, or an address on the web.
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
    sa.Column("owner", TEXT, nullable=False),  # thread, channel, or empty for the tiers of which there is one
    sa.Column("key", TEXT, nullable=False),
    sa.Column("text", TEXT, nullable=False),
    sa.Column("form", TEXT, nullable=False),  # json: the text of an object that a graph stored
    sa.Column("origin", TEXT, nullable=False),
    sa.Column("written_by", TEXT, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),  # empty for an author's
    sa.Column("created_at_us", sa.BigInteger, nullable=False),
    sa.Column("updated_at_us", sa.BigInteger, nullable=False),
    sa.Column("via", TEXT, nullable=False, server_default=""),  # of an author's, by what it came
    sa.CheckConstraint("tier IN ('conversation', 'channel', 'workspace', 'account')", name="memory_tier"),
    sa.CheckConstraint("(tier IN ('conversation', 'channel')) = (owner <> '')", name="memory_owner"),
    sa.CheckConstraint("form IN ('text', 'json')", name="memory_form"),
    sa.CheckConstraint("origin IN ('authored', 'agent-produced')", name="memory_origin"),
    sa.CheckConstraint("written_by <> '' AND (origin = 'authored') = (turn_id = '')", name="memory_provenance"),
    sa.Index("memory_by_owner", "tier", "owner", "key", unique=True),
    sa.Index("memory_by_age", "tier", "owner", "updated_at_us"),
)

# One row for each write that a tool call made: the same call, run again, finds its answer here.
effects = sa.Table(
    "effects",
    metadata,
    sa.Column("effect_key", TEXT, primary_key=True),
    sa.Column("turn_id", TEXT, nullable=False),
    sa.Column("scope", TEXT, nullable=False),
    sa.Column("result_json", TEXT, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Index("effects_by_turn", "turn_id"),
)


# What a page was derived from, as it was when the page was last held against it. An author's page may name sources,
# an accepted candidate brings its own; from here it is known what a change makes doubtful.
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

# Where something contradicts a canonical page. Nobody but an author closes one.
deviations = sa.Table(
    "deviations",
    metadata,
    sa.Column("deviation_id", TEXT, primary_key=True),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("channel", TEXT, nullable=False),  # whose conversation shows it
    sa.Column("page_id", TEXT, nullable=False),  # the canonical page
    sa.Column("page_version", sa.BigInteger, nullable=False),
    sa.Column("says", TEXT, nullable=False),  # the statement of that page
    sa.Column("found", TEXT, nullable=False),  # what contradicts it
    sa.Column("source", TEXT, nullable=False),  # where that stands: a page or an address; empty: in the candidate
    sa.Column("candidate_id", TEXT, nullable=False),  # the proposal that it is about; empty for none
    sa.Column("why", TEXT, nullable=False),  # what the agent said to it
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
    # An open contradiction is recorded once, and once for each candidate: each is decided by itself.
    sa.Index(
        "deviations_open", *("page_id", "says", "found", "candidate_id"), unique=True, **partial("lifecycle = 'open'")
    ),
)

# Pages to be held against what they were derived from, because that changed. A new change replaces an item by a new
# one, so that no verdict about the text before it can settle it.
revalidations = sa.Table(
    "revalidations",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("page_id", TEXT, nullable=False),
    sa.Column("cause", TEXT, nullable=False),  # the page that changed
    sa.Column("cause_version", sa.BigInteger, nullable=False),
    sa.Column("via", TEXT, nullable=False),  # the page's own source on the way; the cause itself if direct
    sa.Column("state", TEXT, nullable=False),
    sa.Column("result", TEXT, nullable=False),
    sa.Column("turn_id", TEXT, nullable=False),  # that settled it
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

# Files attached to pages; only an author adds one.
attachments = sa.Table(
    "attachments",
    metadata,
    sa.Column("page_id", TEXT, primary_key=True),
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("content_type", TEXT, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("sha256", TEXT, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Column("origin", TEXT, nullable=False),
    sa.Column("lifecycle", TEXT, nullable=False),
    sa.Column("added_by", TEXT, nullable=False),
    sa.Column("added_at_us", sa.BigInteger, nullable=False),
    sa.CheckConstraint("origin IN ('authored', 'imported')", name="attachments_origin"),
    sa.CheckConstraint("lifecycle = 'canonical'", name="attachments_lifecycle"),
    sa.CheckConstraint("size = length(data) AND added_by <> ''", name="attachments_size"),
)

# How turns ended, what the author decided, and which proposals he accepted, in a chain of hashes.
audit = Chain(table_of(metadata), "agent-runtime")

# What waits for threads, and who owns them, where several machines share the store.
envelopes, threads, owners = tables_of(metadata)
handover = Handover(envelopes, owners, cancels)
