"""Events and the tasks that listen for them, in a database."""

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select

from task_runner.model.events import Event
from task_runner.model.task import UNDER_WAY, Fire, FireKind, Outcome, Snapshot, Task, TaskState
from task_runner.planner.event_triggers import MOST_AN_HOUR, Standing, Trigger
from task_runner.store.rows import Note, fire_of, task_of
from task_runner.store.schema import events, fires, tasks, triggers
from turnkeeper.storage.statements import Statement, among, listed, one_of, upsert
from turnkeeper.times import from_us, to_us

_OVER = [state.value for state in (TaskState.DONE, TaskState.EXPIRED, TaskState.DELETED)]


class Events:
    """The events, over one connection inside a transaction."""

    def __init__(self, connection: Connection, *, locks: bool = False) -> None:
        self._connection, self._locks = connection, locks

    def wanted(self) -> frozenset[str]:
        """Return the names of events that any task waits for."""
        return frozenset(self._connection.execute(_WANTED).scalars())

    def listeners(self, names: Collection[str]) -> list[Task]:
        """Return the tasks that listen for events of these names, including stopped ones. Uses an index.

        A unit of work that changes something locks the tasks; see :class:`Tasks`.
        """
        query = _LISTENERS.with_for_update() if self._locks else _LISTENERS
        return [task_of(row) for row in self._connection.execute(query, {"names": listed(names)})]

    def remember(self, taken: Sequence[Event]) -> list[Event]:
        """Record that events were accepted. Return the new ones, in order, each once."""
        return [each for each in taken if _ADD.run(self._connection, name=each.name, id=each.id, at_us=to_us(each.at))]

    def causes(self, fire_ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return, by fire id, the tasks whose fires led to that fire, its own task last."""
        found = _CAUSES.rows(self._connection, ids=listed(fire_ids))
        return {fire_id: (*json.loads(chain or "[]"), task_id) for fire_id, task_id, chain in found}

    def fire_of_turn(self, turn_id: str) -> Fire | None:
        """Return the open fire of a running turn."""
        row = self._connection.execute(_OF_TURN, {"turn": turn_id}).first() if turn_id else None
        return None if row is None else fire_of(row)

    def standings(self, snapshots: Sequence[Snapshot]) -> list[Standing]:
        """Return tasks with all data that their triggers depend on."""
        return [self._standing(snapshot) for snapshot in snapshots]

    def note(self, entries: Iterable[tuple[Fire, Trigger]]) -> None:
        """Record the triggers of numbered entries, replacing earlier ones."""
        rows = [
            {
                "entry_id": fire.entry_id,
                "task_id": fire.task_id,
                "fired": bool(fire.fire_id),
                "event": trigger.event.name,
                "event_id": trigger.event.id,
                "at_us": to_us(trigger.event.at),
                "cause": trigger.event.fire_id,
                "chain": json.dumps(trigger.chain),
            }
            for fire, trigger in entries
        ]
        if rows:
            self._connection.execute(upsert(triggers, [triggers.c.entry_id], triggers.c.keys()), rows)

    def notes(self, entry_ids: Collection[int]) -> dict[int, Note]:
        """Return the triggers of entries that an event triggered."""
        return {row.entry_id: _note_of(row) for row in self._connection.execute(_NOTES, {"ids": listed(entry_ids)})}

    def newest(self, task_id: str) -> Fire | None:
        """Return the newest entry of a task that an event triggered."""
        row = self._connection.execute(_NEWEST_ENTRY, {"task": task_id}).first()
        return None if row is None else fire_of(row)

    def forget(self, entry_ids: Collection[int]) -> None:
        """Delete the triggers of removed entries."""
        _FORGET_ENTRIES.run(self._connection, ids=listed(entry_ids))

    def forget_before(self, at: datetime, limit: int) -> int:
        """Delete at most `limit` events from before a time. Return their number."""
        old = select(events.c.id, events.c.name).where(events.c.at_us < to_us(at)).limit(limit)
        gone = [{"event": row.id, "called": row.name} for row in self._connection.execute(old)]
        if gone:
            self._connection.execute(_FORGET, gone)
        return len(gone)

    def _standing(self, snapshot: Snapshot) -> Standing:
        task = snapshot.task
        fired = self._connection.execute(_FIRED, {"task": task.id, "limit": MOST_AN_HOUR}).all()
        newest = fired[0].entry_id if fired else 0
        after = self._connection.execute(_SINCE, {"task": task.id, "entry": newest})
        entries = [fire_of(row) for row in after]
        clock = None
        if task.definition.is_hybrid:
            row = self._connection.execute(_NEWEST_OF_CLOCK, {"task": task.id}).first()
            clock = None if row is None or row.outcome == Outcome.SKIPPED.value else fire_of(row)
        return Standing(
            task=task,
            open=snapshot.open,
            newest=next((entry for entry in entries if entry.entry_id == newest), None),
            opened_at=from_us(fired[0].at_us) if fired else None,
            records=tuple(entry for entry in entries if not entry.fire_id),
            clock=clock,
            hourly=tuple(from_us(row.at_us) for row in reversed(fired)),
        )


def _note_of(row: Any) -> Note:
    copied = {name: getattr(row, name) for name in ("entry_id", "event", "event_id", "cause")}
    return Note(at=from_us(row.at_us), chain=tuple(json.loads(row.chain)), **copied)


LISTENING = (tasks.c.listens.is_not(None), ~one_of(tasks.c.state, _OVER))
_WANTED = select(tasks.c.listens).where(*LISTENING).distinct()
_LISTENERS = select(tasks).where(among(tasks.c.listens, "names"), *LISTENING).order_by(tasks.c.id)
_ADD = Statement(upsert(events, [events.c.name, events.c.id]))
_FORGET_ENTRIES = Statement(delete(triggers).where(among(triggers.c.entry_id, "ids")))
_CAUSES = Statement(
    select(fires.c.fire_id, fires.c.task_id, triggers.c.chain)
    .outerjoin(triggers, triggers.c.entry_id == fires.c.entry_id)
    .where(among(fires.c.fire_id, "ids"))
)
_OF_TURN = select(fires).where(
    fires.c.is_open, fires.c.outcome.in_(sorted(each.value for each in UNDER_WAY)), fires.c.turn_id == bindparam("turn")
)
_FORGET = delete(events).where(events.c.id == bindparam("event"), events.c.name == bindparam("called"))
_NOTES = select(triggers).where(among(triggers.c.entry_id, "ids"))
_FIRED = (
    select(triggers.c.entry_id, triggers.c.at_us)
    .where(triggers.c.task_id == bindparam("task"), triggers.c.fired)
    .order_by(triggers.c.entry_id.desc())
    .limit(bindparam("limit"))
)
_OF_EVENTS = select(fires).join(triggers, triggers.c.entry_id == fires.c.entry_id)
_SINCE = _OF_EVENTS.where(triggers.c.task_id == bindparam("task"), triggers.c.entry_id >= bindparam("entry")).order_by(
    triggers.c.entry_id
)
_NEWEST_OF_CLOCK = (
    select(fires)
    .where(fires.c.task_id == bindparam("task"), fires.c.kind == FireKind.SCHEDULED.value, fires.c.fire_id.is_not(None))
    .order_by(fires.c.entry_id.desc())
    .limit(1)
)
_NEWEST_ENTRY = _OF_EVENTS.where(triggers.c.task_id == bindparam("task")).order_by(triggers.c.entry_id.desc()).limit(1)
