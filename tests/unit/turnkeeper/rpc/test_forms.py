"""The forms of graphs' questions: what is one of them, and what an approval in it is about."""

import json
from typing import Any

import pytest

from agent_runtime.cli import approvals, rows
from agent_runtime.model.approval import EXPIRED, AuthorDecision, answer_to, read_interrupt
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.forms import (
    Question,
    approved,
    choices_in,
    from_dict,
    read,
    request_in,
    ways_of,
    with_ids,
    with_tools,
)
from turnkeeper.v1 import agent_runtime_pb2 as wire

SEND = {"name": "send", "args": {"text": "hi"}, "description": "harmless\x1b[31m"}
CONFIG = {"action_name": "send", "allowed_decisions": ["approve", "edit", "reject"]}
DECISIONS: dict[str, Any] = {"action_requests": [SEND], "review_configs": [CONFIG]}
APPROVAL: dict[str, Any] = {"type": "tool_approval", "name": "send", "args": {"text": "hi"}, "tool_call_id": "c1"}
INBOX: dict[str, Any] = {
    "action_request": {"action": "send", "args": {"text": "hi"}},
    "config": {"allow_accept": True, "allow_edit": False, "allow_respond": True, "allow_ignore": False},
}
NO_FORM: list[Any] = [
    None,
    "text",
    [],
    {},
    [INBOX, "text"],
    {**DECISIONS, "action_requests": []},
    {**DECISIONS, "action_requests": [{**SEND, "args": "hi"}]},
    {**DECISIONS, "action_requests": [{**SEND, "args": {1: "hi"}}]},
    {**DECISIONS, "review_configs": [{**CONFIG, "action_name": "other"}]},
    {**DECISIONS, "review_configs": [{**CONFIG, "allowed_decisions": ["burn"]}]},
    {**APPROVAL, "tool_call_id": None},
    {**INBOX, "config": {}},
    {**INBOX, "action_request": {"action": 1, "args": {}}},
]


@pytest.mark.parametrize("value", NO_FORM, ids=str)
def test_what_is_not_exactly_of_a_form_is_a_plain_question(value: Any) -> None:
    assert read(value) is None


@pytest.mark.parametrize(("value", "takes"), [
    (DECISIONS, ("approve", "reject", "edit")),
    (APPROVAL, ("approve", "reject", "edit", "respond")),
    (INBOX, ("approve", "respond")),
    ([INBOX], ("approve", "respond")),
], ids=["decisions", "tool_approval", "inbox", "list"])  # fmt: skip
def test_a_form_says_what_may_be_answered_and_is_kept_as_json(value: Any, takes: tuple[str, ...]) -> None:
    found = read(value)
    assert found is not None
    assert (found.calls[0].tool, found.calls[0].args, found.calls[0].takes) == ("send", {"text": "hi"}, takes)
    assert from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(("schema", "takes"), [
    ({"properties": {"type": {"const": "approve"}}}, ("approve",)),
    ({"oneOf": [], "discriminator": {"mapping": {"reject": "#", "approve": "#"}}}, ("approve", "reject")),
])  # fmt: skip
def test_the_schema_of_an_answer_says_what_it_takes(schema: Any, takes: tuple[str, ...]) -> None:
    found = read(APPROVAL, schema)
    assert found is not None
    assert found.calls[0].takes == takes


def _made(*calls: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"name": "send", "args": {"text": text}, "id": made} for text, made in calls]


def test_a_call_has_the_id_of_the_one_call_that_it_can_be() -> None:
    found = read(DECISIONS)
    assert found is not None
    assert with_ids(found, _made(("ho", "c0"), ("hi", "c1"))).calls[0].call_id == "c1"
    assert with_ids(found, _made(("hi", "c1"), ("hi", "c2"))).calls[0].call_id == ""
    assert with_ids(found, _made(("ho", "c0"))).calls[0].call_id == ""


def test_only_calls_that_say_which_call_and_which_tool_are_approved() -> None:
    answers: list[tuple[Any, Any]] = [
        (DECISIONS, {"decisions": [{"type": "approve"}]}),
        (INBOX, [{"type": "accept", "args": None}]),
        (APPROVAL, {"type": "reject"}),
    ]
    for value, answer in answers:
        found = read(value)
        assert found is not None
        assert list(approved(found, choices_in(found, answer))) == []
    one = read(APPROVAL)
    assert one is not None
    edit = {"type": "edit", "edited_action": {"name": "send", "args": {"text": "ho"}}}
    (edited,) = approved(one, choices_in(one, edit))
    assert (edited.tool, edited.args, edited.call_id) == ("send", {"text": "ho"}, "c1")
    asked = read(INBOX)
    assert asked is not None
    known = with_tools(asked, lambda tool: f"digest of {tool}")
    (accepted,) = approved(known, choices_in(known, [{"type": "accept", "args": None}]))
    assert accepted.tool_hash == f"digest of {accepted.tool}"


def _row(value: Any) -> dict[str, Any]:
    found = read(value)
    return {
        "kind": "question",
        "args": found.to_dict() if found else {},
        "question": "",
        "interrupt_id": "0123456789ab",
    }


def test_a_person_reads_tool_arguments_and_what_may_be_answered() -> None:
    asks = request_in(_row(APPROVAL))
    assert asks is not None
    assert rows.request_text(asks).splitlines() == [
        "send  (call c1)",
        '   text = "hi"',
        "   takes: approve, reject, edit, respond",
        "an approval lets exactly this call run once, even if the category grants it",
    ]
    without = request_in(_row(DECISIONS))
    assert without is not None
    assert "the graph says: harmless" in rows.request_text(without)
    assert "even if the category" not in rows.request_text(without), "which call it is about is not known"
    assert rows.resolve_command(_row(INBOX)) == "turnkeeper approvals resolve 0123456789 --approve"
    assert rows.asked(_row(INBOX)) == 'send(text="hi"): the graph asks you'


TWO = {**DECISIONS, "action_requests": [SEND, {**SEND, "args": {"text": "ho"}}]}


def test_each_of_several_calls_is_decided_by_its_number() -> None:
    decided = approvals._call_by_call(_row(TWO), ("approve", "", ""), ["2 reject not this one"])
    assert decided[0] == "answer"
    assert json.loads(decided[2]) == {"decisions": [{"type": "approve"}, {"type": "reject", "message": "not this one"}]}
    edited = approvals._call_by_call(_row(TWO), ("", "", ""), ['1 edit {"text": "x y"}', "2 approve"])
    assert json.loads(edited[2])["decisions"][0]["edited_action"] == {"name": "send", "args": {"text": "x y"}}


@pytest.mark.parametrize("calls", [
    ["2 approve"], ["3 approve"], ["1 burn", "2 approve"], ["x approve"], ["1 approve now", "2 approve"],
    ["1 edit text", "2 approve"], ["1 respond hi", "2 approve"], [""],
])  # fmt: skip
def test_a_wrong_decision_about_one_call_is_refused(calls: list[str]) -> None:
    with pytest.raises(InvalidInput):
        approvals._call_by_call(_row(TWO), ("", "", ""), calls)


@pytest.mark.parametrize(("typed", "message", "as_json"), [
    ("yes", "yes", ""), ("{not json", "{not json", ""), ('"5"', "5", ""), ("5", "5", "5"), ("[1]", "[1]", "[1]"),
    ('{"decisions": []}', '{"decisions": []}', '{"decisions": []}'), ("[" * 100_000, "[" * 100_000, ""),
])  # fmt: skip
def test_an_answer_is_json_if_it_is_json_and_text_if_not(typed: str, message: str, as_json: str) -> None:
    assert approvals._answer(Question(), typed) == (message, as_json)


@pytest.mark.parametrize(("typed", "value", "read_as"), [
    ("1", "yes", ""), (" NO", "no", ""), ("3", 7, ""), ("7", 7, ""), ('"later"', "later", ""), ('"a \\"b\\""', 'a "b"', ""),
    ('{"when": 1}', None, '{"when": 1}'),
])  # fmt: skip
def test_an_answer_is_an_option_by_name_or_number_or_exactly_what_is_quoted(
    typed: str, value: Any, read_as: str
) -> None:
    question = Question(value={"options": ["yes", "no", 7]})
    assert approvals._answer(question, typed) == (typed, read_as)
    assert question.picked(typed) == ([value] if value is not None else [])


@pytest.mark.parametrize("typed", ["yse", "4", "0", "true", "null", "", '"half', '"\\ud800"'])
def test_an_answer_that_is_no_option_is_refused_with_the_options(typed: str) -> None:
    question = Question(value={"options": ["yes", "no"]})
    assert approvals._answer(question, typed) == (typed, "")
    with pytest.raises(InvalidInput, match=r"none of the options: \[1\] yes  \[2\] no") as refused:
        question.check(typed)
    assert f"'{json.dumps(typed)}'" in refused.value.hint
    assert Question(value={"options": ["yes", "no"], "allows_text": True}).takes(typed)


@pytest.mark.parametrize(("value", "given"), [
    (DECISIONS, {"decisions": [{"type": "reject", "message": "no answer within 1h"}]}),
    (APPROVAL, {"type": "reject", "message": "no answer within 1h"}),
    ({**INBOX, "config": {"allow_ignore": True}}, [{"type": "ignore", "args": None}]),
    (INBOX, False),
], ids=["decisions", "tool_approval", "inbox", "takes no rejection"])  # fmt: skip
def test_a_question_that_nobody_answers_is_rejected_in_its_form(value: Any, given: Any) -> None:
    asked = read_interrupt("i", value, asks=read(value))
    assert answer_to(asked, "t", AuthorDecision(decision=EXPIRED, message="no answer within 1h")) == given


@pytest.mark.parametrize(
    ("kind", "args", "ways"),
    [
        ("permission", {"text": "hi"}, ["approve", "reject", "edit"]),
        ("question", {"value": "which?"}, ["answer", "approve", "reject"]),
        ("question", {"value": {"options": ["yes", "no"]}}, ["pick"]),
        ("question", {"value": {"options": ["yes", "no"], "allows_text": True}}, ["pick", "answer"]),
        ("question", read(INBOX).to_dict(), ["approve", "respond"]),  # type: ignore[union-attr]
        ("question", read(DECISIONS).to_dict(), ["approve", "reject", "edit"]),  # type: ignore[union-attr]
        ("question", read([INBOX, INBOX]).to_dict(), ["approve", "respond"]),  # type: ignore[union-attr]
    ],
)
def test_a_row_and_a_message_are_decided_in_the_same_ways(kind: str, args: Any, ways: list[str]) -> None:
    assert ways_of({"kind": kind, "args": args}) == ways
    assert ways_of(wire.Interrupt(kind=kind, args_json=json.dumps(args))) == ways
