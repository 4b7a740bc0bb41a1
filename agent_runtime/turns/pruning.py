"""Pruning of old turns, in small batches, together with their messages.

A turn is pruned after it has been finished for longer than `[history]` says. Some turns are kept whatever their age:
unfinished turns, turns that owe an answer, and the newest turn of a thread unless the thread belongs to one fire. While
the runner has not read every fire outcome of that time, no turn is pruned. Keys are kept permanently, so that a
repeated fire or message has no second effect. Proposals, pages and the hashes of records are also kept.

If machines share the store, the first machine prunes a batch, including checkpoints, in one transaction. The
transaction takes the lease of each thread that it deletes, so that no turn begins there meanwhile.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, TableClause, column, delete, exists, select

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.model.decide import FINISHED, UNFINISHED
from agent_runtime.store import leases, schema
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.settings import HistorySettings
from turnkeeper.storage.statements import alone, of_server
from turnkeeper.times import to_us

LARGEST_BATCH = 100
FIRST_AFTER_S = 90.0
BETWEEN_BATCHES_S = 0.05  # pause in which turns can use the store
_OF_TURN = (
    *(schema.messages, schema.interrupts, schema.effects, schema.delegations, schema.handoffs),
    *(schema.bridged_events, schema.cancels, schema.turn_events),
)


class Old(NamedTuple):
    """A turn that may be pruned.

    Attributes:
        own_thread: the thread to delete with the turn; empty if the thread stays.
    """

    number: int
    turn_id: str
    own_thread: str


class Pruner:
    """Pruner of turns, oldest first."""

    def __init__(
        self, store: Store, saver: GroupedSaver, *, clock: Clock, log: EventLog, keep: HistorySettings
    ) -> None:
        self._store, self._saver, self._clock, self._log, self._keep = store, saver, clock, log, keep

    async def pass_over(self) -> tuple[int, int]:
        """Prune all old rows, one transaction per batch; return the numbers of deleted turns and other rows."""
        turns = await self._turns() if self._keep.keep_turns else 0
        others = await self._others() if self._keep.keep_events else 0
        if turns or others:
            self._log.emit("turns.pruned", turns=turns, others=others)
        return turns, others

    def _before(self, keep_s: float) -> datetime:
        return self._clock.now() - timedelta(seconds=keep_s)

    async def _turns(self) -> int:
        before = self._before(self._keep.keep_turns)
        if await self._store.read(_is_unread, before, self._store.read_up_to):
            return 0
        removed, prune = 0, self._batch_of_all if self._store.right.shared else self._batch
        while gone := await prune(before):
            removed += gone
            await self._clock.sleep(BETWEEN_BATCHES_S)
        if removed:
            at = self._clock.now()
            await self._store.write(lambda connection: schema.audit.prune(connection, at, before, rows=removed))
        return removed

    async def _batch(self, before: datetime) -> int:
        found = await self._store.read(old_turns, before)
        # Delete threads first, because after a kill in between, the rows still name the threads to delete.
        for thread_id in {one.own_thread for one in found} - {""}:
            await self._saver.adelete_thread(thread_id)
        await self._store.write(remove_turns, found)
        return len(found)

    async def _batch_of_all(self, before: datetime) -> int:
        return await self._store.write(prune_shared, before)

    async def _others(self) -> int:
        before, removed = self._before(self._keep.keep_events), 0
        for prune in (_prune_events, _prune_handoffs):
            while gone := await self._store.write(prune, before, self._store.read_up_to):
                removed += gone
                await self._clock.sleep(BETWEEN_BATCHES_S)
        return removed


def _is_unread(connection: Connection, before: datetime, read_up_to: int) -> bool:
    """Return whether the runner has not yet read some outcome of a fire from before a time."""
    events = schema.turn_events.c
    unread = ~_read(connection, read_up_to) & (events.at_us < to_us(before)) & (events.fire_id != "")
    return connection.execute(select(events.sequence).where(unread).limit(1)).first() is not None


def _read(connection: Connection, read_up_to: int) -> ColumnElement[bool]:
    """Return the condition that a runner has read an event; in a shared store, each event has its own flag."""
    events = schema.turn_events.c
    return events.taken if of_server(connection) else events.sequence <= read_up_to


def old_turns(connection: Connection, before: datetime, limit: int = LARGEST_BATCH) -> list[Old]:
    """Return the oldest turns that may be pruned."""
    turns, later, owed = schema.turns.c, schema.turns.alias("later").c, schema.delegations.c
    goes_on = exists(select(later.number).where(later.thread_id == turns.thread_id, later.number > turns.number))
    first = schema.turns.alias("first").c
    of_fire = exists(select(first.number).where(first.thread_id == turns.thread_id, first.fire_id == turns.thread_id))
    is_owed = exists(select(owed.turn_id).where(owed.turn_id == turns.turn_id, owed.state.in_(["open", "owed"])))
    over = turns.status.in_(sorted(FINISHED)) & (turns.ended_at_us < to_us(before))
    query = select(turns.number, turns.turn_id, turns.thread_id, goes_on.label("goes_on"))
    query = query.where(over, goes_on | of_fire, ~is_owed).order_by(turns.number).limit(limit)
    return [Old(row[0], row[1], "" if row[3] else row[2]) for row in connection.execute(query)]


def prune_shared(connection: Connection, before: datetime, limit: int = LARGEST_BATCH) -> int:
    """Remove a batch of turns of a shared store, with the checkpoints of deleted threads; return the number of turns.

    Remove none while another process prunes. Keep each thread that has a live owner.
    """
    if not alone(connection, "pruning turns"):
        return 0
    taken = {""}
    for thread_id in sorted({one.own_thread for one in old_turns(connection, before, limit)} - {""}):
        if leases.take(connection, thread_id, owner="") is not None:  # no owner, and none until the commit
            taken.add(thread_id)
    found = [one for one in old_turns(connection, before, limit) if one.own_thread in taken]
    threads = sorted(taken - {""})
    for name in ("writes", "checkpoints"):
        kept = TableClause(name, column("thread_id"))
        connection.execute(delete(kept).where(kept.c.thread_id.in_(threads)))
    remove_turns(connection, found)
    return len(found)


def remove_turns(connection: Connection, found: list[Old]) -> None:
    """Remove turns and their messages, and the memory of each thread that is deleted with its last turn."""
    ids, threads = [one.turn_id for one in found], {one.own_thread for one in found} - {""}
    for table in _OF_TURN:
        connection.execute(delete(table).where(table.c.turn_id.in_(ids)))
    remembered = schema.memory.c
    in_thread = (remembered.tier == "conversation") & remembered.owner.in_(sorted(threads))
    connection.execute(delete(schema.memory).where(in_thread))
    connection.execute(delete(schema.turns).where(schema.turns.c.turn_id.in_(ids)))


def _prune_events(connection: Connection, before: datetime, read_up_to: int) -> int:
    """Remove outcomes that the runner has read; keep those of unfinished turns and of triggers that are held back."""
    events, keys, turns = schema.turn_events.c, schema.keys.c, schema.turns.c
    waits = select(keys.turn_id).where(keys.became.in_(["held", "kept"]), keys.released.is_(False))
    goes_on = select(turns.turn_id).where(turns.status.in_(UNFINISHED))
    over = events.turn_id.not_in(waits) & events.turn_id.not_in(goes_on)
    read = _read(connection, read_up_to) & (events.at_us < to_us(before)) & over
    return _drop(connection, schema.turn_events, events.sequence, read)


def _prune_handoffs(connection: Connection, before: datetime, _read_up_to: int) -> int:
    """Remove handoffs that a turn received, after that turn has ended."""
    handoffs, turns = schema.handoffs.c, schema.turns.c
    goes_on = select(turns.turn_id).where(turns.status.in_(UNFINISHED))
    shown = (handoffs.turn_id != "") & handoffs.turn_id.not_in(goes_on) & (handoffs.at_us < to_us(before))
    return _drop(connection, schema.handoffs, handoffs.key, shown)


def _drop(connection: Connection, table: Any, key: Any, condition: ColumnElement[bool]) -> int:
    """Remove a batch of rows; return their number. Remove none while another process prunes."""
    if not alone(connection, f"pruning {table.name}"):
        return 0
    found = connection.execute(select(key).where(condition).order_by(key).limit(LARGEST_BATCH)).scalars().all()
    connection.execute(delete(table).where(key.in_(found)))
    return len(found)
