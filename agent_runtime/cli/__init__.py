"""The `agent-runtime` command: one module for each group of commands, imported when one of them is used."""

import sys

from turnkeeper.console import run_process
from turnkeeper.console.commands import App, Later, Panel

_APPROVALS = Later("agent_runtime.cli.approvals:app", "Approvals: what waits for your decision.", Panel.TALK)
PEOPLE = {
    "send": Later(
        "agent_runtime.cli.chat.conversation:send", "Send a message into a channel's conversation.", Panel.TALK
    ),
    "triage": Later(
        "agent_runtime.cli.chat.answer:triage",
        "Go through what waits for you, one by one: questions, tool calls, proposals and contradictions.",
        Panel.TALK,
    ),
    "conversation": Later(
        "agent_runtime.cli.chat.conversation:app",
        "The conversation of each channel: what triggered each turn and what came of it.",
        Panel.TALK,
    ),
    "approvals": _APPROVALS,
    "candidates": Later(
        "agent_runtime.cli.review:app",
        "Changes that agents propose to the workspace; nothing there changes until you accept one.",
        Panel.TALK,
    ),
    "deviations": Later(
        "agent_runtime.cli.review:deviations_app",
        "Contradictions between a page of yours and something else; only you close one.",
        Panel.TALK,
    ),
    "revalidation": Later(
        "agent_runtime.cli.review:revalidation_app",
        "Pages to check again because something they are derived from has changed.",
        Panel.TALK,
    ),
    "turns": Later("agent_runtime.cli.turns:app", "Runs of the agent, whatever started them.", Panel.LOOK),
    "threads": Later(
        "agent_runtime.cli.turns:threads_app",
        "Threads: each is a sequence of turns that share one history.",
        Panel.LOOK,
    ),
    "categories": Later(
        "agent_runtime.cli.categories:app", "Categories: what each kind of standing work may do.", Panel.KNOW
    ),
    "workspace": Later(
        "agent_runtime.cli.workspace:app", "The pages that agents read and propose to change.", Panel.KNOW
    ),
    "memory": Later("agent_runtime.cli.memory:app", "What agents and you store in memory, in four tiers.", Panel.KNOW),
    "graph": Later("agent_runtime.cli.graph:app", "Your own LangGraph graph, if turns run one.", Panel.KNOW),
    "assistants": Later("agent_runtime.cli.graph:assistants_app", "Graphs with a configuration, by name.", Panel.KNOW),
    "inbox": Later(
        "agent_runtime.cli.inbox:app", "The inboxes of agents, and the envelopes that wait there.", Panel.HOME
    ),
    "interrupts": _APPROVALS._replace(panel=None),
}
_SERVE = Later("agent_runtime.cli.client:serve", "Run the daemon in the foreground.", Panel.START)
app = App("Conversations with agents, their turns, and what waits for your decision.", {"serve": _SERVE, **PEOPLE})


def main() -> None:
    """Run the command line."""
    sys.exit(run_process(app))
