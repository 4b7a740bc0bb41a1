"""Checkpoint ids that rise from one process to the next, also where the machine's clock was set back between them.

An id begins with the time at which it was drawn, and the greatest is the newest. LangGraph sees to it that they rise
within a process; that they go on rising behind what a file holds is seen to here.
"""

from sqlite3 import Connection
from typing import Any

from langgraph.checkpoint.base import id as drawing
from langgraph.checkpoint.base.id import UUID, uuid6

from turnkeeper.errors import Corrupt

# What is not drawn by time, as the ids of a test or of another program, has no time to go on from.
_NEWEST = "SELECT max(checkpoint_id) FROM checkpoints WHERE checkpoint_id GLOB '????????-????-6???-????-????????????'"


def go_on_from(connection: Connection, path: str) -> None:
    """Let every id that this process draws from now on be greater than those in the file.

    Raises:
        Corrupt: they would not be: what is written from now on would be taken for old, and pruned.
    """
    (newest,) = connection.execute(_NEWEST).fetchone()
    if newest is None:
        return
    # The name is private, so what it does is looked at, not believed.
    module: Any = drawing
    module._last_v6_timestamp = max(module._last_v6_timestamp or 0, _time_of(newest))  # noqa: SLF001
    if str(uuid6()) <= newest:
        what = f"checkpoint {newest} is of a time that is still to come"
        raise Corrupt(what, where=path, hint="set the machine's clock right, then start again")


def _time_of(checkpoint_id: str) -> int:
    """Return when an id was drawn, in units of LangGraph's own; 0 for what only looks like an id."""
    try:
        return UUID(hex=checkpoint_id).time
    except ValueError:
        return 0
