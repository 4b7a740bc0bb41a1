"""Inspection of a graph: the tools that the graph reaches, and the tool calls that the guard cannot judge.

The guard judges every tool call of the process (:mod:`agent_runtime.graph.guard.hooks`), so a graph needs no change.
This module inspects a graph before it runs: its nodes and subgraphs, and the objects that their functions use.
"""

import ast
import functools
import inspect
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from langchain_core.runnables import RunnableBinding, RunnableLambda, RunnableParallel, RunnableSequence
from langchain_core.tools import BaseTool, tool
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.func import _TaskFunction
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel._utils import get_function_nonlocals
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import interrupt

from agent_runtime.graph.guard.overrides import METHODS as TOOL_METHODS

CALLS = "calls"  # in a tool's metadata: the names of the tools that it calls
MOST_LOOKED_AT = 100_000  # most objects; a larger graph counts as not guarded
_LIBRARIES = sys.stdlib_module_names | {
    *("langchain", "langchain_core", "langchain_classic", "langchain_openai", "langgraph", "langgraph_sdk"),
    *("pydantic", "pydantic_core", "langsmith", "openai", "anthropic", "httpx"),
}
_INSTALLED = tuple(
    Path(path).resolve() for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))
)
# The keys that mark providers' own tools, as `type` or as the only key. In a list that certainly contains a
# model's tools, any kind counts.
_SERVED_KEYS = r"(google_|enterprise_web_|x_|live_|browser_)search(_retrieval)?|google_maps|url_context|code_execution"
_SERVED_TYPES = r"(web|file)_search|web_fetch|code_interpreter|computer_use|image_generation|local_shell|mcp(_toolset)?"
_SERVED = re.compile(rf"({_SERVED_KEYS}|{_SERVED_TYPES}|document_library)(_preview|_premium)?([_\d]+)?|\w+_20\d{{6}}")
_NODE_METHODS = (
    "invoke",
    "ainvoke",
    "_func",
    "_afunc",
    "_run_one",
    "_arun_one",
    "_execute_tool_sync",
    "_execute_tool_async",
)
_ASKING_MIDDLEWARE = "HumanInTheLoopMiddleware"
_RUNS = frozenset({"invoke", "ainvoke", "run", "arun"})
_CLIENTS = frozenset({"get_client", "get_sync_client"})
_TOOL_MODULES = frozenset({"langchain_core.tools", "langchain.tools"})
_AT_TERMINAL = frozenset(
    {"input", "breakpoint", "getpass", "getpass.getpass", "pdb.set_trace", "sys.stdin.read", "sys.stdin.readline"}
)
_LEAVES = (str, bytes, int, float, type, types.ModuleType, types.NoneType)


@dataclass(frozen=True, kw_only=True)
class Unguardable:
    """A place where a tool may run past the guard: the path of nodes, and the reason."""

    where: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        tools: names of the reached tools, sorted.
        unguardable: places that let the graph run only if the author trusts it.
        held: the tools themselves; two tools may have the same name.
        makers: paths of nodes whose functions make tools; these tools are not in `tools`.
        results: the types that its tasks (LangGraph's `@task`) return, which checkpoints then contain.
        made: names of the tools that `makers` make, as far as their classes or code show them.
        clients: paths of nodes that use LangGraph's client of a LangGraph server.
        inside: by tool name, the names of the tools that the tool calls, from its function or its metadata.
        catching: functions that catch every error of a tool call, and so the guard's question too.
        at_terminal: functions that read from a terminal, which no turn has.
        repeating: functions that call a tool and then ask again, so that the first call runs again after the answer.
        asking: paths of nodes that ask a question themselves, by `interrupt()` or LangChain's middleware.
    """

    tools: tuple[str, ...]
    unguardable: tuple[Unguardable, ...]
    held: tuple[BaseTool, ...] = ()
    makers: tuple[str, ...] = ()
    results: tuple[Any, ...] = ()
    made: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    inside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asking: tuple[str, ...] = ()
    catching: tuple[str, ...] = ()
    at_terminal: tuple[str, ...] = ()
    repeating: tuple[str, ...] = ()


def inspect_graph(graph: Pregel[Any, Any, Any, Any]) -> Inspection:
    """Inspect a graph without running it. It covers at least its nodes, its subgraphs and their closures."""
    tools: list[BaseTool] = []
    asking: set[str] = set()
    functions: list[tuple[str, types.FunctionType]] = []
    results: list[Any] = []
    problems: dict[Unguardable, None] = {}
    for where, value in _reached(graph):
        if isinstance(value, BaseTool):
            tools.append(value)
        elif isinstance(value, _TaskFunction):
            results.append(_result_of(value.func))
        elif isinstance(value, types.FunctionType):
            functions.append((where, value))
        if value is interrupt or type(value).__name__ == _ASKING_MIDDLEWARE:
            asking.add(where)
        why = _why_not(value)
        if (
            isinstance(value, Pregel)
            and value is not graph
            and value.checkpointer is False
            and inspect_graph(value).tools
        ):
            why = "it keeps no checkpoints (checkpointer=False), so no question in it can be answered"
        if why:
            problems[Unguardable(where=where, why=why)] = None
    names = sorted({one.name for one in tools})
    makers = [(where, function, used) for where, function in functions if (used := _tool_makers(function))]
    made = {name for _, _, used in makers for name in map(_name_given_by, used)}
    made |= {name for _, function, _ in makers for name in _names_given_in(function)}
    return Inspection(
        tools=tuple(names),
        unguardable=tuple(problems),
        held=tuple(tools),
        makers=tuple(sorted({where for where, _, _ in makers})),
        results=tuple(results),
        made=tuple(sorted(made - {"", *names})),
        clients=tuple(sorted({where for where, function in functions if _makes_client(function)})),
        inside={one.name: called for one in tools if (called := _called_in(one))},
        asking=tuple(sorted(asking)),
        catching=_those(functions, _catches_questions),
        at_terminal=_those(functions, _reads_terminal),
        repeating=_those(functions, _repeats_calls),
    )


def _those(
    functions: Sequence[tuple[str, types.FunctionType]], does: Callable[[types.FunctionType], bool]
) -> tuple[str, ...]:
    """Return the paths of those functions of the author that meet the condition `does`."""
    return tuple(sorted({_path(where, one.__name__) for where, one in functions if not _of_library(one) and does(one)}))


def _called_in(held: BaseTool) -> tuple[str, ...]:
    """Return the names of the tools that a tool refers to, or that its metadata lists."""
    said = (held.metadata or {}).get(CALLS, ())
    declared = {one for one in said if isinstance(one, str)} if isinstance(said, list | tuple | set) else set()
    found = {one.name for _, one in _reached(held) if isinstance(one, BaseTool) and one is not held}
    return tuple(sorted((declared | found) - {held.name}))


def _result_of(function: Callable[..., Any]) -> Any:
    """Return the declared result type of a task; Any if the type is missing or cannot be read."""
    try:
        return get_type_hints(function).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any


@dataclass(frozen=True, kw_only=True)
class _Offered:
    """A list of a model's tools: tools, functions, or tools that a provider runs."""

    tools: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class _Unseen:
    """A marker for the objects beyond the limit `most`, which were not inspected."""

    most: int


def _reached(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield each object that a graph's nodes or a tool refer to, once, with the path of nodes to it."""
    waiting: list[tuple[str, Any]] = [("", root)]
    seen: dict[int, Any] = {}  # keeps inspected objects alive, so that no id is used again
    while waiting:
        where, value = waiting.pop()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        if len(seen) >= MOST_LOOKED_AT:
            yield where, _Unseen(most=MOST_LOOKED_AT)
            return
        seen[id(value)] = value
        yield where, value
        if isinstance(value, Pregel):
            waiting.extend((_path(where, name), node.bound) for name, node in value.nodes.items())
        else:
            waiting.extend((where, inner) for inner in _inside(value))


def _inside(value: Any) -> Iterable[Any]:
    """Return the objects that an object refers to, if a tool may be among them."""
    for kinds, look in _LOOKS:
        if isinstance(value, kinds):
            return look(value)
    return () if _of_library(type(value)) else list(_named(getattr(value, "__dict__", {})))


def _named(held: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield named values. Yield a list named `tools` also as a model's tools."""
    for name, value in list(held.items()):
        yield value
        if str(name).lower().endswith("tools") and isinstance(value, list | tuple):
            yield _Offered(tools=value)


def _of_library(thing: Any) -> bool:
    """Return whether a class or function belongs to a library; its global names are then not the author's graph."""
    module = str(getattr(thing, "__module__", None) or "builtins")
    return module.split(".", 1)[0] in _LIBRARIES and _installed(module)


@functools.cache
def _installed(module: str) -> bool:
    """Return whether a module is in a library folder, and not a file of the author with the same name."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or any(Path(file).resolve().is_relative_to(root) for root in _INSTALLED)


def _of_node(node: ToolNode) -> Iterator[Any]:
    yield from (node.func, node.afunc, node._wrap_tool_call, node._awrap_tool_call)  # noqa: SLF001
    yield from node.tools_by_name.values()


def _of_callable(value: Any) -> Iterator[Any]:
    yield from (getattr(value, name, None) for name in ("func", "afunc", "coroutine"))


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    if not _of_library(function):
        yield from get_function_nonlocals(function)
        names = [name for name in _names_in(function.__code__) if name in function.__globals__]
        yield from _named({name: function.__globals__[name] for name in names})
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    yield from _named({name: _content(cell) for name, cell in cells})


def _tool_makers(function: types.FunctionType) -> list[Any]:
    """Return the makers of tools that an author's function uses: classes of tools, or LangChain's `tool`."""
    names = set() if _of_library(function) else set(_names_in(function.__code__))
    used = [function.__globals__.get(name) for name in names]
    used += [_content(cell) for cell in function.__closure__ or ()] if names else []
    return [*(names & _TOOL_MODULES), *filter(_makes_tool, used)]


def _makes_tool(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__ in _TOOL_MODULES
    return value is tool or (isinstance(value, type) and issubclass(value, BaseTool))


def _makes_client(function: types.FunctionType) -> bool:
    return function.__name__ in _CLIENTS and function.__module__.startswith("langgraph_sdk.")


def _catches_questions(function: types.FunctionType) -> bool:
    """Return whether an author's function calls a tool, or an object named like a tool, and catches every error."""
    attempts = [node for node in ast.walk(_syntax(function)) if isinstance(node, ast.Try) and _keeps_all(node.handlers)]
    return any(_tool_calls(function, part) for one in attempts for part in one.body)


def _repeats_calls(function: types.FunctionType) -> bool:
    """Return whether an author's function calls tools twice or in a loop, or a tool and `interrupt`."""
    syntax = _syntax(function)
    calls = _tool_calls(function, syntax)
    asks = [one for one in ast.walk(syntax) if isinstance(one, ast.Call) and ast.unparse(one.func) == "interrupt"]
    loops = [one for one in ast.walk(syntax) if isinstance(one, ast.For | ast.AsyncFor | ast.While | ast.ListComp)]
    return len(calls) + min(len(calls), len(asks)) > 1 or any(_tool_calls(function, one) for one in loops)


def _tool_calls(function: types.FunctionType, part: ast.AST) -> list[ast.AST]:
    """Return the calls of tools, or of objects named like tools, in a part of a function."""
    cells = zip(function.__code__.co_freevars, map(_content, function.__closure__ or ()), strict=True)
    known = {name for name, value in (*cells, *function.__globals__.items()) if isinstance(value, BaseTool)}
    return [node for node in ast.walk(part) if _calls_tool(node, known)]


def _reads_terminal(function: types.FunctionType) -> bool:
    """Return whether an author's function waits for input at a terminal."""
    called = {ast.unparse(node.func) for node in ast.walk(_syntax(function)) if isinstance(node, ast.Call)}
    return bool((called & _AT_TERMINAL) - (function.__globals__.keys() & {"input", "breakpoint"}))


def _syntax(function: types.FunctionType) -> ast.AST:
    """Return the syntax of a function; empty if the function has no file or is a lambda inside a line."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _keeps_all(handlers: Sequence[ast.ExceptHandler]) -> bool:
    for handler in handlers:
        caught = ast.unparse(handler.type) if handler.type is not None else "BaseException"
        if re.search(r"\bGraph(BubbleUp|Interrupt)\b", caught):
            return False
        if re.search(r"\b(Base)?Exception\b", caught):
            return not any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    return False


def _calls_tool(node: ast.AST, known: Collection[str]) -> bool:
    method = node.func if isinstance(node, ast.Call) else None
    if not isinstance(method, ast.Attribute) or method.attr not in _RUNS:
        return False
    called = ast.unparse(method.value)
    return called in known or "tool" in called.lower()


def _names_given_in(function: types.FunctionType) -> Iterator[str]:
    """Yield the names of tools that a function makes: `tool(Thing)`, `tool("name")`, or a function below `@tool`."""
    for node in ast.walk(_syntax(function)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = [
                one for one in node.decorator_list if _is_tool(one.func if isinstance(one, ast.Call) else one, function)
            ]
            yield from (node.name for one in marks if not (isinstance(one, ast.Call) and one.args))
        elif isinstance(node, ast.Call) and _is_tool(node.func, function) and node.args:
            given = node.args[0]
            yield str(given.value) if isinstance(given, ast.Constant) else ast.unparse(given).rpartition(".")[2]


def _is_tool(called: ast.expr, function: types.FunctionType) -> bool:
    return isinstance(called, ast.Name) and function.__globals__.get(called.id) is tool


def _name_given_by(maker: Any) -> str:
    """Return the name of a class's tools; empty if each tool gets a separate name."""
    field = maker.model_fields.get("name") if isinstance(maker, type) and issubclass(maker, BaseTool) else None
    return field.default if field is not None and isinstance(field.default, str) else ""


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function uses, including the functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a function that is not yet bound to its own name
        return None


def _why_not(value: Any) -> str:
    """Return why the guard cannot check calls of this object; empty if the guard can check them."""
    if isinstance(value, RemoteGraph):
        return "it runs on another server, which cannot ask the author"
    if isinstance(value, ToolNode) and (changed := _changed(type(value), ToolNode, _NODE_METHODS)):
        return f"{type(value).__name__} has its own way to run tools ({changed})"
    if isinstance(value, BaseTool) and (changed := _changed(type(value), BaseTool, TOOL_METHODS)):
        return f"the tool {value.name} has its own way to run ({changed})"
    if isinstance(value, _Unseen):
        return f"it holds more than {value.most:,} objects; the rest was not inspected"
    served = _served_in(value)
    return f"the model's provider itself runs {', '.join(served)}" if served else ""


def _served_in(value: Any) -> list[str]:
    """Return the names of the tools in a list that a model's provider runs."""
    if not isinstance(value, _Offered | list | tuple):
        return []
    held = value.tools if isinstance(value, _Offered) else value
    tools = [tool for tool in held if isinstance(tool, Mapping)]
    sure = isinstance(value, _Offered)
    return [kind for tool in tools if (sure or _well_known(tool)) and (kind := _served(tool))]


def _well_known(tool: Mapping[Any, Any]) -> bool:
    """Return whether a value is a provider's tool in any position, by its type or its only key."""
    if isinstance(kind := tool.get("type"), str):
        return _SERVED.fullmatch(kind) is not None
    return len(tool) == 1 and all(_SERVED.fullmatch(str(key)) and isinstance(tool[key], Mapping) for key in tool)


def _changed(kind: type, base: type, methods: Sequence[str]) -> str:
    """Return the names of the methods that an author's class has changed."""
    own = [one for one in kind.__mro__[: kind.__mro__.index(base)] if not _of_library(one)]
    return ", ".join(name for name in methods if any(name in vars(one) for one in own))


def _served(tool: Mapping[Any, Any]) -> str:
    """Return the name of a tool that a model's provider runs; empty for a tool that the graph runs."""
    declared = {"function", "input_schema", "function_declarations", "parameters"} & set(tool)
    if declared or tool.get("type") in {"function", "custom"}:
        return ""
    return str(tool.get("type") or next(iter(tool), "a tool"))


def _path(where: str, name: str) -> str:
    return f"{where}/{name}" if where else name


_LOOKS: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    (RunnableSequence | RunnableSeq, lambda value: value.steps),
    (RunnableParallel, lambda value: value.steps__.values()),
    (RunnableBinding, lambda value: (value.bound, _Offered(tools=value.kwargs.get("tools") or ()))),
    (_Offered, lambda value: value.tools),
    (ToolNode, _of_node),
    (RunnableCallable | RunnableLambda | BaseTool | _TaskFunction, _of_callable),
    (functools.partial, lambda value: (value.func, *value.args, *value.keywords.values())),
    (types.MethodType, lambda value: (value.__self__, value.__func__)),
    (types.FunctionType, _of_function),
    (dict | types.MappingProxyType, lambda value: list(_named(value))),
    (list | tuple | set | frozenset, list),
)
