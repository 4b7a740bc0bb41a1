"""Where a category hides what it does not grant: what the model is offered, and how it asks for the rest."""

from dataclasses import replace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agent_runtime.graph.agent.default import ASKS, Briefing, system_prompt
from agent_runtime.graph.context import ToolSpec, turn_around
from agent_runtime.graph.guard import Gate, Guard
from agent_runtime.model.approval import AuthorDecision, answer_to, read_interrupt
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import judge
from agent_runtime.tools.workspace import permission_request
from tests.support.scripted import ScriptedModel, calls

CONFIG: Any = {"configurable": {"thread_id": "thread-a"}}
ran: list[str] = []
offered: dict[str, BaseTool] = {}


@tool
def note(text: str) -> str:
    """Note a text."""
    ran.append(text)
    return f"noted {text}"


@tool
def look(text: str) -> str:
    """Look at a text."""
    return f"looked at {text}"


class Offered(ScriptedModel):
    """A scripted model that remembers what it was offered."""

    def bind_tools(self, tools: Any, **_kwargs: Any) -> Any:
        offered.clear()
        offered.update({one.name: one for one in tools})
        return self


SPECS = [
    ToolSpec(tool=note, scope="memory.put", effect="write"),
    ToolSpec(tool=look, scope="workspace.read", effect="read"),
    permission_request(),
]


def context(*scopes: str, outside: Any = "hide", read_only: bool = False) -> TurnContext:
    category = Category(name="work", autonomous=True, outside=outside, tools=frozenset(scopes))
    return TurnContext(
        turn_id="turn-1", thread_id="thread-a", channel="main", agent="agent0", category=category, read_only=read_only
    )


class Agent:
    """Our agent with its briefing and its guard."""

    def __init__(self, turn: TurnContext, *lines: Any) -> None:
        ran.clear()
        self.turn = turn
        self.graph: Any = create_agent(
            Offered(script={"go": list(lines)}),
            [spec.tool for spec in SPECS],
            middleware=[Briefing(SPECS), Guard(Gate({spec.tool.name: spec for spec in SPECS}, judge))],
            context_schema=TurnContext,
            checkpointer=InMemorySaver(),
        )

    async def go(self, given: Any = None) -> list[str]:
        with turn_around(self.turn):
            given = given or {"messages": [HumanMessage("go", id="turn-1")]}
            done = await self.graph.ainvoke(given, CONFIG, context=self.turn)
        return [str(one.content) for one in done["messages"] if isinstance(one, ToolMessage)]

    def asked(self) -> Any:
        (asked,) = self.graph.get_state(CONFIG).interrupts
        return read_interrupt(asked.id, asked.value, recorded=asked.value)

    async def decide(self, decision: str, args: Any = None) -> list[str]:
        asked = self.asked()
        answer = answer_to(asked, "thread-a", AuthorDecision(decision=decision, args=args))
        return await self.go(Command(resume={asked.interrupt_id: answer}))


async def test_tools_outside_are_marked_or_hidden() -> None:
    await Agent(context("workspace.read", outside="ask")).go()
    assert sorted(offered) == ["look", "note"]
    assert offered["note"].description.endswith(ASKS)
    assert ASKS not in offered["look"].description
    await Agent(context("workspace.read")).go()
    assert sorted(offered) == ["look", "permission_request"]
    assert "note(text): Note a text." in offered["permission_request"].description
    await Agent(context("workspace.read", "memory.put")).go()
    assert sorted(offered) == ["look", "note"], "nothing is hidden, so nothing is asked for"


async def test_a_read_only_turn_is_offered_tools_that_read() -> None:
    await Agent(context("workspace.read", "memory.put", read_only=True)).go()
    assert sorted(offered) == ["look", "permission_request"]
    await Agent(context("workspace.read", "memory.put", read_only=True, outside="ask")).go()
    assert offered["note"].description.endswith(ASKS)


@pytest.mark.parametrize("outside", ["hide", "ask"])
async def test_a_loop_that_only_reads_is_offered_no_tool_that_writes_and_none_that_asks(outside: Any) -> None:
    turn = replace(context("workspace.read", "memory.put", read_only=True, outside=outside), asks=False)
    await Agent(turn).go()
    assert sorted(offered) == ["look"]
    assert "permission_request" not in system_prompt(turn)
    assert ASKS not in system_prompt(turn)


def request(name: str, args: Any, why: str = "it helps") -> Any:
    return calls(("permission_request", {"tool": name, "args": args, "why": why}))


async def test_a_request_is_put_to_the_author_as_the_call_that_it_names() -> None:
    agent = Agent(context(), request("note", {"text": "x"}))
    assert await agent.go() == []
    asked = agent.asked()
    assert (asked.tool, asked.args, asked.missing_scope) == ("note", {"text": "x"}, "memory.put")
    assert asked.question.endswith("the agent says: it helps")
    assert ran == []
    assert await agent.decide("approve") == ["noted x"]
    assert ran == ["x"]


async def test_an_approved_request_grants_nothing_else() -> None:
    agent = Agent(context(), request("note", {"text": "x"}), request("note", {"text": "x"}))
    await agent.go()
    assert await agent.decide("edit", {"text": "y"}) == ["noted y"]
    assert agent.asked().args == {"text": "x"}, "asked anew"
    assert await agent.decide("reject") == ["noted y", "the author refused this call"]
    assert ran == ["y"]


async def test_a_request_for_what_is_granted_runs_it() -> None:
    assert await Agent(context("workspace.read"), request("look", {"text": "x"})).go() == ["looked at x"]


async def test_a_hidden_tool_that_is_called_all_the_same_asks() -> None:
    agent = Agent(context(), calls(("note", {"text": "x"})))
    assert await agent.go() == []
    assert agent.asked().tool == "note"


@pytest.mark.parametrize(("name", "args"), [("nothing", {}), ("permission_request", {}), ("note", "text"), ("", {})])
async def test_a_request_that_names_no_call_is_refused(name: str, args: Any) -> None:
    (told,) = await Agent(context("memory.put"), request(name, args)).go()
    assert "permission can be requested for look, note" in told
    assert ran == []
