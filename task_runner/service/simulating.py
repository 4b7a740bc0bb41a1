"""`Simulate`: what stored tasks would do, for programs; the command line simulates in its own process, without bounds.

Bounded, and giving way to the runner's own work between rows: simulating must not make a fire late.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from google.protobuf.timestamp_pb2 import Timestamp

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.model.task import Task
from task_runner.service.simulate import LONGEST, Outage, Row, Span, simulated
from task_runner.service.views import stamp
from turnkeeper.clock import Clock
from turnkeeper.config.durations import parse_duration
from turnkeeper.errors import InvalidInput

MOST_ROWS = 10_000
_USUAL_ROWS = 1000
_AT_ONCE = 50


def span_of(request: wire.SimulateRequest) -> Span:
    """Return what is to be simulated. Raises InvalidInput, naming the field."""
    start, end = _instant(getattr(request, "from"), "from"), _instant(request.to, "to")
    if not timedelta(0) < end - start <= LONGEST:
        raise InvalidInput("must be later than `from`, by ten years at most", where="to")
    outages = sorted(
        Outage(_instant(getattr(down, "from"), "down"), _instant(down.to, "down")) for down in request.down
    )
    if any(outage.end <= outage.start for outage in outages):
        raise InvalidInput("an outage must end after it begins", where="down")
    return Span(start=start, end=end, outages=outages, turn=parse_duration(request.turn or "0s", field="turn"))


async def simulate(tasks: Iterable[Task], span: Span, limit: int, clock: Clock) -> wire.SimulateResponse:
    """Return the first rows of what `tasks` would do, at most `limit` (0: 1,000), by time."""
    rows = _rows(tasks, span)
    room = min(limit, MOST_ROWS) if limit > 0 else _USUAL_ROWS
    found: list[Row] = []
    while len(found) <= room and (more := list(islice(rows, _AT_ONCE))):
        found += more
        await clock.sleep(0)
    kept = sorted(found[:room], key=lambda row: (row.nominal_at, row.task, row.fired_at or row.nominal_at))
    return wire.SimulateResponse(rows=map(_shown, kept), truncated=len(found) > room)


def _rows(tasks: Iterable[Task], span: Span) -> Iterator[Row]:
    for task in tasks:
        yield from simulated(task.id, task.definition, span)


def _instant(at: Timestamp, field: str) -> datetime:
    try:
        return at.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput("is not a time", where=field) from error


def _shown(row: Row) -> wire.SimulatedRow:
    shown = wire.SimulatedRow(task=row.task, outcome=row.outcome.value, reason=row.reason, count=row.stands_for)
    stamp(shown.nominal_at, row.nominal_at)
    stamp(shown.first_nominal_at, row.first_at)
    stamp(shown.fired_at, row.fired_at)
    return shown
