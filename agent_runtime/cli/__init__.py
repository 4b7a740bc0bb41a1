"""The `agent-runtime` command: one module per group of commands, imported when a command of the group is used."""

import sys

from turnkeeper.config.surfaces import Later, Panel, commands
from turnkeeper.console import run_process
from turnkeeper.console.commands import App

_SERVE = Later("agent_runtime.cli.client:serve", "Run the daemon in the foreground.", Panel.START)
app = App(
    "Conversations with agents, their turns, and the items that wait for your decision.",
    {"serve": _SERVE, **commands("agent_runtime")},
)


def main() -> None:
    sys.exit(run_process(app))
