"""What the turn table knows that bears on a decision, read in one transaction."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from agent_runtime.model.decide import Asked, Facts, Question, TurnFacts
from agent_runtime.model.records import InterruptRecord, TurnRecord
from agent_runtime.store import turn_reads as queries


def read_facts(connection: Connection, asked: Asked, thread_id: str, key: str, now: datetime) -> Facts:
    """Return the facts about `asked` on a thread; those of the checkpoint are left as they are.

    Args:
        connection: an open transaction.
        asked: what came in.
        thread_id: its thread.
        key: its idempotency key; empty for none.
        now: by the runtime's clock.
    """
    own = queries.get_turn(connection, asked.turn_id) if asked.turn_id else None
    newest = queries.bearing_on_thread(connection, thread_id, besides=asked.turn_id)
    waiting = queries.open_interrupts(connection, thread_id)
    taken = queries.get_keys(connection, [key]).get(key) if key else None
    asks = [item for item in waiting if item.status == "pending" and item.kind != "pause"]
    return Facts(
        now=now,
        own=_turn_facts(connection, own, waiting),
        newest=_turn_facts(connection, newest, waiting),
        taken=taken.became if taken is not None and own is None else "",
        cancelled=bool(asked.turn_id) and queries.is_cancelled(connection, asked.turn_id),
        questions=tuple(Question(interrupt_id=item.interrupt_id, allows_text=item.allows_text) for item in asks),
        decided=tuple(item.interrupt_id for item in waiting if item.status == "resolved"),
    )


def _turn_facts(
    connection: Connection, turn: TurnRecord | None, waiting: Sequence[InterruptRecord]
) -> TurnFacts | None:
    if turn is None:
        return None
    pauses = (item.interrupt_id for item in waiting if item.turn_id == turn.turn_id and item.kind == "pause")
    return TurnFacts(
        turn_id=turn.turn_id,
        status=turn.status,
        task_id=turn.task_id,
        answered=frozenset(turn.answers),
        cancelled=queries.is_cancelled(connection, turn.turn_id),
        tries=turn.tries,
        paused_until=turn.paused_until,
        pause=next(pauses, ""),
    )
