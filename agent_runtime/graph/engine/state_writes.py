"""Writes of a client into the state of a thread. Each is a turn that runs no node.

The new checkpoint's metadata name the turn, which proves after a crash that the write was made. The steps that follow
from a write never run by themselves: the next turn brings the thread to its end first, as after any other turn.
"""

import json
from collections.abc import Mapping
from typing import Any

from langgraph.errors import InvalidUpdateError

from turnkeeper.errors import InvalidInput, NotFound


async def write_state(graph: Any, config: Mapping[str, Any], asked: Mapping[str, Any], values_json: str) -> None:
    """Write values into the newest state of a thread, or into the one that `asked` names, as a node of the graph.

    Args:
        config: the thread, and the metadata of the new checkpoint.
        asked: `as_node` and `checkpoint_id`; either may be missing.

    Raises:
        InvalidInput: the state has no such field, or the graph does not accept the write.
        NotFound: the checkpoint is not kept.
    """
    values, checkpoint_id = json.loads(values_json or "{}"), asked.get("checkpoint_id") or ""
    if checkpoint_id:
        place = {**config["configurable"], "checkpoint_id": checkpoint_id}
        if (await graph.aget_state({"configurable": place})).created_at is None:
            raise NotFound(f"no checkpoint {checkpoint_id[:80]!r}", where="checkpoint_id")
        config = {**config, "configurable": place}
    fields = [name for name in graph.stream_channels_list if not name.startswith("__")]
    if unknown := next((name for name in values if name not in fields), ""):
        hint = f"it has {', '.join(sorted(fields))}"
        raise InvalidInput(f"the graph's state has no field {unknown[:80]!r}", where="values", hint=hint)
    as_node = asked.get("as_node") or None
    if as_node is not None and as_node not in graph.nodes:
        hint = f"one of {', '.join(sorted(graph.nodes))}"
        raise InvalidInput(f"the graph has no node {as_node[:80]!r}", where="as_node", hint=hint)
    try:
        await graph.aupdate_state(config, values, as_node=as_node)
    except InvalidUpdateError as error:
        raise InvalidInput(str(error).split("\n")[0], where="as_node", hint="name the node that writes") from error
