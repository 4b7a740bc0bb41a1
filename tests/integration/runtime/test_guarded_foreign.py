"""Graphs that import nothing of ours, under the guard: how their calls are asked for, answered, and run once each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from agent_runtime.graph.checkpointer.saver import open_saver
from agent_runtime.graph.foreign.inspect import inspect_graph
from agent_runtime.graph.guard import Gate, LimitReached, watching
from agent_runtime.model.turn import Category
from agent_runtime.permissions.judge import judge
from tests.integration.runtime.guarded import (
    CONFIG,
    THREE,
    WAYS,
    Thread,
    act,
    act_later,
    free,
    fresh_desk,
    of_node,
    plain,
    ran,
    turn,
)
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.config.home import Home


@pytest.fixture(autouse=True)
def gate() -> Iterator[Gate]:
    with fresh_desk() as made:
        yield made


@WAYS
async def test_denied_calls_of_a_plain_toolnode_are_answered_one_at_a_time(way: str) -> None:
    thread = Thread(plain(act, free, lines=[THREE]), turn("tool:free"), way)
    first, second = sorted(await thread.go(), key=lambda one: str(one.args))
    assert (first.args, second.args) == ({"text": "a"}, {"text": "c"})
    assert ran == ["free b"], "what was granted ran beside them"
    (left,) = await thread.decide((second, "approve"))
    assert left.interrupt_id == first.interrupt_id
    assert ran == ["free b", "c"]
    assert await thread.decide((first, "reject")) == []
    assert ran == ["free b", "c"], "each ran once"
    assert await thread.told() == ["the author refused this call", "did b", "did c"]


@WAYS
async def test_denied_calls_of_a_plain_toolnode_are_answered_together(way: str) -> None:
    thread = Thread(plain(act, free, lines=[THREE]), turn("tool:free"), way)
    first, second = await thread.go()
    assert await thread.decide((second, "approve"), (first, "approve")) == []
    assert sorted(ran) == ["a", "c", "free b"]
    assert await thread.told() == ["did a", "did b", "did c"]


@pytest.mark.parametrize("inner_way", ["sync", "async"])
async def test_a_graph_that_a_node_calls_is_guarded_too(inner_way: str) -> None:
    inner = plain(act, free, act_later, lines=[THREE])

    def sync_node(_state: Any) -> Any:
        return {"messages": inner.invoke({"messages": [HumanMessage("go")]})["messages"][1:]}

    async def async_node(_state: Any) -> Any:
        return {"messages": (await inner.ainvoke({"messages": [HumanMessage("go")]}))["messages"][1:]}

    inner.checkpointer = None
    thread = Thread(of_node(sync_node if inner_way == "sync" else async_node, InMemorySaver()), turn("tool:free"))
    first, second = await thread.go()
    (left,) = await thread.decide((first, "approve"))
    assert left.interrupt_id == second.interrupt_id
    assert await thread.decide((second, "approve")) == []
    assert sorted(ran) == ["a", "c", "free b"]


async def test_an_agent_of_langchain_without_our_middleware_is_guarded() -> None:
    graph = create_agent(ScriptedModel(script={"go": [THREE]}), [act, free], checkpointer=InMemorySaver())
    thread = Thread(graph, turn("tool:free"))
    first, second = await thread.go()
    assert await thread.decide((first, "reject"), (second, "approve")) == []
    assert len(ran) == 2
    assert "the author refused this call" in await thread.told()


async def test_answers_of_calls_are_kept_by_our_checkpointer(home: Home) -> None:
    @tool
    def moving(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Answer with a command."""
        ran.append("moved")
        return Command(update={"messages": [ToolMessage("moved", tool_call_id=call_id)]})

    checkpoints = await open_saver(home.checkpoints_db)
    try:
        lines = [calls(("moving", {}), ("act", {"text": "a"}))]
        thread = Thread(plain(moving, act, lines=lines, saver=checkpoints), turn("tool:moving"))
        (asked,) = await thread.go()
        assert await thread.decide((asked, "approve")) == []
        assert ran == ["moved", "a"]
        assert await thread.told() == ["moved", "did a"]
    finally:
        await checkpoints.aclose()


async def test_wrappers_of_the_author_are_kept_and_stand_outside_the_guard() -> None:
    seen: list[str] = []

    def sync_wrapper(request: Any, execute: Any) -> Any:
        seen.append(request.tool_call["name"])
        return execute(request)

    async def async_wrapper(request: Any, execute: Any) -> Any:
        seen.append(request.tool_call["name"])
        return await execute(request)

    for way in ("invoke", "ainvoke"):
        graph = plain(act, lines=[THREE], wrap_tool_call=sync_wrapper, awrap_tool_call=async_wrapper)
        asked = await Thread(graph, turn(), way).go()
        assert len(asked) == 2
        assert sorted(seen) == ["act", "act", "free"]
        seen.clear()
    assert ran == []


async def test_a_question_inside_an_approved_tool_follows_its_approval() -> None:
    @tool
    def curious(text: str) -> str:
        """Ask, then act."""
        ran.append(f"{text} {interrupt({'question': 'how?'})}")
        return "done"

    thread = Thread(plain(curious, lines=[calls(("curious", {"text": "a"}), ("curious", {"text": "b"}))]), turn())
    first, second = sorted(await thread.go(), key=lambda one: str(one.args))
    own, other = await thread.decide((first, "approve"))
    question, left = (own, other) if own.kind == "question" else (other, own)
    assert left.interrupt_id == second.interrupt_id
    await thread.go(Command(resume={question.interrupt_id: "so"}))
    assert ran == ["a so"]


@pytest.mark.parametrize("sync", [True, False])
async def test_a_tool_that_a_node_calls_by_itself_asks(sync: bool) -> None:
    def sync_node(_state: Any) -> Any:
        return {"messages": [AIMessage(act.invoke({"text": "a"}))]}

    async def async_node(_state: Any) -> Any:
        return {"messages": [AIMessage(await act_later.ainvoke("a"))]}

    thread = Thread(of_node(sync_node if sync else async_node, InMemorySaver()), turn())
    (asked,) = await thread.go()
    assert (asked.tool, asked.missing_scope) == (("act", "tool:act") if sync else ("act_later", "tool:act_later"))
    assert ran == []
    assert await thread.decide((asked, "approve")) == []
    assert ran == ["a"]


async def test_a_tool_that_a_node_calls_and_the_author_refuses_raises_there() -> None:
    def node(_state: Any) -> Any:
        try:
            return {"messages": [AIMessage(act.invoke({"text": "a"}))]}
        except ToolException as error:
            return {"messages": [AIMessage(str(error))]}

    thread = Thread(of_node(node, InMemorySaver()), turn())
    (asked,) = await thread.go()
    assert await thread.decide((asked, "reject")) == []
    assert (await thread.graph.aget_state(CONFIG)).values["messages"][-1].content == "the author refused this call"
    assert ran == []


async def test_calls_inside_a_tool_are_calls_of_their_own() -> None:
    @tool
    async def outer(text: str) -> str:
        """Call another tool."""
        return str(await act.ainvoke({"text": text}))

    thread = Thread(plain(outer, lines=[calls(("outer", {"text": "a"}))]), turn())
    (first,) = await thread.go()
    assert first.tool == "outer"
    (second,) = await thread.decide((first, "approve"))
    assert (second.tool, ran) == ("act", [])
    assert await thread.decide((second, "approve")) == []
    assert ran == ["a"]


class OwnWay(BaseTool):
    """A tool that has its own way to run, and calls another."""

    name: str = "outer"
    description: str = "Call another tool."

    def invoke(self, *_args: Any, **_kwargs: Any) -> Any:
        return act.invoke({"text": "a"})

    def _run(self) -> str:
        return ""


@pytest.mark.parametrize("kind", ["async", "sync", "of its own", "two levels"])
async def test_a_call_inside_an_approved_tool_that_is_refused_is_told_to_the_model(kind: str) -> None:
    @tool
    async def outer(text: str) -> str:
        """Call another tool."""
        return str(await (middle if kind == "two levels" else act).ainvoke({"text": text}))

    @tool
    async def middle(text: str) -> str:
        """Call another tool."""
        return str(await act.ainvoke({"text": text}))

    def sync(text: str) -> str:
        """Call another tool."""
        return str(act.invoke({"text": text}))

    made = {"sync": tool("outer")(sync), "of its own": OwnWay()}.get(kind, outer)
    granted = turn("tool:outer", "tool:middle")
    thread = Thread(
        plain(made, lines=[calls(("outer", {"text": "a"}))]),
        granted,
        "invoke" if kind in {"sync", "of its own"} else "ainvoke",
    )
    (asked,) = await thread.go()
    assert asked.tool == "act"
    assert await thread.decide((asked, "reject")) == [], "the turn goes on"
    assert await thread.told() == ["outer stopped at its call of act: the author refused this call"]
    assert ran == []


async def test_a_tool_that_fails_by_itself_fails_as_before() -> None:
    @tool
    async def outer(text: str) -> str:
        """Fail."""
        raise ToolException(text)

    with pytest.raises(ToolException, match="broken"):
        await Thread(plain(outer, lines=[calls(("outer", {"text": "broken"}))]), turn("tool:outer")).go()


async def test_the_author_is_told_beforehand_which_tools_a_tool_calls() -> None:
    @tool
    async def outer(text: str) -> str:
        """Call another tool."""
        return str(await act.ainvoke({"text": text}))

    graph = plain(outer, lines=[calls(("outer", {"text": "a"}))])
    inside = inspect_graph(graph).inside
    assert inside == {"outer": ("act",)}
    with watching(Gate({}, judge, inside={"": inside})):
        thread = Thread(graph, turn())
        (asked,) = await thread.go()
        assert "inside it may call act: each is judged separately" in asked.question
        (inner,) = await thread.decide((asked, "approve"))
        assert (inner.tool, "inside" in inner.question, ran) == ("act", False, [])


gates: list[Gate] = []  # outside of the tool: a gate changes while it judges


async def test_a_subagent_that_is_granted_less_than_its_parent_asks_for_the_rest(gate: Gate) -> None:
    inner = create_agent(ScriptedModel(script={"sub": [THREE]}), [act, free])
    reviewer = Category(name="reviewer", autonomous=True, tools=frozenset({"tool:free", "tool:shell"}))

    @tool
    async def review() -> str:
        """Start the reviewer."""
        with gates[-1].subagent(reviewer):
            done = await inner.ainvoke({"messages": [HumanMessage("sub")]})
        return str(done["messages"][-1].content)

    gates.append(gate)
    parent = turn("tool:review", "tool:act", "tool:free", subagents=frozenset({"reviewer"}))
    thread = Thread(plain(review, lines=[calls(("review", {}))]), parent)
    first, second = await thread.go()
    assert {first.missing_scope, second.missing_scope} == {"tool:act"}, "though its parent may"
    assert ran == ["free b"]
    assert await thread.decide((first, "approve"), (second, "reject")) == []
    assert len(ran) == 2


async def test_read_only_turns_ask_before_any_tool_of_a_foreign_graph() -> None:
    thread = Thread(plain(free, lines=[calls(("free", {"text": "a"}))]), turn("tool:free", read_only=True))
    (asked,) = await thread.go()
    assert asked.missing_scope == "effect:write"


async def test_a_category_that_does_not_act_by_itself_proposes_its_first_write() -> None:
    lines = [calls(("free", {"text": "a"})), calls(("free", {"text": "b"}))]
    thread = Thread(plain(free, lines=lines), turn("tool:free", autonomous=False))
    (asked,) = await thread.go()
    assert asked.kind == "proposal"
    thread.context = replace(thread.context, writes_approved=True)
    assert await thread.decide((asked, "approve")) == []
    assert ran == ["free a", "free b"], "the approval covers the turn's other writes"


async def test_an_approved_proposal_does_not_answer_for_a_call_that_was_asked_too() -> None:
    lines = [calls(("free", {"text": "a"}), ("free", {"text": "b"}))]
    thread = Thread(plain(free, lines=lines), turn("tool:free", autonomous=False))
    first, second = await thread.go()
    thread.context = replace(thread.context, writes_approved=True)
    assert await thread.decide((first, "approve"), (second, "reject")) == []
    assert len(ran) == 1


async def test_the_limit_of_calls_holds_and_a_call_that_runs_again_counts_once() -> None:
    lines = [calls(*[("free", {"text": str(number)}) for number in range(4)])]
    thread = Thread(plain(free, lines=lines), turn("tool:free", tool_calls=3, turn_id="limited"))
    await thread.go()
    assert len(ran) == 3
    assert "limit of 3 tool calls" in "".join(await thread.told())
    endless = [calls(("free", {"text": str(number)})) for number in range(30)]
    with pytest.raises(LimitReached):
        await Thread(plain(free, lines=endless), turn("tool:free", tool_calls=3, turn_id="endless")).go()


@pytest.mark.parametrize("call_id", [None, "c1"])
@WAYS
async def test_a_node_that_makes_the_same_call_again_and_again_reaches_the_limit(way: str, call_id: str | None) -> None:
    call = {"name": "free", "args": {"text": "a"}, "id": call_id, "type": "tool_call"} if call_id else {"text": "a"}

    def node(_state: Any) -> Any:
        for _ in range(1000):
            free.invoke(call)

    thread = Thread(of_node(node, InMemorySaver()), turn("tool:free", tool_calls=3, turn_id=f"loop-{way}"), way)
    with pytest.raises(LimitReached if call_id else ToolException, match="3"):
        await thread.go()
    assert len(ran) == 3


async def test_the_same_calls_of_a_node_that_runs_again_count_once() -> None:
    def node(_state: Any) -> Any:
        for call in ({"text": "a"}, "a", {"text": "a"}):
            free.invoke(call)
        act.invoke("b")

    thread = Thread(of_node(node, InMemorySaver()), turn("tool:free", tool_calls=4, turn_id="again"))
    (asked,) = await thread.go()
    assert await thread.decide((asked, "approve")) == []
    assert ran == ["free a"] * 6 + ["b"]


async def test_a_subagent_has_a_limit_of_its_own_within_its_turns(gate: Gate) -> None:
    told: list[str] = []

    def call(number: int) -> None:
        try:
            free.invoke({"text": str(number)})
        except ToolException as error:
            told.append(f"{number}: {error}")

    def as_subagent(name: str, most: int, numbers: range) -> None:
        with gate.subagent(Category(name=name, tools=frozenset({"tool:free"}), autonomous=True, tool_calls=most)):
            for number in numbers:
                call(number)

    def node(_state: Any) -> Any:
        for number in range(6):
            call(number)
        as_subagent("reader", 3, range(10, 14))
        as_subagent("writer", 3, range(20, 22))
        as_subagent("reader", 3, range(30, 31))
        call(40)

    subagents = frozenset({"reader", "writer"})
    limited = turn("tool:free", tool_calls=11, turn_id="with-subagents", subagents=subagents)
    await Thread(of_node(node, InMemorySaver()), limited).go()
    assert ran == [f"free {number}" for number in (0, 1, 2, 3, 4, 5, 10, 11, 12, 20, 21)]
    assert [one.split(":")[0] for one in told] == ["13", "30", "40"]
    assert ["limit of 3" in one for one in told] == [True, True, False]
    assert "limit of 11" in told[2]


async def test_a_call_outside_a_turn_is_refused() -> None:
    graph = plain(act, lines=[THREE])
    await graph.ainvoke({"messages": [HumanMessage("go")]}, CONFIG)
    told = [str(one.content) for one in (await graph.aget_state(CONFIG)).values["messages"] if one.type == "tool"]
    assert told[0] == "this call was made outside a turn; it was not run"
    with pytest.raises(ToolException, match="outside a turn"):
        act.invoke({"text": "a"})
    assert ran == []


def test_the_process_is_as_it_was_when_nobody_watches_any_more() -> None:
    @contextmanager
    def nobody() -> Iterator[None]:
        from agent_runtime.graph.guard import hooks

        watches, hooks._WATCHES = hooks._WATCHES, []
        hooks._remove_hooks()
        yield
        hooks._WATCHES = watches
        hooks._install_hooks()

    with nobody():
        assert act.invoke({"text": "a"}) == "did a"
        assert "invoke" not in vars(ToolNode)
        assert ToolNode._inject_tool_args.__module__ == ToolNode.__module__
