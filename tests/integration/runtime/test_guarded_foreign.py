"""Graphs that import nothing of ours, under the guard: how their calls are asked for, answered, and run once each."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
import pytest_asyncio
from langchain.agents import create_agent
from langchain.tools import InjectedState, InjectedStore, ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import ValidationError

from agent_runtime.approvals import Decided, Raised, answer_to, call_key, read_interrupt
from agent_runtime.graph.checkpoints import open_checkpoints
from agent_runtime.graph.current import turn_around
from agent_runtime.graph.guard import Desk, LimitReached, guard_middleware, watching
from agent_runtime.model import Category, TurnContext
from agent_runtime.permissions import judge
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from tests.integration.runtime.attacks import Field, plain_graph
from tests.integration.runtime.harness import STATES, soon
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.home import Home

CONFIG: Any = {"configurable": {"thread_id": "thread-a"}}
ran: list[str] = []


@tool
def act(text: str) -> str:
    """Act."""
    ran.append(text)
    return f"did {text}"


@tool
async def act_later(text: str) -> str:
    """Act, asynchronously."""
    ran.append(text)
    return f"did {text}"


@tool
def free(text: str) -> str:
    """Act, granted."""
    ran.append(f"free {text}")
    return f"did {text}"


@pytest.fixture(autouse=True)
def desk() -> Iterator[Desk]:
    ran.clear()
    made = Desk({}, judge)
    with watching(made):
        yield made


def turn(*scopes: str, **changes: Any) -> TurnContext:
    limits = {key: changes.pop(key) for key in ("tool_calls", "autonomous", "subagents") if key in changes}
    category = Category(name="work", tools=frozenset(scopes), **({"autonomous": True} | limits))
    given = {"turn_id": "turn-1", "thread_id": "thread-a", "channel": "main", "agent": "agent0"} | changes
    return TurnContext(category=category, **given)


def plain(*tools: BaseTool, saver: Any = None, store: Any = None, lines: Any = (), **node: Any) -> Any:
    """Return a graph of a model's node and a plain ToolNode."""
    model = ScriptedModel(script={"go": list(lines)})
    graph = StateGraph(MessagesState)
    graph.add_node("think", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(list(tools), **node))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "think")
    return graph.compile(checkpointer=saver or InMemorySaver(), store=store)


def of_node(node: Any, checkpointer: Any = None) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=checkpointer)


class Thread:
    """One thread of a graph in one turn, driven synchronously, asynchronously or as a stream."""

    def __init__(self, graph: Any, context: TurnContext, way: str = "ainvoke") -> None:
        self.graph, self.context, self.way = graph, context, way

    async def go(self, given: Any = None) -> list[Raised]:
        given = {"messages": [HumanMessage("go", id="turn-1")]} if given is None else given
        with turn_around(self.context):
            if self.way == "invoke":
                self.graph.invoke(given, CONFIG)
            elif self.way == "ainvoke":
                await self.graph.ainvoke(given, CONFIG)
            else:
                async for _ in self.graph.astream(given, CONFIG, stream_mode="values"):
                    pass
        return await self.asked()

    async def asked(self) -> list[Raised]:
        found = {one.id: one.value for one in (await self.graph.aget_state(CONFIG)).interrupts}
        return [read_interrupt(key, value) for key, value in found.items()]

    async def decide(self, *decided: tuple[Raised, str], args: Any = None) -> list[Raised]:
        self.context = replace(
            self.context, asked=self.context.asked | {call_key(one.call_id, one.args_hash) for one, _ in decided}
        )
        answers = {
            one.interrupt_id: answer_to(
                one.kind, one.args_hash, one.call_id, "thread-a", Decided(decision=decision, args=args)
            )
            for one, decision in decided
        }
        return await self.go(Command(resume=answers))

    async def told(self) -> list[str]:
        values = (await self.graph.aget_state(CONFIG)).values
        return [str(one.content) for one in values["messages"] if isinstance(one, ToolMessage)]


WAYS = pytest.mark.parametrize("way", ["invoke", "ainvoke", "astream"])
THREE = calls(("act", {"text": "a"}), ("free", {"text": "b"}), ("act", {"text": "c"}))


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


async def test_an_edit_runs_the_authors_arguments_with_what_langgraph_injects() -> None:
    @tool
    def informed(text: str, runtime: ToolRuntime, state: Annotated[dict[str, Any], InjectedState()]) -> str:
        """Act, knowing the state."""
        ran.append(f"{text} {runtime.tool_call_id is not None} {len(state['messages'])}")
        return "done"

    thread = Thread(plain(informed, lines=[calls(("informed", {"text": "a"}))]), turn())
    (asked,) = await thread.go()
    assert asked.args == {"text": "a"}, "what is injected is not the author's to read"
    await thread.decide((asked, "edit"), args={"text": "better", "state": {"messages": []}})
    assert ran == ["better True 2"]


@pytest.mark.parametrize(
    ("edited", "runs"), [({"input": "list"}, ["list"]), ({"text": "list"}, ["list"]), ({"other": "list"}, []), ({}, [])]
)
async def test_an_edit_of_a_call_by_text_never_runs_the_text_that_was_edited(edited: Any, runs: list[str]) -> None:
    def node(_state: Any) -> Any:
        try:
            return {"messages": [AIMessage(act.invoke("erase"))]}
        except ValidationError as error:
            return {"messages": [AIMessage(str(error))]}

    thread = Thread(of_node(node, InMemorySaver()), turn())
    (asked,) = await thread.go()
    assert asked.args == {"input": "erase"}
    assert await thread.decide((asked, "edit"), args=edited) == []
    assert ran == runs


async def test_tools_with_state_store_runtime_and_call_id_work_as_before() -> None:
    @tool
    async def wise(
        text: str,
        call_id: Annotated[str, InjectedToolCallId],
        messages: Annotated[list[Any], InjectedState("messages")],
        store: Annotated[BaseStore, InjectedStore()],
        runtime: ToolRuntime,
    ) -> Command[Any]:
        """Act, knowing all."""
        await store.aput(("a",), text, {"n": len(messages)})
        ran.append(f"{text} {call_id == runtime.tool_call_id} {runtime.store is store}")
        return Command(update={"messages": [ToolMessage(f"did {text}", tool_call_id=call_id)]})

    store = InMemoryStore()
    lines = [calls(("wise", {"text": "a"}), ("wise", {"text": "b"}), ("free", {"text": "c"}))]
    thread = Thread(plain(wise, free, lines=lines, store=store), turn("tool:wise", "tool:free"))
    assert await thread.go() == []
    assert sorted(ran) == ["a True True", "b True True", "free c"]
    assert await thread.told() == ["did a", "did b", "did c"]
    assert store.get(("a",), "a").value == {"n": 2}  # type: ignore[union-attr]


async def test_answers_of_calls_are_kept_by_our_checkpointer(home: Home) -> None:
    @tool
    def moving(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Answer with a command."""
        ran.append("moved")
        return Command(update={"messages": [ToolMessage("moved", tool_call_id=call_id)]})

    checkpoints = await open_checkpoints(home.checkpoints_db)
    try:
        lines = [calls(("moving", {}), ("act", {"text": "a"}))]
        thread = Thread(plain(moving, act, lines=lines, saver=checkpoints.saver), turn("tool:moving"))
        (asked,) = await thread.go()
        assert await thread.decide((asked, "approve")) == []
        assert ran == ["moved", "a"]
        assert await thread.told() == ["moved", "did a"]
    finally:
        await checkpoints.close()


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


async def test_what_a_node_injects_by_itself_is_part_of_what_the_author_approves() -> None:
    users = iter(["ada", "eve", "eve"])

    @tool
    def act_for(text: str, user: Annotated[str, InjectedToolArg]) -> str:
        """Act for somebody."""
        ran.append(f"{text} for {user}")
        return "done"

    thread = Thread(
        of_node(lambda _: act_for.invoke({"text": "a", "user": next(users)}) and {}, InMemorySaver()), turn()
    )
    (asked,) = await thread.go()
    assert asked.args == {"text": "a", "user": "ada"}
    (anew,) = await thread.decide((asked, "approve"))
    assert (anew.args, ran) == ({"text": "a", "user": "eve"}, [])


def calling(made: BaseTool, *outcomes: dict[str, Any]) -> Any:
    """Return a graph whose node makes the call that a model wrote: the first of these, then the next when asked anew."""
    left = iter(outcomes)

    def node(_state: Any) -> Any:
        return {"messages": [made.invoke({"name": made.name, "args": next(left), "id": "c1", "type": "tool_call"})]}

    return of_node(node, InMemorySaver())


async def test_what_a_model_writes_for_an_injected_argument_is_what_the_author_approves() -> None:
    @tool
    def pay(
        amount: int,
        accounts: Annotated[list[str], InjectedToolArg],
        state: Annotated[dict[str, Any], InjectedState()],
        runtime: str,
    ) -> str:
        """Pay."""
        ran.append(f"{amount} {accounts} {state} {runtime}")
        return "paid"

    shop = {"amount": 1, "accounts": ["shop"], "state": {"limit": 1}, "runtime": "test"}
    for name, other in (("accounts", ["thief"]), ("state", {"limit": 9}), ("runtime", "live --force")):
        thread = Thread(calling(pay, shop, shop | {name: other}), turn())
        (asked,) = await thread.go()
        assert asked.args == shop
        (anew,) = await thread.decide((asked, "approve"))
        assert (anew.args, ran) == (shop | {name: other}, [])


@dataclass(frozen=True)
class Payee:
    """What a node makes of a model's words."""

    name: str
    through: object


async def test_an_object_that_a_node_injects_is_shown_by_what_it_says_and_given_as_it_is() -> None:
    @tool
    def pay(amount: int, to: Annotated[Any, InjectedToolArg], through: Annotated[Any, InjectedToolArg]) -> str:
        """Pay."""
        ran.append(f"{amount} {to.name} {to.through is bank} {through is bank}")
        return "paid"

    bank = object()

    def node(_state: Any) -> Any:
        return pay.invoke({"amount": 1, "to": Payee(name="shop", through=bank), "through": bank}) and {}

    thread = Thread(of_node(node, InMemorySaver()), turn())
    (asked,) = await thread.go()
    assert asked.args == {"amount": 1, "to": {"name": "shop", "through": "<object>"}}
    assert await thread.decide((asked, "edit"), args={**asked.args, "amount": 2}) == []
    assert ran == ["2 shop True True"]


@WAYS
async def test_what_a_model_writes_for_an_injected_argument_is_lost_in_a_toolnode(way: str) -> None:
    @tool
    def informed(
        text: str,
        state: Annotated[dict[str, Any], InjectedState()],
        messages: Annotated[list[Any], InjectedState("messages")],
    ) -> str:
        """Act, knowing the state."""
        ran.append(f"{text} {len(messages)} {len(state['messages'])}")
        return "done"

    forged = {"text": "a", "state": {"messages": []}, "messages": []}
    thread = Thread(plain(informed, lines=[calls(("informed", forged))]), turn(), way)
    (asked,) = await thread.go()
    assert asked.args == {"text": "a"}
    assert await thread.decide((asked, "approve")) == []
    assert ran == ["a 2 2"]


async def test_our_agent_asks_once_for_a_call_whose_injected_argument_a_model_wrote() -> None:
    @tool
    def pay(
        amount: int,
        messages: Annotated[list[Any], InjectedState("messages")],
        accounts: Annotated[list[str] | None, InjectedToolArg] = None,
    ) -> str:
        """Pay."""
        ran.append(f"{amount} {accounts} {len(messages)}")
        return "paid"

    model = ScriptedModel(script={"go": [calls(("pay", {"amount": 1, "accounts": ["thief"], "messages": []}))]})
    agent = create_agent(model, [pay], middleware=[guard_middleware({}, judge)], checkpointer=InMemorySaver())
    thread = Thread(agent, turn())
    (asked,) = await thread.go()
    assert await thread.decide((asked, "approve")) == []
    assert ran == ["1 None 2"]


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


async def test_a_subagent_that_is_granted_less_than_its_parent_asks_for_the_rest(desk: Desk) -> None:
    inner = create_agent(ScriptedModel(script={"sub": [THREE]}), [act, free])
    reviewer = Category(name="reviewer", autonomous=True, tools=frozenset({"tool:free", "tool:shell"}))

    @tool
    async def review() -> str:
        """Start the reviewer."""
        with desk.subagent(reviewer):
            done = await inner.ainvoke({"messages": [HumanMessage("sub")]})
        return str(done["messages"][-1].content)

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


async def test_a_subagent_has_a_limit_of_its_own_within_its_turns(desk: Desk) -> None:
    told: list[str] = []

    def call(number: int) -> None:
        try:
            free.invoke({"text": str(number)})
        except ToolException as error:
            told.append(f"{number}: {error}")

    def as_subagent(name: str, most: int, numbers: range) -> None:
        with desk.subagent(Category(name=name, tools=frozenset({"tool:free"}), autonomous=True, tool_calls=most)):
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
    assert told[0] == "this call stands outside a turn; it was not run"
    with pytest.raises(ToolException, match="outside a turn"):
        act.invoke({"text": "a"})
    assert ran == []


def in_turn(field: Field, *tools: BaseTool) -> None:
    """Let the bench run a plain graph of these tools."""
    field.graph = lambda saver: plain_graph(field, saver, [*tools])  # type: ignore[assignment,misc]


@pytest_asyncio.fixture
async def field(home: Home) -> AsyncIterator[Field]:
    made = Field(home)
    yield made
    await made.close()


async def test_a_crash_amid_the_calls_of_a_toolnode_runs_again_only_what_had_not_finished(field: Field) -> None:
    @tool
    async def slow(text: str) -> str:
        """Wait until the test says go."""
        field.blocked.set()
        await field.go.wait()
        ran.append(f"slow {text}")
        return "done"

    in_turn(field, slow, free)
    await field.open()
    field.grant("tool:slow", "tool:free")
    field.script["go"] = [calls(("free", {"text": "a"}), ("slow", {"text": "b"}))]
    receipt = await field.service.Fire(field.fire(1), None)
    await soon(field.blocked.wait(), "the slow tool to begin")
    await soon(until(lambda: "free a" in ran), "the other to finish")
    await field.crash()
    await soon(field.blocked.wait(), "the slow tool to begin again")
    field.go.set()
    assert (await field.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert ran == ["free a", "slow b"]


async def test_questions_of_a_toolnode_are_rows_that_the_author_decides_one_by_one(field: Field) -> None:
    in_turn(field, act, free)
    await field.open()
    field.grant("tool:free")
    event = await field.act(THREE)
    assert sorted(one.args_json for one in await field.pending()) == ['{"text":"a"}', '{"text":"c"}']
    event = await field.decide(event, "approve")
    assert event.state == STATES.INTERRUPTED
    assert (await field.decide(event, "reject")).state == STATES.SUCCEEDED
    assert len(ran) == 2
    assert await field.history() == ["STARTED", "INTERRUPTED", "RESUMED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]


async def test_a_server_that_numbers_the_calls_of_each_message_makes_one_question_of_one_call(field: Field) -> None:
    def first(name: str, text: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": {"text": text}, "id": "call_0", "type": "tool_call"}])

    in_turn(field, act, free)
    await field.open()
    field.grant("tool:free")
    event = await field.act(first("free", "a"), first("act", "b"), first("free", "c"), first("free", "a"))
    assert [one.args_json for one in await field.pending()] == ['{"text":"b"}']
    assert (await field.decide(event, "approve")).state == STATES.SUCCEEDED
    assert ran == ["free a", "b", "free c", "free a"]


async def test_a_cancelled_question_of_a_toolnode_leaves_a_thread_that_goes_on(field: Field) -> None:
    in_turn(field, act, free)
    await field.open()
    field.grant("tool:free")
    event = await field.act(THREE)
    await field.service.CancelTurn(wire.CancelTurnRequest(turn_id=event.turn_id), None)
    await field.stopped(event.turn_id, after=event.sequence)
    again = await field.run(2, prompt="next")
    assert again.state == STATES.SUCCEEDED, again.error
    assert ran == ["free b"]


async def test_a_cancel_amid_the_calls_of_a_toolnode_stops_them_all(field: Field) -> None:
    begun: list[str] = []

    @tool
    async def slow(text: str) -> str:
        """Wait until the test says go."""
        begun.append(text)
        await field.go.wait()
        ran.append(text)
        return "done"

    in_turn(field, slow)
    await field.open()
    field.grant("tool:slow")
    field.script["go"] = [calls(("slow", {"text": "a"}), ("slow", {"text": "b"}))]
    receipt = await field.service.Fire(field.fire(1), None)
    await soon(until(lambda: len(begun) == 2), "both to begin")
    await field.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id), None)
    assert (await field.stopped(receipt.turn_id)).state == STATES.CANCELLED
    field.go.set()
    again = await field.run(2, prompt="next")
    assert again.state == STATES.SUCCEEDED, again.error
    assert ran == []


async def test_an_approved_proposal_covers_the_turns_other_writes_and_no_other_turns(field: Field) -> None:
    in_turn(field, free)
    await field.open()
    field.category("careful", tools=["tool:free"], autonomous=False)
    lines = [calls(("free", {"text": "a"})), calls(("free", {"text": "b"}))]
    event = await field.act(*lines, category="careful")
    assert [one.kind for one in await field.pending()] == ["proposal"]
    assert (await field.decide(event, "approve")).state == STATES.SUCCEEDED
    assert ran == ["free a", "free b"]
    assert (await field.run(2, category="careful")).state == STATES.INTERRUPTED


async def test_a_subagent_inside_a_tool_asks_at_the_root_and_goes_on_there(field: Field) -> None:
    inner = create_agent(ScriptedModel(script={"sub": [THREE]}), [act, free])
    started: list[str] = []

    @tool
    async def delegate() -> str:
        """Start a subagent."""
        started.append("")
        done = await inner.ainvoke({"messages": [HumanMessage("sub")]})
        return "; ".join(str(one.content) for one in done["messages"] if isinstance(one, ToolMessage))

    field.tools = [delegate]
    await field.open()
    field.grant("tool:delegate", "tool:free")
    event = await field.act(calls(("delegate", {})))
    assert sorted(one.args_json for one in await field.pending()) == ['{"text":"a"}', '{"text":"c"}']
    event = await field.decide(event, "approve")
    event = await field.decide(event, "approve")
    assert event.state == STATES.SUCCEEDED
    assert sorted(ran) == ["a", "c", "free b"], "each ran once"
    assert await field.told(event.turn_id) == ["did a; did b; did c"]
    assert len(started) == 3, "the tool that starts it runs again at each resume, the subagent goes on"


async def test_what_a_tool_leaves_running_is_refused_once_its_turn_is_over(field: Field) -> None:
    over = asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    @tool
    async def leave() -> str:
        """Leave a task behind that acts later."""

        async def later() -> Any:
            await over.wait()
            return await act.ainvoke({"text": "late"})

        left.append(asyncio.create_task(later()))
        return "left"

    in_turn(field, leave, act)
    await field.open()
    field.grant("tool:leave", "tool:act")
    assert (await field.act(calls(("leave", {})))).state == STATES.SUCCEEDED
    over.set()
    (done,) = await asyncio.gather(*left, return_exceptions=True)
    assert isinstance(done, Exception)
    assert ran == []


async def until(reached: Any) -> None:
    while not reached():
        await asyncio.to_thread(lambda: None)


def test_the_process_is_as_it_was_when_nobody_watches_any_more() -> None:
    @contextmanager
    def nobody() -> Iterator[None]:
        from agent_runtime.graph.guard import hooks

        watches, hooks._WATCHES = hooks._WATCHES, []
        hooks._take_hooks()
        yield
        hooks._WATCHES = watches
        hooks._put_hooks()

    with nobody():
        assert act.invoke({"text": "a"}) == "did a"
        assert "invoke" not in vars(ToolNode)
        assert ToolNode._inject_tool_args.__module__ == ToolNode.__module__
