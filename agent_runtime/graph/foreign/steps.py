"""Steps at which a turn stopped, and which the new version of its graph lacks, including steps inside subgraphs.

LangGraph would end such a graph as if it had finished. In Turnkeeper, the turn waits, and fails when it is continued.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from langgraph.checkpoint.serde.types import INTERRUPT, TASKS
from langgraph.pregel._loop import PregelLoop
from langgraph.types import Command

from agent_runtime.graph.engine import stops
from turnkeeper.errors import Conflict

_NEXT = "branch:to:"  # prefix of LangGraph's channels that trigger a next step
_CONTINUES = "__pregel_resuming"  # LangGraph's key in the config of a subgraph: True if its parent continues
_FIRST: Any = PregelLoop._first  # noqa: SLF001  every graph that continues passes here, and no public function


async def lost(graph: Any, saver: Any, config: Any) -> tuple[list[str], frozenset[str]]:
    """Return the next steps of a thread that its graphs no longer have, and the ids of the questions at these steps."""
    graphs, names, pending = {"": graph, **dict(graph.get_subgraphs(recurse=True))}, list[str](), set[str]()
    for level in stops.levels(await graph.aget_state(config, subgraphs=True)):
        found, here = await saver.aget_tuple(level.config), graphs.get(stops.place(level))
        if here is not None and found is not None and (gone := _next(found.checkpoint, here.nodes)):
            asked = (items for _, channel, items in found.pending_writes or [] if channel == INTERRUPT)
            pending |= {stops.Stop(levels=(level,), why="").id, *(item.id for items in asked for item in items)}
            names += gone
    return names, frozenset(pending)


async def hidden(graph: Any, saver: Any, config: Any) -> Callable[[], Awaitable[None]]:
    """Return a check for the end of a graph that continues.

    It raises Conflict if a stopped subgraph did not continue, because its step no longer calls it.
    """
    before = []
    for level in stops.levels(await graph.aget_state(config, subgraphs=True)):
        outer = level.config["configurable"].get("checkpoint_ns", "")
        for task in (task for task in level.tasks if not task.state):
            at = {"checkpoint_ns": f"{outer}|{task.name}:{task.id}".strip("|")}
            before.append(await saver.aget_tuple({"configurable": config["configurable"] | at}))

    async def check() -> None:
        for one in before:
            if one is not None and (steps := _next(one.checkpoint)):
                now = await saver.aget_tuple({"configurable": one.config["configurable"] | {"checkpoint_id": ""}})
                if now is not None and now.checkpoint["id"] == one.checkpoint["id"]:
                    raise _no_step(stops.place(one), steps)

    return check


def _begin(self: PregelLoop, **how: Any) -> Any:
    """Raise Conflict if a graph of this process would continue at a step that it no longer has."""
    continues = self.config["configurable"].get(_CONTINUES, self.input is None or isinstance(self.input, Command))
    if continues and (gone := _next(self.checkpoint, self.nodes)):
        raise _no_step(stops.place(self), gone)
    return _FIRST(self, **how)


setattr(PregelLoop, "_first", _begin)  # noqa: B010  the type checker refuses a plain assignment


def _next(checkpoint: Any, besides: Collection[str] = ()) -> list[str]:
    """Return the next steps of a checkpoint, without the steps in `besides`."""
    values = checkpoint["channel_values"]
    triggered = (name.removeprefix(_NEXT) for name in values if name.startswith(_NEXT))
    return [name for name in (*triggered, *(sent.node for sent in values.get(TASKS) or ())) if name not in besides]


def _no_step(place: str, names: Iterable[str]) -> Conflict:
    path = "".join(f"{name} > " for name in place.split("|") if name)
    return Conflict(f"the graph no longer has the step {path}{', '.join(names)}, at which this turn stopped")
