"""Functions that write the runtime's tables, in an open transaction. Each function writes one whole fact.

Each function changes rows of one concern; :class:`agent_runtime.store.turn_store.Store` combines them in transactions.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, delete, func, insert, select, text, update

from agent_runtime.model import approval
from agent_runtime.model import trigger as triggers
from agent_runtime.model.decide import FINISHED
from agent_runtime.model.mapping import canonical, from_row
from agent_runtime.model.trigger import OF_GRAPH, WAKES, Trigger, TriggerHeader, from_meta
from agent_runtime.model.turn import Assignment, InterruptRecord, KeyRecord, Said, ToolUse, TurnRecord, Used, columns
from agent_runtime.permissions.exceptions import ALLOWED_BY
from agent_runtime.store import schema, turn_reads
from agent_runtime.store.mail import add_delegation
from agent_runtime.store.schema import cancels, candidates, interrupts, kept_messages, keys, messages, token_days, turns
from agent_runtime.store.turn_events import add_event
from turnkeeper.errors import NotFound
from turnkeeper.storage.chain import digest
from turnkeeper.storage.statements import Statement, number_after_id, session_of, storable, total, upsert
from turnkeeper.times import to_us

_OWN = {"grant", "prompt", *triggers.INSTANTS}  # fields of a trigger that a turn's row stores in another form
_COPIED = [item.name for item in fields(Assignment) if item.name not in _OWN]
_INSTANTS = ("remind_at", "reminded_at", "escalate_at", "escalated_at", "expires_at")  # fields of a question
_ASKED = (
    *("interrupt_id", "kind", "tool", "args_hash", "call_id", "missing_scope", "question"),
    *("tool_hash", "once_only"),
)
POSITIONS_APART = 100  # distance between two messages of a graph, with room for an author's answers


def started_by(turn: TurnRecord) -> str:
    """Return the cause of a turn's newest interval, as events name it."""
    return "answer" if turn.answers and not turn.resumes else turn.trigger


def begun_by(trigger: Trigger) -> str:
    """Return the origin of a trigger, as events name it."""
    if trigger.kind == triggers.ASIDE:
        return triggers.ASIDE
    return trigger.source if trigger.source in {"fire", "agent"} else "author"


def add_key(
    connection: Connection, trigger: Trigger | TriggerHeader, *, became: str, into: str = "", at: datetime
) -> None:
    """Take a trigger's key, permanently. For the key of a kept message, change its outcome."""
    own = {name: getattr(trigger, name) for name in ("key", "digest", "turn_id", "thread_id", "fire_id", "attempt")}
    _ADD_KEY.run(connection, **own, became=became, into=into, released=False, at_us=to_us(at))
    _DROP_KEPT.run(connection, key=trigger.key)


def add_turn(
    connection: Connection, trigger: Trigger, *, status: str, epoch: int, at: datetime, **changes: Any
) -> None:
    """Write a turn's row and its first message, the prompt."""
    number_after_id(connection)
    row = {
        "category": trigger.grant.name,
        "grant_json": canonical(trigger.grant.to_dict()),
        "trigger": "fire" if trigger.source == "fire" else "author",
        "prompt": storable(trigger.shown),
        "status": status,
        "visible": True,
        "started_at_us": to_us(at),
        "epoch": epoch,
        "after_message": trigger.turn_id,
    }
    blank = {"summary": "", "error": "", "answers_json": "", "resumes": "", "tries": 0, "tokens_in": 0, "tokens_out": 0}
    copied = {name: getattr(trigger, name) for name in _COPIED}
    instants = {
        f"{name}_us": None if (due := getattr(trigger, name)) is None else to_us(due) for name in triggers.INSTANTS
    }
    values = copied | instants | row | blank | changes
    _ADD_TURN.run(connection, **values)
    put_end(connection, at, trigger, status)
    put_message(connection, trigger.turn_id, 0, _opening(trigger), at)
    if trigger.source == "agent":
        add_delegation(connection, trigger, over=status != "running")


def _opening(trigger: Trigger) -> Said:
    if trigger.source == "agent":
        return Said(role="trigger", text=f"{trigger.sender} to {trigger.agent}: {trigger.prompt}")
    return Said(role="trigger" if trigger.source == "fire" else "author", text=trigger.prompt or trigger.input_json)


def change_turn(connection: Connection, turn_id: str, **changes: Any) -> None:
    """Change columns of a turn's row."""
    _CHANGE_TURN.run(connection, of=turn_id, **changes)


def put_message(connection: Connection, turn_id: str, position: int, line: Said, at: datetime) -> None:
    """Write a message at its position. A repeated write changes the text, not the time."""
    _PUT_MESSAGE.run(connection, **_message(turn_id, position, line, at))


def put_transcript(connection: Connection, turn_id: str, lines: Sequence[Said], at: datetime, *, known: int) -> None:
    """Write all messages of a turn's graph except the first `known`. Delete messages that a replay no longer has."""
    news = [_message(turn_id, (index + 1) * POSITIONS_APART, lines[index], at) for index in range(known, len(lines))]
    _PUT_MESSAGE.run_each(connection, news)
    _DROP_BEYOND.run(connection, turn_id=turn_id, position=len(lines) * POSITIONS_APART)


def _message(turn_id: str, position: int, line: Said, at: datetime) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name, "args": dict(call.args)} for call in line.tool_calls]
    return {
        "turn_id": turn_id,
        "position": position,
        "role": line.role,
        "text": storable(line.text),  # a model may write lone surrogates
        "tool_calls_json": storable(canonical(calls)) if calls else "",
        "tool_call_id": storable(line.tool_call_id),
        "at_us": to_us(at),
    }


def add_line(connection: Connection, turn_id: str, line: Said, at: datetime) -> None:
    """Write a line after the turn's messages: an author's answer, or the text that its graph returned."""
    newest = connection.execute(select(func.max(messages.c.position)).where(messages.c.turn_id == turn_id)).scalar()
    position = (newest or 0) + 1
    put_message(connection, turn_id, position + (position % POSITIONS_APART == 0), line, at)


def add_call(connection: Connection, turn_id: str, call: ToolUse, at: datetime) -> None:
    """Write a call that no message of the graph contains. A node that runs again does not add the call again."""
    known = select(messages.c.position).where(
        messages.c.turn_id == turn_id, messages.c.tool_calls_json.contains(call.id)
    )
    if connection.execute(known.limit(1)).first() is None:
        add_line(connection, turn_id, Said(role="agent", text="", tool_calls=(call,)), at)


def add_interrupts(
    connection: Connection,
    turn: TurnRecord,
    raised: Sequence[approval.RaisedInterrupt],
    at: datetime,
    waits: approval.Waits = approval.FOR_EVER,
) -> list[str]:
    """Write a turn's questions, and keep those that still wait. Return the ids of the questions asked now or again."""
    fresh, due = [], waits.from_time(at)
    instants = {f"{name}_us": to_us(due[name]) if name in due else None for name in _INSTANTS}
    for item in raised:
        copied = {name: storable(getattr(item, name)) for name in _ASKED}
        row = _ASK.values(
            **copied,
            **instants,
            allows_text=item.allows_text,
            turn_id=turn.turn_id,
            thread_id=turn.thread_id,
            channel=turn.channel,
            args_json="" if item.args is None else storable(canonical(item.args)),
            arg_hashes_json=storable(canonical(item.arg_hashes)),
            exception=0,
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


def settle_interrupt(
    connection: Connection, interrupt_id: str, decided: approval.AuthorDecision, at: datetime, by: str = ""
) -> bool:
    """Write an author's decision and its channel. Return False, and write nothing, if another decision came first."""
    settled = connection.execute(
        update(interrupts)
        .where(interrupts.c.interrupt_id == interrupt_id, interrupts.c.status == "pending")
        .values(
            status="resolved",
            decision=decided.decision,
            message=storable(decided.message),
            edited_json="" if decided.args is None else storable(canonical(decided.args)),
            resolved_at_us=to_us(at),
            decided_by=by,
        )
    )
    if settled.rowcount:
        put_decisions(connection, at, filter(None, [turn_reads.get_interrupt(connection, interrupt_id)]))
    return bool(settled.rowcount)


def mark_told(
    connection: Connection, interrupt_id: str, told: Literal["reminded_at", "escalated_at"], at: datetime
) -> bool:
    """Record that the author was reminded or alerted. Return False if that is recorded, or the question is settled."""
    column = interrupts.c[f"{told}_us"]
    row = update(interrupts).where(interrupts.c.interrupt_id == interrupt_id, interrupts.c.status == "pending")
    return bool(connection.execute(row.where(column.is_(None)).values({column: to_us(at)})).rowcount)


def ask_again(connection: Connection, interrupt_ids: Sequence[str], error: str, at: datetime) -> None:
    """Withdraw the author's answers that the graph refused. Keep the reason."""
    nothing = {"decision": "", "edited_json": "", "decided_by": "", "resolved_at_us": None}
    back = update(interrupts).where(interrupts.c.interrupt_id.in_(interrupt_ids))
    connection.execute(back.values(status="pending", message=storable(error), **nothing))
    undone = [turn_reads.get_interrupt(connection, each) for each in interrupt_ids]
    put_decisions(connection, at, filter(None, undone))


def mark_applied(connection: Connection, interrupt_ids: Sequence[str]) -> None:
    """Record that the graph has received these decisions."""
    connection.execute(update(interrupts).where(interrupts.c.interrupt_id.in_(interrupt_ids)).values(applied=True))


def void_interrupts(connection: Connection, turn_id: str, at: datetime) -> None:
    """Withdraw a turn's questions, because the turn has ended."""
    _VOID.run(connection, of=turn_id, at_us=to_us(at))
    _APPLY.run(connection, of=turn_id)


def add_cancel(connection: Connection, turn_id: str, reason: str, at: datetime) -> None:
    """Store a cancellation. The first reason is kept."""
    row = upsert(cancels, [cancels.c.turn_id]).values(turn_id=turn_id, reason=storable(reason), at_us=to_us(at))
    connection.execute(row)


def keep_message(connection: Connection, trigger: Trigger, at: datetime) -> None:
    """Store an author's message until its thread is released."""
    row = upsert(kept_messages, [kept_messages.c.key]).values(
        key=trigger.key, thread_id=trigger.thread_id, trigger_json=json.dumps(trigger.to_meta()), at_us=to_us(at)
    )
    connection.execute(row)


def kept(connection: Connection, thread_id: str = "") -> tuple[Trigger, ...]:
    """Return the messages that wait for a release, on one thread or on all, oldest first."""
    return tuple(from_meta(json.loads(meta)) for meta in _KEPT.values(connection, thread_id=thread_id))


def release_held(connection: Connection, thread_id: str, at: datetime, *, why: str = "") -> tuple[str, ...]:
    """Record that the fires held on a thread may be sent again, and why. Return the ids of their turns, in order."""
    held = [from_row(KeyRecord, row) for row in _HELD.dicts(connection, thread_id=thread_id)]
    if held:
        _RELEASE.run(connection, of=thread_id)
    for key in held:
        add_event(connection, key, "RELEASED", at, trigger="fire", error=why)
    return tuple(key.turn_id for key in held)


def asked_and_not(connection: Connection, turn: TurnRecord) -> tuple[str, str, str]:
    """Return three texts, any of which may be empty: the error of an expired approval, the error of rejected calls, and
    the calls that exceptions allowed. A refusal does not count if a later call of the same tool was allowed.
    """
    asked = turn_reads.interrupts_of(connection, [turn.turn_id])[turn.turn_id] if turn.answers else []
    denied = [one for one in asked if not any(_got(later, one) for later in asked)]
    said = next((item.message for item in denied if item.decision == approval.EXPIRED), "")
    refused = ", ".join(dict.fromkeys(item.tool or "a question" for item in denied if item.decision == "reject"))
    allowed = [
        f"{item.tool} was {item.message}" for item in asked if item.exception and item.message.startswith(ALLOWED_BY)
    ]
    expired, rejected = approval.UNANSWERED, approval.REFUSED
    return (
        f"{expired}: {said}" if said else "",
        f"{rejected}: {refused}" if refused else "",
        ", ".join(dict.fromkeys(allowed)),
    )


def _got(later: InterruptRecord, item: InterruptRecord) -> bool:
    """Return True if `later` asked about the same tool after the decision on `item`, and its call was allowed."""
    after = item.resolved_at is not None and later.created_at >= item.resolved_at
    return after and later.tool == item.tool and later.decision in {"approve", "edit", "answer"}


def graph_of_thread(connection: Connection, trigger: Trigger) -> dict[str, str]:
    """Return the graph columns of a turn that never starts: those of its thread, even if its trigger's differ."""
    newest = turn_reads.newest_on_thread(connection, trigger.thread_id)
    return {} if newest is None else {name: getattr(newest, name) for name in OF_GRAPH}


def asked_of(connection: Connection, interrupt_id: str) -> InterruptRecord:
    """Return a turn's question to its author. Raises NotFound."""
    item = turn_reads.get_interrupt(connection, interrupt_id)
    if item is None or item.kind == "pause":
        raise NotFound("no such interrupt", where="interrupt_id", hint="see: turnkeeper approvals list")
    return item


def has_spoken(connection: Connection, turn_id: str) -> bool:
    """Return True if a turn showed its author anything: text, a question or a proposal."""
    text = select(messages.c.position).where(
        messages.c.turn_id == turn_id, messages.c.role == "agent", func.trim(messages.c.text) != ""
    )
    asked = select(interrupts.c.number).where(interrupts.c.turn_id == turn_id)
    proposed = select(candidates.c.candidate_id).where(candidates.c.turn_id == turn_id)
    return any(connection.execute(query.limit(1)).first() is not None for query in (text, asked, proposed))


def last_words(connection: Connection, turn_id: str) -> str:
    """Return the newest text of a turn's agent. Empty if there is none."""
    return _LAST_WORDS.value(connection, turn_id=turn_id) or ""


def misasked(connection: Connection, turn: TurnRecord, tool: str) -> str:
    """Return the error of a self-paced turn whose wake-up requests all failed. Empty if the turn made no request.

    `tool` is the tool for the request. A request with wrong arguments counts, because the turn wants to continue; a
    request that the author rejected does not count.
    """
    if not tool or turn.kind not in WAKES or turn.wake_after_s is not None:
        return ""
    found = connection.execute(_SAID_BY_TURN, {"turn_id": turn.turn_id}).all()
    asked = [call["id"] for row in found if row.tool_calls_json for call in json.loads(row.tool_calls_json)
             if call["name"] == tool]  # fmt: skip
    rejected = connection.execute(_REJECTED, {"of": turn.turn_id}).scalars().all()
    told = [row.text for row in found if row.role == "tool" and row.tool_call_id in {*asked} - {*rejected}]
    return f"{triggers.MISASKED}: {' '.join(told[-1].split())}" if told else ""


def count_tokens(connection: Connection, turn: TurnRecord, used: Used, at: datetime) -> None:
    """Write the tokens that a turn has used so far. The increase counts for the day of `at`, in UTC.

    A replay after a crash may report fewer than were counted; a day's count never decreases.
    """
    if used != turn.used:
        change_turn(connection, turn.turn_id, **columns(used))
    new = used.total() - turn.used.total()
    if new > 0:
        row = upsert(token_days, [token_days.c.day], {"tokens": token_days.c.tokens + new})
        connection.execute(row.values(day=f"{_day(at)} {session_of(connection)}".strip(), tokens=new))


def tokens_of_day(connection: Connection, now: datetime) -> int:
    """Return the tokens that all turns together have used today."""
    counted = select(total(token_days.c.tokens)).where(token_days.c.day.startswith(_day(now)))
    return connection.execute(counted).scalar() or 0


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d}"


_ADD_TURN = Statement(insert(turns))
_CHANGE_TURN = Statement(update(turns).where(turns.c.turn_id == bindparam("of")))
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
    delete(messages).where(
        _MINE,
        messages.c.position > bindparam("position"),
        messages.c.position % POSITIONS_APART == 0,
        text("role IN ('agent', 'tool')"),
    )
)
_LAST_WORDS = Statement(
    select(messages.c.text)
    .where(_MINE, messages.c.role == "agent", func.trim(messages.c.text) != "")
    .order_by(messages.c.position.desc())
    .limit(1)
)
_SAID_BY_TURN = select(messages.c.role, messages.c.text, messages.c.tool_calls_json, messages.c.tool_call_id).where(
    _MINE, messages.c.position > 0
).order_by(messages.c.position)  # fmt: skip
_OF_TURN = interrupts.c.turn_id == bindparam("of")
# A question that was answered and is asked again is written as a new question.
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
_REJECTED = select(interrupts.c.call_id).where(_OF_TURN, interrupts.c.decision.in_(["reject", approval.EXPIRED]))
_APPLY = Statement(update(interrupts).where(_OF_TURN).values(applied=True))
_WAITS = text("keys.became = 'held' AND NOT keys.released")
_HELD = Statement(
    select(keys).where(keys.c.thread_id == bindparam("thread_id"), _WAITS).order_by(keys.c.at_us, keys.c.key)
)
_RELEASE = Statement(update(keys).where(keys.c.thread_id == bindparam("of"), _WAITS).values(released=True))


def known(connection: Connection, at: datetime) -> dict[str, int]:
    """Return, by kind, the newest number before the first record of the chain; for candidates, the time."""
    newest = {"turn": turns.c.number, "decision": interrupts.c.number, "exception": schema.exceptions.c.number}
    return {
        "candidate": to_us(at),
        **{kind: connection.execute(select(func.max(column))).scalar() or 0 for kind, column in newest.items()},
    }


def put_end(connection: Connection, at: datetime, turn: TurnRecord | Trigger, status: str) -> None:
    """Record the end of a turn, and its category. Write nothing for a turn that continues."""
    if status not in FINISHED:
        return
    grant = turn.grant_json if isinstance(turn, TurnRecord) else canonical(turn.grant.to_dict())
    fact = {
        "kind": "turn",
        "turn": turn.turn_id,
        "fire": turn.fire_id,
        "attempt": turn.attempt,
        "task": turn.task_id,
        "thread": storable(turn.thread_id),
        "agent": turn.agent,
        "category": turn.grant.name,
        "category_hash": digest(grant),
        "outcome": status,
    }
    schema.audit.append(connection, at, [fact])


def put_decisions(connection: Connection, at: datetime, decided: Iterable[InterruptRecord]) -> None:
    """Record decisions about approvals and questions, and their channel. An empty decision means a withdrawal."""
    facts = [
        {
            "kind": "decision",
            "approval": one.interrupt_id,
            "turn": one.turn_id,
            "tool": one.tool,
            "missing_scope": one.missing_scope,
            "args_hash": one.args_hash,
            "category": one.category,
            "decision": one.decision,
            "edited_hash": digest(one.edited_json),
            "shown_hash": digest(one.args_json),
            "question_hash": digest(one.question),
            "message_hash": digest(one.message),
            "by": one.decided_by,
        }
        for one in decided
    ]
    schema.audit.append(connection, at, facts)
