"""Values have what the wire has, under its names."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from turnkeeper.client import values
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as runner

WIRE: dict[Any, Any] = {
    values.Fire: runner.Fire, values.Explanation: runner.ExplainFireResponse, values.Sent: runtime.SendMessageResponse,
    values.Message: runtime.Message, values.ToolCall: runtime.ToolCall, values.Approval: runtime.Interrupt,
    values.Trigger: runtime.TriggerMark, values.RunningCall: runtime.RunningCall, values.Speech: runtime.Speech,
    values.TurnEvent: runtime.TurnEvent, values.Turn: runtime.ConversationTurn,
}  # fmt: skip


@pytest.mark.parametrize("kind", WIRE, ids=lambda kind: kind.__name__)
def test_every_field_is_read_from_the_wire(kind: Any) -> None:
    empty = {"turn_id": "t", "thread_id": "t"} if kind is values.Speech else {}
    made = values.read(kind, WIRE[kind](), **empty)
    assert {one.name for one in fields(kind)} == set(made.__dict__)


def test_a_turn_is_read_with_what_is_in_it() -> None:
    turn = runtime.ConversationTurn(turn_id="t", status="interrupted", tokens_in=3, trigger={"task": "digest"})
    turn.started_at.FromDatetime(datetime(2026, 1, 2))  # noqa: DTZ001  protobuf takes it as UTC
    turn.messages.add(role="agent", text="", tool_calls=[{"id": "1", "name": "put", "args_json": '{"a": 1}'}])
    turn.messages.add(role="agent", text=' {"n": 1}')
    turn.messages.add(role="tool", text="done")
    turn.interrupts.add(interrupt_id="i", args_json='["x"]', status="pending")
    made = values.turn_of(turn)
    assert (made.started_at, made.ended_at) == (datetime(2026, 1, 2, tzinfo=UTC), None)
    assert made.messages[0].tool_calls == (values.ToolCall(id="1", name="put", args={"a": 1}),)
    assert (made.approvals[0].args, made.trigger and made.trigger.task) == (["x"], "digest")
    assert (made.text, made.state, made.is_over, made.waits) == (' {"n": 1}', {"n": 1}, False, True)


@pytest.mark.parametrize("said", ["", "plain", "{not JSON", "[1]"])
def test_only_an_object_is_a_state(said: str) -> None:
    turn = runtime.ConversationTurn(messages=[runtime.Message(role="agent", text=said)])
    assert values.turn_of(turn).state is None


def test_an_event_says_its_state_as_a_word_also_one_of_a_newer_daemon() -> None:
    event = runtime.TurnEvent(sequence=3, state=runtime.TurnEvent.PROPOSED, about=["c-1"])
    assert (values.read(values.TurnEvent, event).state, values.read(values.TurnEvent, event).about) == (
        "proposed",
        ("c-1",),
    )
    event.ParseFromString(event.SerializeToString() + b"\x38\x63")
    assert values.read(values.TurnEvent, event).state == "99"
