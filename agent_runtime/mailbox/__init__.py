"""Agents' inboxes: accepting envelopes, claiming them, and following the deliveries to agents in terminals."""
