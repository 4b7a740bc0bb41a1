"""Approvals as interrupts, and the decisions that clients make in three dialects."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.gateway.lg.approvals import Served, decide, read_choices, rejection, to_interrupt, value_of
from turnkeeper.v1 import agent_runtime_pb2 as wire

ARGS = {"title": "Plan", "body": "Buy seeds."}
JSON_OBJECTS = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=8), max_size=4
)


def call(interrupt_id: str = "i1", args: dict[str, Any] | None = None, **rest: Any) -> wire.Interrupt:
    fields = {"kind": "permission", "tool": "page_propose", "status": "pending", "args_hash": f"hash of {interrupt_id}"}
    given_args = json.dumps(ARGS if args is None else args)
    return wire.Interrupt(interrupt_id=interrupt_id, args_json=given_args, **{**fields, **rest})


CALL = {"tool": "send", "takes": ["approve"], "note": ""}


def question(**rest: Any) -> wire.Interrupt:
    fields = {"interrupt_id": "q1", "kind": "question", "question": "Which day?", "status": "pending"}
    return wire.Interrupt(**{**fields, **rest})


def asked_in(form: str, *tools: str) -> wire.Interrupt:
    calls = [{"tool": tool, "args": ARGS, "takes": ["approve", "reject", "edit"], "note": ""} for tool in tools]
    return question(args_json=json.dumps({"form": form, "calls": calls}), args_hash="form")


@given(JSON_OBJECTS)
def test_a_call_is_shown_to_both_clients_with_the_same_arguments(args: dict[str, Any]) -> None:
    value = to_interrupt(call(args=args))["value"]
    (shown,) = value["action_requests"]
    assert shown["args"] == shown["arguments"] == args
    assert value["review_configs"] == [
        {"action_name": "page_propose", "allowed_decisions": ["approve", "edit", "reject"]}
    ]


def test_what_a_client_would_not_show_of_the_arguments_is_written_out_beside_them() -> None:
    hidden = {"text": "hello\U000e0041\u200b"}
    for asked in (
        call(args=hidden),
        question(args_json=json.dumps({"form": "inbox", "calls": [CALL | {"args": hidden}]})),
    ):
        (shown,) = to_interrupt(asked)["value"]["action_requests"]
        assert shown["args"] == hidden
        assert '{"text": "hello\\udb40\\udc41\\u200b"}' in shown["description"]
    assert "written out" not in to_interrupt(call())["value"]["action_requests"][0]["description"]
    assert to_interrupt(question(question="Which\u202e day?"))["value"].isascii()


def test_a_question_is_shown_with_the_graphs_own_value() -> None:
    value = {"question": "Which day?", "options": ["Monday"], "note": {"of": 1}}
    assert to_interrupt(question(args_json=json.dumps({"value": value})))["value"] == value
    assert to_interrupt(question())["value"] == "Which day?", "an earlier version kept the text alone"


OF_BOTH = [
    ({"decisions": [{"type": "approve"}]}, [{"type": "accept", "args": None}], "approve"),
    (
        {"decisions": [{"type": "edit", "edited_action": {"name": "page_propose", "args": {"title": "B"}}}]},
        [{"type": "edit", "args": {"action": "page_propose", "args": {"title": "B"}}}],
        "edit",
    ),
    ({"decisions": [{"type": "reject", "message": "ignored"}]}, [{"type": "ignore", "args": None}], "reject"),
    ({"decisions": [{"type": "reject", "message": "No."}]}, [{"type": "response", "args": "No."}], "reject"),
]


@pytest.mark.parametrize(("of_chat", "of_inbox", "decision"), OF_BOTH)
def test_both_dialects_make_the_same_decision_about_a_call(of_chat: object, of_inbox: object, decision: str) -> None:
    made = decide(call(), of_chat)
    assert made == decide(call(), of_inbox)
    assert made.decision == decision
    assert made.args_hash == "hash of i1"


@given(JSON_OBJECTS)
def test_accepted_arguments_that_are_as_shown_approve_and_others_edit(args: dict[str, Any]) -> None:
    made = decide(call(), [{"type": "accept", "args": {"action": "page_propose", "args": args}}])
    assert made.decision == ("approve" if args == ARGS else "edit")
    assert (json.loads(made.args_json) if made.args_json else ARGS) == args


@pytest.mark.parametrize("kind", ["accept", "edit"])
def test_a_decision_about_another_tool_is_a_conflict(kind: str) -> None:
    with pytest.raises(Conflict):
        decide(call(), [{"type": kind, "args": {"action": "memory_forget", "args": {}}}])


@pytest.mark.parametrize("value", [None, "yes", True, [], {}, {"decisions": []}, [{"type": "edit", "args": None}]])
def test_what_decides_nothing_about_a_call_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        decide(call(), value)


@pytest.mark.parametrize(
    ("value", "message", "args"),
    [
        ("Tuesday", "Tuesday", ""),
        ([{"type": "response", "args": "Tuesday"}], "Tuesday", ""),
        ({"decisions": [{"type": "respond", "message": "Tuesday"}]}, "Tuesday", ""),
        ({"day": 2}, "", '{"day": 2}'),
    ],
)
def test_a_question_takes_text_and_any_json(value: object, message: str, args: str) -> None:
    made = decide(question(), value)
    assert (made.decision, made.message, made.args_json) == ("answer", message, args)


@pytest.mark.parametrize(
    ("value", "message", "args"),
    [
        ("no", "no", ""),
        ("2", "2", ""),
        ("Tuesday", "", '"Tuesday"'),
        ([{"type": "response", "args": "Tuesday"}], "Tuesday", ""),
    ],
)
def test_a_program_resumes_with_any_value_and_an_inbox_sends_what_a_person_typed(
    value: object, message: str, args: str
) -> None:
    asked = question()
    asked.args_json = '{"value": {"options": ["yes", "no"]}}'
    made = decide(asked, value)
    assert (made.decision, made.message, made.args_json) == ("answer", message, args)
    assert (rejection(asked).decision, rejection(asked).args_json) == ("answer", "false")
    assert value_of(asked) == {"options": ["yes", "no"]}, "a rejection is none of the options"
    assert rejection(question()).decision == "reject"


def test_a_graphs_own_request_is_answered_in_its_form_whatever_the_client_speaks() -> None:
    inbox, chat = [{"type": "accept", "args": None}], {"decisions": [{"type": "approve"}]}
    for form, written in (("decisions", {"decisions": [{"type": "approve"}]}), ("step", {"type": "approve"})):
        for value in (inbox, chat):
            assert json.loads(decide(asked_in(form, "water"), value).args_json) == written
    assert json.loads(decide(asked_in("inbox", "water"), chat).args_json) == inbox


def test_several_calls_of_a_graph_take_a_decision_each_or_one_for_all() -> None:
    each = {"decisions": [{"type": "approve"}, {"type": "reject", "message": "dry"}]}
    assert json.loads(decide(asked_in("decisions", "a", "b"), each).args_json) == each
    with pytest.raises(InvalidInput):
        decide(asked_in("decisions", "a", "b", "c"), each)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists))
def test_anything_is_read_or_is_in_no_dialect(value: object) -> None:
    assert read_choices(value) is None


def decisions(served: Served, value: object, *asked: wire.Interrupt, key: str = "k") -> list[str]:
    return [one.interrupt_id for one in served.decisions(key, "t", asked, value)]


APPROVE = {"decisions": [{"type": "approve"}]}


def test_a_decision_without_an_id_counts_for_the_one_approval_that_its_key_was_shown() -> None:
    served = Served()
    with pytest.raises(Conflict, match="was not shown"):
        decisions(served, APPROVE, call())
    served.show("k", "t", [call()])
    assert decisions(served, APPROVE, call()) == ["i1"]
    with pytest.raises(Conflict, match="was not shown"):
        decisions(served, APPROVE, call(), key="another")


def test_a_late_click_does_not_meet_the_next_question() -> None:
    served = Served()
    served.show("k", "t", [call()])
    decided = call(status="resolved")
    assert decisions(served, APPROVE, decided, call("i2")) == ["i1"], (
        "it is about the one that was shown, and changes nothing"
    )
    served.show("k", "t", [call("i2")])
    assert decisions(served, APPROVE, decided, call("i2")) == ["i2"]


def test_a_changed_call_of_the_same_id_has_to_be_looked_at_again() -> None:
    served = Served()
    served.show("k", "t", [call()])
    with pytest.raises(Conflict, match="was not shown"):
        decisions(served, APPROVE, call(args_hash="another"))


def test_where_several_wait_each_has_to_be_named() -> None:
    served = Served()
    served.show("k", "t", [call(), call("i2")])
    with pytest.raises(Conflict, match="2 approvals wait"):
        decisions(served, APPROVE, call(), call("i2"))
    assert decisions(served, {"i1": APPROVE, "i2": APPROVE}, call(), call("i2")) == ["i1", "i2"]
    with pytest.raises(Conflict, match="no approval i3"):
        decisions(served, {"i1": APPROVE, "i3": APPROVE}, call(), call("i2"))


def test_where_nothing_waits_a_decision_is_a_conflict() -> None:
    with pytest.raises(Conflict, match="nothing waits"):
        decisions(Served(), APPROVE)


def test_what_was_shown_is_bounded() -> None:
    served = Served(most=2)
    for thread in ("a", "b", "t"):
        served.show("k", thread, [call()])
    assert decisions(served, APPROVE, call()) == ["i1"]
    with pytest.raises(Conflict):
        served.decisions("k", "a", [call()], APPROVE)
