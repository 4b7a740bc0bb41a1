"""Counting tokens: of each turn in its row, of each day in UTC beside it, in one transaction."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import BigInteger, Column, Connection, String, Table, select, update

from agent_runtime.model.turn import Said, TurnRecord
from agent_runtime.store import turn_reads, turn_writes
from agent_runtime.store.schema import metadata, turns
from turnkeeper.storage.statements import upsert

# What a turn has said, or None where only its cost is known, and the tokens that it read and wrote.
Told = tuple[Sequence[Said] | None, tuple[int, int]]

# What all turns together used on a day: the sum of what each turn's row grew by.
token_days = Table(
    "token_days",
    metadata,
    Column("day", String(10), primary_key=True),  # as 2026-11-21
    Column("tokens", BigInteger, nullable=False),
)


def record(
    connection: Connection,
    turn: TurnRecord,
    lines: Sequence[Said] | None,
    tokens: tuple[int, int],
    at: datetime,
    *,
    known: int = 0,
    cancelled: bool = False,
) -> bool:
    """Write what a running turn has said, from the line `known` on, and its tokens; return whether lines were written.

    Once a cancel is stored only tokens are written, which are spent, and what was said before: that is `cancelled`.
    Without lines what is on record stays, and so do tokens that it does not tell of.
    """
    told = False
    if turn.status != "running":
        return told
    if lines is None:
        tokens = max(tokens[0], turn.tokens_in), max(tokens[1], turn.tokens_out)
    elif cancelled or not turn_reads.is_cancelled(connection, turn.turn_id):
        turn_writes.put_transcript(connection, turn.turn_id, lines, at, known=known)
        told = True
    count_tokens(connection, turn, tokens, at)
    return told


def count_tokens(connection: Connection, turn: TurnRecord, tokens: tuple[int, int], at: datetime) -> None:
    """Write how many tokens a turn has read and written so far; what is new falls on the day of `at`.

    A replay after a crash may tell fewer than were counted; a day's count never shrinks.
    """
    if tokens != (turn.tokens_in, turn.tokens_out):
        connection.execute(
            update(turns).where(turns.c.turn_id == turn.turn_id).values(tokens_in=tokens[0], tokens_out=tokens[1])
        )
    new = sum(tokens) - turn.tokens_in - turn.tokens_out
    if new > 0:
        row = upsert(token_days, [token_days.c.day], {"tokens": token_days.c.tokens + new})
        connection.execute(row.values(day=_day(at), tokens=new))


def tokens_of_day(connection: Connection, now: datetime) -> int:
    """Return how many tokens all turns together have used today."""
    return connection.execute(select(token_days.c.tokens).where(token_days.c.day == _day(now))).scalar() or 0


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d}"
