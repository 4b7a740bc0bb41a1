"""Run the production planner on a virtual clock over a span of time, with declared outages. Pure.

Each task starts the span without open fires. The runner plans and sends without delay, and each turn succeeds after its
given duration. While the runner is down, turns continue, and their outcomes arrive when it is back. A turn of a
self-paced task requests no next wake, so `if_silent` decides.

`Simulate` simulates stored tasks for programs. The command line simulates in its own process, without limits.

The simulation is bounded and yields to the runner's own work between rows, so that it does not delay fires.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import NamedTuple

from task_runner.model.task import OPEN, UNDER_WAY, Definition, Fire, Outcome, Snapshot, Task, TaskId, earliest, replace
from task_runner.planner import budgets, ledger, overlap, self_paced
from task_runner.planner.entries import Plan, timetable_of
from task_runner.planner.planner import Lately, plan
from task_runner.service.changes import find
from task_runner.service.views import instant, stamp
from task_runner.store.store import Store
from task_runner.timetable import Timetable
from turnkeeper.clock import Clock
from turnkeeper.errors import InvalidInput
from turnkeeper.times import parse_duration
from turnkeeper.v1 import schedules_pb2 as wire

_LEAST = timedelta(microseconds=1)
_NO_TIME = timedelta(0)
_FEW = 10
LONGEST = timedelta(days=3660)


class Outage(NamedTuple):
    """A half-open span in which the runner is down."""

    start: datetime
    end: datetime


class Row(NamedTuple):
    """A simulated ledger entry. For a run, `nominal_at` is its last scheduled time and `first_at` its first."""

    nominal_at: datetime
    task: str
    fired_at: datetime | None
    outcome: Outcome
    reason: str
    stands_for: int
    first_at: datetime


@dataclass(frozen=True, kw_only=True)
class Span:
    """The span and the conditions of a simulation.

    Attributes:
        start, end: half-open.
        outages: the spans in which the runner is down, ascending.
    """

    start: datetime
    end: datetime
    outages: Sequence[Outage] = ()
    turn: timedelta = _NO_TIME

    def up(self, at: datetime) -> datetime:
        """Return the first time at or after `at` when the runner is up."""
        for outage in self.outages:
            if outage.start <= at < outage.end:
                at = outage.end
        return at


def simulated(task_id: str, definition: Definition, span: Span) -> Iterator[Row]:
    """Yield the simulated entries of one task in the order in which they settle; open entries come last."""
    return (row for row in _Life.begin(task_id, definition, span).rows() if row is not None)


@dataclass(kw_only=True)
class _Life:
    task: Task
    timetable: Timetable
    span: Span
    open: dict[int, Fire] = field(default_factory=dict)
    tail: Fire | None = None
    last_ended: datetime | None = None
    last_entry: int = 0
    now: datetime | None = None

    @classmethod
    def begin(cls, task_id: str, definition: Definition, span: Span) -> "_Life":
        timetable = timetable_of(definition)
        before = span.start - _LEAST
        pacing = self_paced.begun(definition, span.start) if definition.is_self_paced else None
        task = Task(
            id=TaskId(task_id),
            definition=definition,
            created_at=span.start,
            cursor_at=before,
            wake_at=pacing.armed_at if pacing else timetable.next_after(before),
            pacing=pacing,
        )
        return cls(task=task, timetable=timetable, span=span)

    def rows(self) -> Iterator[Row | None]:
        """Yield the rows, and None after each round of planning, even if the round settles nothing."""
        at, rounds = self._next(), 0
        while at is not None and (now := self.span.up(at)) < self.span.end:
            yield None
            assert rounds <= self.task.definition.max_catch_up + _FEW, "every round for one instant settles something"
            yield from self._settle(now)
            snapshot = Snapshot(task=self.task, open=tuple(self._in_order()), tail=self.tail)
            lately, self.last_ended = Lately(ended_at=self.last_ended), None
            yield from self._write(plan(snapshot, self.timetable, now, lately=lately))
            yield from self._cancel(now)
            self._send(now)
            if not self.span.turn:
                yield from self._settle(now)
            following = self._next()
            # If a queue is waiting, run another round at the same time; otherwise advance the time.
            rounds = rounds + 1 if following == at else 0
            at = following if following != at or self._has_line() else None
        if self.tail is not None:
            yield self._row(self.tail)
        yield from map(self._row, self._in_order())

    def _next(self) -> datetime | None:
        ready = [fire.ready_at for fire in self.open.values() if fire.outcome is Outcome.PENDING]
        ends = [fire.fired_at + self.span.turn for fire in self.open.values() if fire.fired_at is not None]
        idle_line = self._has_line() and not any(fire.outcome in UNDER_WAY for fire in self.open.values())
        return earliest(self.task.wake_at, *ready, *ends, self.now if idle_line else None)

    def _has_line(self) -> bool:
        return any(fire.outcome is Outcome.WAITING or fire.ready_at is None for fire in self.open.values())

    def _in_order(self) -> list[Fire]:
        return sorted(self.open.values(), key=lambda fire: (fire.nominal_at, fire.entry_id))

    def _write(self, made: Plan) -> Iterator[Row]:
        self.task, tail = made.task, made.tail
        for fire in (*made.changed, *made.new):
            numbered = fire
            if not fire.entry_id:
                self.last_entry += 1
                numbered = replace(fire, entry_id=self.last_entry)
            tail = numbered if fire is tail else tail
            if numbered.outcome in OPEN:
                self.open[numbered.entry_id] = numbered
                continue
            self.open.pop(numbered.entry_id, None)
            if numbered is not tail and (self.tail is None or numbered.entry_id != self.tail.entry_id):
                yield self._row(numbered)
        if self.tail is not None and (tail is None or tail.entry_id != self.tail.entry_id):
            yield self._row(self.tail)
        self.tail = tail

    def _send(self, now: datetime) -> None:
        self.now = now
        for fire in list(self.open.values()):
            if fire.outcome is Outcome.PENDING and fire.ready_at is not None and fire.ready_at <= now:
                sent = ledger.accepted(ledger.sent(fire, now), now, attempt=fire.attempt, turn_id="simulated")
                self.open[fire.entry_id] = sent
                self.task = replace(self.task, accepted=self.task.accepted + 1, fires=self.task.fires + 1)

    def _settle(self, now: datetime) -> Iterator[Row]:
        for fire in self._in_order():
            if fire.outcome in UNDER_WAY and fire.fired_at is not None and fire.fired_at + self.span.turn <= now:
                self.last_ended = fire.fired_at + self.span.turn
                row = self._ended(fire, ledger.TurnState.SUCCEEDED, now)
                self._go_on(fire, self.last_ended, now)
                yield row

    def _go_on(self, fire: Fire, ended_at: datetime, now: datetime) -> None:
        """Arm the next wake after a turn of a self-paced task."""
        if self.task.pacing is not None:
            done = ledger.turned(fire, ledger.TurnState.SUCCEEDED, now, attempt=fire.attempt)
            turn = budgets.Ended(fire=done, at=ended_at, spent=self.span.turn, tokens=0)
            self.task, _ = self_paced.turns_ended(self.task, [turn])
            pacing = self.task.pacing
            self.task = replace(self.task, wake_at=pacing.armed_at if pacing else None)

    def _cancel(self, now: datetime) -> Iterator[Row]:
        """End the running turns if a waiting fire cancels them."""
        if any(fire.outcome is Outcome.WAITING and fire.reason == overlap.CANCELS for fire in self.open.values()):
            for fire in [fire for fire in self._in_order() if fire.outcome in UNDER_WAY]:
                yield self._ended(fire, ledger.TurnState.CANCELLED, now)

    def _ended(self, fire: Fire, how: ledger.TurnState, now: datetime) -> Row:
        del self.open[fire.entry_id]
        return self._row(ledger.turned(fire, how, now, attempt=fire.attempt))

    def _row(self, fire: Fire) -> Row:
        name = self.task.definition.name
        return Row(fire.nominal_at, name, fire.fired_at, fire.outcome, fire.reason, fire.count, fire.first_at)


MOST_ROWS = 10_000
_USUAL_ROWS = 1000
MOST_ROUNDS = 100_000


def span_of(request: wire.SimulateRequest) -> Span:
    """Return the span to simulate. Raises InvalidInput, which names the field."""
    start, end = instant(getattr(request, "from"), "from"), instant(request.to, "to")
    if not timedelta(0) < end - start <= LONGEST:
        raise InvalidInput("must be later than `from`, by ten years at most", where="to")
    outages = sorted(Outage(instant(getattr(down, "from"), "down"), instant(down.to, "down")) for down in request.down)
    if any(outage.end <= outage.start for outage in outages):
        raise InvalidInput("an outage must end after it begins", where="down")
    return Span(start=start, end=end, outages=outages, turn=parse_duration(request.turn or "0s", field="turn"))


async def answer(request: wire.SimulateRequest, store: Store, clock: Clock) -> wire.SimulateResponse:
    """Answer `Simulate`: the named tasks, or all, over a span of time. Raises NotFound or InvalidInput."""
    span, names = span_of(request), list(request.names)
    tasks = await store.read(
        lambda session: [find(session, name) for name in names] if names else session.tasks.listed()
    )
    return await simulate(tasks, span, request.limit, clock)


async def simulate(tasks: Iterable[Task], span: Span, limit: int, clock: Clock) -> wire.SimulateResponse:
    """Simulate `tasks` and return the earliest rows, at most `limit` (0: 1,000).

    Planning stops after 100,000 rounds, and the answer is then marked as truncated.
    """
    room = min(limit, MOST_ROWS) if limit > 0 else _USUAL_ROWS
    found: list[Row] = []
    rounds = 0
    for row in chain.from_iterable(_Life.begin(task.id, task.definition, span).rows() for task in tasks):
        if row is not None:
            found.append(row)
        else:
            rounds += 1
            await clock.sleep(0)
        if len(found) > room or rounds > MOST_ROUNDS:
            break
    kept = sorted(found[:room], key=lambda row: (row.nominal_at, row.task, row.fired_at or row.nominal_at))
    return wire.SimulateResponse(rows=map(_shown, kept), truncated=len(found) > room or rounds > MOST_ROUNDS)


def _shown(row: Row) -> wire.SimulatedRow:
    shown = wire.SimulatedRow(task=row.task, outcome=row.outcome.value, reason=row.reason, count=row.stands_for)
    stamp(shown.nominal_at, row.nominal_at)
    stamp(shown.first_nominal_at, row.first_at)
    stamp(shown.fired_at, row.fired_at)
    return shown
