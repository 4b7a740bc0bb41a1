"""The checkpointer: one file, one writer thread, one commit for all that waits."""

from agent_runtime.graph.checkpointer.saver import GroupedSaver

__all__ = ["GroupedSaver"]
