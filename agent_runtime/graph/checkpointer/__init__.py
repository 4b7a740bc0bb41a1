"""The checkpointer: two tables, one writer thread, one commit for all pending writes.

`saver` is LangGraph's interface, `groups` the two threads and their commits, `rows` the statements, `sqlite` the file.
"""
