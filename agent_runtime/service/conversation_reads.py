"""Reading what conversations have become since they were last looked at: functions of an open connection."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table, func, or_, select

from agent_runtime.model.turn import TurnRecord
from agent_runtime.store.schema import interrupts, turns
from agent_runtime.store.turn_reads import LARGEST_PAGE, UNFINISHED, bearing_on_thread, get_turn
from agent_runtime.store.workspace_schema import candidates, deviations
from agent_runtime.workspace.deviations import Deviation, to_deviation
from turnkeeper.times import from_us

MOST_OPEN = 200  # turns of a channel, the newest, that are looked at again because they are not over


@dataclass(frozen=True, kw_only=True)
class ThreadRecord:
    """A thread.

    Attributes:
        newest: the turn that says where it stands: the newest that is not over, else the newest.
        turns: how many it has.
        waiting: how many decisions wait for the author on it.
        first_at: when its first turn began.
        tokens_in: read by models in all its turns.
        tokens_out: written by models in all its turns.
    """

    newest: TurnRecord
    turns: int
    waiting: int
    first_at: datetime
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """How much waits for the author that holds up no turn, by channel."""

    candidates: dict[str, int]
    deviations: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What has become of a channel.

    Attributes:
        shown: turns that its conversation shows, oldest first.
        newest: number of the newest turn there, shown or not.
        open: ids of those looked at that are not over, shown or not.
    """

    shown: tuple[TurnRecord, ...] = ()
    newest: int = 0
    open: frozenset[str] = frozenset()


def newest_turns(connection: Connection, channel: str, *, limit: int) -> Changed:
    """Return the newest turns that a channel's conversation shows, and those that may come to be shown."""
    of_channel = turns.c.channel == channel
    shown = select(turns.c.turn_id).where(of_channel, turns.c.visible).order_by(turns.c.number.desc())
    ids = list(connection.execute(shown.limit(min(limit or 50, LARGEST_PAGE))).scalars())
    open_ = select(turns.c.turn_id).where(of_channel, turns.c.status.in_(UNFINISHED))
    newest = connection.execute(select(func.max(turns.c.number)).where(of_channel)).scalar() or 0
    unfinished = set(connection.execute(open_.order_by(turns.c.number.desc()).limit(MOST_OPEN)).scalars())
    return _changed(connection, ids, unfinished - set(ids), newest)


def changed_turns(connection: Connection, channel: str, *, after: int, open_: Collection[str]) -> Changed:
    """Return what is new in a channel since its turn `after`, and what has become of the turns that were open."""
    fresh = select(turns.c.turn_id, turns.c.number).where(turns.c.channel == channel)
    fresh = fresh.where(or_(turns.c.number > after, turns.c.turn_id.in_(open_)))
    rows = connection.execute(fresh.order_by(turns.c.number.desc()).limit(2 * LARGEST_PAGE)).all()
    newest = max((row.number for row in rows), default=after)
    return _changed(connection, [row.turn_id for row in rows], (), max(newest, after))


def list_threads(
    connection: Connection, *, channel: str = "", thread_id: str = "", limit: int = 50
) -> list[ThreadRecord]:
    """Return threads, the one with the newest turn first."""
    query = select(
        func.max(turns.c.number).label("newest"),
        func.count().label("turns"),
        func.min(turns.c.started_at_us).label("first"),
        func.sum(turns.c.tokens_in).label("tokens_in"),
        func.sum(turns.c.tokens_out).label("tokens_out"),
    ).group_by(turns.c.thread_id)
    for column, wanted in ((turns.c.channel, channel), (turns.c.thread_id, thread_id)):
        query = query.where(column == wanted) if wanted else query
    rows = connection.execute(query.order_by(func.max(turns.c.number).desc()).limit(min(limit or 50, LARGEST_PAGE)))
    return [_thread(connection, row) for row in rows.all()]


def _thread(connection: Connection, row: Row[Any]) -> ThreadRecord:
    turn_id = connection.execute(select(turns.c.turn_id).where(turns.c.number == row.newest)).scalar_one()
    newest = get_turn(connection, turn_id)
    assert newest is not None, "its number was read in this transaction"
    pending = select(func.count()).where(
        interrupts.c.thread_id == newest.thread_id, interrupts.c.status == "pending", interrupts.c.kind != "pause"
    )
    return ThreadRecord(
        newest=bearing_on_thread(connection, newest.thread_id) or newest,
        turns=row.turns,
        waiting=connection.execute(pending).scalar() or 0,
        first_at=from_us(row.first),
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
    )


def deviations_of(connection: Connection, turn_ids: Sequence[str]) -> dict[str, list[Deviation]]:
    """Return the contradictions that turns came upon, in order, by turn; a turn that came upon none is left out."""
    query = select(deviations).where(deviations.c.turn_id.in_(turn_ids))
    found: dict[str, list[Deviation]] = {}
    for row in connection.execute(query.order_by(deviations.c.created_at_us, deviations.c.deviation_id)):
        found.setdefault(row.turn_id, []).append(to_deviation(row))
    return found


def undecided(connection: Connection) -> Undecided:
    """Return how many candidates and contradictions wait for the author, by channel."""
    return Undecided(
        candidates=_open_by_channel(connection, candidates, "candidate"),
        deviations=_open_by_channel(connection, deviations, "open"),
    )


def _open_by_channel(connection: Connection, table: Table, lifecycle: str) -> dict[str, int]:
    query = select(table.c.channel, func.count().label("number")).where(table.c.lifecycle == lifecycle)
    return {row.channel: row.number for row in connection.execute(query.group_by(table.c.channel))}


def _changed(connection: Connection, ids: Sequence[str], besides: Collection[str], newest: int) -> Changed:
    found = [turn for turn_id in reversed(ids) if (turn := get_turn(connection, turn_id)) is not None]
    open_ = [turn.turn_id for turn in found if turn.status in UNFINISHED][-MOST_OPEN:]
    shown = tuple(turn for turn in found if turn.visible)
    return Changed(shown=shown, newest=newest, open=frozenset([*list(besides)[: MOST_OPEN - len(open_)], *open_]))
