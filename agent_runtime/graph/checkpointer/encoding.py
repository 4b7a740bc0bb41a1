"""The encoding of LangGraph's checkpoints as rows: names, bytes and JSON, which any process can store."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from langgraph.checkpoint import base
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

Row = tuple[Any, ...]  # values in the order of the table's columns
Place = tuple[str, str, str]  # thread, namespace and checkpoint id
_MOST_BYTES = 2_500  # bytes of all names in a key, limited by PostgreSQL's indexes


class Encoding(base.BaseCheckpointSaver[str]):
    """Base of a saver: the conversion between LangGraph's objects and rows."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        # Strict in any environment, because a forged row must not name a class to be built.
        super().__init__(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        self._uniform = uniform

    def row_of(self, config: Any, checkpoint: Any, metadata: Any) -> tuple[Row, Any]:
        """Return the row of a checkpoint after the checkpoint that `config` names, and the new checkpoint's config."""
        thread_id, namespace, parent = place_of(config)
        refuse_nul(checkpoint["id"])
        refuse_long(thread_id, namespace, checkpoint["id"])
        kind, blob = self.serde.dumps_typed(checkpoint)
        known = _json(base.get_checkpoint_metadata(config, metadata)).encode("utf-8", "ignore")
        row = (thread_id, namespace, checkpoint["id"], parent or None, kind, blob, known)
        return row, _config(thread_id, namespace, checkpoint["id"])

    def rows_of(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> tuple[list[Row], bool]:
        """Return the rows of a task's writes, and whether they replace existing ones."""
        place, fixed = place_of(config), base.WRITES_IDX_MAP
        refuse_nul(task_id, task_path, *(channel for channel, _ in writes))
        refuse_long(*place, task_id)
        encoded = [
            (*place, task_id, task_path, fixed.get(channel, index), channel, *self.serde.dumps_typed(value))
            for index, (channel, value) in enumerate(writes)
        ]
        # A new error, interrupt or answer replaces the previous one; a task's results never change.
        return encoded, all(channel in fixed for channel, _ in writes)

    def tuple_of(self, config: Any, place: Place, found: Any) -> base.CheckpointTuple | None:
        if found is None:
            return None
        named = config is not None and base.get_checkpoint_id(config)
        parent = _config(place[0], place[1], found.parent_id) if found.parent_id else None
        return base.CheckpointTuple(
            config if config is not None and named else _config(place[0], place[1], found.checkpoint_id),
            self.serde.loads_typed(found.blob),
            cast("base.CheckpointMetadata", json.loads(found.metadata) if found.metadata is not None else {}),
            parent,
            [(task, channel, self.serde.loads_typed(blob)) for task, channel, blob in found.writes],
        )

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002  the interface's
        """Return a version that sorts after `current`; two versions after the same version differ."""
        number = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{number + 1:032}.{self._uniform(0.0, 1.0):016}"


def _json(metadata: Any) -> str:
    """Return metadata as JSON for SQLite; null replaces NaN and Infinity, which JSON lacks."""
    text = json.dumps(metadata, ensure_ascii=False)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _name: None), ensure_ascii=False)
    return text


def place_of(config: Any) -> tuple[str, str, str]:
    """Return thread, namespace and checkpoint id; an empty id means the newest."""
    given = config["configurable"]
    place = str(given["thread_id"]), given.get("checkpoint_ns") or "", str(base.get_checkpoint_id(config) or "")
    refuse_nul(*place)
    return place


def refuse_nul(*names: str) -> None:
    if "\0" in "".join(names):
        raise ValueError("a name of a thread, namespace, checkpoint, task or channel holds a NUL character")


def refuse_long(*key: str) -> None:
    text = "".join(key)
    if len(text) > _MOST_BYTES // 4 and len(text.encode(errors="replace")) > _MOST_BYTES:
        raise ValueError(f"the names of thread, namespace, checkpoint and task together exceed {_MOST_BYTES:,} bytes")


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}
