"""The decision about one call: a function of the call, its turn and the answer, outside any graph."""

from dataclasses import replace
from typing import Any

import pytest
from langchain_core.tools import tool

from agent_runtime.graph.guard.gate import Admitted, Asked, CallRequest, Gate, Refused
from agent_runtime.model.approval import EXPIRED, AuthorDecision, RaisedInterrupt, answer_to, call_key
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import judge


@tool
def send(text: str) -> str:
    """Send."""
    raise AssertionError(f"a decision ran the tool with {text}")


GATE = Gate({}, judge)
CALL = CallRequest(tool=send, name="send", call_id="c1", args={"text": "x"})


def turn(*scopes: str, autonomous: bool = True, **changes: Any) -> TurnContext:
    category = Category(name="work", tools=frozenset(scopes), autonomous=autonomous)
    given = {"turn_id": "turn-1", "thread_id": "thread-a", "channel": "main", "agent": "agent0"} | changes
    return TurnContext(category=category, **given)


def asked(decided: object) -> RaisedInterrupt:
    assert isinstance(decided, Asked)
    said = decided.question
    known = {name: said[name] for name in ("kind", "tool", "args", "args_hash", "call_id")}
    return RaisedInterrupt(interrupt_id="i1", missing_scope=said["scope"], question=said["why"], **known)


def answer(decision: Any, call: CallRequest = CALL, at: TurnContext | None = None, **more: Any) -> Any:
    question = asked(GATE.decide(call, at or turn()))
    return answer_to(question, "thread-a", AuthorDecision(decision=decision, **more))


def test_a_granted_call_is_allowed() -> None:
    assert GATE.decide(CALL, turn("tool:send")) == Admitted(args={"text": "x"}, context=turn("tool:send"))


def test_a_call_without_a_grant_is_asked_as_often_as_it_is_decided() -> None:
    first, second = GATE.decide(CALL, turn()), GATE.decide(CALL, turn())
    assert first == second
    assert (asked(first).kind, asked(first).tool, asked(first).missing_scope) == ("permission", "send", "tool:send")


def test_an_approval_allows_the_call_and_widens_the_turn_for_it_alone() -> None:
    decided = GATE.decide(CALL, turn(), answer("approve"))
    assert isinstance(decided, Admitted)
    assert decided.args == {"text": "x"}
    assert isinstance(GATE.decide(CALL, turn()), Asked), "the next call is asked about"


def test_an_edit_allows_the_call_with_the_authors_arguments() -> None:
    decided = GATE.decide(CALL, turn(), answer("edit", args={"text": "y"}))
    assert isinstance(decided, Admitted)
    assert decided.args == {"text": "y"}


@pytest.mark.parametrize(
    ("decision", "said"),
    [("reject", "the author refused this call: no"), (EXPIRED, "no: this call was not run; finish without it")],
)
def test_a_refusal_is_told_to_the_model(decision: str, said: str) -> None:
    assert GATE.decide(CALL, turn(), answer(decision, message="no")) == Refused(text=said)


@pytest.mark.parametrize("other", [True, "approve", {"decision": "approve"}, {"decision": "approve", "call_id": "c1"}])
def test_an_answer_that_is_none_is_ignored(other: object) -> None:
    assert GATE.decide(CALL, turn(), other) == GATE.decide(CALL, turn())


@pytest.mark.parametrize(
    "call",
    [replace(CALL, args={"text": "z"}), replace(CALL, call_id="c2"), replace(CALL, name="other")],
    ids=["arguments", "id", "name"],
)
def test_an_approval_of_another_call_is_asked_again(call: CallRequest) -> None:
    assert isinstance(GATE.decide(call, turn(), answer("approve")), Asked)


def test_a_question_about_changed_arguments_says_that_an_approval_no_longer_counts() -> None:
    question = asked(GATE.decide(replace(CALL, args={"text": "z"}), turn(), answer("approve")))
    assert question.question.startswith("you approved this call, and its tool or its arguments have changed since")


def test_an_approval_in_another_thread_is_asked_again() -> None:
    assert isinstance(GATE.decide(CALL, turn(thread_id="thread-b"), answer("approve")), Asked)


def test_a_turn_that_may_not_ask_is_refused() -> None:
    for changes in ({"unanswered": True}, {"asks": False}):
        assert isinstance(GATE.decide(CALL, turn(**changes)), Refused)
        known = frozenset({call_key(asked(GATE.decide(CALL, turn())))})
        assert isinstance(GATE.decide(CALL, turn(**changes, asked=known)), Asked), "unless it asked before"


def test_the_first_write_of_a_fire_is_a_proposal() -> None:
    fire = turn("tool:send", autonomous=False, started_by="fire")
    assert asked(GATE.decide(CALL, fire)).kind == "proposal"
    assert isinstance(GATE.decide(CALL, replace(fire, writes_approved=True)), Admitted)


def test_an_approval_before_the_category_was_narrowed_is_asked_again() -> None:
    before = answer("approve")
    fewer = before | {"args_hash": before["args_hash"].rpartition(".")[0] + ".of-fewer-lacking-scopes"}
    question = asked(GATE.decide(CALL, turn(), fewer))
    assert question.question.startswith("you approved this call, and its category was narrowed since")
