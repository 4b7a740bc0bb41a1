"""The guard around a real agent's tool calls: what it lets through, what it asks, and what it refuses."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agent_runtime.graph.context import ToolSpec, turn_around
from agent_runtime.graph.guard import Gate, Guard
from agent_runtime.graph.guard.gate import unchanged
from agent_runtime.model.approval import AuthorDecision, answer_to, call_key, read_interrupt
from agent_runtime.model.turn import ALLOWED, Category, TurnContext, Verdict
from agent_runtime.permissions.judge import judge
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.errors import Denied

CONFIG: Any = {"configurable": {"thread_id": "thread-a"}}
ran: list[str] = []


@tool
def note(text: str) -> str:
    """Note a text."""
    ran.append(text)
    return f"noted {text}"


def another_note() -> Any:
    """Return a tool that is called `note` too."""
    return StructuredTool.from_function(func=lambda text: f"ours: {text}", name="note", description="Note.")


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def context(*scopes: str, **changes: Any) -> TurnContext:
    category = Category(name="work", autonomous=True, tools=frozenset(scopes))
    given = {"turn_id": "turn-1", "thread_id": "thread-a", "channel": "main", "agent": "agent0"} | changes
    return TurnContext(category=category, **given)


class Agent:
    """An agent that calls `note` once, or as its script says."""

    def __init__(
        self, *lines: Any, specs: dict[str, ToolSpec] | None = None, ask: Any = judge, narrow: Any = unchanged
    ) -> None:
        model = ScriptedModel(script={"go": list(lines) or [calls(("note", {"text": "x"}))]})
        guard = Guard(Gate(specs or {}, ask, narrow))
        self.graph: Any = create_agent(
            model, [note], middleware=[guard], context_schema=TurnContext, checkpointer=InMemorySaver()
        )

    def go(self, turn: TurnContext | None) -> list[str]:
        return self._tell({"messages": [HumanMessage("go", id=turn.turn_id if turn else None)]}, turn)

    def decide(self, turn: TurnContext, decision: str, **changes: Any) -> list[str]:
        (asked,) = self.graph.get_state(CONFIG).interrupts
        raised = read_interrupt(asked.id, asked.value, recorded=asked.value)
        decided = AuthorDecision(decision=decision, args=changes.pop("args", None), message=changes.pop("message", ""))
        answer = answer_to(raised, "thread-a", decided)
        assert isinstance(answer, dict)
        turn = replace(turn, asked=frozenset({call_key(raised)}))
        return self._tell(Command(resume={asked.id: answer | changes}), turn)

    def _tell(self, what: Any, turn: TurnContext | None) -> list[str]:
        with turn_around(turn) if turn else nullcontext():
            result = self.graph.invoke(what, CONFIG, context=turn)
        return [str(message.content) for message in result["messages"] if isinstance(message, ToolMessage)]


def test_in_scope_runs() -> None:
    assert Agent().go(context("tool:note")) == ["noted x"]


async def test_in_scope_runs_in_the_asynchronous_path_too() -> None:
    with turn_around(context("tool:note")) as turn:
        result = await Agent().graph.ainvoke({"messages": [HumanMessage("go")]}, CONFIG, context=turn)
    assert ran == ["x"]
    assert "__interrupt__" not in result


async def test_out_of_scope_asks_in_the_asynchronous_path_too() -> None:
    with turn_around(context()) as turn:
        result = await Agent().graph.ainvoke({"messages": [HumanMessage("go")]}, CONFIG, context=turn)
    assert ran == []
    assert result["__interrupt__"][0].value["scope"] == "tool:note"


def test_no_turn_is_no() -> None:
    assert Agent().go(None) == ["this call was made outside a turn; it was not run"]
    assert ran == []


def test_a_context_without_a_turn_around_it_is_no() -> None:
    made_up = context("tool:note")
    Agent().graph.invoke({"messages": [HumanMessage("go")]}, CONFIG, context=made_up)
    assert ran == []


def test_a_context_narrows_the_turn_and_never_widens_it() -> None:
    for turn, given, asks in (
        (context("tool:note"), context(), True),
        (context(), context("tool:note"), True),
        (context("tool:note"), context("tool:note"), False),
        (context("tool:note"), context("tool:note", read_only=True), True),
    ):
        agent = Agent()
        with turn_around(turn):
            agent.graph.invoke({"messages": [HumanMessage("go")]}, CONFIG, context=given)
        assert bool(agent.graph.get_state(CONFIG).interrupts) is asks
    assert ran == ["x"]


def test_a_context_of_another_turn_is_no() -> None:
    agent = Agent()
    with turn_around(context("tool:note")):
        agent.graph.invoke({"messages": [HumanMessage("go")]}, CONFIG, context=context("tool:note", turn_id="turn-2"))
    assert ran == []


def test_a_category_is_asked_for_at_each_call() -> None:
    left = [context("tool:note").category, context().category]
    agent = Agent(
        calls(("note", {"text": "x"})),
        calls(("note", {"text": "y"})),
        narrow=lambda turn: replace(turn, category=left.pop(0)),
    )
    agent.go(context("tool:note"))
    assert ran == ["x"]
    assert len(agent.graph.get_state(CONFIG).interrupts) == 1


def test_what_the_author_was_asked_is_his_to_decide_though_it_is_granted_by_now() -> None:
    agent = Agent()
    agent.go(context())
    assert agent.decide(context("tool:note"), "reject", message="no") == ["the author refused this call: no"]
    assert ran == []


def test_a_tool_of_ours_is_known_by_itself_and_not_by_its_name() -> None:
    spec = ToolSpec(tool=another_note(), scope="workspace.read", effect="read")
    agent = Agent(specs={"note": spec})
    agent.go(context("workspace.read"))
    assert ran == []
    assert agent.graph.get_state(CONFIG).interrupts[0].value["scope"] == "tool:note"


def test_a_tool_that_nobody_specified_is_a_write_of_its_own_scope() -> None:
    seen: list[tuple[str, str]] = []

    def ask(scope: str, effect: str, _args: object, _context: object) -> Verdict:
        seen.append((scope, effect))
        return ALLOWED

    Agent(ask=ask).go(context())
    assert seen == [("tool:note", "write")]


def test_a_specified_tool_has_its_spec() -> None:
    spec = ToolSpec(tool=note, scope="workspace.read", effect="read")
    assert Agent(specs={"note": spec}).go(context("workspace.read")) == ["noted x"]


def test_read_only_turns_ask_before_a_write() -> None:
    agent = Agent()
    assert agent.go(context("tool:note", read_only=True)) == []
    assert agent.graph.get_state(CONFIG).interrupts[0].value["scope"] == "effect:write"
    assert agent.decide(context("tool:note", read_only=True), "approve") == ["noted x"]


@pytest.mark.parametrize(
    "changes", [{"args_hash": "0" * 64}, {"call_id": "another"}, {"thread_id": "another"}, {"decision": "yes"}]
)
def test_an_answer_about_something_else_counts_for_nothing(changes: dict[str, Any]) -> None:
    agent = Agent()
    agent.go(context())
    (asked,) = agent.graph.get_state(CONFIG).interrupts
    assert agent.decide(context(), changes.pop("decision", "approve"), **changes) == []
    assert ran == []
    (anew,) = agent.graph.get_state(CONFIG).interrupts
    assert anew.id != asked.id, "the author is asked anew"
    assert agent.decide(context(), "approve") == ["noted x"]


@pytest.mark.parametrize("answer", [True, "approve", None, {}, ["approve"]])
def test_an_answer_that_is_none_of_ours_counts_for_nothing(answer: object) -> None:
    agent = Agent()
    agent.go(context())
    (asked,) = agent.graph.get_state(CONFIG).interrupts
    with turn_around(context()) as turn:
        agent.graph.invoke(Command(resume={asked.id: answer}), CONFIG, context=turn)
    assert ran == []
    assert len(agent.graph.get_state(CONFIG).interrupts) == 1


def test_approve_edit_reject() -> None:
    for decision, changes, told in (
        ("approve", {}, "noted x"),
        ("edit", {"args": {"text": "y"}}, "noted y"),
        ("reject", {"message": "no"}, "the author refused this call: no"),
    ):
        agent = Agent()
        agent.go(context())
        assert agent.decide(context(), decision, **changes) == [told]
    assert ran == ["x", "y"]


def test_an_approved_call_is_judged_again_the_next_time() -> None:
    agent = Agent(calls(("note", {"text": "x"})), calls(("note", {"text": "x"})))
    agent.go(context())
    agent.decide(context(), "approve")
    assert ran == ["x"]
    assert len(agent.graph.get_state(CONFIG).interrupts) == 1, "the same arguments, asked anew"


def test_the_limit_counts_this_turns_calls_only() -> None:
    agent = Agent(calls(("note", {"text": "1"})), calls(("note", {"text": "2"}), ("note", {"text": "3"})))
    category = Category(name="work", autonomous=True, tool_calls=2, tools=frozenset({"tool:note"}))
    told = agent.go(replace(context(), category=category))
    assert told[:2] == ["noted 1", "noted 2"]
    assert "limit of 2 tool calls" in told[2]
    told = agent.go(replace(context(turn_id="turn-2"), category=category))
    assert told[3:5] == ["noted 1", "noted 2"], "a new turn counts from one"


def test_a_subagent_runs_under_what_both_categories_grant() -> None:
    gate = Gate({}, judge)
    parent = context("tool:a", "tool:b")
    parent = replace(parent, category=replace(parent.category, subagents=frozenset({"reviewer"})))
    reviewer = Category(name="reviewer", autonomous=True, tools=frozenset({"tool:b", "tool:c"}))
    with turn_around(parent), gate.subagent(reviewer) as turn:
        assert turn.category.tools == {"tool:b"}
        assert turn.category.subagents == frozenset(), "it starts none by itself"
        assert gate.turn(parent).category.tools == {"tool:b"}, "its parent's context widens nothing"  # type: ignore[union-attr]
    with turn_around(context("tool:b")), pytest.raises(Denied, match="reviewer"), gate.subagent(reviewer):
        pass
    with pytest.raises(Denied, match="inside a turn"), gate.subagent(reviewer):
        pass
