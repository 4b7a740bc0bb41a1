"""The conversation as its author reads it: stored records converted to the wire's turns. Pure.

The conversation is the complete record of turns. So a fire without work is shown too, unless its category is silent.
"""

import json
from collections.abc import Iterable, Sequence

from agent_runtime.model.mapping import stamp, to_message
from agent_runtime.model.turn import VALUES, InterruptRecord, MessageRecord, TurnRecord
from turnkeeper.v1 import agent_runtime_pb2 as wire

NOTHING_TO_DO = "nothing to do this fire"
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


def _message(record: MessageRecord) -> wire.Message:
    calls = [
        wire.ToolCall(id=call.id, name=call.name, args_json=json.dumps(dict(call.args), ensure_ascii=False))
        for call in record.said.tool_calls
    ]
    more = {"role": "values", "tool_call_id": ""} if record.said.tool_call_id == VALUES else {}
    return to_message(wire.Message, record.said, tool_calls=calls, at=record.at, **more)


def _did_nothing(turn: TurnRecord, said: Sequence[wire.Message], asked: Sequence[wire.Interrupt]) -> bool:
    """Return whether a fire's turn succeeded without text, proposal or interrupt. Silent turns have another status."""
    if turn.status != "succeeded" or turn.trigger != "fire" or asked:
        return False
    spoke = any(message.role == "agent" and message.text.strip() for message in said)
    return not spoke and not any(call.name in _PROPOSALS for message in said for call in message.tool_calls)
