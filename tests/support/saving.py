"""Checkpoints, configs and connections for tests of checkpointers."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


@contextmanager
def another(place: Path | str) -> Iterator[Any]:
    """Yield another program's connection to a saver's file or database. Parameters are written as `?1`."""
    if isinstance(place, Path):
        connection: Any = sqlite3.connect(place, isolation_level=None)
    else:
        from agent_runtime.graph.checkpointer import postgres

        connection = postgres._Connection(place)
    yield connection
    connection.close()
