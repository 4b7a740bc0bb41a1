"""Writing once: a tool call that runs again, after a crash or a resume, finds the answer of its first run.

A turn that has ended or is being cancelled writes nothing more.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, exists, insert, select

from agent_runtime.model.turn import TurnContext
from agent_runtime.store.schema import cancels, turns
from agent_runtime.store.workspace_schema import effects
from turnkeeper.errors import Denied
from turnkeeper.times import to_us

Fence = Callable[[Connection, TurnContext], None]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One tool call of a running turn, as the workspace sees it.

    Attributes:
        context: the turn, under the scopes that hold for this call.
        key: equal for every run of this call, and for no other call: thread, checkpoint namespace, tool call id.
    """

    context: TurnContext
    key: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a write gave.

    Attributes:
        result: a JSON object, for the tool to answer with.
        repeated: the write was made by an earlier run of the same call.
    """

    result: Mapping[str, Any]
    repeated: bool


def known(connection: Connection, call: Call) -> Mapping[str, Any] | None:
    """Return what an earlier run of the same call gave; None where there was none."""
    found = connection.execute(select(effects.c.result_json).where(effects.c.effect_key == call.key)).scalar()
    return None if found is None else json.loads(found)


def once(
    connection: Connection, call: Call, scope: str, at: datetime, fence: Fence, write: Callable[[], Mapping[str, Any]]
) -> Outcome:
    """Run `write` unless an earlier run of the same call did; keep its result in the same transaction.

    Raises:
        Denied: from `fence`, when the turn may write no more; nothing is written then.
    """
    before = known(connection, call)
    if before is not None:
        return Outcome(result=before, repeated=True)
    fence(connection, call.context)
    result = write()
    row = {
        "effect_key": call.key,
        "turn_id": call.context.turn_id,
        "scope": scope,
        "result_json": json.dumps(result, sort_keys=True),
        "at_us": to_us(at),
    }
    connection.execute(insert(effects).values(row))
    return Outcome(result=result, repeated=False)


def refuse_ended(connection: Connection, context: TurnContext) -> None:
    """Raise Denied unless the turn is running and nobody has asked to cancel it: nothing is written after a cancel."""
    cancelled = exists().where(cancels.c.turn_id == context.turn_id)
    running = and_(turns.c.turn_id == context.turn_id, turns.c.status == "running")
    if connection.execute(select(turns.c.number).where(running, ~cancelled)).one_or_none() is None:
        raise Denied("the turn has ended or is being cancelled, and writes no more", where=context.turn_id)
