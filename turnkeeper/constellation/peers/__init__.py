"""Peers: the first agent of this home speaks with the first agents of other homes, each in a process of its own.

A message to `agent0@NAME` waits in that agent's inbox, as for an agent in a terminal. The process `peers` reads it and
takes it to the other home over mutual TLS 1.3; what comes from there it puts into that agent's outbox.
"""
