"""Turns as runs, conversations as messages and states, and what clients send."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.lg.approvals import to_interrupt
from turnkeeper.gateway.lg.conversation import (
    ANY,
    run_of,
    run_status,
    shown,
    state_with,
    thread_of,
    thread_status,
    turn_statuses,
)
from turnkeeper.gateway.lg.requests import Once, forked, read_run
from turnkeeper.v1 import agent_runtime_pb2 as wire

RUN = ("pending", "running", "success", "error", "interrupted")


def test_each_status_of_a_turn_is_one_of_a_run_and_is_found_by_it() -> None:
    for status in ANY:
        assert run_status(status) in RUN
        assert status in turn_statuses(run_status(status))
    assert turn_statuses("timeout") == frozenset()
    with pytest.raises(InvalidInput):
        turn_statuses("done")


def test_what_waits_for_a_person_says_what_a_threads_status_is() -> None:
    assert thread_status(wire.Thread(status="interrupted", waiting=1)) == "interrupted"
    statuses = {"running": "busy", "failed": "error", "succeeded": "idle", "cancelled": "idle", "": "idle"}
    assert {status: thread_status(wire.Thread(status=status)) for status in statuses} == statuses


def test_what_waits_has_the_form_of_clients_in_the_state_and_its_task() -> None:
    asked = wire.Interrupt(interrupt_id="i1", kind="permission", tool="put", status="pending", args_json="{}")
    inside = {"id": "i1", "value": {"kind": "permission"}}
    stop = wire.Interrupt(interrupt_id="i2", kind="question", args_json='{"value": "Go on?"}', status="pending")
    inner = {"tasks": [{"interrupts": [inside], "state": None}], "interrupts": [inside]}  # of a subgraph
    state = state_with({"tasks": [{"interrupts": [inside], "state": inner}], "interrupts": [inside]}, [asked, stop])
    assert [one["id"] for one in state["interrupts"]] == ["i1", "i2"]
    (task,) = state["tasks"]
    assert task["interrupts"] == inner["interrupts"] == inner["tasks"][0]["interrupts"] == state["interrupts"][:1]
    assert state["interrupts"][0]["value"]["action_requests"][0]["name"] == "put"


def test_a_graphs_own_question_goes_out_as_the_graph_wrote_it() -> None:
    value = {"question": "Which?", "options": ["a", "b"], "note": 1}
    asked = wire.Interrupt(interrupt_id="i1", kind="question", args_json=json.dumps({"value": value}))
    assert to_interrupt(asked) == {"id": "i1", "value": value}


def test_each_approval_of_a_thread_has_a_key_of_its_own() -> None:
    asked = [wire.Interrupt(interrupt_id=id_, kind="permission", args_json="{}") for id_ in ("i1", "i2")]
    found = thread_of(wire.Thread(thread_id="t1", waiting=2), None, asked, "agent0", "uuid")
    assert {key: [one["id"] for one in held] for key, held in found["interrupts"].items()} == {
        "i1": ["i1"],
        "i2": ["i2"],
    }
    assert found["metadata"]["graph_id"] == "agent0"
    assert "values" not in found


def test_a_cancelled_run_says_why() -> None:
    run = run_of(wire.Turn(turn_id="turn-1", status="cancelled", error="cancelled by the author"), "uuid")
    assert (run["status"], run["cancel_reason"]) == ("interrupted", "cancelled by the author")


@pytest.mark.parametrize("content", ["Hello", ["Hello"], [{"type": "text", "text": "Hello"}, {"type": "image_url"}]])
@pytest.mark.parametrize("role", [{"type": "human"}, {"role": "user"}, {"role": "human"}])
def test_an_input_is_shown_by_the_text_of_a_persons_last_message(content: object, role: dict[str, str]) -> None:
    messages = [{"type": "human", "content": "before"}, {**role, "content": content, "id": "m"}, {"type": "ai"}]
    assert shown(messages) == ("Hello", "m")


def test_a_message_may_be_a_text_or_a_pair() -> None:
    assert shown("Hello") == ("Hello", "")
    assert shown([["user", "Hello"]]) == ("Hello", "")


@pytest.mark.parametrize("messages", [None, [], [{"type": "ai", "content": "x"}], [{"type": "human", "content": " "}]])
def test_an_input_without_a_persons_text_is_shown_as_json(messages: object) -> None:
    assert shown(messages)[0] == ""
    asked = read_run({"assistant_id": "agent0", "input": {"messages": messages, "topic": "x"}})
    assert (json.loads(asked.text), asked.input) == (asked.input, {"messages": messages, "topic": "x"})


def test_an_input_that_is_no_object_is_the_graphs_only_value() -> None:
    assert read_run({"assistant_id": "agent0", "input": [1, 2]}).input == {"input": [1, 2]}


def test_the_options_of_a_run_are_kept_with_its_turn() -> None:
    config = {"recursion_limit": 5, "tags": ["a"], "metadata": {"k": 1}, "configurable": {"size": 2}}
    asked = read_run(
        BODY | {"config": config, "metadata": {"a": 1}, "interrupt_before": ["x"], "stream_mode": "custom"}
    )
    assert asked.run == {
        "stream_modes": ["custom"], "interrupt_before": ["x"], "metadata": {"a": 1},
        "config": {"recursion_limit": 5, "tags": ["a"], "metadata": {"k": 1}},
    }  # fmt: skip
    assert asked.options == {"config_json": '{"size": 2}'}


BODY: dict[str, Any] = {"assistant_id": "agent0", "input": {"messages": [{"role": "user", "content": "Hi"}]}}
REFUSED = [
    ({"interrupt_before": "x"}, "interrupt_before"), ({"feedback_keys": ["score"]}, "feedback_keys"),
    ({"after_seconds": -3}, "after_seconds"), ({"multitask_strategy": "race"}, "multitask_strategy"),
    ({"on_completion": "delete"}, "on_completion"),
    ({"command": {"goto": "agent"}}, "command.goto"), ({"command": {"update": {"a": 1}}}, "command.update"),
    ({"config": {"recursion_limit": "5"}}, "config.recursion_limit"), ({"config": {"callbacks": [1]}}, "config.callbacks"),
    ({"stream_mode": "all"}, "stream_mode"),
    ({"config": {"tags": [1]}}, "config.tags"), ({"assistant_id": ""}, "assistant_id"),
    ({"unheard_of": 1}, "unheard_of"), ({"checkpoint": {"checkpoint_ns": "a:b"}}, "checkpoint.checkpoint_ns"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "where"), REFUSED)
def test_what_is_not_offered_is_refused_with_where_why_and_what_to_do(body: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_run(BODY | body)
    assert refused.value.where == where
    assert refused.value.hint


def test_what_clients_send_along_without_meaning_it_is_taken() -> None:
    asked = read_run(
        BODY | {"on_disconnect": "cancel", "stream_subgraphs": True, "durability": "sync", "webhook": None}
    )
    assert (asked.text, asked.modes, asked.decides) == ("Hi", {"values"}, False)
    assert read_run({"assistant_id": "a", "input": {}, "command": {"resume": None}}).decides
    assert read_run({"assistant_id": "a", "input": {}, "command": {"goto": "__end__"}}).rejects


def test_ids_in_the_configuration_are_the_clients_own_and_the_rest_goes_along() -> None:
    config = {"configurable": {"thread_id": "t", "assistant_id": "a", "user": "ada"}}
    assert dict(read_run(BODY | {"config": config}).options) == {"config_json": '{"user": "ada"}'}


def state(checkpoint_id: str | None, source: str = "loop", parent: str | None = None) -> dict[str, Any]:
    return {"checkpoint_id": checkpoint_id, "parent_checkpoint_id": parent, "metadata": {"source": source}}


def begins_at(asked: Any) -> Any:
    return asked.run.get("checkpoint_id"), asked.run.get("replays", False)


def test_a_run_begins_at_the_state_that_it_names_unless_that_is_the_newest() -> None:
    newest, old, new = state("2"), state("1"), read_run(BODY)
    again = read_run({"assistant_id": "a"})
    assert begins_at(forked(new, newest, newest)) == (None, False)
    assert begins_at(forked(new, newest, old)) == ("1", False)
    assert begins_at(forked(again, newest, old)) == ("1", True)
    assert begins_at(forked(again, newest, newest)) == ("2", True)
    fork = state("3", source="fork", parent="2")
    assert begins_at(forked(again, fork, fork)) == ("2", True), "a fork has the state of its parent"
    assert begins_at(forked(again, newest, fork)) == ("3", True)


@pytest.mark.parametrize("place", [state(None), state("2", source="update")], ids=["no state", "a write"])
def test_without_an_input_nothing_runs_on_a_new_thread_or_after_a_write(place: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        forked(read_run({"assistant_id": "a"}), place, place)
    assert (refused.value.where, bool(refused.value.hint)) == ("input", True)


def test_what_may_have_been_done_has_the_same_id_when_it_is_sent_again() -> None:
    drawn = iter("abcd")
    once = Once(lambda: next(drawn), most=1)
    first = once.id_of("body")
    assert once.id_of("body") != first, "it was done: another of the same words is another"
    once.is_unsure("body", first)
    assert once.id_of("body") == first
    once.is_unsure("one", "1")
    once.is_unsure("two", "2")
    assert (once.id_of("two"), once.id_of("one")) == ("2", "c")


@given(st.text(min_size=1), st.text())
def test_a_clients_own_key_gives_one_id(name: str, about: str) -> None:
    once = Once(lambda: "drawn")
    assert once.id_of(about, name) == once.id_of("another", name) != once.id_of(about, name + "x")
