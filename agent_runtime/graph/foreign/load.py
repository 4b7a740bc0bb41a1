"""Loading of an author's graph in any form that LangGraph projects use, from its reference to the engine.

`project` finds the graph without importing anything. An error in the author's code becomes one InvalidInput with the
position in the code.

An opened graph is inspected, refused or guarded, and bound to our checkpoints. `report` serves `turnkeeper graph
check`.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, is_dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, cast, get_args, get_origin, get_type_hints

from langgraph._internal import _serde
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph_sdk import runtime as sdk_runtime
from pydantic import BaseModel, TypeAdapter
from typing_extensions import is_typeddict

from agent_runtime.graph.engine import inputs
from agent_runtime.graph.foreign import packages
from agent_runtime.graph.foreign.inspect import Inspection, inspect_graph
from agent_runtime.graph.foreign.project import Reference, absolute_text, digest_of, find_graph, found_at
from agent_runtime.graph.foreign.store import LentStore, StoreSettings, read_store, store_report
from agent_runtime.graph.guard import shared_names, watched
from agent_runtime.model.graphs import Assistant
from agent_runtime.model.mapping import canonical
from agent_runtime.model.turn import Category
from agent_runtime.permissions.judge import FOREIGN
from agent_runtime.workspace.memory import Namespaces
from turnkeeper.config.json_text import check_configurable
from turnkeeper.errors import InvalidInput, TurnkeeperError

MOST_LAYERS = 4  # a factory may return a coroutine that returns a context manager that returns a builder
WANTED = "give a StateGraph, a compiled graph, an @entrypoint, or a factory or an async context manager of one"
Graph = Pregel[Any, Any, Any, Any]
_RUNTIME = (sdk_runtime._ExecutionRuntime, sdk_runtime._ReadRuntime)  # noqa: SLF001  what ServerRuntime stands for


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """An author's graph, imported and built.

    Attributes:
        kind: the forms around the graph, outermost first: `factory, builder`.
        graph: compiled, without our checkpointer.
        unset: the variables that the project requests and that are not set.
    """

    reference: Reference
    kind: str
    graph: Graph
    store: StoreSettings = field(default_factory=StoreSettings)
    lent: LentStore = field(default_factory=LentStore)
    unset: Sequence[str] = ()


@asynccontextmanager
async def load(reference: Reference, environ: Mapping[str, str]) -> AsyncIterator[Loaded]:
    """Import and make a graph, and close its resources at the end of the block.

    The project's variables are added to the process's environment, except those that `environ` already has.

    Raises:
        InvalidInput: the module cannot be imported, lacks the attribute, or the attribute is not a graph.
    """
    for key, value in reference.environment.items():
        if key not in environ:
            os.environ[key] = value
    unset, lent = reference.unset(os.environ), LentStore()
    async with AsyncExitStack() as stack:
        try:
            graph, kinds = await _made(reference, _attribute(reference), stack, lent)
        except InvalidInput as error:
            raise _with_unset(error, reference, unset) from error
        store = read_store(reference.store, lambda text: _attribute(found_at(text, reference.project)))
        kind = ", ".join(kinds)
        yield Loaded(reference=reference, kind=kind, graph=graph, store=store, lent=lent, unset=unset)


def _with_unset(error: InvalidInput, reference: Reference, unset: Sequence[str]) -> InvalidInput:
    """Return the error of a project that cannot be loaded, with its unset variables, which may be the reason."""
    if not unset or reference.example is None or isinstance(error.__cause__, ModuleNotFoundError):
        return error
    file = reference.example.with_suffix("")
    lacking = f"not set are {', '.join(unset)}, which {reference.example.name} names: put them into {file}"
    return InvalidInput(error.what, where=error.where, hint=f"{error.hint}; {lacking}" if error.hint else lacking)


async def _made(reference: Reference, found: Any, stack: AsyncExitStack, lent: LentStore) -> tuple[Graph, list[str]]:
    kinds: list[str] = []
    for _ in range(MOST_LAYERS):
        if isinstance(found, CompiledStateGraph):
            return _named_fields(reference, found), [*kinds, "compiled graph"]
        if isinstance(found, Pregel):
            return found, [*kinds, "workflow of functions"]
        try:
            found = await _peel(reference, found, kinds, stack, lent)
        except InvalidInput:
            raise
        except (Exception, SystemExit) as error:
            what = f"{reference.attribute} cannot be made: {_sentence(error)}"
            raise InvalidInput(what, where=_place(error, reference)) from error
    raise InvalidInput(f"{reference.attribute} is nested too deeply: {', '.join(kinds)}", where=reference.text)


async def _peel(reference: Reference, found: Any, kinds: list[str], stack: AsyncExitStack, lent: LentStore) -> Any:
    """Unwrap one layer around a graph, and add its name to `kinds`."""
    if isinstance(found, StateGraph):
        kinds.append("builder")
        return found.compile()
    if isinstance(found, AbstractAsyncContextManager):
        kinds.append("async context manager")
        return await stack.enter_async_context(found)
    if isinstance(found, AbstractContextManager):
        kinds.append("context manager")
        return stack.enter_context(found)
    if inspect.isawaitable(found):
        return await found
    if callable(found):
        kinds.append("async factory" if inspect.iscoroutinefunction(found) else "factory")
        return found(**_arguments(reference, found, lent))
    is_of = "gives what is of" if kinds else "is of"
    what = f"{reference.attribute} {is_of} type {type(found).__name__}"
    raise InvalidInput(what, where=reference.text, hint=WANTED)


def _arguments(reference: Reference, factory: Callable[..., Any], lent: LentStore) -> dict[str, Any]:
    """Return a factory's arguments, as LangGraph's own server does: none, a config, its runtime, or both."""
    try:
        asked = [one for one in inspect.signature(factory).parameters.values() if one.kind in _NAMED]
    except (TypeError, ValueError):
        return {}
    hints = _hints_of(factory)
    runtimes = [one.name for one in asked if _is_runtime(hints.get(one.name, one.annotation))]
    others = [one for one in asked if one.name not in runtimes]
    required = [one.name for one in others if one.default is one.empty]
    if len(required) > 1 or len(runtimes) > 1:
        names = ", ".join(one.name for one in asked)
        what = f"the factory {reference.attribute} takes {names}; it can be given a config and a ServerRuntime"
        raise InvalidInput(what, where=reference.text)
    config = required or [one.name for one in others if one.name == "config" or len(asked) == 1][:1]
    runtime: Any = sdk_runtime._ExecutionRuntime(access_context="threads.create_run", store=lent)  # noqa: SLF001
    return {name: {"configurable": {}} for name in config} | dict.fromkeys(runtimes, runtime)


_NAMED = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})


def _hints_of(factory: Callable[..., Any]) -> Mapping[str, Any]:
    names = {
        "ServerRuntime": sdk_runtime.ServerRuntime,
        "RunnableConfig": dict,
    }  # often imported for type checkers only
    try:
        return get_type_hints(factory, localns=names)
    except Exception:  # noqa: BLE001  a hint may run any code; without one, the parameter takes the config
        return {}


def _is_runtime(hint: Any) -> bool:
    """Return whether a parameter takes LangGraph's `ServerRuntime`, in any spelling of the type."""
    if isinstance(hint, type):
        return issubclass(hint, _RUNTIME)
    if hint is sdk_runtime.ServerRuntime or get_origin(hint) is sdk_runtime.ServerRuntime:
        return True
    return any(map(_is_runtime, get_args(hint)[:1]))


def _named_fields(reference: Reference, graph: Graph) -> Graph:
    if "__root__" in graph.channels:
        what = f"the state of {reference.attribute} has no named fields"
        raise InvalidInput(what, where=reference.text, hint="make it a TypedDict, a dataclass or a pydantic model")
    return graph


def _attribute(reference: Reference) -> Any:
    try:
        module = _import(reference)
    except (Exception, SystemExit) as error:
        hint = packages.hint(reference, error.name or "it") if isinstance(error, ModuleNotFoundError) else ""
        what = f"cannot be imported: {_sentence(error)}"
        raise InvalidInput(what, where=_place(error, reference), hint=hint) from error
    if not hasattr(module, reference.attribute):
        kinds = (StateGraph, Pregel)
        graphs = [name for name, value in vars(module).items() if isinstance(value, kinds)]
        hint = f"it has {', '.join(graphs)}" if graphs else ""
        raise InvalidInput(
            f"{reference.file or reference.module} has no {reference.attribute}", where=reference.text, hint=hint
        )
    return getattr(module, reference.attribute)


def _import(reference: Reference) -> ModuleType:
    for folder in reference.folders:
        _search(folder)
    if reference.file is None:
        return importlib.import_module(reference.module)
    root, name = _module_of(reference.file)
    _search(root)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin and Path(spec.origin).resolve() == reference.file:
        return importlib.import_module(name)
    return _import_alone(reference.file)


def _search(folder: Path) -> None:
    """Append a folder to the import path, so that no file of a project replaces an installed module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _module_of(file: Path) -> tuple[Path, str]:
    """Return the folder to import a file from, and the file's dotted name, including the packages around it."""
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _import_alone(file: Path) -> ModuleType:
    """Import a file under a separate name if another module has its name, because checkpoints need a stable name."""
    name = f"{file.stem}_{sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "the name ends with .py"
    assert spec.loader is not None, "so that Python finds a loader for it"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _place(error: BaseException, reference: Reference) -> str:
    """Return the innermost line of the project's own code in an error's traceback, or else the reference."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    roots = [*reference.folders, *([_module_of(reference.file)[0]] if reference.file else [])]
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if any(Path(frame.filename).is_relative_to(root) for root in roots) and "site-packages" not in frame.filename
    ]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else reference.text


def _sentence(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return " ".join(f"{type(error).__name__}: {said}".split())[:500]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The configuration of a graph: LangGraph's context and `configurable`.

    Attributes:
        declared: True if the graph declares a context.
    """

    declared: bool
    schema: inputs.InputSchema

    def made(self, context_json: str, config_json: str) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return the context and the configurable of a turn.

        As on LangGraph's own server, each also gets the values of the other, because a graph may read either. Raises
        InvalidInput for a reserved key, and for a context that does not fit the declared context.
        """
        context = check_configurable(json.loads(context_json or "{}"), "context")
        config = check_configurable(json.loads(config_json or "{}"), "config")
        configurable = context | config
        if not self.declared:
            return context or None, configurable
        known = {field.name for field in self.schema.fields}
        given = {name: value for name, value in config.items() if name in known} | context
        return self.schema.checked(given, "context", of="context"), configurable


def read_context(schema: Any) -> Context:
    """Return the fields of a graph's declared context; None if the graph declares no context.

    Fields of a TypedDict are optional: LangGraph does not check them, and templates read them with a default.
    """
    hints, needed = (
        (inputs.hints_of(schema), inputs.required_in(schema, own=False)) if schema is not None else ({}, frozenset())
    )
    found = tuple(inputs.Field(name=name, required=name in needed, hint=hint) for name, hint in hints.items())
    model = schema if inspect.isclass(schema) and issubclass(schema, BaseModel) else None
    return Context(declared=schema is not None, schema=inputs.InputSchema(fields=found, model=model))


def read_workflow(graph: Any) -> inputs.InputSchema:
    """Return the input of a graph that was not made from a StateGraph: one value, or one for each channel."""
    if not isinstance(graph.input_channels, str):
        names = [(name, graph.channels[name].ValueType) for name in graph.input_channels]
        fields_of = tuple(inputs.Field(name=name, required=False, hint=hint) for name, hint in names)
        return inputs.InputSchema(fields=fields_of, keeps_state=False)
    hint = _input_type(graph)
    if (get_origin(hint) or hint) in {dict, Mapping}:
        return inputs.InputSchema(
            fields=(inputs.Field(name="prompt", required=False, hint=str),), any_field=True, keeps_state=False
        )
    if not (is_typeddict(hint) or is_dataclass(hint) or (inspect.isclass(hint) and issubclass(hint, BaseModel))):
        name = inputs.MESSAGES if inputs.holds_messages(hint) else inputs.INPUT
        return inputs.InputSchema(
            fields=(inputs.Field(name=name, required=True, hint=hint),), whole=True, keeps_state=False
        )
    hints, required = inputs.hints_of(hint), inputs.required_in(hint, own=True)
    found = tuple(inputs.Field(name=name, required=name in required, hint=kind) for name, kind in hints.items())
    made = None if is_typeddict(hint) else TypeAdapter(hint)
    model = hint if inspect.isclass(hint) and issubclass(hint, BaseModel) else None
    return inputs.InputSchema(fields=found, model=model, made=made, keeps_state=False)


def _input_type(graph: Any) -> Any:
    """Return the type of a workflow's input, even if its module writes types as strings."""
    hint = graph.channels[graph.input_channels].ValueType
    return next(iter(workflow_types(graph)), Any) if isinstance(hint, str) else hint


def workflow_types(graph: Any) -> list[Any]:
    """Return the types that a workflow's function declares: for its input, its result and its saved value."""
    if isinstance(graph, CompiledStateGraph):
        return []
    found = [getattr(node.bound, "func", None) or getattr(node.bound, "afunc", None) for node in graph.nodes.values()]
    hints = [hint for function in found if function is not None for hint in inputs.hints_of(function).values()]
    return [*hints, *(inner for hint in hints for inner in get_args(hint))]


__all__ = ["Opened", "absolute_text", "open_graph", "targets"]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An author's graph, ready to be judged and bound.

    Attributes:
        inspection: its tools, and the places that cannot be guarded.
        trusted: True if the author lets it run although it cannot be guarded everywhere.
    """

    loaded: Loaded
    inspection: Inspection
    trusted: bool

    def problem(self) -> InvalidInput | None:
        """Return why this graph must not run; None if it may run."""
        reference = self.loaded.reference
        if self.inspection.unguardable and not self.trusted:
            first, *others = self.inspection.unguardable
            more = f", and {len(others)} more" if others else ""
            hint = f"see: turnkeeper graph check; or add {reference.text!r} to trusted_graphs in [categories]"
            return InvalidInput(f"{first.where} cannot be guarded: {first.why}{more}", where=reference.text, hint=hint)
        return None

    @property
    def digest(self) -> str:
        """A short digest of its project file and its imported code."""
        return digest_of(self.loaded.reference)

    def namespaces(self, default_tier: str) -> Namespaces:
        """Return the rules for the graph's store namespaces."""
        return Namespaces(graph=self.loaded.reference.name, tier=default_tier)

    def require(self) -> None:
        """Raise InvalidInput if this graph must not run."""
        problem = self.problem()
        if problem is not None:
            raise problem

    def bind(self, saver: BaseCheckpointSaver[Any]) -> Graph:
        """Return the graph with our checkpoints, and with the guard around its tool calls.

        No tool of the graph has a scope of Turnkeeper, whatever its name: each has `tool:<name>` and counts as a write.

        Raises:
            InvalidInput: the graph must not run.
            RuntimeError: no guard watches the tool calls of this process.
        """
        self.require()
        if not watched():
            raise RuntimeError("no guard watches the tool calls of this process")
        # A copied graph loses the types that its state declares; a saver that was given at compilation keeps them.
        graph = self.loaded.graph
        if isinstance(graph, CompiledStateGraph):
            saver = cast("BaseCheckpointSaver[Any]", graph.builder.compile(checkpointer=saver).checkpointer)
        declared = _serde.build_serde_allowlist(
            schemas=[*self.inspection.results, *workflow_types(graph)], channels=graph.channels
        )
        return graph.copy(update={"checkpointer": saver.with_allowlist(declared)})


@asynccontextmanager
async def open_graph(
    text: str, base: Path, *, trusted: Collection[str], environ: Mapping[str, str]
) -> AsyncIterator[Opened]:
    """Load the graph of a reference, and close its resources at the end of the block.

    A relative path in the reference is relative to `base`. `trusted` contains the targets of the graphs that may run
    although the guard cannot guard them everywhere. The process's environment overrides the project's own.

    Raises:
        InvalidInput: no such graph exists, or the graph cannot be made.
    """
    reference = find_graph(text, base)
    async with load(reference, environ) as loaded:
        yield Opened(loaded=loaded, inspection=inspect_graph(loaded.graph), trusted=reference.target in trusted)


def targets(references: Iterable[str], base: Path) -> frozenset[str]:
    """Return the targets of references, equal for all spellings of a reference; leave out invalid references."""
    return frozenset(target for text in references if (target := _target(text, base)))


def _target(text: str, base: Path) -> str:
    try:
        return find_graph(text, base).target
    except TurnkeeperError:
        return ""


def report(
    opened: Opened,
    categories: Sequence[Category],
    absolute: str,
    default_tier: str,
    *,
    label: str = "",
    assistants: Mapping[str, Assistant] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the report on a graph: its tools and their grants, the unguarded places, and the verdict.

    `absolute` is the reference in a form that is valid in any folder; `default_tier` is the tier of namespaces without
    a tier; `label` is the graph's name in categories; `assistants` are the assistants of the graph.
    """
    loaded, problem, needed = opened.loaded, opened.problem(), packages.packages_of(opened.loaded.reference)
    schema, shared = inputs.read_schema(loaded.graph), shared_names(opened.inspection.held)
    context, of_tools = read_context(loaded.graph.context_schema), [one for one in categories if label in one.graphs]
    return {
        "reference": loaded.reference.text,
        "absolute": absolute,
        "target": loaded.reference.target,
        "kind": loaded.kind,
        "nodes": [name for name in loaded.graph.nodes if name != "__start__"],
        "subgraphs": [name for name, _ in loaded.graph.get_subgraphs(recurse=True)],
        "prompt_goes_to": schema.prompt_field,
        "input_schema": schema.json_schema(),
        "context_schema": context.schema.json_schema() if context.declared else None,
        "assistants": [_assistant(name, one, context, schema) for name, one in sorted(assistants.items())],
        "tools": [_tool(name, () if name in shared else of_tools) for name in opened.inspection.tools],
        "categories": [one.name for one in of_tools],
        "made_tools": [_tool(name, of_tools) for name in opened.inspection.made],
        "shared_names": sorted(shared),
        "makes_tools": list(opened.inspection.makers),
        "made_once": [loaded.reference.attribute] if "factory" in loaded.kind else [],
        "calls_inside": [f"{name} calls {' and '.join(inner)}" for name, inner in opened.inspection.inside.items()],
        "asks": list(opened.inspection.asking),
        "catches": list(opened.inspection.catching),
        "reads_terminal": list(opened.inspection.at_terminal),
        "repeats": list(opened.inspection.repeating),
        "calls_server": list(opened.inspection.clients),
        "store": store_report(opened.namespaces(default_tier), loaded.store, categories),
        "stops": _stops(loaded.graph),
        "ignored": loaded.reference.ignored,
        "unset": list(loaded.unset),
        "packages": {"missing": list(needed.missing), "conflicts": list(needed.conflicts), "install": needed.command},
        "unguardable": [{"where": one.where, "why": one.why} for one in opened.inspection.unguardable],
        "trusted": opened.trusted,
        "verdict": verdict(opened),
        "problem": str(problem) if problem is not None else "",
    }


def _stops(graph: Graph) -> list[str]:
    """Return the steps before and after which a graph and its subgraphs stop to ask the author."""
    found = []
    graphs: list[tuple[str, Any]] = [("", graph), *graph.get_subgraphs(recurse=True)]
    for where, one in graphs:
        for when, nodes in (("before", one.interrupt_before_nodes), ("after", one.interrupt_after_nodes)):
            named = ["every step"] if nodes == "*" else nodes
            found += [f"{when} {where.replace('|', '/')}{'/' if where else ''}{name}" for name in named]
    return found


def verdict(opened: Opened) -> str:
    """Return `guarded`, `trusted` (runs, but not guarded everywhere) or `refused`."""
    if opened.problem() is not None:
        return "refused"
    return "trusted" if opened.inspection.unguardable else "guarded"


def _assistant(name: str, one: Assistant, context: Context, schema: inputs.InputSchema) -> dict[str, str]:
    """Return an assistant of the graph and its errors; missing values are not errors, because a task may give them."""
    try:
        context.made(canonical(one.context), canonical(one.config))
        if one.input:
            schema.checked(dict(one.input), "input")
    except InvalidInput as error:
        return {"name": name, "description": one.description, "problem": str(error)}
    return {"name": name, "description": one.description, "problem": ""}


def _tool(name: str, categories: Sequence[Category]) -> Mapping[str, Any]:
    scope = f"{FOREIGN}{name}"
    granting = [category.name for category in categories if scope in category.tools]
    return {"name": name, "scope": scope, "effect": "write", "granted_by": granting}


def unset_fields(schema: inputs.InputSchema, prompt: str, payload_json: str, input_json: str) -> str:
    """Return a warning if a graph that takes messages gets no other field of its input; empty if there is none."""
    others = [one.name for one in schema.fields if one.name not in {inputs.MESSAGES, inputs.HANDOFF}]
    given = json.loads(input_json or "{}")
    if not prompt or not schema.keeps_messages or any(name in given for name in others):
        return ""
    if inside := [name for name in json.loads(payload_json or "{}") if name in others]:
        return f"the payload becomes text of the message; for the field {inside[0]}, give {_input_of(inside)}"
    named = ", ".join(others)
    return f"the graph's input also has {named}; if a node needs one, give {_input_of(others)}" if others else ""


def other_graph(category: Category, graph: str) -> str:
    """Return a warning if a category names graphs, but not the graph that a task runs; empty otherwise."""
    if not category.graphs or {"", graph} & category.graphs:
        return ""
    return f"category {category.name} is for another graph; to run that, give --graph {min(category.graphs)}"


def missing_field(schema: inputs.InputSchema, error: BaseException) -> str:
    """Return how to give the field of the input that a node did not find; empty for any other error."""
    found = [one.name for one in schema.fields if isinstance(error, KeyError) and error.args == (one.name,)]
    return f"; if the input lacks this field, give {_input_of(found)}" if found else ""


def _input_of(names: Sequence[str]) -> str:
    return f"--input '{{\"{names[0]}\": …}}'"
