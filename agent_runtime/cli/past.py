"""Reading past turns with all their tool calls, for a rehearsal."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, or_, select

from agent_runtime.permissions.rehearsal import PastCall, PastTurn
from agent_runtime.store.schema import turns
from agent_runtime.store.turn_reads import interrupts_of, messages_of
from turnkeeper.clock import from_us, to_us

AT_ONCE = 500


def past_turns(
    connection: Connection, *, channel: str = "", task: str = "", since: datetime | None = None, limit: int
) -> list[PastTurn]:
    """Return turns with their tool calls, newest first.

    Args:
        connection: an open transaction.
        channel: only turns of this channel.
        task: only turns of the task of this name or id.
        since: only turns that began then or later.
        limit: the most turns.
    """
    query = select(turns).order_by(turns.c.number.desc()).limit(limit)
    query = query.where(turns.c.channel == channel) if channel else query
    query = query.where(or_(turns.c.task_name == task, turns.c.task_id == task)) if task else query
    query = query.where(turns.c.started_at_us >= to_us(since)) if since else query
    rows = [*connection.execute(query).mappings()]
    calls: dict[str, tuple[PastCall, ...]] = {}
    waited: set[str] = set()
    for start in range(0, len(rows), AT_ONCE):
        ids = [row["turn_id"] for row in rows[start : start + AT_ONCE]]
        calls |= _calls(connection, ids)
        waited |= {turn_id for turn_id, asked in interrupts_of(connection, ids).items() if asked}
    return [
        PastTurn(
            turn_id=row["turn_id"],
            task_name=row["task_name"],
            channel=row["channel"],
            by_fire=row["trigger"] == "fire",
            read_only=row["read_only"],
            calls=calls[row["turn_id"]],
            tokens=row["tokens_in"] + row["tokens_out"],
            seconds=None if row["turn_id"] in waited else _seconds(row["started_at_us"], row["ended_at_us"]),
        )
        for row in rows
    ]


def _calls(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[PastCall, ...]]:
    return {
        turn_id: tuple(
            PastCall(at=record.at, tool=call.name, args=call.args) for record in said for call in record.said.tool_calls
        )
        for turn_id, said in messages_of(connection, ids).items()
    }


def _seconds(start: int, end: int | None) -> float | None:
    return None if end is None else (from_us(end) - from_us(start)).total_seconds()
