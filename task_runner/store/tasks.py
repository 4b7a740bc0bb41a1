"""Tasks, in a database."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import make_dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, insert, literal_column, select, text, update
from sqlalchemy.exc import IntegrityError

from task_runner.model import task as model
from task_runner.store import rows as stored
from task_runner.store.schema import fires, revisions, tasks, triggers
from turnkeeper.rpc.errors import AlreadyExists
from turnkeeper.storage.statements import Statement, among, listed
from turnkeeper.times import from_us, to_us

_OVER = [model.TaskState.DONE.value, model.TaskState.EXPIRED.value, model.TaskState.DELETED.value]


class Tasks:
    """The tasks, over one connection inside a transaction.

    A task's row is the lock for all of its fires. If other processes may write the same database, a unit that changes
    something reads tasks only under their locks. No other process changes these tasks or their fires until it ends.
    """

    def __init__(self, connection: Connection, *, locks: bool = False) -> None:
        self._connection, self._locks = connection, locks

    def lock(self, ids: Collection[str]) -> None:
        """Lock these tasks, so that no other session changes them or their fires."""
        if self._locks and ids:
            _LOCK.rows(self._connection, ids=listed(ids))

    def add(self, new: Sequence[model.Task], by: str = "") -> None:
        """Write new tasks and their first revisions, with the origin `by`. Raises AlreadyExists if a name is taken."""
        rows = [stored.row_of_task(task) for task in new]
        try:
            _ADD.run_each(self._connection, rows)
        except IntegrityError as error:
            raise _taken_name(new[0] if len(new) == 1 else None) from error
        _ADD_REVISION.run_each(
            self._connection,
            [
                {"task_id": row["id"], "revision": row["revision"], "definition": stored.signed(row["definition"], by)}
                | {"valid_from_us": row["created_us"]}
                for row in rows
            ],
        )

    def ids_taken(self, ids: Collection[str]) -> set[str]:
        """Return the ids that any task ever had, including those of deleted tasks."""
        return set(_IDS_TAKEN.values(self._connection, ids=listed(ids)))

    def names(self, ids: Collection[str]) -> dict[str, str]:
        """Return the names of tasks by id, including deleted tasks."""
        return {str(task_id): str(name) for task_id, name in _NAMES.rows(self._connection, ids=listed(ids))}

    def named(self, names: Collection[str]) -> dict[str, model.Task]:
        """Return the existing tasks with these names."""
        return {task.definition.name: task for task in self._found(_NAMED, names=listed(names))}

    def find(self, name: str) -> model.Task | None:
        """Return the existing task of that name, else the task of that id, else the newest deleted one of that name."""
        living = tasks.c.state != model.TaskState.DELETED.value
        found = self._found(select(tasks).where(tasks.c.name == name, living))
        if not found and model.is_task_id(name):
            found = self._found(select(tasks).where(tasks.c.id == name))
        if not found:
            newest = tasks.c.created_us.desc(), tasks.c.id
            found = self._found(select(tasks).where(tasks.c.name == name).order_by(*newest).limit(1))
        return found[0] if found else None

    def listed(self, *, category: str = "", channel: str = "", made_by: str = "") -> list[model.Task]:
        """Return the existing tasks, next to fire first, tasks without a next fire last, then by name."""
        wanted = {"category": category, "channel": channel, "made_by": made_by}
        only = [tasks.c[name] == value for name, value in wanted.items() if value]
        query = select(tasks).where(tasks.c.state != model.TaskState.DELETED.value, *only)
        return self._found(query.order_by(tasks.c.wake_us.is_(None), tasks.c.wake_us, tasks.c.name))

    def revise(self, task: model.Task, valid_from: datetime, *, ends_tail: bool, by: str = "") -> None:
        """Write a task's new definition as its next revision.

        Args:
            valid_from: the start of its validity.
            ends_tail: True if later entries must not extend earlier ones, because their schedule differs.
        """
        values = stored.row_of_task(task)
        try:
            self._connection.execute(update(tasks).where(tasks.c.id == task.id), values)
        except IntegrityError as error:
            raise _taken_name(task) from error
        if ends_tail:
            self.end_tail(task.id)
        text = stored.signed(values["definition"], by)
        revision = {"task_id": task.id, "revision": task.revision, "definition": text}
        _ADD_REVISION.run_each(self._connection, [revision | {"valid_from_us": to_us(valid_from)}])

    def end_tail(self, task_id: str) -> None:
        """Prevent later skips from extending the newest skipped entry of a task."""
        ended = {"tail_entry": -func.abs(tasks.c.tail_entry)}
        self._connection.execute(update(tasks).where(tasks.c.id == task_id).values(ended))

    def revisions(self, task_id: str) -> list[model.Revision]:
        """Return all revisions of a task, oldest first."""
        query = select(revisions).where(revisions.c.task_id == task_id).order_by(revisions.c.revision)
        return [
            model.Revision(
                number=row.revision,
                valid_from=from_us(row.valid_from_us),
                definition=stored.decode_definition(row.definition),
                edited_by=stored.signature_of(row.definition),
            )
            for row in self._connection.execute(query)
        ]

    def edited_by(self, task: model.Task) -> str:
        """Return the origin of the edit that made a task's newest revision. Empty if unknown."""
        newest = (revisions.c.task_id == task.id) & (revisions.c.revision == task.revision)
        return stored.signature_of(
            self._connection.execute(select(revisions.c.definition).where(newest)).scalar() or "{}"
        )

    def edited_at(self, ids: Collection[str]) -> dict[str, datetime]:
        """Return the start of validity of each task's newest revision."""
        return {task_id: from_us(us) for task_id, us in _EDITED_AT.rows(self._connection, ids=listed(ids))}

    def snapshots(self, ids: Sequence[str]) -> list[model.Snapshot]:
        """Return these tasks with all data that planning them needs."""
        by_ids = _BY_IDS_LOCKED if self._locks else _BY_IDS
        rows = [_Row(*row) for row in by_ids.rows(self._connection, ids=listed(ids))]
        opened: dict[str, list[model.Fire]] = defaultdict(list)
        for fire in map(stored.fire_of, _OPEN_OF.rows(self._connection, ids=listed(ids))):
            opened[fire.task_id].append(fire)
        numbers = [abs(row.tail_entry) for row in rows if row.tail_entry is not None]
        found = map(stored.fire_of, _ENTRIES.rows(self._connection, numbers=listed(numbers))) if numbers else ()
        tails = {fire.entry_id: fire for fire in found}
        return [
            model.Snapshot(
                task=task,
                open=tuple(opened.get(row.id, ())),
                tail=None if row.tail_entry is None else _tail(tails.get(abs(row.tail_entry)), row.tail_entry),
                taken=frozenset() if row.rewound_us is None else self._taken(row),
                window=None if row.listens is None else self._window(task),
            )
            for row, task in ((row, stored.task_of(row)) for row in rows)
        ]

    def _window(self, task: model.Task) -> model.Window | None:
        """Return the window of a hybrid's newest fire of an event."""
        on = task.definition.on
        if on is None or not task.definition.is_hybrid or not on.debounce:
            return None
        row = self._connection.execute(_NEWEST_OF_EVENT, {"task": task.id}).first()
        if row is None or row.outcome == model.Outcome.SKIPPED.value:
            return None
        return model.Window(fire_id=row.fire_id, at=from_us(row.at_us), debounce=on.debounce)

    def due(self, now: datetime, limit: int) -> list[str]:
        """Return the ids of at most `limit` tasks to plan by `now`, earliest first. Uses an index range scan.

        A unit that changes something gets only tasks that no other session has locked, and locks them.
        """
        due = _DUE_LOCKED if self._locks else _DUE
        return due.values(self._connection, now=to_us(now), limit=limit)

    def due_tasks(self, now: datetime, limit: int) -> list[stored.DueTask]:
        """Return the tasks of :meth:`due`, with the data that decides how each is planned."""
        due = _DUE_TASKS_LOCKED if self._locks else _DUE_TASKS
        return [stored.DueTask(*row) for row in due.rows(self._connection, now=to_us(now), limit=limit)]

    def next_wake(self) -> datetime | None:
        """Return the time when the next task needs planning."""
        us = _NEXT_WAKE.value(self._connection)
        return None if us is None else from_us(us)

    def ahead_of(self, at: datetime, limit: int) -> list[str]:
        """Return the ids of at most `limit` tasks whose cursor is after `at`."""
        query = select(tasks.c.id).where(tasks.c.cursor_us > to_us(at)).limit(limit)
        return list(self._connection.execute(query).scalars())

    def quarantine(self, task_id: str, reason: str) -> None:
        """Stop a task without planning it."""
        values = {"state": model.TaskState.QUARANTINED.value, "reason": reason, "wake_us": None}
        self._connection.execute(update(tasks).where(tasks.c.id == task_id), values)

    def record_accepted(self, fires: Iterable[model.Fire]) -> None:
        """Add fires accepted for the first time to their tasks' counts."""
        self.count_accepted((fire.task_id, fire.kind in model.COUNTED) for fire in fires)

    def count_accepted(self, fires: Iterable[tuple[str, bool]]) -> None:
        """Count fires accepted for the first time, each given as its task's id and whether limits count the fire."""
        counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for task_id, limited in fires:
            counts[task_id][0] += 1
            counts[task_id][1] += limited
        values = [{"task": task, "all": all_, "scheduled": some} for task, (all_, some) in counts.items()]
        _RECORD_ACCEPTED.run_each(self._connection, values)

    def made_by(self, agent: str) -> int:
        """Return how many of the agent's tasks have not ended, including paused and disabled ones."""
        query = select(func.count()).select_from(tasks).where(tasks.c.made_by == agent, tasks.c.state.not_in(_OVER))
        return self._connection.execute(query).scalar_one()

    def paced_on(self, thread_ids: Collection[str]) -> list[model.Task]:
        """Return the self-paced tasks on the given threads. Leave out tasks that have ended."""
        return self._found(_PACED_ON, ids=listed(thread_ids))

    def ephemeral(self) -> list[model.Task]:
        """Return the existing tasks that end with the daemon."""
        query = select(tasks).where(tasks.c.ephemeral, tasks.c.state != model.TaskState.DELETED.value)
        return self._found(query)

    def living(self) -> int:
        """Return the number of tasks that are not deleted."""
        return int(_LIVING.value(self._connection))

    def scheduled(self) -> int:
        """Return the number of tasks that will be planned again."""
        return int(_SCHEDULED.value(self._connection))

    def totals(self) -> stored.Totals:
        """Return counts over the whole store."""
        states = select(tasks.c.state, func.count()).where(tasks.c.state != model.TaskState.DELETED.value)
        by_state = {row[0]: row[1] for row in self._connection.execute(states.group_by(tasks.c.state))}
        opened = select(fires.c.outcome, func.count()).where(fires.c.is_open).group_by(fires.c.outcome)
        by_outcome = {row[0]: row[1] for row in self._connection.execute(opened)}
        return stored.Totals(
            tasks=sum(by_state.values()),
            paused=by_state.get(model.TaskState.PAUSED.value, 0),
            open_fires=sum(by_outcome.values()),
            unsent=by_outcome.get(model.Outcome.PENDING.value, 0) + by_outcome.get(model.Outcome.WAITING.value, 0),
            next_wake_at=self.next_wake(),
        )

    def _found(self, query: Select[Any], **parameters: Any) -> list[model.Task]:
        query = query.with_for_update() if self._locks else query
        return [stored.task_of(row) for row in self._connection.execute(query, parameters)]

    def _taken(self, row: Any) -> frozenset[datetime]:
        query = select(fires.c.nominal_us).where(
            fires.c.task_id == row.id,
            fires.c.kind == model.FireKind.SCHEDULED.value,
            fires.c.fire_id.is_not(None),
            fires.c.nominal_us > row.cursor_us,
        )
        return frozenset(from_us(us) for us in self._connection.execute(query).scalars())


def _tail(entry: model.Fire | None, number: int) -> model.Fire | None:
    return entry if entry is None or number >= 0 else model.replace(entry, entry_id=number)


def _taken_name(task: model.Task | None) -> AlreadyExists:
    what = f"a task named {task.definition.name!r} exists" if task else "one of the names is taken"
    return AlreadyExists(what, where="name", hint="choose another name, or change that task: turnkeeper task edit")


_Row: Any = make_dataclass("_Row", tasks.c.keys(), slots=True)
_ADD = Statement(insert(tasks))
_ADD_REVISION = Statement(insert(revisions))
_EDITED_AT = Statement(
    select(revisions.c.task_id, func.max(revisions.c.valid_from_us))
    .where(among(revisions.c.task_id, "ids"))
    .group_by(revisions.c.task_id)
)
_due = select(tasks.c.id).where(tasks.c.wake_us <= bindparam("now")).order_by(tasks.c.wake_us).limit(bindparam("limit"))
_DUE, _DUE_LOCKED = Statement(_due), Statement(_due.with_for_update(skip_locked=True))
_has_open = select(fires.c.entry_id).where(fires.c.is_open, fires.c.task_id == tasks.c.id).exists()
_alone = (
    (tasks.c.state == literal_column(f"'{model.TaskState.ACTIVE.value}'")) & tasks.c.rewound_us.is_(None) & ~_has_open
)
_due_tasks = (
    select(tasks.c.id, tasks.c.revision, tasks.c.cursor_us, _alone.label("alone"))
    .where(tasks.c.wake_us <= bindparam("now"))
    .order_by(tasks.c.wake_us)
    .limit(bindparam("limit"))
)
_DUE_TASKS, _DUE_TASKS_LOCKED = Statement(_due_tasks), Statement(_due_tasks.with_for_update(skip_locked=True))
_IDS_TAKEN = Statement(select(tasks.c.id).where(among(tasks.c.id, "ids")))
_NAMES = Statement(select(tasks.c.id, tasks.c.name).where(among(tasks.c.id, "ids")))
_NAMED = select(tasks).where(among(tasks.c.name, "names"), tasks.c.state != "deleted")
_PACED_ON = select(tasks).where(
    among(tasks.c.paced_thread, "ids"), tasks.c.paced_thread.is_not(None), tasks.c.state.not_in(_OVER)
)
_NEXT_WAKE = Statement(select(func.min(tasks.c.wake_us)).where(tasks.c.wake_us.is_not(None)))
_LIVING = Statement(select(func.count()).select_from(tasks).where(tasks.c.state != text("'deleted'")))
_SCHEDULED = Statement(select(func.count()).select_from(tasks).where(tasks.c.wake_us.is_not(None)))
_by_ids = select(tasks).where(among(tasks.c.id, "ids"))
# In the order of their ids, because two units that wait for each other's tasks would deadlock.
_BY_IDS, _BY_IDS_LOCKED = Statement(_by_ids), Statement(_by_ids.order_by(tasks.c.id).with_for_update())
_LOCK = Statement(select(tasks.c.id).where(among(tasks.c.id, "ids")).order_by(tasks.c.id).with_for_update())
_OPEN_OF = Statement(
    select(fires).where(fires.c.is_open, among(fires.c.task_id, "ids")).order_by(fires.c.nominal_us, fires.c.entry_id)
)
_ENTRIES = Statement(select(fires).where(among(fires.c.entry_id, "numbers")))
_RECORD_ACCEPTED = Statement(
    update(tasks)
    .where(tasks.c.id == bindparam("task"))
    .values(fires=tasks.c.fires + bindparam("all"), accepted=tasks.c.accepted + bindparam("scheduled"))
)
_NEWEST_OF_EVENT = (
    select(fires.c.fire_id, fires.c.outcome, triggers.c.at_us)
    .join(triggers, triggers.c.entry_id == fires.c.entry_id)
    .where(triggers.c.task_id == bindparam("task"), triggers.c.fired)
    .order_by(triggers.c.entry_id.desc())
    .limit(1)
)
