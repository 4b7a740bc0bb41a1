"""The conversation as its author reads it: stored records projected to the wire's turns. Pure.

The conversation is authoritative: a turn that is not in it did not happen, so a fire that found nothing to do says so,
unless its category is silent.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp

from agent_runtime.model.turn import InterruptRecord, MessageRecord, TurnRecord
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.times import format_rough, to_us

NOTHING_TO_DO = "nothing to do this fire"
ON_TIME_S = 60.0  # a fire at most so late is not called late
_PROPOSALS = frozenset({"summary_propose", "page_propose", "deviation_record", "revalidation_settle"})


def project(
    turn: TurnRecord,
    messages: Iterable[MessageRecord],
    interrupts: Iterable[InterruptRecord],
    *,
    first: bool,
    proposed: Iterable[wire.Candidate] = (),
    deviations: Iterable[wire.Deviation] = (),
) -> wire.ConversationTurn:
    """Return one turn as the conversation shows it.

    Args:
        turn: the turn.
        messages: what was said in it, in any order.
        interrupts: what its author was asked, in order; bounded pauses ask nobody and are left out.
        first: no earlier turn belongs to the same fire; only such a turn carries the mark of its trigger.
        proposed: what it proposed.
        deviations: contradictions that it came upon.
    """
    said = [_message(record) for record in sorted(messages, key=lambda record: record.position)]
    asked = [interrupt_message(record) for record in interrupts if record.kind != "pause"]
    if _did_nothing(turn, said, asked):
        said.append(wire.Message(role="agent", text=NOTHING_TO_DO, at=stamp(turn.ended_at)))
    return wire.ConversationTurn(
        turn_id=turn.turn_id,
        thread_id=turn.thread_id,
        started_at=stamp(turn.started_at),
        ended_at=stamp(turn.ended_at),
        status=turn.status,
        trigger=_mark(turn) if first and turn.trigger == "fire" else None,
        messages=said,
        interrupts=asked,
        error=turn.error,
        category=turn.category,
        agent=turn.agent,
        tokens_in=turn.tokens_in,
        tokens_out=turn.tokens_out,
        candidates=proposed,
        deviations=deviations,
        paused_until=stamp(turn.paused_until) if turn.status == "paused" else None,
    )


def interrupt_message(row: InterruptRecord) -> wire.Interrupt:
    """Return an interrupt as the wire carries it."""
    return wire.Interrupt(
        interrupt_id=row.interrupt_id,
        turn_id=row.turn_id,
        thread_id=row.thread_id,
        channel=row.channel,
        kind=row.kind,
        tool=row.tool,
        args_json=row.args_json,
        args_hash=row.args_hash,
        missing_scope=row.missing_scope,
        question=row.question,
        task_name=row.task_name,
        category=row.category,
        status=row.status,
        decision=row.decision,
        created_at=stamp(row.created_at),
        resolved_at=stamp(row.resolved_at),
        allows_text=row.allows_text,
        message=row.message,
    )


def stamp(at: datetime | None) -> Timestamp | None:
    """Return an instant as the wire carries it; None for none."""
    if at is None:
        return None
    carried = Timestamp()
    carried.FromMicroseconds(to_us(at))
    return carried


def mark_text(mark: wire.TriggerMark) -> str:
    """Return a trigger's mark in words: what triggered the turn, for when, how late, and what it stands for.

    >>> from datetime import UTC
    >>> mark = wire.TriggerMark(task="daily-digest", timezone="America/New_York", stands_for=1)
    >>> mark.nominal_at.FromDatetime(datetime(2026, 11, 20, 14, tzinfo=UTC))
    >>> mark_text(mark)
    'triggered by daily-digest at 2026-11-20 09:00 America/New_York'
    >>> mark.fired_at.FromDatetime(datetime(2026, 11, 20, 16, tzinfo=UTC))
    >>> mark.stands_for = 3
    >>> mark_text(mark)
    'triggered by daily-digest at 2026-11-20 09:00 America/New_York, 2h late, stands for 3 fires'
    """
    parts = [f"triggered by {mark.task or mark.fire_id}"]
    if mark.HasField("nominal_at"):
        parts[0] += f" at {_local(mark.nominal_at, mark.timezone)}"
        late = mark.fired_at.ToDatetime() - mark.nominal_at.ToDatetime() if mark.HasField("fired_at") else None
        if late is not None and late.total_seconds() > ON_TIME_S:
            parts.append(f"{format_rough(late.total_seconds())} late")
    if mark.stands_for > 1:
        since = f" since {_local(mark.first_nominal_at, mark.timezone)}" if mark.HasField("first_nominal_at") else ""
        parts.append(f"stands for {mark.stands_for} fires{since}")
    return ", ".join(parts)


def _message(record: MessageRecord) -> wire.Message:
    calls = [
        wire.ToolCall(id=call.id, name=call.name, args_json=json.dumps(dict(call.args), ensure_ascii=False))
        for call in record.said.tool_calls
    ]
    said = record.said
    at = stamp(record.at)
    return wire.Message(role=said.role, text=said.text, tool_calls=calls, at=at, tool_call_id=said.tool_call_id)


def _mark(turn: TurnRecord) -> wire.TriggerMark:
    return wire.TriggerMark(
        kind=turn.kind,
        task=turn.task_name,
        fire_id=turn.fire_id,
        nominal_at=stamp(turn.nominal_at),
        fired_at=stamp(turn.fired_at),
        stands_for=turn.stands_for,
        first_nominal_at=stamp(turn.first_nominal_at),
        last_nominal_at=stamp(turn.last_nominal_at),
        timezone=turn.timezone,
    )


def _did_nothing(turn: TurnRecord, said: Sequence[wire.Message], asked: Sequence[wire.Interrupt]) -> bool:
    """Tell whether a fire's turn ended well with no text, proposal or interrupt. Silent turns have another status."""
    if turn.status != "succeeded" or turn.trigger != "fire" or asked:
        return False
    spoke = any(message.role == "agent" and message.text.strip() for message in said)
    return not spoke and not any(call.name in _PROPOSALS for message in said for call in message.tool_calls)


def _local(at: Timestamp, timezone: str) -> str:
    """Write an instant as the task's author thinks of it; seconds only where there are any."""
    try:
        zone, name = ZoneInfo(timezone or "UTC"), timezone or "UTC"
    except (ValueError, OSError, KeyError):
        zone, name = ZoneInfo("UTC"), "UTC"  # a zone that this machine does not know
    local = datetime.fromtimestamp(at.seconds, zone)
    return f"{local:%Y-%m-%d %H:%M:%S}".removesuffix(":00") + f" {name}"
