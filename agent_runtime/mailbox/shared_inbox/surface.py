"""Inboxes of agents in terminals, in a store that several machines share."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="shared-inboxes",
    offers={"inboxes of several machines": "agent_runtime.mailbox.shared_inbox:SharedInboxes"},
    needs=("cluster", "terminals"),
)
