"""The conversation as its author reads it: stored records converted to the wire's turns. Pure.

The conversation is the complete record of turns. So a fire without work is shown too, unless its category is silent.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp

from agent_runtime.model.mapping import stamp, to_message
from agent_runtime.model.turn import InterruptRecord, MessageRecord, TurnRecord
from turnkeeper.times import format_rough
from turnkeeper.v1 import agent_runtime_pb2 as wire

NOTHING_TO_DO = "nothing to do this fire"
ON_TIME_S = 60.0  # smaller delays are not reported as late
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
        messages: the messages of the turn, in any order.
        interrupts: the questions to its author, in order; bounded pauses are left out, because they ask no question.
        first: True if no earlier turn belongs to the same fire; only such a turn shows its trigger.
    """
    said = [_message(record) for record in sorted(messages, key=lambda record: record.position)]
    asked = [to_message(wire.Interrupt, record) for record in interrupts if record.kind != "pause"]
    if _did_nothing(turn, said, asked):
        said.append(wire.Message(role="agent", text=NOTHING_TO_DO, at=stamp(turn.ended_at)))
    return to_message(
        wire.ConversationTurn,
        turn,
        trigger=to_message(wire.TriggerMark, turn, task=turn.task_name) if first and turn.trigger == "fire" else None,
        messages=said,
        interrupts=asked,
        candidates=proposed,
        deviations=deviations,
        paused_until=turn.paused_until if turn.status == "paused" else None,
    )


def mark_text(mark: wire.TriggerMark) -> str:
    """Return a trigger's mark in words: the task, its time, the delay, and the number of fires that it represents.

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
    return to_message(wire.Message, record.said, tool_calls=calls, at=record.at)


def _did_nothing(turn: TurnRecord, said: Sequence[wire.Message], asked: Sequence[wire.Interrupt]) -> bool:
    """Return whether a fire's turn succeeded without text, proposal or interrupt. Silent turns have another status."""
    if turn.status != "succeeded" or turn.trigger != "fire" or asked:
        return False
    spoke = any(message.role == "agent" and message.text.strip() for message in said)
    return not spoke and not any(call.name in _PROPOSALS for message in said for call in message.tool_calls)


_UTC = frozenset({"UTC", "Etc/UTC", "Etc/UCT", "UCT", "Etc/Universal", "Universal", "Etc/Zulu", "Zulu"})


def _local(at: Timestamp, timezone: str) -> str:
    """Return an instant in the task's time zone, with seconds only if they are not zero."""
    try:
        zone, name = ZoneInfo(timezone or "UTC"), timezone or "UTC"
    except (ValueError, OSError, KeyError):
        zone, name = ZoneInfo("UTC"), "UTC"  # this machine does not know the zone
    local = datetime.fromtimestamp(at.seconds, zone)
    name = "UTC" if name in _UTC else name
    return f"{local:%Y-%m-%d %H:%M:%S}".removesuffix(":00") + f" {name}"
