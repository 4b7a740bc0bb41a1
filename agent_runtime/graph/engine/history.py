"""The history of a thread, as clients of LangGraph use it: the states that stay, writes into them, and forks from them.

The checkpoints of a client's run are marked. They, and the later checkpoints of their thread, stay after the turn, up
to a limit. LangGraph makes the forks. A run that begins at an earlier checkpoint adds its own checkpoints after it, and
the newest checkpoint is the thread's state.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.errors import InvalidUpdateError
from langgraph.types import StateSnapshot, StateUpdate
from sqlalchemy import Connection

from agent_runtime.graph.checkpointer import rows
from agent_runtime.graph.engine import stops
from agent_runtime.graph.engine.engine import BEFORE
from agent_runtime.model.turn import TurnRecord
from agent_runtime.store.turn_writes import change_turn
from turnkeeper.errors import InvalidInput, NotFound

KEPT = "kept_for_clients"  # key in the metadata of the checkpoints that stay after their turn
MOST_KEPT = 200  # the most such checkpoints of a thread
MOST_BYTES = 16 << 20  # the most bytes of their states
_OPTIONS = ("recursion_limit", "tags", "run_name", "max_concurrency")  # of LangGraph's config, which a client may set
_OF_LATER_CHANNELS = "counters_since_delta_snapshot"  # in metadata: the state needs earlier checkpoints


def client_run(config: Mapping[str, Any], run: Mapping[str, Any], begins: bool) -> dict[str, Any]:
    """Return the config of an interval with the options of its client's run.

    If the run `begins` with this interval, it starts at the checkpoint that the run names. Later intervals start at the
    newest checkpoint, which belongs to the run.
    """
    asked, ours = run.get("config") or {}, dict(config["metadata"])
    ours |= {name: json.dumps(run[name]) for name in stops.WHEN if run.get(name)} | {KEPT: True}
    given = {**asked.get("metadata", {}), **(run.get("metadata") or {})}
    metadata = {key: value for key, value in given.items() if key not in {BEFORE, *stops.WHEN}} | ours
    found = {**config, "metadata": metadata} | {name: asked[name] for name in _OPTIONS if name in asked}
    if begins and run.get("checkpoint_id"):
        found["configurable"] = config["configurable"] | {"checkpoint_id": run["checkpoint_id"]}
    return found


def change_run(connection: Connection, turn: TurnRecord, options: Mapping[str, Any]) -> None:
    """Replace options of the client's run that a turn is, from its next interval on."""
    run = json.loads(turn.run_json or "{}")
    change_turn(connection, turn.turn_id, run_json=json.dumps({**run, **options}))


async def fork(graph: Any, thread_id: str, run: Mapping[str, Any]) -> StateSnapshot:
    """Return the state from which a run forks its thread.

    Steps that follow from a client's write never run, because no run of the graph led to them.

    Raises:
        NotFound: the checkpoint is not kept.
        InvalidInput: the run has no input, and continues at a client's write.
    """
    place = {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": run["checkpoint_id"]}
    found: StateSnapshot = await graph.aget_state({"configurable": place})
    if found.created_at is None:
        raise NotFound(f"no checkpoint {run['checkpoint_id'][:80]!r}", where="checkpoint_id")
    if run.get("replays") and (found.metadata or {}).get("source") == "update":
        raise InvalidInput("the steps after a write are not run", where="checkpoint_id", hint="give an input")
    return found


async def write_state(graph: Any, config: Mapping[str, Any], run_json: str, values_json: str) -> str:
    """Write values into the newest state of a thread, or into the state that a run names, as a node of the graph.

    The new checkpoint's metadata names the turn, which proves after a crash that the write was made. The steps that
    follow from a write never run on their own: the next turn first brings the thread to its end.

    Args:
        config: the thread, and the metadata of the new checkpoint.
        run_json: the turn's options. In `write`, the keys `as_node`, `checkpoint_id` and `then` are optional. `then`
            lists further values, which are written after `values_json`.

    Returns:
        Why the write was refused; empty if the write was made.
    """
    try:
        await _write(graph, config, json.loads(run_json)["write"], json.loads(values_json or "{}"))
    except (InvalidInput, NotFound) as error:
        return f"the state was not written: {error}"
    return ""


async def _write(graph: Any, config: Mapping[str, Any], asked: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    config = client_run(config, {"checkpoint_id": asked.get("checkpoint_id")}, begins=True)
    if checkpoint_id := config["configurable"].get("checkpoint_id"):
        await fork(graph, config["configurable"]["thread_id"], {"checkpoint_id": checkpoint_id})
    fields = [name for name in graph.stream_channels_list if not name.startswith("__")]
    each = [values, *asked.get("then", ())]
    if unknown := next((name for one in each for name in one if name not in fields), ""):
        hint = f"it has {', '.join(sorted(fields))}"
        raise InvalidInput(f"the graph's state has no field {unknown[:80]!r}", where="values", hint=hint)
    as_node = asked.get("as_node") or None
    if as_node is not None and as_node not in graph.nodes:
        hint = f"one of {', '.join(sorted(graph.nodes))}"
        raise InvalidInput(f"the graph has no node {as_node[:80]!r}", where="as_node", hint=hint)
    try:
        await graph.abulk_update_state(config, [[StateUpdate(one, as_node) for one in each]])
    except InvalidUpdateError as error:
        raise InvalidInput(str(error).split("\n")[0], where="as_node", hint="name the node that writes") from error
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InvalidInput(f"the graph does not accept the values: {error}"[:300], where="values") from error


def kept_states(
    connection: rows.Connection, thread_id: str, namespace: str, load: Callable[[tuple[str, bytes]], Any]
) -> list[str]:
    """Return the ids of the checkpoints that stay for clients, newest first, with the checkpoints that these need.

    They are the newest ones back to the first of a client's run, so that each has its parent: clients draw a tree.
    """
    query = """SELECT checkpoint_id, metadata, length(checkpoint) FROM checkpoints
        WHERE thread_id = ?1 AND checkpoint_ns = ?2 ORDER BY checkpoint_id DESC"""
    newest: list[tuple[str, bool]] = []
    kept = size = 0
    for checkpoint_id, text, length in connection.execute(query, (thread_id, namespace)).fetchall():
        metadata, size = json.loads(text or b"{}"), size + length
        if len(newest) == MOST_KEPT or size > MOST_BYTES:
            break
        newest.append((checkpoint_id, bool(metadata.get(_OF_LATER_CHANNELS))))
        kept = len(newest) if metadata.get(KEPT) else kept
    found = []
    for checkpoint_id, needs in newest[:kept]:
        found += rows.needed(connection, thread_id, namespace, checkpoint_id, load) if needs else [checkpoint_id]
    return found
