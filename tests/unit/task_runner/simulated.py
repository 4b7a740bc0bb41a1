"""The pure planner on a simulated ledger: what a store would hold, and a model of what it must cover."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from task_runner.model.task import (
    OPEN,
    CatchUp,
    Definition,
    Fire,
    FireKind,
    Outcome,
    Overlap,
    Schedule,
    ScheduleKind,
    Snapshot,
    Task,
    TaskId,
)
from task_runner.planner import ledger
from task_runner.planner.entries import Plan, timetable_of
from task_runner.planner.ledger import TurnState
from task_runner.planner.planner import plan

T0 = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def definition(**changes: Any) -> Definition:
    every = changes.pop("every", "60s")
    fields: dict[str, Any] = {
        "name": "digest",
        "schedule": Schedule(kind=ScheduleKind.EVERY, text=every, anchor_at=T0),
        "timezone": "UTC",
        "category": "loop",
        "channel": "general",
        "prompt": "p",
        "grace": timedelta(seconds=10),
    }
    if changes.get("catch_up") is CatchUp.RUN_ALL:
        fields["overlap"] = Overlap.QUEUE
    return Definition(**(fields | changes))


@dataclass
class Simulated:
    """A task, its ledger, and the operations that a store and a runtime would perform on them."""

    task: Task
    rows: dict[int, Fire] = field(default_factory=dict)
    tail: Fire | None = None

    @classmethod
    def of(cls, **changes: Any) -> "Simulated":
        task = Task(id=TaskId("task-00000001"), definition=definition(**changes), created_at=T0, cursor_at=T0)
        return cls(task)

    @property
    def timetable(self) -> Any:
        return timetable_of(self.task.definition)

    @property
    def snapshot(self) -> Snapshot:
        opened = sorted((row for row in self.rows.values() if row.outcome in OPEN), key=lambda row: row.nominal_at)
        return Snapshot(task=self.task, open=tuple(opened), tail=self.tail)

    def write(self, made: Plan) -> None:
        self.task = made.task
        tail = made.tail
        for fire in made.changed:
            self.rows[fire.entry_id] = fire
        for fire in made.new:
            numbered = replace(fire, entry_id=len(self.rows) + 1)
            self.rows[numbered.entry_id] = numbered
            tail = numbered if tail is fire else tail
        self.tail = tail

    def plan(self, now: datetime) -> None:
        self.write(plan(self.snapshot, self.timetable, now))

    def send_ready(self, now: datetime) -> list[Fire]:
        pending = [row for row in self.rows.values() if row.outcome is Outcome.PENDING]
        ready = [row for row in pending if row.ready_at is not None and row.ready_at <= now]
        for row in ready:
            self.rows[row.entry_id] = ledger.sent(row, now)
        return ready

    def accept(self, now: datetime) -> None:
        for row in list(self.rows.values()):
            if row.outcome is Outcome.SENT:
                moved = ledger.accepted(row, now, attempt=row.attempt, turn_id="turn")
                self.rows[row.entry_id] = moved
                if row.accepted_at is None:
                    self.task = replace(self.task, accepted=self.task.accepted + 1, fires=self.task.fires + 1)

    def turn(self, state: TurnState, now: datetime) -> bool:
        for row in list(self.rows.values()):
            if row.outcome in OPEN - {Outcome.WAITING, Outcome.PENDING, Outcome.SENT}:
                self.rows[row.entry_id] = ledger.turned(row, state, now, attempt=row.attempt)
                return True
        return False

    def fired(self) -> list[Fire]:
        return [row for row in self.rows.values() if row.fired_at is not None]

    def entries(self) -> list[tuple[str, str, int]]:
        """(outcome, reason, count) by nominal time, without what covers nothing."""
        rows = sorted((row for row in self.rows.values() if row.count), key=lambda row: row.first_at)
        return [(row.outcome.value, row.reason, row.count) for row in rows]

    def check_coverage(self) -> None:
        """The cursor passed t if and only if exactly one scheduled entry covers t."""
        covering = sorted(
            (row for row in self.rows.values() if row.count and row.kind is FireKind.SCHEDULED),
            key=lambda row: row.first_at,
        )
        before = T0
        for row in covering:
            assert row.first_at == self.timetable.next_after(before), (row, before)
            assert row.count == self.timetable.count(row.first_at - timedelta(seconds=1), row.last_at)
            before = row.last_at
        assert self.timetable.count(T0, self.task.cursor_at) == sum(row.count for row in covering)
