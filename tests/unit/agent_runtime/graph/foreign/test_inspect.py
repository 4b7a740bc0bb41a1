"""Looking at a graph before it runs: which tools it reaches, and what the guard cannot stand before."""

import functools
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.runnables import RunnableBinding, RunnableLambda, RunnableParallel
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import interrupt
from langgraph_sdk import get_client
from pydantic import BaseModel

from agent_runtime.graph.foreign import inspect as toolnodes
from agent_runtime.graph.foreign.inspect import Unguardable, inspect_graph
from agent_runtime.graph.foreign.load import Loaded, Opened, Reference
from agent_runtime.graph.guard import Gate, watching
from agent_runtime.permissions.judge import judge
from tests.support.scripted import ScriptedModel


@tool
def one(text: str) -> str:
    """Act."""
    return text


@tool
def two(text: str) -> str:
    """Act."""
    return text


class OwnNode(ToolNode):
    """A node that runs its tools its own way."""

    def _run_one(self, *args: Any, **kwargs: Any) -> Any:
        return super()._run_one(*args, **kwargs)


class OwnTool(BaseTool):
    """A tool that runs its own way."""

    name: str = "own"
    description: str = "Act."

    def invoke(self, *_args: Any, **_kwargs: Any) -> Any:
        return "did"

    def _run(self) -> str:
        return "did"


class PlainTool(BaseTool):
    """A tool as LangChain's documentation writes one."""

    name: str = "plain"
    description: str = "Act."

    def _run(self, text: str) -> str:
        return text


def graph(node: Any, checkpointer: Any = None) -> Any:
    made = StateGraph(MessagesState)
    made.add_node("node", node)
    made.add_edge(START, "node")
    return made.compile(checkpointer=checkpointer)


def model(*tools: Any) -> Any:
    return RunnableBinding(bound=ScriptedModel(script={}), kwargs={"tools": list(tools)})


def holding(held: Any) -> Any:
    def node(_state: Any) -> Any:
        return held

    return node


class Team:
    """A class of the author's whose method is a node."""

    def __init__(self, *tools: Any) -> None:
        self.tools = {"by name": list(tools)}

    def work(self, _state: Any) -> Any:
        return {"messages": []}


@pytest.mark.parametrize(
    "node",
    [
        ToolNode([one, two]),
        graph(ToolNode([one, two])),
        holding(graph(ToolNode([one, two]))),
        holding([one, two]),
        Team(one, two).work,
        functools.partial(lambda _state, *, tools: tools, tools=(one, two)),
        RunnableLambda(holding({"a": one, "b": two})),
        RunnableParallel(a=holding(one), b=holding(two)),  # type: ignore[arg-type]
        create_agent(ScriptedModel(script={}), [one, two]),
        holding(model(one, two)),
        lambda _state: one.invoke(two.name),
    ],
)
def test_tools_are_found_wherever_a_graph_holds_them(node: Any) -> None:
    found = inspect_graph(graph(node))
    assert set(found.tools) >= {"one", "two"}
    assert found.unguardable == ()


def test_tools_that_a_tool_calls_are_found() -> None:
    @tool
    def outer(text: str) -> str:
        """Call another."""
        return str(one.invoke(text))

    assert inspect_graph(graph(ToolNode([outer, PlainTool()]))).tools == ("one", "outer", "plain")


def test_a_tool_names_the_tools_that_it_calls_or_says_it_calls() -> None:
    @tool
    def outer(text: str) -> str:
        """Call another tool."""
        return str(one.invoke(text))

    two_steps = two.model_copy(update={"name": "far", "metadata": {"calls": ["mail", "far", 7]}})
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([outer, one, two_steps]))
    builder.add_edge(START, "tools")
    assert inspect_graph(builder.compile()).inside == {"outer": ("one",), "far": ("mail",)}


def test_tools_that_a_node_makes_are_named_where_their_class_names_them() -> None:
    def making(_state: Any) -> str:
        return str(PlainTool().invoke({}))

    def naming(_state: Any) -> Any:
        return tool(str.upper, description="Made with a name of its own.")

    found = inspect_graph(graph(making))
    assert (found.tools, found.makers, found.made) == ((), ("node",), ("plain",))

    def marking(_state: Any) -> Any:
        @tool
        def inner(text: str) -> str:
            """Act."""
            return text

        @tool("other", description="Act.")
        async def inner_too(text: str) -> str:
            return text

        return [inner, inner_too, tool(Report)]

    assert inspect_graph(graph(naming)).made == ("upper",)
    assert inspect_graph(graph(marking)).made == ("Report", "inner", "other")
    assert inspect_graph(graph(holding([making, PlainTool()]))).made == (), "it is listed as a tool of the graph"


class Report(BaseModel):
    """Tell what was found."""

    text: str


class Pool(Mapping[str, Any]):
    """A mapping that does not tell what it holds, as the connection pool of an HTTP client."""

    def __init__(self, held: Any) -> None:
        self.held = {"held": held}

    def __getitem__(self, key: str) -> Any:
        return self.held[key]

    def __len__(self) -> int:
        raise NotImplementedError("it is not safe to count it")

    def __iter__(self) -> Any:
        raise NotImplementedError("it is not safe to go through it")


def test_a_mapping_that_cannot_be_gone_through_is_looked_into_all_the_same() -> None:
    assert inspect_graph(graph(holding(Pool(one)))).tools == ("one",)


def keeping(state: Any) -> Any:
    try:
        return one.invoke(state)
    except Exception as error:  # noqa: BLE001  what this is about
        return str(error)


async def keeping_all(state: Any, tool_by_name: Any = None) -> Any:
    try:
        return [await tool_by_name[name].ainvoke(state) for name in state]
    except:  # noqa: E722  what this is about
        return None


def passing(state: Any) -> Any:
    try:
        return one.invoke(state)
    except GraphBubbleUp:
        raise
    except Exception as error:  # noqa: BLE001  what this is about
        return str(error)


def raising(state: Any) -> Any:
    try:
        return one.invoke(state)
    except Exception as error:
        raise RuntimeError from error


def narrow(state: Any) -> Any:
    try:
        return one.invoke(state)
    except ValueError:
        return None


def of_a_model(state: Any, model: Any = None) -> Any:
    try:
        return model.invoke(state)
    except Exception:  # noqa: BLE001  what this is about
        return None


@pytest.mark.parametrize("function", [keeping, keeping_all])
def test_functions_that_catch_every_error_of_a_tool_are_named(function: Any) -> None:
    assert inspect_graph(graph(holding(function))).catching == (f"node/{function.__name__}",)


@pytest.mark.parametrize("function", [passing, raising, narrow, of_a_model])
def test_functions_that_let_questions_pass_are_not(function: Any) -> None:
    assert inspect_graph(graph(holding(function))).catching == ()


def twice(state: Any) -> Any:
    return [one.invoke(state), one.invoke(state)]


def in_a_loop(state: Any) -> Any:
    for item in state:
        one.invoke(item)


def then_a_question(state: Any) -> Any:
    one.invoke(state)
    return interrupt("Sure?")


@pytest.mark.parametrize("function", [twice, in_a_loop, then_a_question])
def test_functions_whose_first_call_runs_again_after_a_later_question_are_named(function: Any) -> None:
    assert inspect_graph(graph(holding(function))).repeating == (f"node/{function.__name__}",)


@pytest.mark.parametrize("function", [narrow, of_a_model])
def test_functions_with_one_call_are_not(function: Any) -> None:
    assert inspect_graph(graph(holding(function))).repeating == ()


def test_nodes_that_ask_by_themselves_or_want_a_server_are_named() -> None:
    def asking(_state: Any) -> Any:
        return interrupt("Which bed?")

    async def scheduling(_state: Any) -> None:
        await get_client().runs.create(None, "agent")

    middleware = create_agent(ScriptedModel(script={}), [one], middleware=[HumanInTheLoopMiddleware({"one": True})])
    assert inspect_graph(graph(asking)).asking == ("node",)
    assert inspect_graph(middleware).asking == ("HumanInTheLoopMiddleware.after_model",)
    assert inspect_graph(graph(scheduling)).clients == ("node",)
    found = inspect_graph(graph(ToolNode([one])))
    assert (found.asking, found.clients) == ((), ())


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (RemoteGraph("agent", url="http://127.0.0.1:1"), "another server"),
        (holding(RemoteGraph("agent", url="http://127.0.0.1:1")), "another server"),
        (graph(ToolNode([one]), checkpointer=False), "no question in it can be answered"),
        (OwnNode([one]), "OwnNode has its own way to run tools (_run_one)"),
        (ToolNode([OwnTool()]), "the tool own has its own way to run (invoke)"),
        (holding(model(one, {"type": "web_search_20250305", "name": "web_search"})), "runs web_search_20250305"),
        (holding(model({"google_search": {}})), "runs google_search"),
        (create_agent(ScriptedModel(script={}), [one, {"type": "mcp", "server_label": "x"}]), "runs mcp"),
    ],
)
def test_what_runs_past_the_guard_is_named_with_its_node(node: Any, why: str) -> None:
    (problem,) = inspect_graph(graph(node)).unguardable
    assert problem.where.startswith("node")
    assert why in problem.why


def test_tools_that_the_graph_runs_are_no_providers_tools() -> None:
    functions = [{"type": "function", "function": {"name": "one"}}, {"name": "one", "input_schema": {}}]
    assert inspect_graph(graph(holding(model(*functions)))).unguardable == ()


@pytest.mark.parametrize("name", ["langgraph_demo", "langchain_demo", "openai_demo", "webbrowser"])
def test_a_module_of_the_authors_is_no_library_whatever_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from langgraph.prebuilt import ToolNode\nclass Own(ToolNode):\n    def invoke(self, *_):\n        return {}\n"
    )
    (tmp_path / f"{name}.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    (problem,) = inspect_graph(graph(importlib.import_module(name).Own([one]))).unguardable
    monkeypatch.delitem(sys.modules, name)
    assert "Own has its own way to run tools (invoke)" in problem.why


SEARCH = [{"type": "web_search_preview"}]
HOSTED_TOOLS = [{"type": "a kind that nobody here knows", "container": {}}]
DATA = [
    {"type": "text", "text": "tools"},
    {"n": 1},
    {"sold_20240101": 1},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
]


def of_global(_state: Any) -> Any:
    return model().bind(tools=SEARCH)


def of_named_global(_state: Any) -> Any:
    return [model().bind(tools=HOSTED_TOOLS) for _ in ("inside", "another", "code object")]


def of_data(_state: Any) -> Any:
    return DATA


class Keeps:
    """A class of the author's that keeps tools for a model."""

    def __init__(self, tools: list[Any]) -> None:
        self.tools = tools

    def work(self, _state: Any) -> Any:
        return model().bind(tools=self.tools)


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (of_global, "web_search_preview"),
        (of_named_global, "a kind that nobody here knows"),
        (holding(SEARCH), "web_search_preview"),
        (holding({"model": "one", "tools": HOSTED_TOOLS}), "a kind that nobody here knows"),
        (holding([{"type": "bash_20250124", "name": "bash"}]), "bash_20250124"),
        (holding([{"url_context": {}}]), "url_context"),
        (Keeps(HOSTED_TOOLS).work, "a kind that nobody here knows"),
    ],
)
def test_tools_that_a_provider_runs_are_found_wherever_a_node_holds_them(node: Any, kind: str) -> None:
    (problem,) = inspect_graph(graph(node)).unguardable
    assert problem == Unguardable(where="node", why=f"the model's provider itself runs {kind}")


@pytest.mark.parametrize("node", [of_data, holding(DATA), Keeps([one]).work])
def test_lists_that_are_no_providers_tools_are_no_trouble(node: Any) -> None:
    assert inspect_graph(graph(node)).unguardable == ()


def test_a_graph_that_holds_too_much_to_look_at_is_not_called_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolnodes, "MOST_LOOKED_AT", 100)
    assert inspect_graph(graph(holding([[1] for _ in range(50)]))).unguardable == ()
    (problem,) = inspect_graph(graph(holding([OwnNode([one]), [[number] for number in range(200)]]))).unguardable
    assert "holds more than 100 objects" in problem.why


def test_a_subgraph_without_checkpoints_is_no_trouble_where_it_has_no_tools() -> None:
    assert inspect_graph(graph(graph(holding({}), checkpointer=False))).unguardable == ()


def test_a_problem_in_a_subgraph_is_found_under_its_path() -> None:
    (problem,) = inspect_graph(graph(graph(OwnNode([one])))).unguardable
    assert problem.where == "node/node"


def test_no_graph_is_made_ready_while_nobody_watches() -> None:
    made = graph(ToolNode([one]))
    loaded = Loaded(reference=Reference(text="a:b", file=None, module="a", attribute="b"), kind="", graph=made)
    opened = Opened(loaded=loaded, inspection=inspect_graph(made), trusted=False)
    with pytest.raises(RuntimeError, match="no guard watches"):
        opened.bind(InMemorySaver())
    with watching(Gate({}, judge)):
        assert opened.bind(InMemorySaver()).nodes == made.nodes
