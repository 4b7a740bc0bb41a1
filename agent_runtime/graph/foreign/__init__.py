"""Graphs of authors, which need not import anything of Turnkeeper.

`project` finds a graph by its reference. `load` makes and opens it, for the daemon and for `turnkeeper graph check`.
`graphs` opens all graphs of a home. `inspect` finds tool calls that the guard cannot judge. `store` reads the store's
settings.
"""
