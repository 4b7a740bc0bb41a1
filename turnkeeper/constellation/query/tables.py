"""The tables of `turnkeeper query`: their names, the meaning of a row, and their columns; pure.

The names are stable, although the columns of the stores may change. A column with texts of people, models or tools is a
:class:`Text`, and is null unless the author allows it. Instants are texts, RFC 3339 in UTC; durations are seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

TRAIL = "trail"  # the temporary table with the lines of the trails


@dataclass(frozen=True)
class Text:
    """A column that is hidden unless the author allows it."""

    sql: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that a query can read.

    Attributes:
        row: the meaning of one row.
        rows: the source of the rows, in SQL.
        columns: the SQL of each column, by name.
        copied: True if its rows are copied when needed, because the source also contains hidden texts.
        trails: the prefixes of the names of its trail files; empty for a table of a store.
    """

    row: str
    rows: str
    columns: Mapping[str, str | Text]
    copied: bool = False
    trails: tuple[str, ...] = ()

    def select(self, *, texts: bool) -> str:
        shown = (
            f"{(column.sql if texts else 'NULL') if isinstance(column, Text) else column} AS {name}"
            for name, column in self.columns.items()
        )
        return f"SELECT {', '.join(shown)} FROM {self.rows}"  # noqa: S608  nothing of it comes from outside


def _at(column: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {column} / 1000000.0, 'unixepoch')"


def _span(start: str, end: str) -> str:
    return f"({end} - {start}) / 1000000.0"


def _json(column: str, *names: str) -> dict[str, str]:
    return {name: f"json_extract({column}, '$.{name}')" for name in names}


_FIELD = "json_extract(fields, '$.{}')"
_SCHEDULE = "json_extract(definition, '$.schedule.{}')"
_TASK = {"task_id": "id", "name": "name", "state": "state", "reason": "reason", "category": "category"}
_TOLD = {"at": _at("at_us"), "event": "event", "process": "process"}
# A start that fails before it is verified has its own event. The end of a verified process follows from the next event:
# the watchdog starts another process, or stops trying.
_CRASHES = """(
    SELECT at_us, process, iif(event = 'revive.failed', id, id_before) AS start_id,
        iif(event = 'revive.failed', served, 1) AS served, error
    FROM (
        SELECT at_us, event, json_extract(fields, '$.daemon') AS process, json_extract(fields, '$.id') AS id,
            json_extract(fields, '$.served') AS served, json_extract(fields, '$.crashed') AS crashed,
            json_extract(fields, '$.reason') AS error, lag(event) OVER earlier AS event_before,
            lag(json_extract(fields, '$.id')) OVER earlier AS id_before
        FROM trail WHERE event IN ('revive.failed', 'daemon.started', 'daemon.lost', 'crashloop.suspected')
        WINDOW earlier AS (PARTITION BY json_extract(fields, '$.daemon') ORDER BY at_us, rowid)
    )
    WHERE event = 'revive.failed'
        OR (crashed OR event IN ('daemon.lost', 'crashloop.suspected')) AND event_before IS NOT 'revive.failed'
) AS c LEFT JOIN trail AS s ON s.source = 'restart-status' AND json_extract(s.fields, '$.id') = c.start_id"""

_DISPATCHES = """(
    SELECT turn_id, 'message' AS kind, sender, agent, nullif(parent, '') AS from_turn, NULL AS fire_id, state,
        NULL AS reason, NULL AS at_us, NULL AS settled_at_us FROM agent.delegations
    UNION ALL SELECT turn_id, 'fire', 'task-runner', agent, NULL, fire_id, state, reason, at_us, settled_at_us
        FROM agent.deliveries
)"""

TABLES = {
    "tasks": Table(
        row="a task, even if it was deleted",
        rows="schedules.tasks",
        columns={
            **_TASK,
            "channel": "channel",
            **_json("definition", "agent", "thread_id", "graph"),
            "created_at": _at("created_us"),
            "fires": "fires",
            "missed": "missed",
            "failures_in_a_row": "failures",
            "made_by": "made_by",
            "prompt": Text("json_extract(definition, '$.prompt')"),
        },
        copied=True,
    ),
    "schedules": Table(
        row="when a task fires, and how its missed times are handled",
        rows="schedules.tasks",
        columns={
            "task_id": "id",
            "task": "name",
            "kind": _SCHEDULE.format("kind"),
            "expression": _SCHEDULE.format("text"),
            **_json("definition", "timezone", "catch_up", "overlap", "retries"),
            "planned_up_to": _at("cursor_us"),
            "next_look_at": _at("wake_us"),
        },
        copied=True,
    ),
    "loops": Table(
        row="a task that `loop create` or an agent's tool made",
        rows="schedules.tasks WHERE id LIKE 'loop-%'",
        columns={
            **_TASK,
            "channel": "channel",
            "expression": _SCHEDULE.format("text"),
            "made_by": "made_by",
            "fires": "fires",
            "created_at": _at("created_us"),
        },
        copied=True,
    ),
    "fires": Table(
        row="an entry of the ledger: a fire, or scheduled times that did not fire",
        rows="schedules.fires AS f LEFT JOIN schedules.tasks AS t ON t.id = f.task_id",
        columns={
            "entry_id": "f.entry_id",
            "fire_id": "f.fire_id",
            "task_id": "f.task_id",
            "task": "t.name",
            "kind": "f.kind",
            "outcome": "f.outcome",
            "reason": "f.reason",
            "scheduled_at": _at("f.nominal_us"),
            "due_at": _at("f.due_us"),
            "sent_at": _at("f.fired_us"),
            "accepted_at": _at("f.accepted_us"),
            "started_at": _at("f.started_us"),
            "ended_at": _at("f.ended_us"),
            "late_s": _span("f.due_us", "f.fired_us"),
            "took_s": _span("f.started_us", "f.ended_us"),
            "covers": "f.covers",
            "attempt": "f.attempt",
            "catch_up": "f.policy",
            "caught_up": "f.caught_up",
            "turn_id": "f.turn_id",
            "tokens": "f.tokens",
        },
    ),
    "turns": Table(
        row="a turn",
        rows="agent.turns",
        columns={
            **{name: name for name in ("turn_id", "thread_id", "channel", "agent", "category")},
            "trigger": "CASE WHEN kind IN ('agent', 'agent-for-fire') THEN 'agent' ELSE trigger END",
            "status": "status",
            "fire_id": "nullif(fire_id, '')",
            "attempt": "attempt",
            "task_id": "nullif(task_id, '')",
            "task": "nullif(task_name, '')",
            "started_at": _at("started_at_us"),
            "ended_at": _at("ended_at_us"),
            "took_s": _span("started_at_us", "ended_at_us"),
            "tokens_in": "tokens_in",
            "tokens_out": "tokens_out",
            "error": "error",
            "prompt": Text("prompt"),
            "summary": Text("summary"),
        },
    ),
    "turn_models": Table(
        row="a model whose tokens a turn used; the name of an unknown model is empty",
        rows="agent.turns t, json_each(CASE WHEN t.models_json = '' THEN json_object('', json_object("
        "'tokens_in', t.tokens_in, 'tokens_out', t.tokens_out)) ELSE t.models_json END) m"
        " WHERE t.tokens_in + t.tokens_out > 0",
        columns={
            "turn_id": "t.turn_id",
            "task": "nullif(t.task_name, '')",
            "started_at": _at("t.started_at_us"),
            "model": "m.key",
            "tokens_in": "json_extract(m.value, '$.tokens_in')",
            "tokens_out": "json_extract(m.value, '$.tokens_out')",
        },
    ),
    "messages": Table(
        row="a message of a conversation: a prompt, words of the agent, a tool's answer",
        rows="agent.messages",
        columns={
            "turn_id": "turn_id",
            "position": "position",
            "role": "role",
            "at": _at("at_us"),
            "answers_call": "nullif(tool_call_id, '')",
            "text": Text("text"),
        },
    ),
    "tool_calls": Table(
        row="a tool call that a model requested, even if it was refused",
        rows="agent.messages AS m, json_each(m.tool_calls_json) AS c WHERE m.tool_calls_json <> ''",
        columns={
            "turn_id": "m.turn_id",
            "call_id": "json_extract(c.value, '$.id')",
            "tool": "json_extract(c.value, '$.name')",
            "at": _at("m.at_us"),
            "arguments": Text("json_extract(c.value, '$.args')"),
        },
        copied=True,
    ),
    "approvals": Table(
        row="a question to the author, and the answer",
        rows="agent.interrupts",
        columns={
            **{name: name for name in ("interrupt_id", "turn_id", "thread_id", "channel", "kind", "tool")},
            **{name: name for name in ("missing_scope", "status", "decision", "decided_by")},
            "asked_at": _at("created_at_us"),
            "decided_at": _at("resolved_at_us"),
            "waited_s": _span("created_at_us", "resolved_at_us"),
            "question": Text("question"),
            "arguments": Text("args_json"),
            "answer": Text("message"),
        },
    ),
    "dispatches": Table(
        row="work that was forwarded: a message from one agent to another, or a fire for an agent in a terminal",
        rows=_DISPATCHES,
        columns={
            **{name: name for name in ("turn_id", "kind", "sender", "agent", "from_turn", "fire_id", "state")},
            "sent_at": _at("at_us"),
            "settled_at": _at("settled_at_us"),
            "reason": Text("reason"),
        },
        copied=True,
    ),
    "pages": Table(
        row="a page of the workspace as it is now",
        rows="agent.pages",
        columns={
            **{name: name for name in ("page_id", "lifecycle", "origin", "version", "updated_by")},
            "turn_id": "nullif(turn_id, '')",
            "candidate_id": "nullif(candidate_id, '')",
            "updated_at": _at("updated_at_us"),
            "title": Text("title"),
            "body": Text("body"),
        },
    ),
    "proposals": Table(
        row="a page or a summary that an agent proposed, and the author's decision",
        rows="agent.candidates",
        columns={
            **{name: name for name in ("candidate_id", "kind", "channel", "lifecycle", "turn_id", "agent")},
            "page_id": "nullif(page_id, '')",
            "task": "nullif(task_name, '')",
            "proposed_at": _at("created_at_us"),
            "decided_at": _at("decided_at_us"),
            "decided_by": "nullif(decided_by, '')",
            "title": Text("title"),
            "body": Text("body"),
            "note": Text("note"),
        },
    ),
    "memory": Table(
        row="an entry of the agents' memory",
        rows="agent.memory",
        columns={
            **{name: name for name in ("entry_id", "tier", "owner", "form", "origin", "written_by")},
            "turn_id": "nullif(turn_id, '')",
            "created_at": _at("created_at_us"),
            "updated_at": _at("updated_at_us"),
            "key": Text("key"),
            "text": Text("text"),
        },
    ),
    "tokens": Table(
        row="the tokens that all turns used on a day",
        rows="(SELECT substr(day, 1, 10) AS day, sum(tokens) AS tokens FROM agent.token_days GROUP BY 1)",
        columns={"day": "day", "tokens": "tokens"},
    ),
    "restarts": Table(
        row="a start of a process by the supervisor: the newest phase that it reached",
        rows=TRAIL + " WHERE source = 'restart-status'",
        columns={
            "at": _at("at_us"),
            **{name: _FIELD.format(name) for name in ("id", "phase", "pid", "error")},
            "process": _FIELD.format("daemon"),
        },
        trails=("restart-status",),
    ),
    "findings": Table(
        row="what the watchdog found or did",
        rows=TRAIL + " WHERE source = 'trail' AND process = 'watchdog'",
        columns={
            "at": _at("at_us"),
            "event": "event",
            "process": _FIELD.format("daemon"),
            **{name: _FIELD.format(name) for name in ("reason", "id")},
        },
        trails=("events-watchdog",),
    ),
    "crashes": Table(
        row="an unplanned end of a process, as the watchdog saw it",
        rows=_CRASHES,
        columns={
            "at": _at("c.at_us"),
            "process": "c.process",
            "start_id": "c.start_id",
            "had_served": "c.served",
            "error": "coalesce(nullif(json_extract(s.fields, '$.error'), ''), c.error)",
        },
        trails=("events-watchdog", "restart-status"),
    ),
    "acks": Table(
        row="an envelope that was received",
        rows=TRAIL + " WHERE source = 'acks'",
        columns={
            "at": _at("at_us"),
            "ack_id": _FIELD.format("id"),
            **{name: _FIELD.format(name) for name in ("envelope", "name", "agent", "kind", "requires_ack")},
            "sender": _FIELD.format("from"),
            "thread_id": f"nullif({_FIELD.format('thread')}, '')",
        },
        trails=("channel-acks",),
    ),
    "calls": Table(
        row="a request by a command or a call, done or refused",
        rows=TRAIL + " WHERE event IN ('act.done', 'act.refused')",
        columns={
            **_TOLD,
            "outcome": "substr(event, 5)",
            **{name: _FIELD.format(name) for name in ("method", "subject", "via", "reason")},
        },
        trails=("events-",),
    ),
    "events": Table(
        row="a line of a trail, with its fields as JSON",
        rows=TRAIL + " WHERE source = 'trail'",
        columns={
            **_TOLD,
            **{name: _FIELD.format(name) for name in ("fire_id", "turn_id", "thread_id", "task_id")},
            "fields": "fields",
        },
        trails=("events-",),
    ),
}


def described() -> str:
    """Return the tables in the form of the documentation."""
    lines = ["| table | a row is | columns |", "| --- | --- | --- |"]
    for name, table in TABLES.items():
        columns = (f"*{key}*" if isinstance(value, Text) else f"`{key}`" for key, value in table.columns.items())
        lines.append(f"| `{name}` | {table.row} | {', '.join(columns)} |")
    return "\n".join(lines) + "\n"
