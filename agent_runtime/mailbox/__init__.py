"""Agents' inboxes: accepting into them, claiming from them, and following what agents in terminals read."""
