"""What a channel that is kept as changes alone was made of: its last whole value, and the changes since."""

from collections.abc import Callable, Mapping, Sequence
from sqlite3 import Connection
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite

from agent_runtime.graph.checkpointer.rows import ancestors, get


def changes(
    connection: Connection,
    place: tuple[str, str, str],
    channels: Sequence[str],
    load: Callable[[tuple[str, bytes]], Any],
) -> Mapping[str, DeltaChannelHistory]:
    """Return each channel's history at a checkpoint.

    Args:
        connection: to read from.
        place: thread, namespace and checkpoint id; an empty id stands for the newest.
        channels: their names.
        load: reads a stored value.

    Returns:
        By channel, the writes on the way to the checkpoint, oldest first and without its own; `seed` is the value they
        are to be applied to, and left out where there is none.
    """
    writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    head = get(connection, *place) if channels else None
    for before in ancestors(connection, place[0], place[1], head.checkpoint_id) if head is not None else ():
        for task_id, channel, blob in reversed(before.writes):
            if channel in writes and channel not in seeds:
                writes[channel].append((task_id, channel, load(blob)))
        values = load(before.blob)["channel_values"]
        seeds |= {channel: values[channel] for channel in writes if channel in values and channel not in seeds}
        if len(seeds) == len(writes):
            break
    return {channel: _history(writes[channel][::-1], seeds, channel) for channel in channels}


def _history(writes: list[PendingWrite], seeds: Mapping[str, Any], channel: str) -> DeltaChannelHistory:
    return {"writes": writes, "seed": seeds[channel]} if channel in seeds else {"writes": writes}
