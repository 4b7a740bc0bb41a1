"""Peers: the first agent of this home works with the first agents of other homes, each in its own process.

A message to `agent0@NAME` waits in that agent's inbox, as for an agent in a terminal. The process `peers` reads it and
sends it to the other home over mutual TLS 1.3. It puts messages that arrive from there into that agent's outbox.
"""
