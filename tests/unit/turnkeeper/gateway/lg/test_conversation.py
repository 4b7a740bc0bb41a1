"""Turns as runs, conversations as messages and states, and what clients send."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.lg.conversation import (
    ANY,
    messages_of,
    read_prompt,
    run_of,
    run_status,
    state_of,
    states_of,
    thread_of,
    thread_status,
    turn_statuses,
    values_of,
)
from turnkeeper.gateway.lg.requests import Once, check_newest, read_run
from turnkeeper.v1 import agent_runtime_pb2 as wire

RUN = ("pending", "running", "success", "error", "interrupted")


def turn(turn_id: str, status: str = "succeeded", *said: tuple[str, str], **rest: Any) -> wire.ConversationTurn:
    messages = [wire.Message(role=role, text=text) for role, text in said]
    return wire.ConversationTurn(turn_id=turn_id, thread_id="t1", status=status, messages=messages, **rest)


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


def test_messages_have_the_ids_under_which_their_pieces_are_told() -> None:
    said = (("author", "Hello"), ("agent", ""), ("tool", "3 pages"), ("agent", "There are 3."))
    found = messages_of(turn("turn-1", "succeeded", *said))
    assert [(one["type"], one["id"]) for one in found] == [
        ("human", "turn-1-in0"), ("ai", "turn-1-0"), ("tool", "turn-1-1"), ("ai", "turn-1-2"),
    ]  # fmt: skip


def test_there_is_a_state_for_each_turn_and_its_parent_is_the_turn_before() -> None:
    turns = [turn("turn-1", "succeeded", ("author", "a")), turn("turn-2", "running", ("author", "b"))]
    newest, first = states_of("t1", turns)
    assert newest["parent_checkpoint"] == first["checkpoint"]
    assert (newest["next"], first["next"], first["parent_checkpoint"]) == (["agent"], [], None)
    assert [len(one["values"]["messages"]) for one in (newest, first)] == [2, 1]
    assert newest == state_of("t1", turns)


def test_a_thread_without_turns_has_no_checkpoint() -> None:
    assert state_of("t1", [])["checkpoint"] is None
    assert states_of("t1", []) == []


def test_what_waits_is_in_the_state_its_task_and_the_values() -> None:
    asked = wire.Interrupt(interrupt_id="i1", kind="permission", tool="put", status="pending", args_json="{}")
    turns = [turn("turn-1", "interrupted", ("author", "a"), interrupts=[asked])]
    state = state_of("t1", turns)
    assert [one["id"] for one in state["interrupts"]] == ["i1"]
    assert state["tasks"][0]["interrupts"] == state["interrupts"]
    assert [one["id"] for one in values_of(turns)["__interrupt__"]] == ["i1"]
    assert "__interrupt__" not in state["values"]


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


@pytest.mark.parametrize("content", ["Hello", ["Hello"], [{"type": "text", "text": "Hello"}]])
@pytest.mark.parametrize("role", [{"type": "human"}, {"role": "user"}, {"role": "human"}])
def test_the_text_of_a_persons_last_message_is_read(content: object, role: dict[str, str]) -> None:
    messages = [{"type": "human", "content": "before"}, {**role, "content": content, "id": "m"}, {"type": "ai"}]
    assert read_prompt(messages) == ("Hello", "m")


def test_a_message_may_be_a_text_or_a_pair() -> None:
    assert read_prompt("Hello") == ("Hello", "")
    assert read_prompt([["user", "Hello"]]) == ("Hello", "")


@pytest.mark.parametrize("messages", [None, [], [{"type": "ai", "content": "x"}], [{"type": "human", "content": " "}]])
def test_no_message_is_invented(messages: object) -> None:
    with pytest.raises(InvalidInput, match="no human message"):
        read_prompt(messages)


def test_a_picture_is_refused() -> None:
    with pytest.raises(InvalidInput, match="image_url"):
        read_prompt([{"role": "user", "content": [{"type": "image_url", "image_url": "data:"}]}])


BODY: dict[str, Any] = {"assistant_id": "agent0", "input": {"messages": [{"role": "user", "content": "Hi"}]}}
REFUSED = [
    ({"interrupt_before": "*"}, "interrupt_before"), ({"webhook": "http://x"}, "webhook"),
    ({"after_seconds": 3}, "after_seconds"), ({"multitask_strategy": "interrupt"}, "multitask_strategy"),
    ({"multitask_strategy": "rollback"}, "multitask_strategy"), ({"on_completion": "delete"}, "on_completion"),
    ({"command": {"goto": "agent"}}, "command.goto"), ({"command": {"update": {"a": 1}}}, "command.update"),
    ({"config": {"recursion_limit": 5}}, "config.recursion_limit"), ({"stream_mode": "all"}, "stream_mode"),
    ({"metadata": {"a": 1}}, "metadata"), ({"assistant_id": ""}, "assistant_id"), ({"input": None}, "input"),
    ({"unheard_of": 1}, "unheard_of"),
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


def test_only_the_newest_state_of_a_thread_can_be_gone_on_from() -> None:
    check_newest("turn-2", "turn-2")
    check_newest("", "turn-2")
    with pytest.raises(InvalidInput, match="not forked"):
        check_newest("turn-1", "turn-2")


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
