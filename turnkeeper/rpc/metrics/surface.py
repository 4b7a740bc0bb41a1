"""Metrics and health over HTTP, for Prometheus and other tools of this machine."""

from collections.abc import Mapping
from typing import Any

from turnkeeper.config.surfaces import Surface


def _ports(settings: Any) -> Mapping[str, str]:
    said = settings.metrics
    ports = {"agent-runtime": said.agent_runtime_port, "task-runner": said.task_runner_port}
    return {name: f"127.0.0.1:{port}" for name, port in ports.items() if port and said.enabled}


SURFACE = Surface(
    name="metrics",
    settings=("metrics",),
    listens=_ports,
    observers={
        "agent-runtime": "agent_runtime.daemon.metrics:export",
        "task-runner": "task_runner.daemon.metrics:export",
    },
    also=("agent_runtime.daemon.metrics", "task_runner.daemon.metrics"),
)
