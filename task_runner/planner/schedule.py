"""The timetable of a task, and the jitter between a scheduled time and the due time of its fire. Pure.

The jitter of a fire comes from a hash of the task and the scheduled time. A crash, an edit or another machine does not
change the jitter. Tasks that share a scheduled time usually differ in it. The jitter is always less than the gap to the
next scheduled time, so the fires of a task stay in the order of their scheduled times.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b

from task_runner.model.task import Definition, Fire, FireKind, Outcome, Schedule, ScheduleKind, Task, replace
from task_runner.timetable import Bounded, Never, Once, Timetable, excluding, parse_cron, parse_every, zone
from task_runner.timetable.timetable import to_seconds
from turnkeeper.config.surfaces import offered, required
from turnkeeper.errors import InvalidInput
from turnkeeper.times import EPOCH, parse_rfc3339

RULES = "recurrence rules"  # the part that parses them
_STEP = timedelta(milliseconds=1)
_REPEATED = frozenset({ScheduleKind.CRON, ScheduleKind.EVERY, ScheduleKind.RRULE})
_YET_TO_GO = frozenset({Outcome.PENDING, Outcome.WAITING})


def timetable_of(definition: Definition) -> Timetable:
    """Return the timetable of a task.

    Raises:
        InvalidInput: the schedule cannot be read.
        NotInstalled: the schedule is a recurrence rule, and the part that parses such rules was removed.
    """
    # A single instant fires even on a day off, because its author chose the instant.
    off = offered("days off") if definition.schedule.kind in _REPEATED and not definition.ignore_calendar else ()
    return _timetable(
        definition.schedule,
        # Only `H` in a cron expression depends on the name. Tasks without an `H` share timetables.
        definition.name if "H" in definition.schedule.text else "",
        definition.timezone,
        definition.start_at,
        definition.ends_at,
        definition.exclude + (off or ()),
    )


def kind_of(definition: Definition) -> str:
    """Return one word for the trigger of a task."""
    return "hybrid" if definition.is_hybrid else definition.schedule.kind.value


def describe(definition: Definition) -> str:
    """Describe the schedule in words, without its bounds, and the events that trigger the task."""
    on = (offered("followed", definition.on) or f"on {definition.on.event}") if definition.on else ""
    if on and not definition.is_hybrid:
        return on
    if definition.schedule.kind is ScheduleKind.RRULE:
        bare = definition.schedule.text  # the text of the rule, so that lists work without the part that parses rules
    else:
        bare = _timetable(definition.schedule, definition.name, definition.timezone, None, None, ()).describe()
    return f"{bare} or {on}" if on else bare


@lru_cache(maxsize=4096)
def _timetable(
    schedule: Schedule,
    name: str,
    timezone: str,
    start_at: datetime | None,
    end_at: datetime | None,
    exclude: tuple[str, ...],
) -> Timetable:
    plain = _plain(schedule, name, timezone)
    if exclude:
        plain = excluding(plain, exclude, zone(timezone))
    return plain if start_at is None and end_at is None else Bounded(plain, start_at, end_at)


def _plain(schedule: Schedule, name: str, timezone: str) -> Timetable:
    match schedule.kind:
        case ScheduleKind.CRON:
            return parse_cron(schedule.text, name=name, zone=zone(timezone))
        case ScheduleKind.EVERY:
            if schedule.anchor_at is None:
                raise InvalidInput("an interval needs an anchor", where="every")
            return parse_every(schedule.text, anchor=schedule.anchor_at)
        case ScheduleKind.RRULE:
            anchor = schedule.anchor_at or EPOCH  # Only a rule with a DTSTART has no anchor.
            table: Timetable = required(RULES, schedule.text, zone(timezone), anchor)
            return table
        case ScheduleKind.DYNAMIC | ScheduleKind.ON:
            return Never()
        case ScheduleKind.AT:
            return Once(parse_rfc3339(schedule.text))


def due_of(task_id: str, timetable: Timetable, jitter: timedelta) -> Callable[[datetime], datetime]:
    """Return a function that maps a scheduled time of a task to the due time of its fire."""
    if not jitter:
        return lambda nominal_at: nominal_at

    def due(nominal_at: datetime) -> datetime:
        following = timetable.next_after(nominal_at)
        span = jitter if following is None else min(jitter, following - nominal_at - _STEP)
        digest = blake2b(f"{task_id}\0{to_seconds(nominal_at)}".encode(), digest_size=8).digest()
        return nominal_at + _STEP * (int.from_bytes(digest) % (span // _STEP + 1))

    return due


def put_off(fire: Fire, task: Task, due: Callable[[datetime], datetime]) -> Fire:
    """Delay the ready time and the grace period of an unsent scheduled fire to its due time; return the fire."""
    if fire.outcome not in _YET_TO_GO or fire.kind is not FireKind.SCHEDULED:
        return fire
    due_at = due(fire.nominal_at)
    send_by = None if fire.send_by is None else max(fire.send_by, due_at + task.definition.grace)
    ready_at = None if fire.ready_at is None else max(fire.ready_at, due_at)
    return replace(fire, due_at=due_at, send_by=send_by, ready_at=ready_at)
