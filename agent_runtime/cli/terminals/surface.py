"""Agents in terminals: commands that read an inbox and put envelopes back, and the messages that agents send."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_INBOX = Later("agent_runtime.cli.terminals.commands:app", "The inboxes of agents, and their envelopes.", Panel.HOME)
SURFACE = Surface(
    name="terminals",
    place=22,
    commands={"inbox": _INBOX},
    offers={"outboxes": "agent_runtime.mailbox.outboxes:Outboxes"},
    also=(
        "agent_runtime.mailbox.inbox",
        "agent_runtime.mailbox.outbox",
        "agent_runtime.mailbox.outboxes",
        "agent_runtime.mailbox.pane",
    ),
)
