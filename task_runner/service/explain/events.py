"""What became of the events that a task fires for, in plain sentences. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from task_runner.model.task import Definition, Fire, FireKind, Outcome
from task_runner.planner.event_triggers import (
    HOURLY,
    LIMIT,
    LONGEST_CHAIN,
    MOST_AN_HOUR,
    OUTSIDE,
    OWN_CHAIN,
    TAKEN,
    TOO_LONG,
    TOO_MANY,
)
from task_runner.service.explain.entry import account_of
from task_runner.store.port import Note
from turnkeeper.times import format_duration, rfc3339

_SKIPPED = {
    OUTSIDE: "It lay outside start_at, end_at and expires_at.",
    LIMIT: "The limit on fires was reached.",
    "overlap": "The task's last fire was under way then, and overlap skip fires nothing meanwhile.",
    "queue_full": "More waited in line than max_catch_up allows: the oldest gave way.",
    OWN_CHAIN: "A fire of this very task led to it: a task is not set off by what its own turns lead to.",
    TOO_LONG: f"{LONGEST_CHAIN} fires had led to one another before it: a chain is no longer than that.",
    TOO_MANY: f"Events had made {MOST_AN_HOUR} fires of the task within {format_duration(HOURLY)}: there are no more.",
    TAKEN: "A fire of the task has that event's id and second already.",
}


class Account(NamedTuple):
    """An account.

    Attributes:
        verdict: one word.
        lines: sentences.
        entry: the entry that it is about first, if any.
    """

    verdict: str
    lines: tuple[str, ...]
    entry: Fire | None = None


def event_account(definition: Definition, entries: Sequence[Fire], notes: Mapping[int, Note]) -> Account:
    """Return what became of the events of one second.

    Args:
        definition: the one in force then.
        entries: the entries that events made and that count one of that second, or are named by it.
        notes: by their numbers, what triggered them.
    """
    told = [(entry, _of_entry(entry, notes.get(entry.entry_id), definition)) for entry in entries]
    if not told:
        return Account("no_event", ("No event came then that triggers the task.", *awaited(definition)))
    first = told[0][0]
    lines = tuple(line for _, lines in told for line in lines)
    return Account(first.outcome.value, lines, first)


def of_events(entries: Sequence[Fire]) -> list[Fire]:
    """Return the entries among some that events made, fires first."""
    return sorted((each for each in entries if each.kind is FireKind.EVENT), key=lambda each: not each.fire_id)


def awaited(definition: Definition) -> list[str]:
    """Say what a task fires for."""
    on = definition.on
    if on is None:
        return []
    held = f" on which {', '.join(on.filters)} agree{'s' if len(on.filters) == 1 else ''}" if on.filters else ""
    opens = "opens" if definition.is_hybrid else "closes"
    span = format_duration(on.debounce)
    window = f", once in {span}, when that window {opens}" if on.debounce else ""
    return [f"It fires for every {on.event}{held}{window}; events before {rfc3339(on.since)} do not count."]


def _of_entry(entry: Fire, note: Note | None, definition: Definition) -> list[str]:
    if entry.fire_id:
        _, lines = account_of(entry, entry.nominal_at, definition)
        return [_triggered(entry, note), *_cause(note), *lines]
    span = f"at {rfc3339(entry.last_at)}"
    if entry.count > 1:
        span = f"from {rfc3339(entry.first_at)} to {rfc3339(entry.last_at)}"
    newest = f", the newest {note.event} ({note.event_id})" if note else ""
    line = f"{entry.count} trigger{'s' if entry.count > 1 else ''} {span}{newest}:"
    if entry.outcome is Outcome.COALESCED:
        return [f"{line} within its window, or before it was sent, each went into {entry.reason}."]
    why = _SKIPPED.get(entry.reason, f"The task was {entry.reason} then.")
    return [f"{line} skipped ({entry.reason}). {why}", *_cause(note)]


def _triggered(entry: Fire, note: Note | None) -> str:
    if note is None:
        return f"{entry.fire_id} was triggered by an event."
    return f"{entry.fire_id} was triggered by {note.event} ({note.event_id}) of {rfc3339(note.at)}."


def _cause(note: Note | None) -> list[str]:
    if note is None or not note.cause:
        return []
    chain = f", by way of {' → '.join(note.chain)}" if len(note.chain) > 1 else ""
    return [f"That event came from {note.cause}{chain}."]


def newest_at(entry: Fire | None, now: datetime) -> datetime:
    """Return the second that is asked about where nobody says which: that of the newest trigger."""
    return now.replace(microsecond=0) if entry is None else entry.last_at
