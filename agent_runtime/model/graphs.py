"""The graphs and assistants of a home by name, and the choice of a turn's graph. Pure.

A fire or a message names a graph or an assistant. An assistant is a graph with its own context, config and input, as in
LangGraph. A trigger without a name runs the thread's graph, or the default graph on a new thread.

A thread belongs to the graph of its first turn. No other graph can read its checkpoints, so a trigger that names
another graph fails before the thread is changed.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_runtime.model.decide import TurnFacts
from agent_runtime.model.mapping import canonical
from agent_runtime.model.trigger import Trigger
from turnkeeper.config.json_text import is_reserved
from turnkeeper.errors import Conflict, meant

OWN = "default"  # the name of Turnkeeper's own agent, unless the author's graph replaces it


@dataclass(frozen=True, kw_only=True)
class Assistant:
    """A graph with a name and its own configuration."""

    graph: str
    context: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry in the list of graphs. The attributes are the fields of the message `Graph`."""

    name: str
    graph: str
    is_assistant: bool = False
    is_default: bool = False
    reference: str = ""
    description: str = ""
    context_json: str = ""
    config_json: str = ""
    input_json: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """The names that a fire or a message may use.

    Attributes:
        default: the graph for a trigger and a thread without a name.
        references: the location of each graph; empty for our own agent.
        problems: by graph name, why no turn can run the graph; each trigger that names the graph gets this reason.
    """

    default: str = OWN
    references: Mapping[str, str] = field(default_factory=lambda: {OWN: ""})
    problems: Mapping[str, str] = field(default_factory=dict)
    assistants: Mapping[str, Assistant] = field(default_factory=dict)

    def graph_of(self, name: str) -> str:
        """Return an assistant's graph, or `name` itself if it names a graph; an empty name means the default graph."""
        known = self.assistants.get(name)
        return known.graph if known is not None else name or self.default

    def label(self, name: str) -> str:
        """Return a graph's name as categories use it; empty for the default graph."""
        graph = self.graph_of(name)
        return "" if graph == self.default else graph

    def require(self, name: str) -> None:
        """Raise Conflict unless a turn can run the named graph or assistant."""
        graph = self.graph_of(name)
        if graph not in self.references:
            what = f"no graph or assistant {name[:80]!r}"
            raise Conflict(what, where="graph", hint=meant(name, [*self.references, *self.assistants]))
        if problem := self.problems.get(graph, ""):
            hint = f"see: turnkeeper graph check --graph {graph!r}"
            raise Conflict(f"the graph {graph} cannot run: {problem}", where="graph", hint=hint)

    def entries(self) -> list[Entry]:
        """Return all names: first the default graph, then the other graphs, then the assistants."""
        graphs = sorted(self.references, key=lambda name: (name != self.default, name))
        found = [self._entry(name, is_default=name == self.default) for name in graphs]
        return [*found, *(self._of_assistant(name, one) for name, one in sorted(self.assistants.items()))]

    def _entry(self, graph: str, **more: Any) -> Entry:
        known = {"reference": self.references.get(graph, ""), "problem": self.problems.get(graph, "")}
        return Entry(**{"name": graph, "graph": graph} | known | more)

    def _of_assistant(self, name: str, one: Assistant) -> Entry:
        texts = {f"{key}_json": _over(getattr(one, key), "") for key in ("context", "config", "input")}
        return self._entry(one.graph, name=name, is_assistant=True, description=one.description, **texts)

    def belongs_elsewhere(self, trigger: Trigger, thread_graph: str) -> str:
        """Return why a trigger must not run on a thread of this graph; empty unless the trigger names another one."""
        if not trigger.graph:
            return ""
        own, asked = self.graph_of(thread_graph), self.graph_of(trigger.graph)
        if own == asked:
            return ""
        return f"thread {trigger.thread_id} belongs to graph {own}, not to {asked}: use another thread"

    def setup(self, trigger: Trigger, thread: TurnFacts | None) -> Trigger:
        """Return the trigger with its graph's complete input, including the inputs of its assistant and thread.

        The trigger's own values take precedence, key by key. A message without a graph gets the context and config of
        the thread's newest turn; a fire always states its own.
        """
        if not trigger.graph and (thread is None or (thread.graph, thread.context_json, thread.config_json) == _PLAIN):
            return trigger
        one = self.assistants.get(trigger.graph)
        before = thread if thread is not None and not trigger.graph else None
        goes_on = before if trigger.source != "fire" else None
        return replace(
            trigger,
            graph=self.graph_of(trigger.graph) if trigger.graph else before.graph if before is not None else "",
            context_json=_over(one.context if one else _read(goes_on, "context_json"), trigger.context_json),
            config_json=_over(one.config if one else _read(goes_on, "config_json"), trigger.config_json),
            input_json=_over(one.input if one else {}, trigger.input_json),
        )


_PLAIN = ("", "", "")  # a thread of the default graph, without context and config


def _read(thread: TurnFacts | None, name: str) -> Mapping[str, Any]:
    """Return an input of a thread's newest turn, without the reserved keys that earlier versions allowed."""
    found: Mapping[str, Any] = json.loads(getattr(thread, name) or "{}") if thread is not None else {}
    return {key: value for key, value in found.items() if not is_reserved(key)}


def _over(below: Mapping[str, Any], text: str) -> str:
    """Return a JSON object as text: `below`, updated by the keys of `text`; empty if there are none."""
    found = {**below, **json.loads(text or "{}")}
    return canonical(found) if found else ""


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """The graphs of a home: authors' graphs that can run, the files loaded for them, and their projects' variables."""

    catalog: Catalog = field(default_factory=Catalog)
    opened: Mapping[str, Any] = field(default_factory=dict)
    files: Collection[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def default(self) -> Any:
        """The default graph if it is an author's; None if it is our own agent."""
        return self.opened.get(self.catalog.default)
