"""The checkpointer: one file, one writer thread, one commit for all that waits."""

from agent_runtime.graph.saver.saver import GroupedSaver

__all__ = ["GroupedSaver"]
