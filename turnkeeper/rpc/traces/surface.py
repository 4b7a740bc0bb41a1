"""Traces of fires and turns for OpenTelemetry."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="traces",
    settings=("traces",),
    observers={
        "task-runner": "turnkeeper.rpc.traces:observe_fires",
        "turns": "agent_runtime.graph.engine.spans:observe",
    },
    also=("agent_runtime.graph.engine.spans",),
)
