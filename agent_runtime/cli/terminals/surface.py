"""Agents in terminals: commands that read an inbox, and put envelopes back."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_INBOX = Later("agent_runtime.cli.terminals.commands:app", "The inboxes of agents, and their envelopes.", Panel.HOME)
SURFACE = Surface(
    name="terminals",
    place=22,
    commands={"inbox": _INBOX},
    also=(
        "agent_runtime.mailbox.inbox",
        "agent_runtime.mailbox.pane",
        "agent_runtime.mailbox.shared_inbox",
    ),
)
