"""The ledger and the outbox, in a database."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, false, func, insert, literal_column, select, true, update

from task_runner.model.task import OPEN, UNANSWERED, UNDER_WAY, Fire, FireKind, Outcome, TaskState, replace
from task_runner.planner.entries import Plan
from task_runner.planner.overlap import CANCELS
from task_runner.store import rows
from task_runner.store.schema import audit, fires, outbox, tasks
from turnkeeper.storage.chain import digest
from turnkeeper.storage.statements import NumberedInsert, Statement, among, listed, one_of, upsert
from turnkeeper.times import from_us, rfc3339, to_us


class Fires:
    """The ledger, over one connection inside a transaction."""

    def __init__(self, connection: Connection, now: Callable[[], datetime]) -> None:
        self._connection, self._now = connection, now

    def write_plans(self, plans: Sequence[Plan], requests: Mapping[str, bytes]) -> list[tuple[Fire, ...]]:
        """Write plans: tasks, new and changed entries, and frozen requests. Return each plan's entries with numbers.

        Args:
            requests: by task id, the request to freeze for fires that get their identity now.
        """
        new = iter(self._number([fire for plan in plans for fire in plan.new]))
        written: list[tuple[Fire, ...]] = []
        frozen: list[dict[str, Any]] = []
        progress: list[dict[str, Any]] = []
        for plan in plans:
            numbered = list(itertools.islice(new, len(plan.new)))
            # A fire that waited gets its identity, and so its frozen request, only now.
            frozen += [
                {"entry_id": fire.entry_id, "request": requests[fire.task_id]}
                for fire in (*numbered, *plan.changed)
                if fire.outcome is Outcome.PENDING
            ]
            written.append((*numbered, *plan.changed))
            progress.append(rows.progress_of(plan.task) | {"task": plan.task.id, "tail": _tail_number(plan, numbered)})
        self.update([fire for plan in plans for fire in plan.changed])
        _FREEZE.run_each(self._connection, frozen)
        for plan in plans:
            self._restore(plan.restored)
        _MOVE_TASK.run_each(self._connection, progress)
        return written

    def add(self, fire: Fire, request: bytes) -> Fire:
        """Write a fire outside a plan. Return the fire with its number."""
        (numbered,) = self.add_all([fire], request)
        return numbered

    def add_all(self, new: Sequence[Fire], request: bytes) -> list[Fire]:
        """Write fires of one task outside a plan. Return the fires with their numbers."""
        return self.add_each(new, [request] * len(new))

    def add_each(self, new: Sequence[Fire], requests: Sequence[bytes | None]) -> list[Fire]:
        """Write entries outside a plan, each with its own request, or none. Return the entries with their numbers."""
        numbered = self._number(new)
        frozen = [
            {"entry_id": fire.entry_id, "request": request}
            for fire, request in zip(numbered, requests, strict=True)
            if request is not None and fire.outcome in OPEN
        ]
        _FREEZE_NEW.run_each(self._connection, frozen)
        return numbered

    def add_sent(
        self,
        new: Sequence[Mapping[str, Any]],
        requests: Sequence[bytes],
        moved: Sequence[Mapping[str, Any]],
        at: datetime,
    ) -> list[int]:
        """Write new fires as sent, with their requests, and the progress of their tasks. Return their numbers."""
        us = to_us(at)
        numbers = _ADD_SENT.run_each(self._connection, [{**row, "fired": us} for row in new])
        frozen = zip(numbers, requests, strict=True)
        _FREEZE_NEW.run_each(self._connection, [{"entry_id": number, "request": request} for number, request in frozen])
        _MOVE_ON.run_each(self._connection, moved)
        return numbers

    def touching(self, task_id: str, first: datetime, last: datetime) -> list[Fire]:
        """Return a task's entries of every kind that cover, or are named by, a time in [first, last], in order."""
        low, high = to_us(first), to_us(last)
        query = (
            select(fires)
            .where(fires.c.task_id == task_id)
            .where(
                ((fires.c.covers > 0) & (fires.c.first_us <= high) & (fires.c.last_us >= low))
                | fires.c.nominal_us.between(low, high)
            )
            .order_by(fires.c.entry_id)
        )
        return self._found(query)

    def update(self, changed: Sequence[Fire]) -> None:
        """Replace entries by their numbers. Delete the requests of settled ones."""
        _REPLACE.run_each(self._connection, [rows.changes_of_fire(fire) for fire in changed])
        settled = [fire for fire in changed if fire.outcome not in OPEN]
        _LET_GO.run_each(self._connection, [{"number": fire.entry_id} for fire in settled])
        self._put_on_record([fire for fire in settled if fire.fire_id])

    def record_sent(self, sent: Sequence[Fire]) -> None:
        """Write the columns that sending changes, by entry number: outcome, reason, and the times."""
        _RECORD_SENT.run_each(self._connection, [rows.sending_of(fire) for fire in sent])

    def record_accepted(self, accepted: Sequence[Fire]) -> None:
        """Write the columns that an accepting receipt changes in open entries, by number."""
        _RECORD_ACCEPTED.run_each(self._connection, [rows.acceptance_of(fire) for fire in accepted])

    def unanswered_attempts(self, entry_ids: Collection[int]) -> dict[int, int]:
        """Return the attempts of the entries that were sent without an answer, by number."""
        return dict(_UNANSWERED_ATTEMPTS.rows(self._connection, numbers=listed(entry_ids)))

    def accept(self, accepted: Sequence[tuple[int, str]], at: datetime) -> None:
        """Record the turns of entries that were sent without an answer, by number, as accepted at a time."""
        us = to_us(at)
        _ACCEPT.run_each(
            self._connection, [{"number": number, "at": us, "turn": turn_id} for number, turn_id in accepted]
        )

    def by_ids(self, fire_ids: Collection[str]) -> dict[str, Fire]:
        """Return the existing entries with these fire ids."""
        found = map(rows.fire_of, _BY_IDS.rows(self._connection, ids=listed(fire_ids)))
        return {fire.fire_id: fire for fire in found}

    def by_request(self, task_id: str, request_id: str) -> Fire | None:
        """Return the manual fire of a task that a client requested under this id."""
        query = select(fires).where(fires.c.task_id == task_id, fires.c.request_id == request_id)
        return next(iter(self._found(query)), None)

    def ready(self, now: datetime, limit: int, *, caught_up: bool) -> list[rows.Outgoing]:
        """Return at most `limit` fires that may be sent by `now`, caught-up ones or the others, oldest first."""
        return _outgoing(_READY.rows(self._connection, caught_up=caught_up, now=to_us(now), limit=limit))

    def ready_later(self, now: datetime, after_entry: int, limit: int) -> list[Fire]:
        """Return at most `limit` fires that may be sent only after `now`, with a greater number, in order."""
        query = select(fires).where(fires.c.ready_us > to_us(now), fires.c.entry_id > after_entry)
        return self._found(query.order_by(fires.c.entry_id).limit(limit))

    def claim(self, now: datetime, limit: int, *, caught_up: bool) -> list[rows.Outgoing]:
        """Return and lock the fires of :meth:`ready` whose tasks no other session has locked."""
        return _outgoing(_CLAIM.rows(self._connection, caught_up=caught_up, now=to_us(now), limit=limit))

    def hand_over(self, entry_ids: Collection[int], at: datetime) -> None:
        """Record fires as sent and accepted at once, as `ledger.sent` and `ledger.accepted` define."""
        _HAND_OVER.run(self._connection, numbers=listed(entry_ids), at=to_us(at))

    def next_ready(self, *, caught_up: bool) -> datetime | None:
        """Return the time when the next fire of this kind may be sent."""
        us = _NEXT_READY.value(self._connection, caught_up=caught_up)
        return None if us is None else from_us(us)

    def unanswered(self, after_entry: int, limit: int) -> list[rows.Outgoing]:
        """Return at most `limit` fires that were sent and not answered, with a greater number, in order."""
        return _outgoing(_UNANSWERED.rows(self._connection, after=after_entry, limit=limit))

    def tasks_under_way(self) -> list[str]:
        under_way = sorted(each.value for each in UNDER_WAY)
        query = select(fires.c.task_id).distinct().where(fires.c.is_open, fires.c.outcome.in_(under_way))
        return list(self._connection.execute(query).scalars())

    def asked_to_end(self, after_entry: int, limit: int) -> list[Fire]:
        """Return at most `limit` running fires, by number, in order, that a waiting fire asks to end."""
        return self._found(_ASKED_TO_END, after=after_entry, limit=limit)

    def of_stopped_tasks(self, limit: int) -> list[Fire]:
        """Return at most `limit` running fires whose task is deleted or disabled, in order."""
        return self._found(_OF_STOPPED_TASKS, limit=limit)

    def open_by_outcome(self) -> dict[str, int]:
        return dict(_OPEN_COUNTED.rows(self._connection))

    def catching_up(self) -> int:
        """Return the number of running caught-up fires."""
        return int(_CATCHING_UP.value(self._connection))

    def open_fires(self, after_entry: int, limit: int) -> list[Fire]:
        """Return at most `limit` open fires that have been sent, with a greater number, in order."""
        return [rows.fire_of(row) for row in _OPEN.rows(self._connection, after=after_entry, limit=limit)]

    def history(self, task_id: str, limit: int) -> list[Fire]:
        """Return a task's newest entries, newest first."""
        return self.page(limit, task_id=task_id)[0]

    def page(
        self,
        limit: int,
        *,
        task_id: str = "",
        outcome: str = "",
        before: int = 0,
        without_folded: bool = False,
        begin: datetime | None = None,
        end: datetime | None = None,
        ids: tuple[int, int] | None = None,
    ) -> tuple[list[Fire], int]:
        """Return the newest entries, newest first, and the total count.

        Args:
            before: return only entries with a smaller number; the count is of all.
            without_folded: leave out fires that were merged unsent into another entry.
            begin: only entries that cover a time from this instant on.
            end: only entries that cover a time before this instant.
            ids: only entries with a number above the first, up to the second.
        """
        only = [fires.c.task_id == task_id] if task_id else []
        only += [fires.c.outcome.in_(outcome.split(","))] if outcome else []
        only += [fires.c.last_us >= to_us(begin)] if begin is not None else []
        only += [fires.c.first_us < to_us(end)] if end is not None else []
        only += [fires.c.entry_id > ids[0], fires.c.entry_id <= ids[1]] if ids is not None else []
        if without_folded:
            folded = (fires.c.outcome == Outcome.COALESCED.value) & (fires.c.covers == 0) & fires.c.fired_us.is_(None)
            only.append(~folded)
        newest = select(fires).where(*only, *([fires.c.entry_id < before] if before else []))
        count = self._connection.execute(select(func.count()).select_from(fires).where(*only)).scalar_one()
        return self._found(newest.order_by(fires.c.entry_id.desc()).limit(limit)), count

    def newest(self) -> int:
        """Return the number of the newest entry. 0 if there is none."""
        return self._connection.execute(select(func.max(fires.c.entry_id))).scalar() or 0

    def glances(self, ids: Collection[str]) -> dict[str, rows.Glance]:
        """Return, by task id, the summary of each task's fires that a list of tasks shows."""
        last = map(rows.fire_of, _LAST_SENT.rows(self._connection, ids=listed(ids)))
        return rows.glances_of(ids, _OPEN_OUTCOMES.rows(self._connection, ids=listed(ids)), last)

    def lateness(self, task_id: str, limit: int) -> list[float]:
        """Return the lateness, in seconds, of a task's newest sent fires."""
        query = (
            select(fires.c.fired_us - fires.c.due_us)
            .where(fires.c.task_id == task_id, fires.c.fired_us.is_not(None))
            .order_by(fires.c.entry_id.desc())
            .limit(limit)
        )
        return [max(0, us) / 1e6 for us in self._connection.execute(query).scalars()]

    def after_nominal(self, task_id: str, at: datetime, limit: int) -> list[Fire]:
        """Return at most `limit` scheduled entries of a task that cover nominal times after `at`."""
        query = (
            select(fires)
            .where(fires.c.task_id == task_id, fires.c.kind == FireKind.SCHEDULED.value)
            .where(fires.c.last_us > to_us(at), fires.c.covers > 0)
            .order_by(fires.c.entry_id)
            .limit(limit)
        )
        return self._found(query)

    def unanswered_at(self, task_id: str, at: datetime) -> Fire | None:
        """Return the fire that was running at a time and ended after an approval of its turn expired."""
        query = (
            select(fires)
            .where(fires.c.task_id == task_id, fires.c.reason.contains(UNANSWERED, autoescape=True))
            .where(fires.c.started_us <= to_us(at), fires.c.ended_us >= to_us(at))
            .order_by(fires.c.entry_id.desc())
            .limit(1)
        )
        return next(iter(self._found(query)), None)

    def remove_runs(self, entry_ids: Sequence[int]) -> None:
        """Remove skipped runs whose nominal times are in the future after a clock change."""
        if entry_ids:
            withdrawn = [{"kind": "withdrawn", "entry": number} for number in entry_ids]
            audit.append(self._connection, self._now(), withdrawn)
            self._connection.execute(delete(fires).where(fires.c.entry_id.in_(entry_ids), fires.c.fire_id.is_(None)))

    def numbered(self, after_entry: int, limit: int) -> list[Fire]:
        """Return the next entries with a greater number, of every task and kind, in order."""
        query = select(fires).where(fires.c.entry_id > after_entry).order_by(fires.c.entry_id).limit(limit)
        return self._found(query)

    def first_covered(self, task_id: str, but: Collection[int]) -> datetime | None:
        """Return the first nominal time that a task's entries cover, except `but` and pruned entries."""
        query = (
            select(func.min(fires.c.first_us))
            .where(fires.c.task_id == task_id, fires.c.kind == FireKind.SCHEDULED.value, fires.c.covers > 0)
            .where(fires.c.outcome != Outcome.PRUNED.value, fires.c.entry_id.not_in(but))
        )
        us = self._connection.execute(query).scalar()
        return None if us is None else from_us(us)

    def pruned(self, task_id: str) -> Fire | None:
        """Return the entry that represents a task's pruned entries."""
        query = select(fires).where(fires.c.task_id == task_id, fires.c.outcome == Outcome.PRUNED.value)
        return next(iter(self._found(query)), None)

    def leave_tails(self, entry_ids: Collection[int]) -> None:
        """Prevent a later skip from extending one of these entries."""
        owners = select(fires.c.task_id).where(fires.c.entry_id.in_(entry_ids))
        tailed = update(tasks).where(tasks.c.id.in_(owners), func.abs(tasks.c.tail_entry).in_(entry_ids))
        self._connection.execute(tailed.values(tail_entry=None))

    def remove(self, entry_ids: Collection[int]) -> None:
        if entry_ids:
            self._connection.execute(delete(fires).where(fires.c.entry_id.in_(entry_ids)))

    def _found(self, query: Select[Any], **parameters: Any) -> list[Fire]:
        return [rows.fire_of(row) for row in self._connection.execute(query, parameters)]

    def _number(self, new: Sequence[Fire]) -> list[Fire]:
        """Write new entries. Return the entries with the numbers that the database gave them."""
        numbers = _ADD.run_each(self._connection, [rows.row_of_new_fire(fire) for fire in new])
        numbered = [replace(fire, entry_id=number) for fire, number in zip(new, numbers, strict=True)]
        self._put_on_record([fire for fire in numbered if fire.outcome not in OPEN])
        return numbered

    def _put_on_record(self, settled: Sequence[Fire]) -> None:
        """Write the ends of entries into the chain. A run of skipped times is recorded from its first one on."""
        if settled:
            audit.append(self._connection, self._now(), [_fact_of(fire) for fire in settled])

    def _restore(self, restored: Sequence[Fire]) -> None:
        for fire in restored:
            row = rows.row_of_new_fire(fire)
            values = {key: row[key] for key in ("covers", "first_us", "last_us")}
            self._connection.execute(update(fires).where(fires.c.fire_id == fire.fire_id), values)


def _fact_of(fire: Fire) -> dict[str, Any]:
    what = {"kind": "fire", "fire": fire.fire_id} if fire.fire_id else {"kind": "skip"}
    return what | {
        "entry": fire.entry_id,
        "task": fire.task_id,
        "outcome": fire.outcome.value,
        "reason_hash": digest(fire.reason),
        "attempt": fire.attempt,
        "turn": fire.turn_id,
        "nominal": rfc3339(fire.nominal_at),
        "last": to_us(max(fire.last_at, fire.ended_at or fire.last_at)),
    }


def _outgoing(found: Sequence[tuple[Any, ...]]) -> list[rows.Outgoing]:
    return [rows.Outgoing(fire=rows.fire_of(row), request=row[-1]) for row in found]


def _tail_number(plan: Plan, numbered: Sequence[Fire]) -> int | None:
    if plan.tail is None:
        return None
    if plan.tail.entry_id:
        return plan.tail.entry_id
    return next(mine.entry_id for mine, theirs in zip(numbered, plan.new, strict=True) if theirs is plan.tail)


_ADD = NumberedInsert(fires)
_at: Any = bindparam("at")
_ADD_SENT = NumberedInsert(
    fires,
    kind=literal_column(f"'{FireKind.SCHEDULED.value}'"),
    outcome=literal_column(f"'{Outcome.SENT.value}'"),
    is_open=true(),
    **dict.fromkeys(("nominal_us", "due_us", "first_us", "last_us"), _at),
    **dict.fromkeys(("covers", "attempt"), literal_column("1")),
    **dict.fromkeys(("refusals", "spent_us", "tokens"), literal_column("0")),
    **dict.fromkeys(("caught_up", "released"), false()),
    **dict.fromkeys(("reason", "turn_id"), literal_column("''")),
    fired_us=bindparam("fired"),
)
_MOVE_ON = Statement(update(tasks).where(tasks.c.id == bindparam("task")))
_REPLACE = Statement(update(fires).where(fires.c.entry_id == bindparam("number")))
_RECORD_SENT = Statement(update(fires).where(fires.c.entry_id == bindparam("number")))
_RECORD_ACCEPTED = Statement(update(fires).where(fires.c.entry_id == bindparam("number")))
_UNANSWERED_ATTEMPTS = Statement(
    select(fires.c.entry_id, fires.c.attempt)
    .where(among(fires.c.entry_id, "numbers"), fires.c.outcome == literal_column(f"'{Outcome.SENT.value}'"))
    .where(fires.c.fired_us.is_not(None), fires.c.accepted_us.is_(None), fires.c.turn_id == literal_column("''"))
)
_ACCEPT = Statement(
    update(fires)
    .where(fires.c.entry_id == bindparam("number"))
    .values(
        outcome=literal_column(f"'{Outcome.ACCEPTED.value}'"),
        refusals=literal_column("0"),
        accepted_us=bindparam("at"),
        turn_id=bindparam("turn"),
    )
)
_LET_GO = Statement(delete(outbox).where(outbox.c.entry_id == bindparam("number")))
_FREEZE_NEW = Statement(insert(outbox))
_FREEZE = Statement(upsert(outbox, [outbox.c.entry_id]))
_MOVE_TASK = Statement(update(tasks).where(tasks.c.id == bindparam("task")).values(tail_entry=bindparam("tail")))
_BY_IDS = Statement(select(fires).where(among(fires.c.fire_id, "ids")))
_SENDABLE = select(fires, outbox.c.request).join(outbox, outbox.c.entry_id == fires.c.entry_id)
_ready = (
    _SENDABLE.where(fires.c.ready_us.is_not(None), fires.c.caught_up == bindparam("caught_up"))
    .where(fires.c.ready_us <= bindparam("now"))
    .order_by(fires.c.ready_us, fires.c.entry_id)
    .limit(bindparam("limit"))
)
_READY = Statement(_ready)
# The fires' rows are locked too: a row that another session changed since this statement began is read again.
_CLAIM = Statement(
    _ready.join(tasks, tasks.c.id == fires.c.task_id).with_for_update(of=[tasks, fires], skip_locked=True)
)
_HAND_OVER = Statement(
    update(fires)
    .where(among(fires.c.entry_id, "numbers"))
    .values(
        outcome=literal_column(f"'{Outcome.ACCEPTED.value}'"),
        reason=literal_column("''"),
        refusals=literal_column("0"),
        ready_us=literal_column("NULL"),
        fired_us=func.coalesce(fires.c.fired_us, bindparam("at")),
        accepted_us=func.coalesce(fires.c.accepted_us, bindparam("at")),
    )
)
_NEXT_READY = Statement(
    select(func.min(fires.c.ready_us)).where(fires.c.ready_us.is_not(None), fires.c.caught_up == bindparam("caught_up"))
)
_UNANSWERED = Statement(
    _SENDABLE.where(fires.c.is_open, fires.c.outcome == Outcome.SENT.value, fires.c.entry_id > bindparam("after"))
    .order_by(fires.c.entry_id)
    .limit(bindparam("limit"))
)
_CATCHING_UP = Statement(
    select(func.count())
    .select_from(fires)
    .where(fires.c.is_open, fires.c.caught_up, one_of(fires.c.outcome, UNDER_WAY))
)
_OPEN_COUNTED = Statement(select(fires.c.outcome, func.count()).where(fires.c.is_open).group_by(fires.c.outcome))
_REACHED = OPEN - {Outcome.WAITING, Outcome.PENDING, Outcome.SENT}
_OPEN = Statement(
    select(fires)
    .where(fires.c.is_open, one_of(fires.c.outcome, _REACHED), fires.c.entry_id > bindparam("after"))
    .order_by(fires.c.entry_id)
    .limit(bindparam("limit"))
)
_asking = fires.alias("asking")
_CANCELLED = [FireKind.SCHEDULED.value, FireKind.EVENT.value]
_ASKED_TO_END = (
    select(fires)
    .join(_asking, (_asking.c.task_id == fires.c.task_id) & _asking.c.is_open)
    .where(_asking.c.outcome.in_([Outcome.WAITING.value, Outcome.PENDING.value]), _asking.c.reason == CANCELS)
    .where(fires.c.is_open, fires.c.kind.in_(_CANCELLED), fires.c.entry_id > bindparam("after"))
    .where(fires.c.outcome.in_(sorted(each.value for each in UNDER_WAY)))
    .order_by(fires.c.entry_id)
    .limit(bindparam("limit"))
)
_OF_STOPPED_TASKS = (
    select(fires)
    .join(tasks, tasks.c.id == fires.c.task_id)
    .where(tasks.c.state.in_([TaskState.DELETED.value, TaskState.DISABLED.value]))
    .where(fires.c.is_open, fires.c.outcome.in_(sorted(each.value for each in UNDER_WAY)))
    .order_by(fires.c.entry_id)
    .limit(bindparam("limit"))
)
_OPEN_OUTCOMES = Statement(
    select(fires.c.task_id, fires.c.outcome, fires.c.reason).where(fires.c.is_open, among(fires.c.task_id, "ids"))
)
_newer = fires.alias("newer")
_LAST_SENT = Statement(
    select(fires).where(
        fires.c.entry_id.in_(
            select(
                select(func.max(_newer.c.entry_id))
                .where(_newer.c.task_id == tasks.c.id, _newer.c.fired_us.is_not(None))
                .scalar_subquery()
            ).where(among(tasks.c.id, "ids"))
        )
    )
)
