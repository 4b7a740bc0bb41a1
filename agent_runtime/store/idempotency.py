"""What was said in a channel, as a turn may read it; and whether a turn may still write."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, desc, exists, func, select

from agent_runtime.model.values import TurnContext
from agent_runtime.store.schema import cancels, messages, turns
from agent_runtime.store.workspace_schema import candidates
from agent_runtime.workspace.model import SUMMARY, Heard, Hearing
from turnkeeper.clock import from_us
from turnkeeper.errors import Denied

MOST_MESSAGES = 200
READING_BUDGET = 16_000  # bytes of text that one reading gives


def hear(connection: Connection, context: TurnContext, channel: str, *, whole: bool) -> Hearing:
    """Return the newest messages of a channel that fit the budget, oldest first: what author and agents said.

    Args:
        connection: an open transaction.
        context: the turn that reads; its own messages are left out.
        channel: whose conversation.
        whole: from the start; otherwise what is new since this task last proposed a summary there (an author's turn:
            since anybody did), without turns that proposed one: two tasks must not go on summarising each other.
    """
    since_us = None if whole else _last_summary(connection, context, channel)
    query = (
        select(messages.c.turn_id, messages.c.role, messages.c.text, messages.c.at_us)
        .join(turns, turns.c.turn_id == messages.c.turn_id)
        .where(turns.c.channel == channel, turns.c.visible, turns.c.turn_id != context.turn_id)
        .where(messages.c.role.in_(["author", "agent"]), messages.c.text != "")
        .order_by(desc(messages.c.at_us), desc(turns.c.number), desc(messages.c.position))
        .limit(MOST_MESSAGES + 1)
    )
    if not whole:
        query = query.where(turns.c.turn_id.not_in(_summaries(channel).with_only_columns(candidates.c.turn_id)))
    if since_us is not None:
        query = query.where(messages.c.at_us > since_us)
    newest = [
        Heard(turn_id=row.turn_id, role=row.role, text=row.text, at=from_us(row.at_us))
        for row in connection.execute(query)
    ]
    kept = _fitting(newest[:MOST_MESSAGES])
    since = None if since_us is None else from_us(since_us)
    return Hearing(channel=channel, since=since, messages=tuple(reversed(kept)), left_out=len(newest) - len(kept))


def refuse_ended(connection: Connection, context: TurnContext) -> None:
    """Raise Denied unless the turn is running and nobody has asked to cancel it: nothing is written after a cancel."""
    cancelled = exists().where(cancels.c.turn_id == context.turn_id)
    running = and_(turns.c.turn_id == context.turn_id, turns.c.status == "running")
    if connection.execute(select(turns.c.number).where(running, ~cancelled)).one_or_none() is None:
        raise Denied("the turn has ended or is being cancelled, and writes no more", where=context.turn_id)


def _last_summary(connection: Connection, context: TurnContext, channel: str) -> int | None:
    """Find the last summary of another turn: a turn that is run again hears what it heard the first time."""
    query = _summaries(channel).where(candidates.c.turn_id != context.turn_id)
    if context.task_name:
        query = query.where(candidates.c.task_name == context.task_name)
    return connection.execute(query.with_only_columns(func.max(candidates.c.created_at_us))).scalar()


def _summaries(channel: str) -> Select[Any]:
    return select(candidates).where(candidates.c.channel == channel, candidates.c.kind == SUMMARY)


def _fitting(newest: Sequence[Heard]) -> list[Heard]:
    """Return the leading messages that fit the budget together."""
    kept, room = list[Heard](), READING_BUDGET
    for heard in newest:
        room -= len(heard.text.encode())
        if room < 0:
            break
        kept.append(heard)
    return kept
