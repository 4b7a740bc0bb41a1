"""Inboxes seen from outside the running agent: those of agents that live in a terminal, and what lies in any."""
