"""What became, or will become, of a self-paced task at a time, in plain sentences. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from task_runner.model.task import OPEN, Definition, Fire, FireKind, Task, TaskState
from task_runner.service.explain.entry import account_of
from turnkeeper.times import format_duration, format_rough, rfc3339

_ENDED = frozenset({TaskState.DONE, TaskState.EXPIRED})


class Account(NamedTuple):
    """An account.

    Attributes:
        verdict: one word.
        lines: sentences.
        entry: the wake that it is about, if any.
    """

    verdict: str
    lines: tuple[str, ...]
    entry: Fire | None = None


def paced_account(task: Task, definition: Definition, entries: Sequence[Fire], at: datetime, now: datetime) -> Account:
    """Return what became of the newest wake up to a time, and what comes next.

    Args:
        task: a self-paced task that is not stopped.
        definition: the one in force at that time.
        entries: its newest entries, newest first.
        at: the time in question.
        now: the time.
    """
    wakes = [entry for entry in entries if entry.kind is FireKind.WAKE]
    past = [wake for wake in wakes if wake.nominal_at <= at]
    if not past or at > now:
        return _ahead(task, wakes)
    wake, before = past[0], past[1] if len(past) > 1 else None
    verdict, lines = account_of(wake, wake.nominal_at, definition)
    lines = [_numbered(wake, before, at), *lines]
    if wake is wakes[0]:
        lines += _ahead(task, wakes).lines
    return Account(verdict, tuple(lines), wake)


def _numbered(wake: Fire, before: Fire | None, at: datetime) -> str:
    asked = "" if wake.nominal_at == at else f", the newest wake up to {rfc3339(at)}"
    line = f"{wake.fire_id} is iteration {_iteration(wake)}{asked}, armed for {rfc3339(wake.nominal_at)}."
    if before is None or before.ended_at is None or before.ended_at > wake.nominal_at:
        return line
    later = format_rough((wake.nominal_at - before.ended_at).total_seconds())
    return f"{line} The one before, turn {before.turn_id or before.fire_id}, ended {later} earlier."


def _ahead(task: Task, wakes: Sequence[Fire]) -> Account:
    """Return what comes next of a task."""
    pacing = task.pacing
    opened = next((wake for wake in wakes if wake.outcome in OPEN), None)
    if task.state in _ENDED:
        return Account(task.state.value, (f"The task has ended: {task.reason or 'nothing more of it wakes'}.",))
    if opened is not None:
        line = f"{opened.fire_id} is {opened.outcome}: the end of its turn says when the next one comes, if at all."
        if pacing is not None and pacing.armed_at is not None:
            line += f" If it says nothing, that is at {rfc3339(pacing.armed_at)}: {pacing.why}."
        return Account(opened.outcome.value, (line, _if_silent(task.definition)))
    if pacing is None or pacing.armed_at is None:
        why = pacing.why if pacing is not None and pacing.why else "nothing has asked for it"
        return Account("unarmed", (f"No wake is armed: {why}.",))
    line = f"The next wake, iteration {pacing.iteration + 1}, comes at {rfc3339(pacing.armed_at)}: {pacing.why}."
    return Account("future", (line, "If it is missed it runs once, as soon as it can.", _if_silent(task.definition)))


def _if_silent(definition: Definition) -> str:
    what = {
        "end": "the task ends",
        "wait": "it waits for: task-runner loop reschedule",
    }.get(definition.if_silent, f"the next comes {definition.if_silent} later")
    delay = format_duration(definition.first) if definition.first is not None else ""
    first = f" It woke first {delay} after its creation." if delay not in {"", "0s"} else ""
    return f"If a turn asks for no further wake, {what}.{first}"


def _iteration(wake: Fire) -> str:
    return wake.fire_id.rpartition("~w")[2]
