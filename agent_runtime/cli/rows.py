"""The wire's messages as rows with stable JSON keys. Pure.

Short texts for tables and the conversation: instants, spans, calls, and the command that answers. Pure.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import when
from turnkeeper.times import format_rough, parse_rfc3339, rfc3339

ID_DIGITS = 10
LONGEST_ARGUMENT = 60
LONGEST_ANSWER = 1000


def shown(at: str | None) -> str:
    """Write an instant of a row for a person; `-` for none."""
    return when(parse_rfc3339(at)) if at else "-"


def span(start: str | None, end: str | None) -> str:
    """Write how long something took; `-` while it lasts.

    >>> span("2026-03-02T09:00:00Z", "2026-03-02T09:01:30Z"), span("2026-03-02T09:00:00Z", None)
    ('1m 30s', '-')
    """
    if not start or not end:
        return "-"
    took: datetime = parse_rfc3339(end)
    return format_rough((took - parse_rfc3339(start)).total_seconds())


def call_text(tool: str, args: Mapping[str, Any], *, whole: bool = False) -> str:
    """Write a tool call as a function call, long arguments shortened but for `whole`.

    >>> call_text("memory_put", {"tier": "channel", "text": "x" * 100})[:40]
    'memory_put(tier="channel", text="xxxxxxx'
    """
    texts = ((key, json.dumps(value, ensure_ascii=False)) for key, value in args.items())
    given = (f"{key}={text if whole else clipped(text, LONGEST_ARGUMENT)}" for key, text in texts)
    return f"{tool}({', '.join(given)})"


def clipped(text: str, most: int) -> str:
    r"""Return a text on one line, at most so long.

    >>> clipped("one\n  two three", 9)
    'one two …'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def answer_text(text: str) -> str:
    """Write a tool's answer in a line: of a JSON object what its fields say, and of its lists how long they are.

    >>> answer_text('{"pages": [{"page": "garden"}, {}], "more": false, "title": "Garden"}')
    'pages: 2, more: false, title: Garden'
    >>> answer_text("no such page")
    'no such page'
    """
    value = loaded(text) if text.lstrip().startswith("{") else None
    if not isinstance(value, dict) or not value:
        return clipped(text, LONGEST_ANSWER)
    return clipped(", ".join(f"{key}: {_field(one)}" for key, one in value.items()), LONGEST_ANSWER)


def _field(value: object) -> str:
    if isinstance(value, list):
        return str(len(value))
    return clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), LONGEST_ARGUMENT)


def loaded(text: str) -> Any:
    """Return what a JSON text says; an empty object where it says nothing."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}


def resolve_command(interrupt: Mapping[str, Any]) -> str:
    """Return the command that answers what an author is asked."""
    command = f"agent-runtime approvals resolve {str(interrupt['interrupt_id'])[:ID_DIGITS]}"
    return f'{command} --answer "…"' if interrupt["kind"] == "question" else f"{command} --approve"


def waiting_line(*, waiting: int, proposed: int, deviations: int) -> str:
    """Return in one line what waits for the author, and where to decide it; empty when nothing does.

    >>> waiting_line(waiting=2, proposed=1, deviations=0)
    '2 decisions waiting: agent-runtime approvals list; 1 proposal: agent-runtime triage'
    """
    parts = [f"{_many(waiting, 'decision')} waiting: agent-runtime approvals list"] if waiting else []
    open_ = [_many(number, name) for number, name in ((proposed, "proposal"), (deviations, "deviation")) if number]
    return "; ".join(parts + ([f"{' and '.join(open_)}: agent-runtime triage"] if open_ else []))


def _many(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def asked(interrupt: Mapping[str, Any], *, whole: bool = False) -> str:
    """Return in one line what an author is asked; long arguments are shortened but for `whole`."""
    if interrupt["kind"] == "question":
        return str(interrupt["question"])
    call = call_text(str(interrupt["tool"]), interrupt["args"], whole=whole)
    why = f": {interrupt['question']}" if interrupt["question"] else ""
    return f"{call} needs {interrupt['missing_scope']}{why}"


Row = dict[str, Any]


def instant(message: Any, field: str) -> str | None:
    """Return an instant of a message as RFC 3339, or None where it is not set."""
    at: datetime | None = getattr(message, field).ToDatetime(tzinfo=UTC) if message.HasField(field) else None
    return None if at is None else rfc3339(at)


def conversation_row(turn: wire.ConversationTurn) -> Row:
    """Return a turn of a conversation."""
    return {
        "turn_id": turn.turn_id,
        "thread_id": turn.thread_id,
        "started_at": instant(turn, "started_at"),
        "ended_at": instant(turn, "ended_at"),
        "status": turn.status,
        "trigger": _trigger(turn.trigger) if turn.HasField("trigger") else None,
        "messages": [_message(message) for message in turn.messages],
        "interrupts": [interrupt_row(interrupt) for interrupt in turn.interrupts],
        "candidates": [candidate_row(candidate) for candidate in turn.candidates],
        "deviations": [deviation_row(deviation) for deviation in turn.deviations],
        "error": turn.error,
        "category": turn.category,
        "agent": turn.agent,
        "tokens_in": turn.tokens_in,
        "tokens_out": turn.tokens_out,
        "paused_until": instant(turn, "paused_until"),
    }


def channel_row(channel: wire.Channel) -> Row:
    """Return a channel of the list of conversations."""
    return {
        "channel": channel.name,
        "turns": channel.turns,
        "waiting": channel.waiting,
        "proposed": channel.proposed,
        "deviations": channel.deviations,
        "last_at": instant(channel, "last_at"),
    }


def turn_row(turn: wire.Turn) -> Row:
    """Return a turn of the turn table."""
    return {
        "turn_id": turn.turn_id,
        "thread_id": turn.thread_id,
        "channel": turn.channel,
        "agent": turn.agent,
        "category": turn.category,
        "status": turn.status,
        "trigger": turn.trigger,
        "fire_id": turn.fire_id,
        "task_name": turn.task_name,
        "attempt": turn.attempt,
        "started_at": instant(turn, "started_at"),
        "ended_at": instant(turn, "ended_at"),
        "summary": turn.summary,
        "error": turn.error,
        "cancel_requested": turn.cancel_requested,
        "tokens_in": turn.tokens_in,
        "tokens_out": turn.tokens_out,
    }


def thread_row(thread: wire.Thread) -> Row:
    """Return a thread."""
    return {
        "thread_id": thread.thread_id,
        "channel": thread.channel,
        "agent": thread.agent,
        "task_name": thread.task_name,
        "category": thread.category,
        "status": thread.status,
        "turns": thread.turns,
        "waiting": thread.waiting,
        "tokens_in": thread.tokens_in,
        "tokens_out": thread.tokens_out,
        "first_at": instant(thread, "first_at"),
        "last_at": instant(thread, "last_at"),
        "last_turn_id": thread.last_turn_id,
    }


def interrupt_row(interrupt: wire.Interrupt) -> Row:
    """Return something that an author is, or was, asked."""
    return {
        "interrupt_id": interrupt.interrupt_id,
        "turn_id": interrupt.turn_id,
        "thread_id": interrupt.thread_id,
        "channel": interrupt.channel,
        "kind": interrupt.kind,
        "tool": interrupt.tool,
        "args": loaded(interrupt.args_json),
        "args_hash": interrupt.args_hash,
        "missing_scope": interrupt.missing_scope,
        "question": interrupt.question,
        "allows_text": interrupt.allows_text,
        "task_name": interrupt.task_name,
        "category": interrupt.category,
        "status": interrupt.status,
        "decision": interrupt.decision,
        "message": interrupt.message,
        "created_at": instant(interrupt, "created_at"),
        "resolved_at": instant(interrupt, "resolved_at"),
    }


def candidate_row(candidate: wire.Candidate) -> Row:
    """Return a candidate."""
    return {
        "candidate_id": candidate.candidate_id,
        "kind": candidate.kind,
        "channel": candidate.channel,
        "title": candidate.title,
        "body": candidate.body,
        "origin": candidate.origin,
        "lifecycle": candidate.lifecycle,
        "turn_id": candidate.turn_id,
        "task_name": candidate.task_name,
        "created_at": instant(candidate, "created_at"),
        "decided_at": instant(candidate, "decided_at"),
        "note": candidate.note,
        "sources": list(candidate.sources),
        "page_id": candidate.page_id,
        "base_version": candidate.base_version,
    }


def page_row(page: wire.Page, *, with_body: bool = True) -> Row:
    """Return a page; lists leave its body out."""
    row = {
        "page_id": page.page_id,
        "title": page.title,
        "tags": list(page.tags),
        "origin": page.origin,
        "lifecycle": page.lifecycle,
        "version": page.version,
        "updated_at": instant(page, "updated_at"),
    }
    if not with_body:
        return row
    beside = [attachment_row(found) for found in page.attachments]
    return row | {"sources": list(page.sources), "attachments": beside, "body": page.body}


def attachment_row(found: wire.Attachment) -> Row:
    """Return a file beside a page, without its bytes."""
    return {
        "page_id": found.page_id,
        "name": found.name,
        "content_type": found.content_type,
        "size": found.size,
        "sha256": found.sha256,
        "origin": found.origin,
        "lifecycle": found.lifecycle,
        "added_at": instant(found, "added_at"),
    }


def deviation_row(found: wire.Deviation) -> Row:
    """Return a deviation."""
    return {
        "deviation_id": found.deviation_id,
        "kind": found.kind,
        "channel": found.channel,
        "page_id": found.page_id,
        "page_version": found.page_version,
        "says": found.says,
        "found": found.found,
        "source": found.source,
        "candidate_id": found.candidate_id,
        "why": found.why,
        "origin": found.origin,
        "lifecycle": found.lifecycle,
        "turn_id": found.turn_id,
        "task_name": found.task_name,
        "created_at": instant(found, "created_at"),
        "decided_at": instant(found, "decided_at"),
        "note": found.note,
    }


def item_row(item: wire.RevalidationItem) -> Row:
    """Return an item of the re-validation queue."""
    return {
        "item_id": item.item_id,
        "page_id": item.page_id,
        "cause": item.cause,
        "cause_version": item.cause_version,
        "via": item.via,
        "state": item.state,
        "result": item.result,
        "turn_id": item.turn_id,
        "note": item.note,
        "queued_at": instant(item, "queued_at"),
        "settled_at": instant(item, "settled_at"),
    }


def _trigger(mark: wire.TriggerMark) -> Row:
    return {
        "kind": mark.kind,
        "task": mark.task,
        "fire_id": mark.fire_id,
        "nominal_at": instant(mark, "nominal_at"),
        "fired_at": instant(mark, "fired_at"),
        "stands_for": mark.stands_for,
    }


def _message(message: wire.Message) -> Row:
    row: Row = {"role": message.role, "text": message.text}
    if message.tool_calls:
        row["tool_calls"] = [
            {"id": call.id, "name": call.name, "args": loaded(call.args_json)} for call in message.tool_calls
        ]
    if message.tool_call_id:
        row["tool_call_id"] = message.tool_call_id
    return row | {"at": instant(message, "at")}
