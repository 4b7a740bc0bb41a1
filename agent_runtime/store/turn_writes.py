"""Writing the runtime's tables: functions of an open transaction, each one whole fact.

Each changes rows of one concern; `turn_store` combines those that must become true at once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, text, update

from agent_runtime.model.agents import FIRST_AGENT
from agent_runtime.model.approval import AuthorDecision, RaisedInterrupt, canonical
from agent_runtime.model.trigger import Trigger, Unread
from agent_runtime.model.turn import KeyRecord, Said, TurnRecord
from agent_runtime.store.mail.agent_messages import Delegation, add_delegation
from agent_runtime.store.schema import cancels, interrupts, kept_messages, keys, messages, meta, turn_events, turns
from agent_runtime.store.workspace_schema import candidates
from turnkeeper.storage.statements import Statement, upsert
from turnkeeper.times import to_us

LONGEST_SUMMARY = 200
POSITIONS_APART = 100  # between two messages of a graph; an author's answers stand between them


@dataclass(frozen=True, kw_only=True)
class Happened:
    """What a turn event says beyond which turn it is about."""

    state: str
    trigger: str
    at: datetime
    summary: str = ""
    error: str = ""
    held_by: tuple[str, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    wake_after_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class About:
    """Which turn, or held fire, an event is about."""

    turn_id: str
    thread_id: str
    fire_id: str
    attempt: int


def with_tokens(happened: Happened, turn: TurnRecord) -> Happened:
    """Return what happened to a turn, with what it used, and when it wants to be woken if it came to a good end."""
    wake = turn.wake_after_s if happened.state in {"SUCCEEDED", "SILENT", "PAUSED"} else None
    return replace(happened, tokens_in=turn.tokens_in, tokens_out=turn.tokens_out, wake_after_s=wake)


def about(what: TurnRecord | Trigger | Unread | KeyRecord) -> About:
    """Return what an event about this turn, trigger or key is about."""
    return About(turn_id=what.turn_id, thread_id=what.thread_id, fire_id=what.fire_id, attempt=what.attempt)


def started_by(turn: TurnRecord) -> str:
    """Return what an event says a turn's newest interval was started by."""
    return "answer" if turn.answers and not turn.resumes else turn.trigger


def set_meta(connection: Connection, key: str, value: str) -> None:
    """Write a fact about the store."""
    connection.execute(upsert(meta, [meta.c.key], ["value"]).values(key=key, value=value))


def add_event(connection: Connection, what: About, happened: Happened) -> None:
    """Append a turn event; its number follows the newest."""
    _ADD_EVENT.run(
        connection,
        turn_id=what.turn_id,
        fire_id=what.fire_id,
        attempt=what.attempt,
        thread_id=what.thread_id,
        trigger=happened.trigger,
        state=happened.state,
        at_us=to_us(happened.at),
        summary=happened.summary,
        error=happened.error,
        held_by_json=json.dumps(happened.held_by) if happened.held_by else "",
        tokens_in=happened.tokens_in,
        tokens_out=happened.tokens_out,
        wake_after_s=happened.wake_after_s,
    )


def add_key(connection: Connection, trigger: Trigger | Unread, *, became: str, into: str = "", at: datetime) -> None:
    """Take a trigger's key, for ever; a kept message's key changes what it became."""
    _ADD_KEY.run(
        connection,
        key=trigger.key,
        digest=trigger.digest,
        turn_id=trigger.turn_id,
        thread_id=trigger.thread_id,
        fire_id=trigger.fire_id,
        attempt=trigger.attempt,
        became=became,
        into=into,
        released=False,
        at_us=to_us(at),
    )
    _DROP_KEPT.run(connection, key=trigger.key)


def refuse_unread(connection: Connection, unread: Unread, error: str, at: datetime) -> bool:
    """Take the key of what can no longer be read, and write that it failed; False if the key was taken before."""
    if connection.execute(select(keys.c.key).where(keys.c.key == unread.key)).first() is not None:
        return False
    add_key(connection, unread, became="refused", at=at)
    by = "fire" if unread.fire_id else "author"
    add_event(connection, about(unread), Happened(state="FAILED", trigger=by, at=at, error=error))
    return True


def add_turn(
    connection: Connection, trigger: Trigger, *, status: str, epoch: int, at: datetime, **changes: Any
) -> None:
    """Write a turn's row and its first message, the prompt."""
    row = {
        "turn_id": trigger.turn_id,
        "thread_id": trigger.thread_id,
        "channel": trigger.channel,
        "agent": trigger.agent,
        "category": trigger.grant.name,
        "grant_json": canonical(trigger.grant.to_dict()),
        "trigger": "fire" if trigger.source == "fire" else "author",
        "status": status,
        "visible": True,
        "started_at_us": to_us(at),
        "epoch": epoch,
        "after_message": trigger.turn_id,
    }
    blank = {"summary": "", "error": "", "answers_json": "", "resumes": "", "tries": 0, "tokens_in": 0, "tokens_out": 0}
    values = row | blank | _as_asked(trigger) | changes
    _ADD_TURN.run(connection, **values)
    put_message(connection, trigger.turn_id, 0, _opening(trigger), at)
    if trigger.source == "agent":
        add_delegation(connection, delegation_of(trigger, over=status != "running"))


def delegation_of(trigger: Trigger, *, over: bool) -> Delegation:
    """Return who sent a message between agents; a worker's turn is answered for when it is over."""
    asks = trigger.sender == FIRST_AGENT
    return Delegation(
        turn_id=trigger.turn_id,
        sender=trigger.sender,
        parent=trigger.parent,
        agent=trigger.agent,
        hops=trigger.hops,
        state="none" if not asks else "owed" if over else "open",
    )


def _opening(trigger: Trigger) -> Said:
    if trigger.source == "agent":
        return Said(role="trigger", text=f"{trigger.sender} to {trigger.agent}: {trigger.prompt}")
    return Said(role="trigger" if trigger.source == "fire" else "author", text=trigger.prompt)


def _as_asked(trigger: Trigger) -> dict[str, Any]:
    copied = ("fire_id", "attempt", "task_id", "task_name", "kind", "payload_json", "read_only", "timezone")
    instants = ("nominal_at", "due_at", "fired_at", "first_nominal_at", "last_nominal_at")
    values = {name: getattr(trigger, name) for name in (*copied, "catch_up", "stands_for", "traceparent")}
    given = {name: getattr(trigger, name) for name in instants}
    values["prompt"] = trigger.shown
    return values | {f"{name}_us": None if at is None else to_us(at) for name, at in given.items()}


def change_turn(connection: Connection, turn_id: str, **changes: Any) -> None:
    """Change columns of a turn's row."""
    _CHANGE_TURN.run(connection, of=turn_id, **changes)


def put_message(connection: Connection, turn_id: str, position: int, line: Said, at: datetime) -> None:
    """Write a message at its position; writing it again changes the text, not the time."""
    _PUT_MESSAGE.run(connection, **_message(turn_id, position, line, at))


def put_transcript(connection: Connection, turn_id: str, lines: Sequence[Said], at: datetime, *, known: int) -> None:
    """Write what a turn's graph has said so far but for the first `known` lines; what a replay no longer says goes."""
    news = [_message(turn_id, (index + 1) * POSITIONS_APART, lines[index], at) for index in range(known, len(lines))]
    _PUT_MESSAGE.run_each(connection, news)
    _DROP_BEYOND.run(connection, turn_id=turn_id, position=len(lines) * POSITIONS_APART)


def _message(turn_id: str, position: int, line: Said, at: datetime) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name, "args": dict(call.args)} for call in line.tool_calls]
    return {
        "turn_id": turn_id,
        "position": position,
        "role": line.role,
        "text": line.text.encode("utf-8", "replace").decode(),  # a model may write what has no UTF-8 form
        "tool_calls_json": canonical(calls).encode("utf-8", "replace").decode() if calls else "",
        "tool_call_id": line.tool_call_id,
        "at_us": to_us(at),
    }


def add_answer(connection: Connection, turn_id: str, text: str, at: datetime) -> None:
    """Write an author's answer after what the turn has said."""
    newest = connection.execute(select(func.max(messages.c.position)).where(messages.c.turn_id == turn_id)).scalar()
    put_message(connection, turn_id, (newest or 0) + 1, Said(role="author", text=text), at)


def add_interrupts(
    connection: Connection, turn: TurnRecord, raised: Sequence[RaisedInterrupt], at: datetime
) -> list[str]:
    """Write what a turn asks; what still waits stays as it is. Return the ids of those that are asked now, or anew."""
    fresh = []
    for item in raised:
        row = _ASK.values(
            interrupt_id=item.interrupt_id,
            turn_id=turn.turn_id,
            thread_id=turn.thread_id,
            channel=turn.channel,
            kind=item.kind,
            tool=item.tool,
            args_json="" if item.args is None else canonical(item.args),
            args_hash=item.args_hash,
            call_id=item.call_id,
            missing_scope=item.missing_scope,
            question=item.question,
            allows_text=item.allows_text,
            status="pending",
            decision="",
            message="",
            edited_json="",
            applied=False,
            created_at_us=to_us(at),
        )
        if connection.execute(row).rowcount:
            fresh.append(item.interrupt_id)
    return fresh


def settle_interrupt(connection: Connection, interrupt_id: str, decided: AuthorDecision, at: datetime) -> None:
    """Write an author's decision."""
    connection.execute(
        update(interrupts)
        .where(interrupts.c.interrupt_id == interrupt_id)
        .values(
            status="resolved",
            decision=decided.decision,
            message=decided.message,
            edited_json="" if decided.args is None else canonical(decided.args),
            resolved_at_us=to_us(at),
        )
    )


def mark_applied(connection: Connection, interrupt_ids: Sequence[str]) -> None:
    """Note that the graph has gone on with these decisions."""
    connection.execute(update(interrupts).where(interrupts.c.interrupt_id.in_(interrupt_ids)).values(applied=True))


def void_interrupts(connection: Connection, turn_id: str, at: datetime) -> None:
    """Withdraw what a turn asks: it is over."""
    _VOID.run(connection, of=turn_id, at_us=to_us(at))
    _APPLY.run(connection, of=turn_id)


def add_cancel(
    connection: Connection, turn_id: str, reason: str, at: datetime, *, unless_waiting: bool = False
) -> bool:
    """Store a cancel; the first reason stands.

    With `unless_waiting` none is stored of a turn that waits for its author, or for the end of a pause. Returns whether
    it was.
    """
    status = connection.execute(select(turns.c.status).where(turns.c.turn_id == turn_id)).scalar()
    if unless_waiting and status in {"interrupted", "paused"}:
        return False
    row = upsert(cancels, [cancels.c.turn_id]).values(turn_id=turn_id, reason=reason, at_us=to_us(at))
    connection.execute(row)
    return True


def keep_message(connection: Connection, trigger: Trigger, at: datetime) -> None:
    """Store an author's message until its thread is released."""
    row = upsert(kept_messages, [kept_messages.c.key]).values(
        key=trigger.key, thread_id=trigger.thread_id, trigger_json=json.dumps(trigger.to_meta()), at_us=to_us(at)
    )
    connection.execute(row)


def kept(connection: Connection, thread_id: str = "") -> list[Mapping[str, Any]]:
    """Return the metas of messages that are kept back, on one thread or on all, oldest first."""
    return [json.loads(row["trigger_json"]) for row in _KEPT.dicts(connection, thread_id=thread_id)]


def release_held(connection: Connection, thread_id: str) -> list[About]:
    """Mark the fires that were held on a thread as released; return them in the order in which they came."""
    found = [About(**row) for row in _HELD.dicts(connection, thread_id=thread_id)]
    if found:
        _RELEASE.run(connection, of=thread_id)
    return found


def has_spoken(connection: Connection, turn_id: str) -> bool:
    """Return whether a turn gave its author anything to see: a text, a question or a proposal."""
    text = select(messages.c.position).where(
        messages.c.turn_id == turn_id, messages.c.role == "agent", func.trim(messages.c.text) != ""
    )
    asked = select(interrupts.c.number).where(interrupts.c.turn_id == turn_id)
    proposed = select(candidates.c.candidate_id).where(candidates.c.turn_id == turn_id)
    return any(connection.execute(query.limit(1)).first() is not None for query in (text, asked, proposed))


def last_words(connection: Connection, turn_id: str) -> str:
    """Return the newest text of a turn's agent, or nothing."""
    return _LAST_WORDS.value(connection, turn_id=turn_id) or ""


_ADD_TURN = Statement(insert(turns))
_CHANGE_TURN = Statement(update(turns).where(turns.c.turn_id == bindparam("of")))
_ADD_EVENT = Statement(insert(turn_events))
_ADD_KEY = Statement(upsert(keys, [keys.c.key], ["became", "into"], where=keys.c.became == "kept"))
_DROP_KEPT = Statement(delete(kept_messages).where(kept_messages.c.key == bindparam("key")))
_KEPT = Statement(
    select(kept_messages.c.trigger_json)
    .where(text(":thread_id IN ('', kept_messages.thread_id)"))
    .order_by(kept_messages.c.number)
)
_PUT_MESSAGE = Statement(
    upsert(messages, [messages.c.turn_id, messages.c.position], ["role", "text", "tool_calls_json", "tool_call_id"])
)
_MINE = messages.c.turn_id == bindparam("turn_id")
_DROP_BEYOND = Statement(
    delete(messages).where(_MINE, messages.c.position > bindparam("position"), text("role IN ('agent', 'tool')"))
)
_LAST_WORDS = Statement(
    select(messages.c.text)
    .where(_MINE, messages.c.role == "agent", func.trim(messages.c.text) != "")
    .order_by(messages.c.position.desc())
    .limit(1)
)
_OF_TURN = interrupts.c.turn_id == bindparam("of")
# An answered question that is asked again is asked anew.
_ASK = upsert(
    interrupts,
    [interrupts.c.interrupt_id],
    [column.name for column in interrupts.columns if column.name != "number"],
    where=interrupts.c.applied.is_(True),
)
_VOID = Statement(
    update(interrupts)
    .where(_OF_TURN, interrupts.c.status == "pending")
    .values(status="void", resolved_at_us=bindparam("at_us"))
)
_APPLY = Statement(update(interrupts).where(_OF_TURN).values(applied=True))
_WAITS = text("keys.became = 'held' AND NOT keys.released")
_HELD = Statement(
    select(keys.c.turn_id, keys.c.thread_id, keys.c.fire_id, keys.c.attempt)
    .where(keys.c.thread_id == bindparam("thread_id"), _WAITS)
    .order_by(keys.c.at_us)
)
_RELEASE = Statement(update(keys).where(keys.c.thread_id == bindparam("of"), _WAITS).values(released=True))
