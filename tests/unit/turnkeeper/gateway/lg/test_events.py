"""What streams tell: pieces that add up to what is on record, in each mode and in the newer protocol."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.gateway.lg.events import RunEvents, ThreadEvents
from turnkeeper.gateway.lg.threads import Threads
from turnkeeper.v1 import agent_runtime_pb2 as wire

ALL = {"values", "messages-tuple", "updates", "custom", "messages"}
CHANNELS = ["values", "messages", "tools", "lifecycle", "input", "custom:a2a"]
TEXT = "The garden is dry, and the beds want water."


def piece(offset: int, text: str, message: str = "m", after: int = 0) -> wire.Speech:
    return wire.Speech(after=after, message=message, offset=offset, text=text)


def recorded(status: str = "succeeded", text: str = TEXT, **rest: Any) -> wire.ConversationTurn:
    said = [wire.Message(role="author", text="Well?"), wire.Message(role="agent", text=text)]
    return wire.ConversationTurn(turn_id="turn-1", thread_id="t", status=status, messages=said, **rest)


def told(events: RunEvents, *steps: wire.Speech | wire.ConversationTurn) -> list[Any]:
    found = [events.begin()]
    for step in steps:
        if isinstance(step, wire.Speech):
            found += events.heard("turn-1", step)
        else:
            found += events.recorded(step, [step])
    return found


def chunks(found: list[Any]) -> dict[str, str]:
    whole: dict[str, str] = {}
    for one in found:
        if one.name == "messages" and one.data[0]["type"] == "AIMessageChunk":
            whole[one.data[0]["id"]] = whole.get(one.data[0]["id"], "") + one.data[0]["content"]
    return whole


@given(st.lists(st.integers(0, len(TEXT)), max_size=6), st.integers(0, len(TEXT)))
def test_pieces_add_up_to_what_is_on_record_wherever_they_are_cut_and_overlap(cuts: list[int], upto: int) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < upto), upto})
    steps = [piece(max(start - 2, 0), TEXT[max(start - 2, 0) : end]) for start, end in pairwise(places)]
    assert chunks(told(RunEvents("turn-1", ALL), *steps, recorded())) == {"turn-1-0": TEXT}


def test_a_message_that_begins_anew_has_another_id_and_the_record_its_own() -> None:
    found = told(RunEvents("turn-1", ALL), piece(0, "The g"), piece(0, TEXT, "again"), recorded())
    assert chunks(found) == {"turn-1-0": "The g", "turn-1-0.2": TEXT}


def test_who_comes_late_hears_the_rest() -> None:
    assert chunks(told(RunEvents("turn-1", ALL), piece(10, TEXT[10:20]), recorded())) == {"turn-1-0": TEXT[10:]}


def test_each_mode_tells_its_own_and_ids_rise() -> None:
    found = told(RunEvents("turn-1", ALL, 7), piece(0, TEXT[:3]), recorded())
    assert [one.name for one in found] == [
        "metadata", "messages", "messages/partial", "messages", "messages/complete", "updates", "values",
    ]  # fmt: skip
    assert [one.id for one in found] == [f"7.{number}" for number in range(1, 8)]
    assert told(RunEvents("turn-1", {"events"}), piece(0, TEXT), recorded())[1:] == []


def test_values_come_whole_and_only_when_they_are_others() -> None:
    events = RunEvents("turn-1", {"values"})
    assert len(told(events, recorded("running"), recorded("running"), recorded())) == 2


def test_a_run_ends_with_end_or_error() -> None:
    events = RunEvents("turn-1", {"values"})
    assert events.end("succeeded", "").name == "end"
    assert events.end("failed", "no key").data == {"error": "TurnFailed", "message": "no key"}


def test_what_others_say_on_the_thread_is_no_part_of_the_run() -> None:
    events = RunEvents("turn-2", ALL)
    assert [one.name for one in told(events, piece(0, TEXT), recorded())] == ["metadata", "values"]


def test_calls_of_tools_are_told_with_the_message() -> None:
    turn = recorded()
    turn.messages[1].tool_calls.add(id="c1", name="page_read", args_json='{"id": "a"}')
    turn.messages.add(role="tool", text="dry", tool_call_id="c1")
    found = [one.data[0] for one in told(RunEvents("turn-1", {"messages-tuple"}), turn)[1:]]
    assert found[0]["tool_call_chunks"][0]["args"] == '{"id": "a"}'
    assert (found[1]["type"], found[1]["tool_call_id"]) == ("tool", "c1")


def test_the_mark_of_a_task_candidates_and_reports_are_custom_events_once() -> None:
    mark = wire.TriggerMark(task="digest", fire_id="f1")
    turn = recorded(trigger=mark, candidates=[wire.Candidate(candidate_id="c", kind="candidate-page", title="Plan")])
    report = wire.Speech(reports=[wire.GraphReport(number=1, text='{"step": 2}')])
    found = [one.data for one in told(RunEvents("turn-1", {"custom"}), report, turn, turn)[1:]]
    assert found[0] == {"step": 2}
    assert found[1]["turnkeeper"]["trigger"]["task"] == "digest"
    assert found[2]["turnkeeper"]["candidate"]["title"] == "Plan"
    assert len(found) == 3


def protocol(*steps: wire.Speech | wire.ConversationTurn) -> list[dict[str, Any]]:
    events, found = ThreadEvents(CHANNELS), []
    for step in steps:
        found += events.heard("turn-1", step) if isinstance(step, wire.Speech) else events.recorded(step, [step])
    return found


def names(found: list[dict[str, Any]]) -> list[str]:
    return [one["params"]["data"].get("event", one["method"]) for one in found]


def test_the_newer_protocol_tells_a_message_from_start_to_finish() -> None:
    found = protocol(piece(0, TEXT[:5]), recorded())
    assert names(found) == [
        "message-start", "content-block-start", "content-block-delta", "started", "content-block-delta",
        "content-block-finish", "message-finish", "values", "completed",
    ]  # fmt: skip
    deltas = [one["params"]["data"]["delta"]["text"] for one in found if "delta" in one["params"]["data"]]
    assert "".join(deltas) == TEXT


def test_every_event_is_told_once_and_has_the_same_id_on_each_connection() -> None:
    ids = [one["event_id"] for one in protocol(recorded("running"), recorded(), recorded())]
    assert len(ids) == len(set(ids))
    assert set(ids) >= {one["event_id"] for one in protocol(recorded())} - {"turn-1:values-2-succeeded"}


def test_a_question_is_requested_input_and_a_failure_says_why() -> None:
    asked = wire.Interrupt(interrupt_id="i1", kind="permission", tool="put", status="pending", args_json="{}")
    found = protocol(recorded("interrupted", interrupts=[asked]), recorded("failed", error="no key"))
    (requested,) = [one for one in found if one["method"] == "input.requested"]
    assert requested["params"]["data"]["payload"] == requested["params"]["data"]["value"]
    assert found[-1]["params"]["data"] == {"event": "failed", "error": "no key", "graph_name": "agent"}


def test_only_channels_that_were_asked_for_are_told() -> None:
    found = list(ThreadEvents(["lifecycle"]).recorded(recorded(), [recorded()]))
    assert {one["method"] for one in found} == {"lifecycle"}


def test_a_run_that_is_over_when_it_is_first_seen_has_a_beginning_too() -> None:
    done: dict[str, str] = {}
    assert [one.name for one in Threads._changed(recorded("running"), done)] == ["metadata"]
    assert [one.name for one in Threads._changed(recorded(), done)] == ["run_done"]
    assert [one.name for one in Threads._changed(recorded(), done)] == []
    assert [one.name for one in Threads._changed(recorded(), {})] == ["metadata", "run_done"]
