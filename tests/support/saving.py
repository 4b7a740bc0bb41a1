"""Checkpoints, configs and small graphs for tests of checkpointers."""

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint


def at(thread_id: str = "t", checkpoint_id: str = "", namespace: str = "") -> RunnableConfig:
    given: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": namespace}
    return {"configurable": given | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


def checkpoint(checkpoint_id: str, **values: Any) -> Checkpoint:
    return Checkpoint(
        v=2,
        id=checkpoint_id,
        ts="2026-11-21T09:00:00+00:00",
        channel_values=values,
        channel_versions=dict.fromkeys(values, "1"),
        versions_seen={},
        updated_channels=None,
    )
