"""Graphs that authors bring; they import nothing of ours.

`load` finds and makes one from a reference, `inspect` looks for tool calls that the guard cannot judge, `open` joins
both for the daemon and for `agent-runtime graph check`.
"""
