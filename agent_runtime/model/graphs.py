"""The graphs and assistants of a home by name, and which of them a turn runs. Pure.

A fire or a message names a graph, or an assistant: a graph with context, config and input of its own, as LangGraph's
assistants are. Without a name it runs the thread's graph, or the default one on a new thread.

A thread belongs to the graph of its first turn. Its checkpoints mean nothing to another graph, so that a trigger which
names another one fails before the thread is touched.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent_runtime.model.approval import canonical
from agent_runtime.model.decide import TurnFacts
from agent_runtime.model.trigger import Trigger
from turnkeeper.config.json_text import is_reserved
from turnkeeper.errors import Conflict, meant

OWN = "default"  # the name of Turnkeeper's own agent, where the author's graph does not take its place


@dataclass(frozen=True, kw_only=True)
class Assistant:
    """A graph as it is configured under a name."""

    graph: str
    context: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a name means, as it is listed. Names are those of the message `Graph`."""

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
    """What a fire or a message may name.

    Attributes:
        default: the graph of a trigger and a thread that name none.
        references: where each graph is; empty for our own agent.
        problems: why no turn can run one of the graphs, by name; whoever names it is told.
        assistants: by name.
    """

    default: str = OWN
    references: Mapping[str, str] = field(default_factory=lambda: {OWN: ""})
    problems: Mapping[str, str] = field(default_factory=dict)
    assistants: Mapping[str, Assistant] = field(default_factory=dict)

    def graph_of(self, name: str) -> str:
        """Return the name of the graph that a graph's or an assistant's name means; empty means the default."""
        known = self.assistants.get(name)
        return known.graph if known is not None else name or self.default

    def label(self, name: str) -> str:
        """Return by what categories know the graph: its name, or nothing for the default one."""
        graph = self.graph_of(name)
        return "" if graph == self.default else graph

    def require(self, name: str) -> None:
        """Raise Conflict unless a turn can run what the name means."""
        graph = self.graph_of(name)
        if graph not in self.references:
            what = f"no graph or assistant {name[:80]!r}"
            raise Conflict(what, where="graph", hint=meant(name, [*self.references, *self.assistants]))
        if problem := self.problems.get(graph, ""):
            hint = f"see: turnkeeper graph check --graph {graph!r}"
            raise Conflict(f"the graph {graph} cannot run: {problem}", where="graph", hint=hint)

    def entries(self) -> list[Entry]:
        """Return all names: the default graph's, the other graphs', the assistants'."""
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
        """Return why a trigger must not run on a thread of this graph: it names another one; or nothing."""
        if not trigger.graph:
            return ""
        own, asked = self.graph_of(thread_graph), self.graph_of(trigger.graph)
        if own == asked:
            return ""
        return f"thread {trigger.thread_id} belongs to the graph {own}, and not to {asked}: use another thread"

    def setup(self, trigger: Trigger, thread: TurnFacts | None) -> Trigger:
        """Return the trigger with all that its turn gives its graph, from its assistant or its thread too.

        What the trigger says wins, key by key. A message that names no graph goes on with the context and config of
        the thread's newest turn; a fire states its own.
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
    """Return what the newest turn of a thread was given, without reserved keys: earlier versions took some of them."""
    found: Mapping[str, Any] = json.loads(getattr(thread, name) or "{}") if thread is not None else {}
    return {key: value for key, value in found.items() if not is_reserved(key)}


def _over(below: Mapping[str, Any], text: str) -> str:
    """Return a JSON object as text: `below` with what the text says over it; empty for none."""
    found = {**below, **json.loads(text or "{}")}
    return canonical(found) if found else ""
