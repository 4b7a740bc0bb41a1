"""Graphs of authors, and memory as their store."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_COMMANDS = {
    "graph": Later("agent_runtime.cli.graph:app", "Your own LangGraph graphs.", Panel.KNOW),
    "assistants": Later("agent_runtime.cli.graph:assistants_app", "Graphs with a configuration, by name.", Panel.KNOW),
}
SURFACE = Surface(
    name="graphs",
    place=20,
    commands=_COMMANDS,
    offers={
        "graphs": "agent_runtime.graph.foreign.graphs:open_graphs",
        "workflow schema": "agent_runtime.graph.foreign.load:read_workflow",
        "unset fields": "agent_runtime.graph.foreign.load:unset_fields",
        "other graph": "agent_runtime.graph.foreign.load:other_graph",
        "missing field": "agent_runtime.graph.foreign.load:missing_field",
        "context schema": "agent_runtime.graph.foreign.load:read_context",
        "catalog": "agent_runtime.graph.foreign.project:read_catalog",
        "reports": "agent_runtime.graph.foreign.reports:Reports",
        "returned values": "agent_runtime.graph.foreign.reports:returned",
        "lost steps": "agent_runtime.graph.foreign.steps:lost",
        "hidden steps": "agent_runtime.graph.foreign.steps:hidden",
        "findings": "agent_runtime.graph.foreign.project:findings",
        "project of the default graph": "agent_runtime.graph.foreign.project:served",
        "memory of graphs": "agent_runtime.graph.foreign.memory_store:lend",
    },
    also=("agent_runtime.cli.graph",),
)
