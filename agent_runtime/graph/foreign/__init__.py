"""Graphs that authors bring; they import nothing of ours.

`project` finds one by its reference, `load` makes it and opens it for the daemon and for `turnkeeper graph check`,
`graphs` opens all of a home's, `inspect` looks for tool calls that the guard cannot judge, `store` reads the project's
store settings.
"""
