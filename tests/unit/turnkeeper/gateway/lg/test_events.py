"""Streams of runs and threads: each mode, subgraphs, and the newer protocol."""

import json
from typing import Any

import pytest

from turnkeeper.gateway.lg.events import RunStream, ThreadProtocol
from turnkeeper.v1 import agent_runtime_pb2 as wire

CHANNELS = ["values", "messages", "tools", "lifecycle", "input", "custom:a2a"]
ASKED = wire.Interrupt(interrupt_id="i1", kind="question", args_json='{"value": "Go on?"}', status="pending")


def event(mode: str, data: Any, *namespace: str, number: int = 1) -> wire.RunEvent:
    return wire.RunEvent(number=number, turn_id="turn-1", mode=mode, namespace=namespace, data_json=json.dumps(data))


def piece(text: str, kind: str = "AIMessageChunk") -> list[Any]:
    return [{"type": kind, "id": "m", "content": text}, {"langgraph_node": "model"}]


def told(stream: RunStream, *events: wire.RunEvent) -> list[tuple[str, Any]]:
    return [(one.name, one.data) for step in events for one in stream.take(step)]


@pytest.mark.parametrize("mode", ["values", "updates", "custom", "tasks", "checkpoints", "debug"])
def test_a_run_streams_the_modes_that_are_asked_for_as_the_graph_gives_them(mode: str) -> None:
    others = [event("updates" if mode != "updates" else "custom", {"a": 2})]
    assert told(RunStream("turn-1", {mode}), event(mode, {"a": 1}), *others) == [(mode, {"a": 1})]


def test_a_subgraph_is_streamed_if_asked_for_under_its_namespace() -> None:
    inner = event("updates", {"a": 1}, "sub:1")
    assert told(RunStream("turn-1", {"updates"}), inner) == []
    assert told(RunStream("turn-1", {"updates"}, subgraphs=True), inner) == [("updates|sub:1", {"a": 1})]


def test_messages_are_streamed_in_pieces_or_as_they_grow() -> None:
    pieces = [event("messages", piece("Hel")), event("messages", piece("lo"))]
    assert told(RunStream("turn-1", {"messages-tuple"}), *pieces) == [
        ("messages", piece("Hel")),
        ("messages", piece("lo")),
    ]
    about, *grown = told(RunStream("turn-1", {"messages"}), *pieces)
    assert about == ("messages/metadata", {"m": {"metadata": {"langgraph_node": "model"}}})
    assert [(name, data[0]["type"], data[0]["content"]) for name, data in grown] == [
        ("messages/partial", "ai", "Hel"), ("messages/partial", "ai", "Hello"),
    ]  # fmt: skip


def test_values_come_whole_and_only_when_they_are_others() -> None:
    stream = RunStream("turn-1", {"values"})
    assert len(told(stream, event("values", {"a": 1}), event("values", {"a": 1}))) == 1
    assert list(stream.values({"a": 1})) == []
    assert [one.data for one in stream.values({"a": 2})] == [{"a": 2}]


def test_a_run_ends_with_end_or_error_and_says_what_waits() -> None:
    stream = RunStream("turn-1", {"updates"})
    assert stream.begin().data == {"run_id": "turn-1", "attempt": 1}
    assert [one.data for one in stream.waiting([ASKED])] == [{"__interrupt__": [{"id": "i1", "value": "Go on?"}]}]
    assert stream.end("succeeded", "")[:2] == ("end", None)
    assert stream.end("failed", "no bed")[:2] == ("error", {"error": "TurnFailed", "message": "no bed"})


@pytest.mark.parametrize("mode", ["updates", "values"])
def test_a_call_that_waits_is_given_once_in_the_form_in_which_clients_decide(mode: str) -> None:
    stream = RunStream("turn-1", {mode}, subgraphs=True)
    raw = {"__interrupt__": [{"id": "i2", "value": {"kind": "tool", "tool": "send"}, "response_schema": None}]}
    text = {"__interrupt__": [{"id": "i1", "value": "Go on?", "response_schema": None}]}
    found = told(stream, event(mode, raw, "sub:1"), event(mode, raw), event(mode, text, "sub:1"), event(mode, text))
    assert found == ([("updates", text)] if mode == "updates" else [("values", {}), ("values", text)])
    call = wire.Interrupt(interrupt_id="i2", kind="tool", tool="send", args_json="{}", status="pending")
    if mode == "updates":
        (left,) = [one.data["__interrupt__"] for one in stream.waiting([ASKED, call])]
        assert [one["id"] for one in left] == ["i2"]
        assert left[0]["value"]["action_requests"][0]["name"] == "send"


def protocol(**body: Any) -> ThreadProtocol:
    return ThreadProtocol({"channels": CHANNELS, **body}, "agent")


def methods(found: Any) -> list[tuple[str, Any]]:
    return [(one["method"], one["params"]["data"]) for one in found]


def test_the_newer_protocol_tells_messages_by_their_own_events_and_states_without_empty_fields() -> None:
    message = {"type": "ai", "content": "Hi", "id": "m", "additional_kwargs": {}, "tool_calls": []}
    assert methods(protocol().take(event("protocol", {"event": "message-start"}))) == [
        ("messages", {"event": "message-start"})
    ]
    assert methods(protocol().take(event("messages", piece("Hi")))) == []
    (found,) = methods(protocol().take(event("values", {"messages": [message], "__interrupt__": []})))
    assert found == ("values", {"messages": [{"type": "ai", "content": "Hi", "id": "m"}]})


def test_every_event_has_the_same_id_on_each_connection() -> None:
    ids = [next(protocol().take(event("custom", {"a": 1}, number=7)))["event_id"] for _ in range(2)]
    assert ids[0] == ids[1]


def test_a_question_is_requested_input_and_a_failure_says_why() -> None:
    status = event("status", {"status": "interrupted"})
    assert methods(protocol().status(status, "interrupted", "", [ASKED])) == [
        ("input.requested", {"interrupt_id": "i1", "payload": "Go on?", "value": "Go on?"}),
        ("lifecycle", {"event": "interrupted", "graph_name": "agent"}),
    ]
    failed = methods(protocol().status(status, "failed", "no bed", []))
    assert failed == [("lifecycle", {"event": "failed", "graph_name": "agent", "error": "no bed"})]


def test_only_channels_and_namespaces_that_were_asked_for_are_told() -> None:
    assert list(protocol(channels=["values"]).take(event("custom", {}))) == []
    inner = event("custom", {"a": 1}, "sub:1", "deep:2")
    assert list(protocol(namespaces=[[]], depth=0).take(inner)) == []
    assert list(protocol(namespaces=[["sub:1"]], depth=1).take(inner))
    assert list(protocol(namespaces=[["other:1"]]).take(inner)) == []
