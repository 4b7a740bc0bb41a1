"""The `agent-runtime` command: one module for each group of commands, put together here."""

import sys

import typer

from agent_runtime.cli import approvals, categories, client, graph, inbox, memory, review, turns, workspace
from agent_runtime.cli.chat import answer, conversation
from turnkeeper.commands import Panel
from turnkeeper.console import run

app = typer.Typer(
    help="Conversations with agents, their turns, and what waits for your decision.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve", rich_help_panel=Panel.START)(client.serve)
app.command("send", rich_help_panel=Panel.TALK)(conversation.send)
app.command("triage", rich_help_panel=Panel.TALK)(answer.triage)
_GROUPS = {
    Panel.TALK: {
        "conversation": conversation.app,
        "approvals": approvals.app,
        "candidates": review.app,
        "deviations": review.deviations_app,
        "revalidation": review.revalidation_app,
    },
    Panel.LOOK: {"turns": turns.app, "threads": turns.threads_app},
    Panel.KNOW: {
        "categories": categories.app,
        "workspace": workspace.app,
        "memory": memory.app,
        "graph": graph.app,
        "assistants": graph.assistants_app,
    },
    Panel.HOME: {"inbox": inbox.app},
}
for panel, groups in _GROUPS.items():
    for name, group in groups.items():
        app.add_typer(group, name=name, rich_help_panel=panel)
app.add_typer(approvals.app, name="interrupts", hidden=True)


def main() -> None:
    """Run the command line."""
    sys.exit(run(app, sys.argv[1:]))
