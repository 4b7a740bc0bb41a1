"""Stops of a graph before or after a step, by `interrupt_before` and `interrupt_after`.

LangGraph stores no record of such a stop. The stop follows from the checkpoint, and running the graph again passes the
stop. So this module derives the stop from the checkpoint, even after a crash. The stop becomes a question to the
author, and no step runs before the answer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel._algo import should_interrupt
from langgraph.types import StateSnapshot

from agent_runtime.graph.engine import inputs
from agent_runtime.model.approval import RaisedInterrupt, read_interrupt
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc import forms

LONGEST_STATE = 4000  # most characters of the state that the author is shown
_OF_LANGGRAPH = frozenset({"source", "step", "parents"})
_WAYS = ("approve", "reject", "edit")
WHEN = ("interrupt_before", "interrupt_after")  # the options of a client's run, and the keys of checkpoints' metadata


def steps_left(snapshot: Any) -> list[str]:
    """Return the names of the remaining steps of a thread; none at its end.

    `snapshot.next` leaves out finished steps. It is also empty after a crash between the last result of a step and the
    step's checkpoint, although the graph must still continue there.
    """
    return [task.name for task in snapshot.tasks]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A stop of a thread.

    Attributes:
        levels: the graphs that stop, each with its snapshot: the root, or subgraphs.
    """

    levels: tuple[StateSnapshot, ...]
    why: str

    @property
    def id(self) -> str:
        """The stop's id, which is always the same for this stop and differs from all other ids."""
        places = sorted(str(level.config["configurable"]["checkpoint_id"]) for level in self.levels)
        return sha256("|".join(places).encode()).hexdigest()[:32]

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task.name for level in self.levels for task in level.tasks))

    def question(self) -> RaisedInterrupt:
        """Return the question to the author: the next steps, and the state's own fields, which the author may edit."""
        takes = _WAYS if len(self.levels) == 1 else _WAYS[:2]
        shown = _fields(self.levels[0].values) if len(self.levels) == 1 else {}
        note = "\n".join([self.why, *(line for level in self.levels for line in _calls(level.values))])
        call = forms.Call(tool=", ".join(self.steps), args=shown, takes=takes, note=note)
        return read_interrupt(self.id, None, asks=forms.Request(form="step", calls=(call,)))


def stops_anywhere(graph: Any) -> bool:
    """Return whether a graph or a subgraph was compiled to stop at steps."""
    graphs = [graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))]
    return any(one.interrupt_before_nodes or one.interrupt_after_nodes for one in graphs)


async def find(graph: Any, saver: BaseCheckpointSaver[Any], config: Any) -> Stop | None:
    """Return the stop of a thread; None if there is none."""
    graphs = {"": graph, **dict(graph.get_subgraphs(recurse=True))}
    levels, reasons = [], []
    for level in _innermost(await graph.aget_state(config, subgraphs=True)):
        why = await _why(graph, graphs.get(place(level)), saver, level)
        if why:
            levels.append(level)
            reasons.append(why)
    return Stop(levels=tuple(levels), why="; ".join(dict.fromkeys(reasons))) if levels else None


async def _why(graph: Any, here: Any, saver: BaseCheckpointSaver[Any], level: StateSnapshot) -> str:
    """Return why a graph stops at this snapshot; empty if the graph itself does not stop there."""
    if here is None or not level.tasks or any(task.interrupts for task in level.tasks):
        return ""
    found = await saver.aget_tuple(level.config)
    before_nodes, after_nodes = (_nodes(here, level, name) for name in WHEN)
    if found is None or not (before_nodes or after_nodes):
        return ""
    before = should_interrupt(found.checkpoint, before_nodes, _tasks(here, level))
    if before:
        return f"it stops before {', '.join(task.name for task in before)}"
    if not after_nodes or level.parent_config is None or (level.metadata or {}).get("source") != "loop":
        return ""
    earlier = await graph.aget_state(level.parent_config)
    after = should_interrupt(found.checkpoint, after_nodes, _tasks(here, earlier))
    return f"it stops after {', '.join(task.name for task in after)}" if after else ""


def _nodes(graph: Any, level: StateSnapshot, when: str) -> Any:
    """Return the steps at which a graph stops: the compiled ones, and at the root also those of a client's run."""
    compiled: Any = getattr(graph, f"{when}_nodes")
    asked: Any = json.loads(str((level.metadata or {}).get(when) or "null")) if not place(level) else None
    return "*" if "*" in (asked, compiled) else [*(compiled or ()), *(asked or ())]


def _tasks(graph: Any, level: StateSnapshot) -> Sequence[Any]:
    """Return the tasks of a snapshot in the form that LangGraph checks for stops."""
    tags = {task.name: graph.nodes[task.name].tags if task.name in graph.nodes else () for task in level.tasks}
    return [SimpleNamespace(name=task.name, config={"tags": tags[task.name] or ()}) for task in level.tasks]


def _innermost(level: StateSnapshot) -> Iterator[StateSnapshot]:
    """Yield the snapshots of the innermost active subgraphs, or else the graph's own."""
    inner = [task.state for task in level.tasks if isinstance(task.state, StateSnapshot) and task.state.tasks]
    for one in inner:
        yield from _innermost(one)
    if not inner:
        yield level


def levels(snapshot: StateSnapshot) -> Iterator[StateSnapshot]:
    """Yield a snapshot, and those of its active subgraphs."""
    yield snapshot
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from levels(task.state)


def place(level: Any) -> str:
    """Return the names of the steps around a subgraph, joined by |; empty for the whole graph."""
    space = str(level.config["configurable"].get("checkpoint_ns", ""))
    return "|".join(part.split(":")[0] for part in space.split("|") if not part.isdigit())


async def change(graph: Any, stop: Stop, values: Mapping[str, Any]) -> None:
    """Write an author's edit into the state, as if the previous step had written it.

    Raises:
        InvalidInput: the state has no such field, or does not accept the value.
    """
    known = _fields(stop.levels[0].values, most=None)
    unknown = [name for name in values if name not in known and name not in graph.channels]
    if unknown:
        raise InvalidInput(f"the state has no field {unknown[0]!r}", where="edit", hint=f"it has {', '.join(known)}")
    level = stop.levels[0]
    pinned = {key: value for key, value in (level.metadata or {}).items() if key not in _OF_LANGGRAPH}
    await graph.aupdate_state({**level.config, "metadata": pinned}, dict(values))


def _fields(values: Any, most: int | None = LONGEST_STATE) -> dict[str, Any]:
    """Return a state's fields without its messages, as JSON; drop the longest fields if they exceed the limit."""
    named = values if isinstance(values, Mapping) else getattr(values, "__dict__", {})
    found = {str(name): inputs.as_json(value) for name, value in named.items() if name != inputs.MESSAGES}
    while most is not None and len(json.dumps(found)) > most:
        found.pop(max(found, key=lambda name: len(json.dumps(found[name]))))
    return found


def _calls(values: Any) -> Iterator[str]:
    """Yield the tool calls of the newest message as text."""
    said = inputs.messages_of(values)[-1:]
    for call in getattr(said[0], "tool_calls", ()) if said else ():
        yield f"it is to call {call['name']}({json.dumps(call['args'], ensure_ascii=False, default=str)})"
