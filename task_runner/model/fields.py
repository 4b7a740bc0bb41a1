"""The fields of a task that an author can declare, each described once.

All code that handles a declared task is derived from :data:`FIELDS`: the options of `create` and `edit`, the keys of
task files and of JSON output, and the columns of `list -o wide`. The conversions between `TaskSpec`, definition and
stored definition are also derived from it. A new field needs an entry here, a field of `TaskSpec` in `schedules.proto`,
and an attribute of :class:`task_runner.model.task.Definition`, all with the same name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any, get_origin

from task_runner.model.task import EACH_FIRE, CatchUp, Overlap
from turnkeeper.errors import InvalidInput
from turnkeeper.times import FORMS, format_duration, from_us, parse_duration, parse_rfc3339, rfc3339, to_us

_MICROSECOND = timedelta(microseconds=1)
_LONGEST_LABEL = 63
_LARGEST_COUNT = 1_000_000
MOST_RETRIES = 5
EACH = "each"  # the value of `thread` that gives each fire a new thread
_CATCH_UP_ALIASES = {"run-once-on-restart": CatchUp.RUN_ONCE, "run-all-missed": CatchUp.RUN_ALL}


@cache
def _timetable() -> Any:
    """Return the timetable package. Import it lazily, because a command that shows tasks does not need it."""
    return import_module("task_runner.timetable")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The format of a field's values.

    Attributes:
        type: the type of a value in a spec, in a task file and in JSON; `object` for a JSON object.
        parse: converts a value of a spec to a value of the model; takes the value, the field's name and the task's time
            zone, and raises InvalidInput.
        write: converts a value of the model to a value of a spec, which `parse` reads back.
        store, load: convert a value of the model to JSON for the store, and back.
    """

    type: Any
    parse: Callable[[Any, str, str], Any] = lambda value, _name, _timezone: value
    write: Callable[[Any], Any] = _same
    store: Callable[[Any], Any] = _same
    load: Callable[[Any], Any] = _same


def parse_instant(text: str, timezone: str, *, field: str) -> datetime:
    """Parse an ISO time. A time without an offset is wall time in `timezone`; an ambiguous time is the earlier instant.

    Raises:
        InvalidInput: the text is not an ISO time, or the zone skips the wall time.
    """
    zone = _timetable().zone
    try:
        at = datetime.fromisoformat(text.strip())
        if at.tzinfo is not None:
            return parse_rfc3339(text.strip())
        local = at.replace(tzinfo=zone(timezone))
        instant = parse_rfc3339(local.isoformat())
        skipped = instant.astimezone(zone(timezone)).replace(tzinfo=None) != at
    except (ValueError, OverflowError) as error:
        hint = f"write 2026-11-21T09:00:00Z or 2026-11-21T09:00; for a command also {FORMS}"
        raise InvalidInput(f"{text[:60]!r} is not a time", where=field, hint=hint) from error
    if skipped:
        raise InvalidInput(f"{text!r} does not exist in {timezone}: the clocks skip it", where=field)
    return instant


def check_label(text: str, field: str) -> str:
    """Return the text if it is a valid label. Raises InvalidInput."""
    if not text:
        raise InvalidInput("is required", where=field)
    if text != text.strip():
        raise InvalidInput(f"{text[:70]!r} must not begin or end with a blank", where=field)
    if len(text) > _LONGEST_LABEL or not text.isascii() or not text.isprintable():
        raise InvalidInput(f"{text[:70]!r} must be 1 to {_LONGEST_LABEL} printable ASCII characters", where=field)
    if "/" in text or ".." in text:
        raise InvalidInput(f"{text!r} must not look like a path", where=field)
    return text


def _count(least: int, most: int) -> Kind:
    def parse(value: int, name: str, _timezone: str) -> int:
        if not least <= value <= most:
            raise InvalidInput(f"must be from {least} to {most}, not {value}", where=name)
        return int(value)

    return Kind(type=int, parse=parse)


def _duration(least: timedelta) -> Kind:
    def parse(text: str, name: str, _timezone: str) -> timedelta:
        span = parse_duration(text, field=name)
        if span < least:
            raise InvalidInput("must be longer than 0 s", where=name)
        return span

    return Kind(
        type=str,
        parse=parse,
        write=format_duration,
        store=lambda span: span // _MICROSECOND,
        load=lambda us: us * _MICROSECOND,
    )


def _policy(policies: type[StrEnum], aliases: Mapping[str, StrEnum]) -> Kind:
    def parse(text: str, name: str, _timezone: str) -> StrEnum:
        if text in aliases:
            return aliases[text]
        if text not in set(policies):
            hint = f"one of {', '.join(policies)}"
            raise InvalidInput(f"unknown policy {text[:40]!r}", where=name, hint=hint)
        return policies(text)

    return Kind(type=str, parse=parse, write=str, store=str, load=policies)


def _pairs(value_type: type, parse: Callable[[Any, str, str], Any] = lambda pairs, _name, _timezone: pairs) -> Kind:
    return Kind(
        type=dict[str, value_type],  # type: ignore[valid-type]
        parse=lambda pairs, name, timezone: tuple(sorted(parse(dict(pairs), name, timezone).items())),
        write=dict,
        store=dict,
        load=lambda pairs: tuple(sorted(pairs.items())),
    )


def _labels(pairs: dict[str, str], name: str, _timezone: str) -> dict[str, str]:
    return {check_label(key, name): check_label(value, name) for key, value in pairs.items()}


TEXT = Kind(type=str)
LABEL = Kind(type=str, parse=lambda text, name, _timezone: check_label(text, name))
FLAG = Kind(type=bool)
NUMBER = _count(1, _LARGEST_COUNT)
DURATION = _duration(timedelta(0))
POSITIVE_DURATION = _duration(_MICROSECOND)
INSTANT = Kind(
    type=str,
    parse=lambda text, name, timezone: parse_instant(text, timezone, field=name),
    write=rfc3339,
    store=to_us,
    load=from_us,
)
TEXTS = Kind(type=list[str], parse=lambda texts, _name, _timezone: tuple(texts), write=list, store=list, load=tuple)
EXCLUSIONS = Kind(
    type=list[str],
    parse=lambda texts, _name, timezone: _timetable().check_excluded(texts, _timetable().zone(timezone)),
    write=list,
    store=list,
    load=tuple,
)
LIMITS = _pairs(int)
LABELS = _pairs(str, _labels)
JSON = Kind(type=object)
THREAD = Kind(type=str, write=lambda thread_id: EACH if thread_id == EACH_FIRE else thread_id)


@dataclass(frozen=True)
class Field:
    """The description of one field.

    Attributes:
        name: the field's name in `TaskSpec`.
        flag: the option; empty if the commands declare the option themselves, or if there is none.
        key: the key in task files and JSON output, if it differs from `name`.
        attribute: the attribute of a definition, if it differs from `name`; empty if a definition lacks the field.
        default: the value in JSON output if a spec omits the field, unless it is a list or a table; `export` omits
            this value.
        is_clearable: whether the option's value `none` removes the field.
        is_sparse: whether a spec omits the field if its value is empty.
        column: the field's heading in `list -o wide`.
    """

    name: str
    kind: Kind
    flag: str = ""
    help: str = ""
    key: str = ""
    attribute: str | None = None
    default: Any = None
    is_clearable: bool = True
    is_sparse: bool = False
    column: str = ""

    @property
    def written_as(self) -> str:
        """The field's key in task files and JSON output."""
        return self.key or self.name

    @property
    def absent(self) -> Any:
        """The value in JSON output if a spec omits the field."""
        container = get_origin(self.kind.type)
        return container() if container else self.default

    @property
    def is_direct(self) -> bool:
        """True if a definition has an attribute with this name."""
        return self.attribute is None


# Task files and listings use this order.
FIELDS = (
    Field("name", TEXT, default=""),
    Field("id", TEXT, attribute=""),
    Field("cron", TEXT, "--cron", "A cron expression, in the task's time zone.", attribute="schedule"),
    Field("every", TEXT, "--every", "An interval: 90s, 15m, 1h30m, 1d.", attribute="schedule"),
    Field("at", TEXT, "--at", "Once, at this time: tomorrow 9am, mon 17:30, 2026-11-21T09:00.", attribute="schedule"),
    Field("in", TEXT, "--in", "Once, after this duration.", attribute="schedule"),
    Field("rrule", TEXT, "--rrule", "A rule: FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0.", attribute="schedule"),
    Field("dynamic", FLAG, "--dynamic", "Self-paced: each turn asks for the next one.", attribute="schedule"),
    Field(
        "on", TEXT, "--on", "Fire for this event, with or without a schedule: turn_end, task.succeeded, or your own.",
        attribute="on",
    ),
    Field(
        "filters", TEXTS, "--filter", "Fire only if the event matches this filter: key=value or key~=pattern.",
        attribute="on",
    ),
    Field("debounce", TEXT, "--debounce", "How long after an event further events join its fire.", attribute="on"),
    Field("first", DURATION, "--first", "Self-paced: the time until the first wake; default 25m."),
    Field(
        "if_silent", TEXT, "--if-silent", "Self-paced: the action if a turn asks for no wake: end, wait or a duration.",
        is_sparse=True,
    ),
    Field("timezone", TEXT, "--tz", "An IANA time zone; default the machine's.", default="", is_clearable=False,
          column="TZ"),
    Field("category", LABEL, default=""),
    Field("channel", LABEL, default=""),
    Field("prompt", TEXT, "--prompt", "The instructions for the agent.", default="", is_clearable=False),
    Field("payload_json", JSON, "--payload", "A JSON object, or @FILE.", key="payload"),
    Field("catch_up", _policy(CatchUp, _CATCH_UP_ALIASES), "--catch-up",
          "Policy for missed times: skip, run-once (default) or run-all.", default="", is_clearable=False),
    Field("grace", DURATION, "--grace", "How late a fire still counts as on time.", default=""),
    Field("catch_up_window", POSITIVE_DURATION, "--catch-up-window", "Skip times missed longer ago than this."),
    Field("max_catch_up", _count(1, 10_000), "--max-catch-up", "The limit of fires that catch up; default 1000.",
          default=1000),
    Field("overlap", _policy(Overlap, {}), "--overlap",
          "Policy while the previous fire runs: coalesce (default), queue, skip or cancel-running.", default="",
          is_clearable=False, column="OVERLAP"),
    Field("jitter", DURATION, "--jitter", "Random delay, up to this long.", default="0s", is_sparse=True,
          column="JITTER"),
    Field("exclude", EXCLUSIONS, "--exclude", "A day, days as FROM..TO, or an .ics file, on which no fire is due."),
    Field("ignore_calendar", FLAG, "--ignore-calendar/--no-ignore-calendar",
          "Fire also on days off, by the calendar of the home.", default=False, is_sparse=True),
    Field("start_at", INSTANT, "--start", "No scheduled time before this."),
    Field("end_at", INSTANT, "--end", "No scheduled time after this."),
    Field("expires_at", INSTANT, "--expires", "When the task ends: a time, or a duration from now."),
    Field("max_fires", NUMBER, "--max-fires", "End the task after this many fires."),
    Field("retries", _count(0, MOST_RETRIES), "--retries", "How often to retry a failed turn, up to 5 times.",
          default=0, is_sparse=True),
    Field("pause_after_failures", NUMBER, "--pause-after-failures",
          "Pause the task after this many consecutive failed fires of its schedule, of events or of backfills. Manual "
          "runs and rejected fires do not count."),
    Field("budget", LIMITS, "--budget",
          "A limit that pauses the task, such as tokens_per_day=100000; turns_per_hour=600 slows a self-paced one."),
    Field("thread_id", THREAD, "--thread",
          "The thread to run on, or each for a new thread for each fire; default the task's own.", default="",
          is_sparse=True, column="THREAD"),
    Field("graph", LABEL, "--graph", "The graph or assistant that the task runs; default agent0's graph.", default="",
          is_sparse=True, column="GRAPH"),
    Field("context_json", JSON, "--context", "The graph's context: a JSON object, or @FILE.", key="context",
          is_sparse=True),
    Field("config_json", JSON, "--config", "LangGraph's configurable: a JSON object, or @FILE.", key="config",
          is_sparse=True),
    Field("input_json", JSON, "--input", "Fields of the graph's input besides the prompt: a JSON object, or @FILE.",
          key="input", is_sparse=True),
    Field("run_json", JSON, "", "How a LangGraph client asked for its run.", key="run", is_sparse=True),
    Field("agent", TEXT, "--agent", "The agent that runs the task; default agent0.", default="agent0",
          is_clearable=False, column="AGENT"),
    Field("read_only", FLAG, "--read-only/--no-read-only", "Allow only read-only tools.", default=False),
    Field("queue", LABEL, "--queue", "The queue whose limits its turns share.", default="", is_sparse=True,
          column="QUEUE"),
    Field("needs", LABEL, "--needs", "The tag that a machine must offer to begin its turns.", default="",
          is_sparse=True, column="NEEDS"),
    Field("ephemeral", FLAG, "--ephemeral", "Delete the task when the daemon stops.", default=False, is_sparse=True),
    Field("approval_reminder", POSITIVE_DURATION, "--approval-reminder",
          "How long after a request for approval you are reminded."),
    Field("approval_escalation", POSITIVE_DURATION, "--approval-escalation",
          "How long after a request for approval an alert is raised."),
    Field("approval_timeout", POSITIVE_DURATION, "--approval-timeout",
          "How long after the request an unanswered approval expires and its call is refused; default never."),
    Field("paused", FLAG, attribute="", default=False),
    Field("tags", LABELS, "--tag", "A label, as key=value."),
)  # fmt: skip
BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}
DIRECT = tuple(field for field in FIELDS if field.is_direct)
SCHEDULES = tuple(field.name for field in FIELDS if field.attribute == "schedule")


def put(spec: Any, name: str, value: Any) -> None:
    """Replace the value of a field of a `TaskSpec`."""
    if isinstance(value, dict | list):
        spec.ClearField(name)
        held = getattr(spec, name)
        (held.update if isinstance(value, dict) else held.extend)(value)
    else:
        setattr(spec, name, value)


def given(spec: Any) -> dict[str, Any]:
    """Return the fields that are set in a `TaskSpec`, by name."""
    values = {descriptor.name: value for descriptor, value in spec.ListFields() if descriptor.name in BY_NAME}
    return {name: (get_origin(BY_NAME[name].kind.type) or _same)(value) for name, value in values.items()}
