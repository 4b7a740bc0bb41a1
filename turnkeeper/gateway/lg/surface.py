"""The LangGraph API, for LangGraph's own clients, and the import of threads from LangGraph's files."""

from turnkeeper.config.surfaces import Mount, Surface

SURFACE = Surface(
    name="lg",
    place=27,
    mount=Mount("/lg", "turnkeeper.gateway.lg.application:surface"),
    offers={
        "rpc": "agent_runtime.service.langgraph:LangGraph",
        "run-events": "agent_runtime.graph.engine.run_events:RunEvents",
        "description": "agent_runtime.graph.engine.states:described",
        "client-run": "agent_runtime.graph.engine.history:client_run",
        "run-options": "agent_runtime.graph.engine.history:change_run",
        "state-write": "agent_runtime.graph.engine.history:write_state",
        "fork": "agent_runtime.graph.engine.history:fork",
        "kept-states": "agent_runtime.graph.engine.history:kept_states",
        "threads-import-command": "agent_runtime.cli.thread_import:add",
    },
    also=(
        "agent_runtime.cli.thread_import",
        "agent_runtime.graph.checkpointer.threads_file",
        "agent_runtime.graph.engine.history",
        "agent_runtime.graph.engine.run_events",
        "agent_runtime.graph.engine.states",
        "agent_runtime.service.assistants",
        "agent_runtime.service.langgraph",
        "agent_runtime.service.threads",
    ),
)
