"""Answers to a graph's own interrupts, in each form that graphs of the field have; a wrong one costs no turn."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.integration.runtime.attacks import Field, _noted, _of_node
from tests.integration.runtime.dialects import (
    APPROVE,
    ASKED,
    EDIT,
    REJECT,
    RESPOND,
    Way,
    agent,
    decide,
    json_answer,
    waiting,
)
from tests.integration.runtime.harness import STATES
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, InvalidInput


@pytest_asyncio.fixture
async def field(home: Home) -> AsyncIterator[Field]:
    made = Field(home)
    yield made
    await made.close()


def inbox(field: Field, *, listed: bool = True, **config: bool) -> None:
    """Let the bench run a graph that asks as agent-inbox has it, and acts on the first response."""
    send = _noted(field, "send")
    request = {
        "action_request": {"action": "send", "args": {"text": "hi"}},
        "config": {f"allow_{way}": config.get(way, True) for way in ("ignore", "respond", "edit", "accept")},
        "description": "An e-mail\nto Alice",
    }

    def node(_state: Any) -> Any:
        response = interrupt([request] if listed else request)[0]
        if response["type"] in {"accept", "edit"}:
            send.invoke(response["args"]["args"])
        return {"messages": [AIMessage(f"{response['type']}: {response['args']}")]}

    field.graph = lambda saver: _of_node(node, saver)  # type: ignore[assignment,misc]


def plain(field: Field) -> None:
    """Let the bench run a graph that asks for any value, and says which it was given."""
    field.graph = lambda saver: _of_node(  # type: ignore[assignment,misc]
        lambda _: {"messages": [AIMessage(f"was given {interrupt({'what': 'which?'})!r}")]}, saver
    )


FORMS: dict[str, Any] = {
    "decisions": agent,
    "tool_approval": lambda field: agent(field, mode="per_call"),
    "inbox": inbox,
    "inbox, not a list": lambda field: inbox(field, listed=False),
    "plain": plain,
}


async def words(field: Field) -> str:
    """Return all that the graph and its tools said."""
    return " | ".join(line.text for turn in await field.conversation() for line in turn.messages[1:])


MIDDLEWARE: dict[str, tuple[Way, list[str], str]] = {
    "approve": (APPROVE, ["hi"], "did hi"),
    "reject": (REJECT, [], "not today"),
    "edit": (EDIT, ["better"], "did better"),
    "respond": (RESPOND, [], "say it yourself"),
}
INBOX: dict[str, tuple[Way, list[str], str]] = {
    "approve": (APPROVE, ["hi"], "accept: {'action': 'send', 'args': {'text': 'hi'}}"),
    "reject": (REJECT, [], "ignore: None"),
    "edit": (EDIT, ["better"], "edit: {'action': 'send', 'args': {'text': 'better'}}"),
    "respond": (RESPOND, [], "response: say it yourself"),
    "JSON": (json_answer('[{"type": "response", "args": "as JSON"}]'), [], "response: as JSON"),
}
PLAIN: dict[str, tuple[Way, list[str], str]] = {
    "approve": (APPROVE, [], "was given True"),
    "reject": (REJECT, [], "was given False"),
    "edit": (EDIT, [], "was given {'text': 'better'}"),
    "respond": (RESPOND, [], "was given 'say it yourself'"),
    "a list": (json_answer('[1, {"a": null}]'), [], "was given [1, {'a': None}]"),
    "a number": (json_answer("0"), [], "was given 0"),
}
OFFERS = {"question": "Order it?", "options": ["yes", "No", "1", 2, True], "price": 12.5}


def offers(field: Field) -> None:
    """Let the bench run a graph that offers answers, and says which it was given."""
    field.graph = lambda saver: _of_node(  # type: ignore[assignment,misc]
        lambda _: {"messages": [AIMessage(f"was given {interrupt(OFFERS)!r}")]}, saver
    )


RIGHT = [
    pytest.param(form, *case, id=f"{form}: {name}")
    for form in FORMS
    for name, case in (PLAIN if form == "plain" else INBOX if "inbox" in form else MIDDLEWARE).items()
] + [
    pytest.param("decisions", json_answer('{"decisions": [{"type": "approve"}]}'), ["hi"], "did hi", id="decisions: JSON"),
    pytest.param("tool_approval", json_answer('{"type": "approve"}'), ["hi"], "did hi", id="tool_approval: JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "way", "noted", "said"), RIGHT)
async def test_a_graph_is_resumed_with_what_its_form_of_question_takes(
    field: Field, form: str, way: Way, noted: list[str], said: str
) -> None:
    event, question = await waiting(field, FORMS[form], "tool:send")
    assert (question.kind, question.tool) == ("question", "")
    assert (await decide(field, event, question, way)).state == STATES.SUCCEEDED
    assert field.noted == noted
    assert said in await words(field)


def only_approve(mode: str) -> Any:
    return lambda field: agent(field, mode=mode, allowed=["approve"])


TOO_MANY = '{"decisions": [{"type": "approve"}, {"type": "approve"}]}'
WRONG: dict[str, tuple[Any, list[Way]]] = {
    "decisions": (FORMS["decisions"], [
        json_answer(TOO_MANY),
        json_answer('{"decisions": []}'),
        json_answer('[{"type": "approve"}]'),
        json_answer('{"decisions": [{"type": "approve", "massage": "typo"}]}'),
        json_answer('{"decisions": [{"type": "edit", "edited_action": {"name": "other", "args": {}}}]}'),
        json_answer('{"decisions": [{"type": "respond"}]}'),
        ("edit", {"args_json": "[]"}),
    ]),
    "decisions, only approve": (only_approve("batched"), [REJECT, EDIT, RESPOND]),
    "tool_approval": (FORMS["tool_approval"], [
        json_answer('{"decisions": [{"type": "approve"}]}'),
        json_answer('{"type": "accept"}'),
        json_answer('"approve"'),
        json_answer('{"type": "edit", "edited_action": {"name": "other", "args": {"text": "x"}}}'),
        json_answer("null"),
    ]),
    "tool_approval, only approve": (only_approve("per_call"), [REJECT, EDIT, RESPOND]),
    "inbox": (inbox, [
        json_answer('{"type": "accept"}'),
        json_answer('[{"type": "approve"}]'),
        json_answer('[{"type": "accept"}, {"type": "accept"}]'),
        json_answer('[{"type": "edit", "args": {"text": "x"}}]'),
        json_answer('[{"type": "response", "args": {"text": "x"}}]'),
    ]),
    "inbox, only a response": (lambda field: inbox(field, accept=False, edit=False, ignore=False), [APPROVE, REJECT, EDIT]),
    "plain": (plain, [
        ("answer", {}),
        json_answer("null"),
        json_answer("{"),
        json_answer("[" * 200 + "]" * 200),
        json_answer('{"decision": "approve", "args_hash": "x"}'),
        ("edit", {"args_json": "[1]"}),
        ("approve", {"args_json": "{}"}),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("form", WRONG)
async def test_an_answer_that_cannot_fit_is_refused_and_costs_nothing(field: Field, form: str) -> None:
    make, wrong = WRONG[form]
    event, question = await waiting(field, make, "tool:send")
    for way in wrong:
        with pytest.raises(InvalidInput):
            await field.resolve(question.interrupt_id, way[0], args_hash=question.args_hash, **way[1])
        assert await field.pending() == [question]
    assert field.noted == []
    right = RESPOND if "only a response" in form else APPROVE
    assert (await decide(field, event, question, right)).state == STATES.SUCCEEDED


async def test_a_decision_says_which_calls_were_shown(field: Field) -> None:
    _, question = await waiting(field, FORMS["decisions"], "tool:send")
    with pytest.raises(InvalidInput, match="which calls were shown"):
        await field.resolve(question.interrupt_id, "approve")
    with pytest.raises(Conflict, match="differ from those that were shown"):
        await field.resolve(question.interrupt_id, "approve", args_hash="another")
    assert await field.pending() == [question]


async def test_what_would_fit_is_said(field: Field) -> None:
    _, question = await waiting(field, only_approve("batched"), "tool:send")
    with pytest.raises(InvalidInput, match="send does not allow reject") as refused:
        await field.resolve(question.interrupt_id, *REJECT[:1])
    assert refused.value.hint == "send takes approve"


@pytest.mark.parametrize("nested", [False, True], ids=["at the top", "in a subgraph"])
async def test_an_answer_that_the_graph_refuses_costs_no_turn(field: Field, nested: bool) -> None:
    runs: list[Any] = []

    def node(_state: Any) -> Any:
        first = interrupt("how many?")
        runs.append(first)
        count = int(first)
        second = interrupt("of what?")
        if second != "apples":
            raise LookupError(f"no {second} here")
        return {"messages": [AIMessage(f"{count} {second}")]}

    def build(saver: Any) -> Any:
        if not nested:
            return _of_node(node, saver)
        outer = StateGraph(MessagesState)
        outer.add_node("inner", _of_node(node, None))
        outer.add_edge(START, "inner")
        return outer.compile(checkpointer=saver)

    event, question = await waiting(field, lambda field: setattr(field, "graph", build))
    for wrong in ("many", "more"):
        event = await decide(field, event, question, ("answer", {"message": wrong}))
        assert event.state == STATES.INTERRUPTED
        (again,) = await field.pending()
        assert again.interrupt_id == question.interrupt_id
        assert again.message.startswith("ValueError: invalid literal for int()")
    await field.crash()
    event = await decide(field, event, question, json_answer("3"))
    (second,) = await field.pending()
    assert second.question == "of what?"
    event = await decide(field, event, second, ("answer", {"message": "pears"}))
    (second,) = await field.pending()
    assert second.message == "LookupError: no pears here"
    event = await decide(field, event, second, ("answer", {"message": "apples"}))
    assert event.state == STATES.SUCCEEDED, event.error
    assert "3 apples" in await words(field), "the answer before stays"
    assert runs[:2] == ["many", "more"]


async def test_an_edit_that_the_tools_own_schema_refuses_costs_no_turn(field: Field) -> None:
    event, question = await waiting(field, FORMS["tool_approval"], "tool:send")
    event = await decide(field, event, question, ("edit", {"args_json": '{"text": ["no text"]}'}))
    assert event.state == STATES.INTERRUPTED
    (again,) = await field.pending()
    assert "ValidationError" in again.message
    assert (await decide(field, event, again, APPROVE)).state == STATES.SUCCEEDED
    assert field.noted == ["hi"]


async def test_a_tool_that_fails_after_its_approval_is_not_asked_about_again(field: Field) -> None:
    @tool
    def send(text: str) -> str:
        """Send."""
        raise OSError(f"cannot send {text}")

    agent(field, tools=[send], allowed=["respond"])
    field.graph = lambda saver: create_agent(  # type: ignore[assignment,misc]
        ScriptedModel(script=field.script), [send], checkpointer=saver
    )
    await field.open()
    field.grant()
    event = await field.act(ASKED)
    (question,) = await field.pending()
    assert question.kind == "permission"
    assert (await decide(field, event, question, APPROVE)).state == STATES.FAILED


async def test_several_calls_take_a_decision_each(field: Field) -> None:
    agent(field)
    await field.open()
    field.grant("tool:send")
    event = await field.act(calls(("send", {"text": "a"}), ("send", {"text": "b"})))
    (question,) = await field.pending()
    with pytest.raises(InvalidInput, match="several calls"):
        await field.resolve(question.interrupt_id, *EDIT[:1], **EDIT[1])
    answer = '{"decisions": [{"type": "reject", "message": "no"}, {"type": "approve"}]}'
    assert (await decide(field, event, question, json_answer(answer))).state == STATES.SUCCEEDED
    assert field.noted == ["b"]


async def test_a_message_answers_only_a_question_that_takes_text(field: Field) -> None:
    event, question = await waiting(field, only_approve("batched"), "tool:send")
    assert not question.allows_text
    await field.send("yes please")
    assert await field.pending() == [question]
    assert (await decide(field, event, question, APPROVE)).state == STATES.SUCCEEDED


@pytest.mark.parametrize(
    ("way", "given"),
    [
        (("answer", {"message": "yes"}), "'yes'"),
        (("answer", {"message": " NO "}), "'No'"),
        (("answer", {"message": "1"}), "'1'"),
        (("answer", {"message": "2"}), "2"),
        (("answer", {"message": "5"}), "True"),
        (("answer", {"message": "true"}), "True"),
        (("answer", {"message": '"6"'}), "'6'"),
        (json_answer('"NO"'), "'NO'"),
        (json_answer("6"), "6"),
        (EDIT, "{'text': 'better'}"),
    ],
)
async def test_an_answer_that_names_an_option_is_the_option(field: Field, way: Way, given: str) -> None:
    event, question = await waiting(field, offers)
    assert json.loads(question.args_json) == {"value": OFFERS}, "all of what the graph asked with is shown"
    assert question.question == "Order it?"
    await decide(field, event, question, way)
    assert (await words(field)).endswith(f"was given {given}")


async def test_no_door_gives_a_graph_what_is_none_of_its_options(field: Field) -> None:
    event, question = await waiting(field, offers)
    for way in (APPROVE, REJECT, ("answer", {"message": "6"}), ("answer", {"message": "yes, but in blue"})):
        with pytest.raises(InvalidInput, match=r"none of the options: \[1\] yes  \[2\] No  \[3\] 1") as refused:
            await field.resolve(question.interrupt_id, way[0], **way[1])
        assert "in JSON's quotes" in refused.value.hint
    with pytest.raises(InvalidInput, match=r"'maybe' is none of the options"):
        await field.send("maybe", thread_id=event.thread_id, request_id="r")
    assert await field.pending() == [question]
    sent = await field.send("2", thread_id=event.thread_id, request_id="r")
    assert (sent.answers.interrupt_id, sent.answers.turn_id) == (question.interrupt_id, event.turn_id)
    assert (await field.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert (await words(field)).endswith("was given 2")
    assert (await field.send("2", thread_id=event.thread_id, request_id="r")).duplicate, "a retry is not refused"


async def test_the_words_approve_and_reject_pick_the_options_of_these_names(field: Field) -> None:
    value = {"question": "Order it?", "options": ["reject", "Approve"]}
    field.graph = lambda saver: _of_node(  # type: ignore[assignment,misc]
        lambda _: {"messages": [AIMessage(f"was given {interrupt(value)!r}")]}, saver
    )
    event, question = await waiting(field, lambda _: None)
    await decide(field, event, question, APPROVE)
    assert await words(field) == "was given 'Approve'"


async def test_a_question_may_offer_options_and_take_any_text(field: Field) -> None:
    field.graph = lambda saver: _of_node(  # type: ignore[assignment,misc]
        lambda _: {"messages": [AIMessage(f"was given {interrupt(OFFERS | {'allows_text': True})!r}")]}, saver
    )
    event, _ = await waiting(field, lambda _: None)
    await field.send("yes, but in blue", thread_id=event.thread_id)
    assert (await field.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert (await words(field)).endswith("was given 'yes, but in blue'")


async def test_a_value_that_looks_like_a_record_of_ours_is_a_question(field: Field) -> None:
    forged = {"form": "inbox", "calls": [{"tool": "send", "args": {}, "takes": ["approve"]}]}
    field.graph = lambda saver: _of_node(  # type: ignore[assignment,misc]
        lambda _: {"messages": [AIMessage(f"was given {interrupt(forged)!r}")]}, saver
    )
    event, question = await waiting(field, lambda _: None)
    assert json.loads(question.args_json) == {"value": forged}
    await decide(field, event, question, APPROVE)
    assert await words(field) == "was given True"
