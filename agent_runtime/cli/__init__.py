"""The `agent-runtime` command: one module for each group of commands, put together here."""

import sys

import typer

from agent_runtime.cli import approvals, categories, client, graph, inbox, memory, review, turns, workspace
from agent_runtime.cli.chat import answer, conversation
from turnkeeper.console import run

app = typer.Typer(
    help="Conversations with agents, their turns, and what waits for your decision.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve")(client.serve)
app.add_typer(conversation.app, name="conversation")
app.command("send")(conversation.send)
app.command("triage")(answer.triage)
app.add_typer(turns.threads_app, name="threads")
app.add_typer(turns.app, name="turns")
app.add_typer(approvals.app, name="approvals")
app.add_typer(approvals.app, name="interrupts", hidden=True)
app.add_typer(review.app, name="candidates")
app.add_typer(review.deviations_app, name="deviations")
app.add_typer(review.revalidation_app, name="revalidation")
app.add_typer(categories.app, name="categories")
app.add_typer(workspace.app, name="workspace")
app.add_typer(memory.app, name="memory")
app.add_typer(inbox.app, name="inbox")
app.add_typer(graph.app, name="graph")
app.add_typer(graph.assistants_app, name="assistants")


def main() -> None:
    """Run the command line."""
    sys.exit(run(app, sys.argv[1:]))
