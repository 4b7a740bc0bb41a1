"""An author's graph put under the engine: loaded, inspected, refused or guarded, and bound to our checkpoints.

Also what `agent-runtime graph check` reports of it.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import is_typeddict

from agent_runtime.graph.engine.inputs import read_schema
from agent_runtime.graph.foreign.inspect import Inspection, inspect
from agent_runtime.graph.foreign.load import Graph, Loaded, absolute_text, find_graph, load
from agent_runtime.graph.guard import watched
from agent_runtime.model.turn import Category
from agent_runtime.permissions.judge import FOREIGN
from turnkeeper.errors import InvalidInput, TurnkeeperError

__all__ = ["Opened", "absolute_text", "open_graph", "targets"]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An author's graph, ready to be judged and bound.

    Attributes:
        loaded: the graph as its author made it.
        inspection: its tools, and what in it cannot be guarded.
        trusted: the author lets it run although it cannot be guarded everywhere.
    """

    loaded: Loaded
    inspection: Inspection
    trusted: bool

    def problem(self) -> InvalidInput | None:
        """Return why this graph must not run; None if it may."""
        graph, reference = self.loaded.graph, self.loaded.reference
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            what = f"{reference.attribute} is compiled with interrupt_before or interrupt_after, which ask nobody"
            return InvalidInput(what, where=reference.text, hint="call interrupt() in the node instead")
        lacking = _context_lacks(graph.context_schema)
        if lacking:
            what = f"its context {getattr(graph.context_schema, '__name__', '')} cannot be made of defaults: {lacking}"
            return InvalidInput(what, where=reference.text, hint="give every field of it a default")
        if self.inspection.unguardable and not self.trusted:
            first, *others = self.inspection.unguardable
            more = f", and {len(others)} more" if others else ""
            hint = f"see: agent-runtime graph check; or add {reference.text!r} to trusted_graphs in [categories]"
            return InvalidInput(f"{first.where} cannot be guarded: {first.why}{more}", where=reference.text, hint=hint)
        return None

    def require(self) -> None:
        """Raise InvalidInput if this graph must not run."""
        problem = self.problem()
        if problem is not None:
            raise problem

    def bind(self, saver: BaseCheckpointSaver[Any]) -> Graph:
        """Return the graph on our checkpoints, with the guard around its tool calls.

        Its tools are known by no scope of ours, whatever they are called: each is `tool:<name>` and counts as a write.

        Raises:
            InvalidInput: it must not run.
            RuntimeError: no guard watches the tool calls of this process.
        """
        self.require()
        if not watched():
            raise RuntimeError("no guard watches the tool calls of this process")
        # A copied graph loses the list of types that its state declares; a saver that was compiled with has it.
        knowing = self.loaded.graph.builder.compile(checkpointer=saver).checkpointer
        return self.loaded.graph.copy(update={"checkpointer": knowing})


@asynccontextmanager
async def open_graph(
    text: str, base: Path, *, trusted: Collection[str], environ: Mapping[str, str]
) -> AsyncIterator[Opened]:
    """Load the graph that a reference names; what it opened is closed at the end of the block.

    Args:
        text: the reference.
        base: the folder that a relative path in it is relative to.
        trusted: targets of the graphs that may run although they cannot be guarded.
        environ: the process's environment, which wins over the project's own.

    Raises:
        InvalidInput: there is no such graph, or it cannot be made.
    """
    reference = find_graph(text, base)
    async with load(reference, environ) as loaded:
        yield Opened(loaded=loaded, inspection=inspect(loaded.graph), trusted=reference.target in trusted)


def targets(references: Iterable[str], base: Path) -> frozenset[str]:
    """Return what references mean, however they are written; one that leads nowhere means nothing."""
    return frozenset(target for text in references if (target := _target(text, base)))


def _target(text: str, base: Path) -> str:
    try:
        return find_graph(text, base).target
    except TurnkeeperError:
        return ""


def _context_lacks(schema: Any) -> str:
    """Return why a graph's context cannot be made of its defaults; empty if it can."""
    if schema is None or is_typeddict(schema):
        return ""
    try:
        schema()
    except Exception as error:  # noqa: BLE001  whatever an author's class raises is the reason
        return " ".join(str(error).split())[:200]
    return ""


def report(opened: Opened, categories: Sequence[Category], absolute: str) -> dict[str, Any]:
    """Return what was loaded, what its tools need and who grants it, what cannot be guarded, and the verdict.

    Args:
        opened: the graph.
        categories: those that may be used.
        absolute: the reference, as it means the same from any folder.
    """
    loaded, problem = opened.loaded, opened.problem()
    schema = read_schema(loaded.graph)
    return {
        "reference": loaded.reference.text,
        "absolute": absolute,
        "target": loaded.reference.target,
        "kind": loaded.kind,
        "nodes": [name for name in loaded.graph.nodes if name != "__start__"],
        "subgraphs": [name for name, _ in loaded.graph.get_subgraphs(recurse=True)],
        "prompt_goes_to": schema.prompt_field,
        "input_schema": schema.json_schema(),
        "tools": [_tool(name, categories) for name in opened.inspection.tools],
        "unguardable": [{"where": one.where, "why": one.why} for one in opened.inspection.unguardable],
        "trusted": opened.trusted,
        "verdict": verdict(opened),
        "problem": str(problem) if problem is not None else "",
    }


def verdict(opened: Opened) -> str:
    """Return `guarded`, `trusted` (it runs, not guarded everywhere) or `refused`."""
    if opened.problem() is not None:
        return "refused"
    return "trusted" if opened.inspection.unguardable else "guarded"


def _tool(name: str, categories: Sequence[Category]) -> Mapping[str, Any]:
    scope = f"{FOREIGN}{name}"
    granting = [category.name for category in categories if scope in category.tools]
    return {"name": name, "scope": scope, "effect": "write", "granted_by": granting}
