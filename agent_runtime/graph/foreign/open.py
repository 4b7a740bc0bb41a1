"""An author's graph put under the engine: loaded, looked at, refused or guarded, and bound to our checkpoints."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import is_typeddict

from agent_runtime.graph.foreign.inspect import Inspection, guard_graph, inspect
from agent_runtime.graph.foreign.load import Graph, Loaded, absolute_text, find_graph, load
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
        """
        self.require()
        guarded = guard_graph(self.loaded.graph)
        # A copied graph loses the list of types that its state declares; a saver that was compiled with has it.
        knowing = self.loaded.graph.builder.compile(checkpointer=saver).checkpointer
        return guarded.copy(update={"checkpointer": knowing})


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
