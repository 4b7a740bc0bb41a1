"""A graph that knows nothing of ours reads and writes memory through LangGraph's store, within its turn's category."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from agent_runtime.graph.context import turn_around
from agent_runtime.graph.foreign.memory_store import lend
from agent_runtime.graph.guard import Gate, watching
from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import judge
from agent_runtime.workspace.memory import Shelf
from agent_runtime.workspace.workspace import Workspace
from tests.integration.runtime.guarded import CONFIG, Thread, plain
from tests.integration.workspace.conftest import Begin, call
from tests.support.scripted import calls
from turnkeeper.errors import Denied, InvalidInput

Lend = Callable[..., Any]
NOTE = {"text": "the pump is new"}


@pytest.fixture
def lending(workspace: Workspace) -> Any:
    gate = Gate({}, judge)
    with watching(gate):
        yield lambda graph: lend(graph, workspace, gate)


def of_node(node: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=InMemorySaver())


def in_turn(begin: Begin, turn_id: str = "turn-1", *, thread_id: str = "thread-a", **changes: Any) -> TurnContext:
    context = begin(turn_id, named="conversation", thread_id=thread_id, started_by="author")
    return replace(context, category=replace(context.category, **changes))


async def texts(workspace: Workspace, context: TurnContext, tier: str = "channel") -> dict[str, str]:
    return {entry.key: entry.text for entry in (await workspace.memory.read(call(context, 0), tier, "")).entries}


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "astream"])
async def test_a_node_and_an_injected_tool_reach_what_our_own_tools_reach(
    lending: Lend, workspace: Workspace, begin: Begin, way: str
) -> None:
    @tool
    def keep(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Keep a text."""
        store.put(("channel",), "kept", {"text": text})
        return str(store.get(("channel",), "before").value)  # type: ignore[union-attr]

    context = in_turn(begin, tools=frozenset({"memory.read", "memory.put", "tool:keep"}))
    await workspace.memory.put(call(context, 1), tier="channel", text="blue", key="before", channel="")
    thread = Thread(lending(plain(keep, lines=[calls(("keep", {"text": "green"}))])), context, way)
    assert await thread.go() == []
    assert await thread.told() == ["{'text': 'blue'}"]
    assert await texts(workspace, context) == {"before": "blue", "kept": "green"}


@pytest.mark.parametrize(
    ("namespace", "missing"),
    [
        (("channel", "secret"), "channel:secret"),
        (("conversation", "thread-b"), "memory:conversation of thread-b"),
        (("account",), "memory:account"),
    ],
)
@pytest.mark.parametrize("verb", ["put", "get", "search", "delete"])
async def test_what_is_outside_the_turns_scopes_asks_the_author_and_runs_once_approved(
    lending: Lend, workspace: Workspace, begin: Begin, namespace: tuple[str, ...], missing: str, verb: str
) -> None:
    found: list[Any] = []
    owner = begin("owner", named="conversation", thread_id="thread-b", channel="secret")
    await workspace.memory.put(call(owner), tier=namespace[0], text="hidden", key="k", channel="")

    async def node(_state: Any, runtime: Runtime[Any]) -> Any:
        store: Any = runtime.store
        attempts = {
            "put": lambda: store.aput(namespace, "k", NOTE),
            "get": lambda: store.aget(namespace, "k"),
            "search": lambda: store.asearch(namespace),
            "delete": lambda: store.adelete(namespace, "k"),
        }
        found.append(await attempts[verb]())

    thread = Thread(lending(of_node(node)), in_turn(begin, memory=frozenset({"conversation", "channel", "workspace"})))
    (asked,) = await thread.go()
    assert (asked.missing_scope, found) == (missing, [])
    assert await texts(workspace, owner, namespace[0]) == {"k": "hidden"}
    assert await thread.decide((asked, "approve")) == []
    assert len(found) == 1
    left = {"put": {"k": NOTE["text"]}, "delete": {}}.get(verb, {"k": "hidden"})
    assert await texts(workspace, owner, namespace[0]) == left


async def test_what_the_author_refuses_is_not_done_and_what_he_edits_is_done_so(
    lending: Lend, workspace: Workspace, begin: Begin
) -> None:
    async def node(_state: Any, runtime: Runtime[Any]) -> Any:
        try:
            await runtime.store.aput(("workspace",), "k", NOTE)  # type: ignore[union-attr]
        except Denied as refused:
            return {"messages": [HumanMessage(str(refused))]}
        return {}

    context = in_turn(begin, tools=frozenset({"memory.read"}))
    thread = Thread(lending(of_node(node)), context)
    (asked,) = await thread.go()
    assert asked.tool == "memory_put"
    assert asked.args == {"tier": "workspace", "key": "k", "value": NOTE}
    assert await thread.decide((asked, "reject")) == []
    said = (await thread.graph.aget_state(CONFIG)).values["messages"]
    assert "the author refused this call" in said[-1].text
    assert await texts(workspace, context, "workspace") == {}
    again = Thread(lending(of_node(node)), context)
    (asked,) = await again.go()
    edited = {"tier": "workspace", "key": "better", "value": {"text": "as edited"}}
    assert await again.decide((asked, "edit"), args=edited) == []
    assert await texts(workspace, context, "workspace") == {"better": "as edited"}


@pytest.mark.parametrize("verb", ["get", "search", "find", "list"])
async def test_a_reading_that_the_author_edits_reads_what_he_named(
    lending: Lend, workspace: Workspace, begin: Begin, verb: str
) -> None:
    found: list[Any] = []
    for shelf, text in ((Shelf(tier="account"), "private pump"), (Shelf(tier="channel", owner="general"), "pump")):
        await workspace.memory.author_puts(shelf, key="pin", text=text)

    async def node(_state: Any, runtime: Runtime[Any]) -> Any:
        store: Any = runtime.store
        attempts = {
            "get": lambda: store.aget(("account",), "pin"),
            "search": lambda: store.asearch(("account",)),
            "find": lambda: store.asearch(("account",), query="private"),
            "list": store.alist_namespaces,
        }
        found.append(await attempts[verb]())

    scopes: dict[str, Any] = {"tools": frozenset(), "memory": frozenset({"account"})}
    if verb != "list":
        scopes = {"tools": frozenset({"memory.read", "memory.search"}), "memory": frozenset({"channel"})}
    thread = Thread(lending(of_node(node)), in_turn(begin, **scopes))
    (asked,) = await thread.go()
    edited = {**asked.args, "tier": "channel", "channel": "general"} | ({"query": "pump"} if verb == "find" else {})
    assert await thread.decide((asked, "edit"), args=edited) == []
    (seen,) = found
    told = [item.value["text"] for item in (seen if isinstance(seen, list) else [seen])] if verb != "list" else seen
    assert told == ([("channel", "general")] if verb == "list" else ["pump"])


@pytest.mark.parametrize("value", [{}, {"value": "words"}])
async def test_an_edit_without_the_value_to_be_written_writes_nothing(
    lending: Lend, workspace: Workspace, begin: Begin, value: dict[str, Any]
) -> None:
    async def node(_state: Any, runtime: Runtime[Any]) -> Any:
        await runtime.store.aput(("workspace",), "k", NOTE)  # type: ignore[union-attr]

    context = in_turn(begin, tools=frozenset({"memory.read"}))
    thread = Thread(lending(of_node(node)), context)
    (asked,) = await thread.go()
    with pytest.raises(InvalidInput, match="value is an object"):
        await thread.decide((asked, "edit"), args={"tier": "workspace", "key": "k"} | value)
    assert await texts(workspace, context, "workspace") == {}


async def test_a_node_that_runs_again_writes_once(lending: Lend, workspace: Workspace, begin: Begin) -> None:
    """What came after the first run stays: the second run's writes are known and not made again."""
    runs = []

    def node(_state: Any, runtime: Runtime[Any]) -> Any:
        store: Any = runtime.store
        for text in ("one", "two", "one"):
            store.put(("channel",), "turning", {"text": text})
        store.put(("channel",), "mine", {"text": f"first {len(runs)}"})
        runs.append(store.get(("channel",), "turning").value["text"])
        if len(runs) == 1:
            raise RuntimeError("the process dies here")

    context, other = in_turn(begin), begin("other", named="conversation")
    thread = Thread(lending(of_node(node)), context)
    with pytest.raises(RuntimeError):
        await thread.go()
    await workspace.memory.put(call(other), tier="channel", text="later", key="turning", channel="")
    with turn_around(context):
        await thread.graph.ainvoke(None, CONFIG)
    assert runs == ["one", "later"], "the last of three like writes won, and a rerun does not undo what came after"
    assert (await texts(workspace, context))["turning"] == "later"


async def test_a_thread_that_a_tool_starts_by_itself_has_no_memory(lending: Lend, begin: Begin) -> None:
    refused: list[str] = []

    def node(_state: Any, runtime: Runtime[Any]) -> Any:
        def attempt() -> None:
            try:
                runtime.store.put(("channel",), "k", NOTE)  # type: ignore[union-attr]
            except Denied as error:
                refused.append(str(error))

        started = threading.Thread(target=attempt)
        started.start()
        started.join()

    await Thread(lending(of_node(node)), in_turn(begin)).go()
    assert len(refused) == 1


def test_a_graph_with_a_store_of_its_own_keeps_it(lending: Lend) -> None:
    own = InMemoryStore()
    assert lending(plain(store=own)).store is own
