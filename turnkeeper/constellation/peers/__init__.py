"""Peers: the first agent of this home works with the first agents of other homes, each in its own process.

A message to `agent0@NAME` waits in that agent's inbox, like a message for an agent in a terminal. The process `peers`
reads the inbox and sends the message to the other home over mutual TLS 1.3. It puts messages from the other home into
the outbox of the same agent.
"""
