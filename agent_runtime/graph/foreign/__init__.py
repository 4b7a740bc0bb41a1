"""Graphs that authors bring: found by a reference, loaded, looked at, guarded and put under the engine.

They import nothing of ours. `reference` says where one lies, `loading` makes it, `toolnodes` puts the guard around its
tool calls, `opening` joins them for the daemon and for `agent-runtime graph check`.
"""
