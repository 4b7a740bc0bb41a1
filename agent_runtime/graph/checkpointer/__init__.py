"""The checkpointer: one SQLite file, one writer thread, one commit for all that waits.

`saver` is LangGraph's interface, `file` the open file with its two threads, `rows` the statements. The seam for another
database is `saver.Checkpoints`.
"""
