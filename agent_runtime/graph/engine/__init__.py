"""Runs intervals of any graph. It knows threads, checkpoints and messages, and nothing of the turn table."""
