"""Self-paced tasks: each turn asks for the next wake, and the runner arms it after the turn ends. Pure.

When an armed wake is due, the runner commits it as a fire of a separate kind, numbered by its iteration. No fire is
committed while another is open. Only the end of a turn, a command or the task's creation arms a wake. So no wake comes
during a turn, and a turn end that is reported twice arms one wake. A missed wake always runs exactly once.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from task_runner.model import task as model
from task_runner.planner import entries
from task_runner.planner.budgets import Ended, hourly
from task_runner.planner.entries import due_of
from task_runner.timetable import Never
from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration

END, WAIT = "end", "wait"
TAKEN_OVER = "its author took over: a message on its thread"
DEFAULT_DELAY = timedelta(seconds=1500)
LONGEST_DELAY = timedelta(days=366)
MOST_SETBACKS = 3
HOUR = timedelta(hours=1)
_ENDED = frozenset({model.TaskState.DONE, model.TaskState.EXPIRED, model.TaskState.DELETED})
_SECOND = timedelta(seconds=1)


def check_if_silent(text: str) -> str:
    """Return the normal form of `if_silent`: end, wait or a duration. Raises InvalidInput for any other text."""
    if text in {END, WAIT}:
        return text
    try:
        span = parse_duration(text, field="if_silent")
    except InvalidInput as error:
        what = f"{text[:60]!r} is not end, wait or a duration"
        raise InvalidInput(what, where="if_silent", hint="write for example end, wait or 25m") from error
    if not _SECOND <= span <= LONGEST_DELAY:
        raise InvalidInput(f"must be from 1s to {format_duration(LONGEST_DELAY)}", where="if_silent")
    return format_duration(span)


def begun(definition: model.Definition, now: datetime, iteration: int = 0) -> model.Pacing:
    """Return the first pacing of a self-paced task, with its first wake armed."""
    first = DEFAULT_DELAY if definition.first is None else definition.first
    why = f"the first wake comes {format_duration(first)} after the task was declared"
    return model.Pacing(iteration=iteration, armed_at=_from_now(definition, now, first), why=why)


def turns_ended(task: model.Task, ended: Sequence[Ended]) -> tuple[model.Task, str]:
    """Count the ended turns of a self-paced task. Return the task and the reason to pause it; empty for none."""
    reason = ""
    for turn in ended:
        if turn.fire.outcome is model.Outcome.PENDING or task.state in _ENDED:  # a retry follows, or the task has ended
            continue
        task, why = _turn_ended(_counted(task, turn), turn)
        reason = reason or why
    return task, reason


def _turn_ended(task: model.Task, turn: Ended) -> tuple[model.Task, str]:
    fire, who = turn.fire, f"turn {turn.fire.turn_id or turn.fire.fire_id}"
    if fire.outcome in model.IN_ORDER and turn.wake_after_s is not None:
        asked = timedelta(seconds=max(0, min(turn.wake_after_s, int(LONGEST_DELAY.total_seconds()))))
        cut = ", the longest there is" if turn.wake_after_s > LONGEST_DELAY.total_seconds() else ""
        said = f"{who} asked to be woken {format_duration(asked)} after its end{cut}"
        return _armed(_without_setbacks(task), turn.at, asked, said), ""
    if fire.kind is not model.FireKind.WAKE:
        return task, ""
    if fire.outcome not in model.IN_ORDER:
        return _set_back(task, turn, who)
    return _silent(_without_setbacks(task), turn, who)


def _silent(task: model.Task, turn: Ended, who: str) -> tuple[model.Task, str]:
    pacing, if_silent = _pacing(task), task.definition.if_silent or WAIT
    if pacing.armed_at is not None:  # a command rescheduled the task while the turn ran
        return task, ""
    if goes_on := _goes_on(turn, who, if_silent):
        return _armed(task, turn.at, DEFAULT_DELAY, goes_on), ""
    why = f"{who} asked for no further wake"
    if if_silent == END:
        return model.replace(task, state=model.TaskState.DONE, reason=why, pacing=model.replace(pacing, why=why)), ""
    if if_silent == WAIT:
        return model.replace(task, pacing=model.replace(pacing, why=f"{why}: it waits for a reschedule")), ""
    return _armed(task, turn.at, parse_duration(if_silent), f"{why}, and if_silent is {if_silent}"), ""


def _goes_on(turn: Ended, who: str, if_silent: str) -> str:
    """Return why a wake follows a turn that asked for no wake; empty if no wake follows."""
    asleep = f"after {format_duration(DEFAULT_DELAY)}, as it asked for no other time"
    if turn.fire.reason == "paused":
        return f"{who} pauses, and continues {asleep}"
    if turn.fire.reason == "delivered" and if_silent == END:
        # An agent in a terminal has no turn, so it cannot ask for a wake.
        return f"{turn.fire.fire_id} was delivered; the next comes {asleep}"
    if turn.fire.reason.startswith(model.MISASKED):
        return f"{who} asked to be woken, and {turn.fire.reason}; it is woken {format_duration(DEFAULT_DELAY)} later"
    return ""


def _set_back(task: model.Task, turn: Ended, who: str) -> tuple[model.Task, str]:
    pacing = _pacing(task)
    setbacks = pacing.setbacks + 1
    task = model.replace(task, pacing=model.replace(pacing, setbacks=setbacks))
    if pacing.armed_at is None:
        why = f"{who} {turn.fire.outcome}: it is woken again {format_duration(DEFAULT_DELAY)} later"
        task = _armed(task, turn.at, DEFAULT_DELAY, why)
    if setbacks < (task.definition.pause_after_failures or MOST_SETBACKS):
        return task, ""
    last = turn.fire.reason or turn.fire.outcome.value
    return task, f"{setbacks} turns in a row failed or were cancelled, the last: {last}"


def _armed(task: model.Task, ended_at: datetime, delay: timedelta, why: str) -> model.Task:
    """Arm a wake `delay` after a turn's end, or later if the hourly budget is used up."""
    at, free_at, pacing = ended_at + delay, earliest_wake(task, ended_at), _pacing(task)
    put_off = ""
    if free_at is not None and at < free_at:
        put_off = f"put off to {_utc(whole(free_at))}, as {_used_up(task.definition, pacing)}"
        at = free_at
    armed_at = _bounded(task.definition, whole(at))
    why = f"{why}; {put_off}" if put_off else why
    pacing = model.replace(pacing, armed_at=armed_at, why=why, put_off=put_off)
    return model.replace(task, pacing=pacing, cursor_at=max(task.cursor_at, ended_at))


def _counted(task: model.Task, turn: Ended) -> model.Task:
    """Count an ended turn in the hourly budget. Each hour begins when its first turn ends."""
    pacing = _pacing(task)
    if turn.fire.kind is model.FireKind.MANUAL:
        return task
    if pacing.hour_at is None or not pacing.hour_at <= turn.at < pacing.hour_at + HOUR:
        pacing = model.replace(pacing, hour_at=turn.at, hour_turns=0, hour_tokens=0)
    turns, tokens = pacing.hour_turns + 1, pacing.hour_tokens + turn.tokens
    return model.replace(task, pacing=model.replace(pacing, hour_turns=turns, hour_tokens=tokens))


def earliest_wake(task: model.Task, now: datetime, *, running: int = 0) -> datetime | None:
    """Return when the hourly budget allows the next wake of a self-paced task; None if it allows one now.

    `running` is the number of running turns, which also count towards the limit on turns.
    """
    pacing = _pacing(task)
    if pacing.hour_at is None or not pacing.hour_at <= now < pacing.hour_at + HOUR:
        pacing = model.replace(pacing, hour_at=now, hour_turns=0, hour_tokens=0)
    begun_at = pacing.hour_at or now
    return begun_at + HOUR if _used_up(task.definition, pacing, running) else None


def _used_up(definition: model.Definition, pacing: model.Pacing, running: int = 0) -> str:
    """Describe the hourly limit that is reached; empty if no limit is reached."""
    used = {"turns_per_hour": pacing.hour_turns + running, "tokens_per_hour": pacing.hour_tokens}
    reached = [f"{key} is {limit}" for key, limit in hourly(definition).items() if used[key] >= limit]
    return f"its hourly budget is used up: {reached[0]}" if reached else ""


def rescheduled(task: model.Task, now: datetime, delay: timedelta) -> model.Task:
    """Set the next wake of a self-paced task as a command asks; return the task. An ended task becomes active again.

    Raises:
        InvalidInput: the delay is longer than the longest one, or the wake comes after the task's end.
    """
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        raise InvalidInput(f"must be from 0 to {LONGEST_DELAY // _SECOND} seconds", where="seconds")
    at, end = _from_now(task.definition, now, delay), task.definition.ends_at
    if end is not None and at > end:
        raise InvalidInput(f"{_utc(at)} is later than the task's end at {_utc(end)}", where="seconds")
    state = model.TaskState.ACTIVE if task.state in _ENDED else task.state
    pacing = model.replace(_pacing(task), armed_at=at, why=f"it was rescheduled at {_utc(now)}", put_off="")
    reason = "" if state is model.TaskState.ACTIVE else task.reason
    return model.replace(task, state=state, reason=reason, pacing=pacing, cursor_at=max(task.cursor_at, now))


def resumed(task: model.Task) -> model.Task:
    """Return a task that its author resumes, with the count of setbacks reset to zero."""
    return task if task.pacing is None else model.replace(task, pacing=model.replace(task.pacing, setbacks=0))


def edited(old: model.Task, definition: model.Definition, now: datetime) -> model.Pacing | None:
    """Return the pacing of a task under a new definition. Keep the old pacing unless the first wake changed."""
    before = old.pacing
    if not definition.is_self_paced:
        return before and model.replace(before, armed_at=None)
    if before is None or not old.definition.is_self_paced:
        return begun(definition, now, before.iteration if before else 0)
    if before.iteration == 0 and definition.first != old.definition.first:
        return begun(definition, now)
    return before


def taken_over(snapshot: model.Snapshot, now: datetime) -> tuple[entries.Plan, list[model.Fire]]:
    """End a self-paced task whose author wrote on its thread. Return the plan and the fires that must not start."""
    pacing = snapshot.task.pacing and model.replace(snapshot.task.pacing, armed_at=None, why=TAKEN_OVER)
    task = model.replace(snapshot.task, state=model.TaskState.DONE, reason=TAKEN_OVER, pacing=pacing, wake_at=None)
    wakes = [fire for fire in snapshot.open if fire.kind is model.FireKind.WAKE]
    unsent = [fire for fire in wakes if fire.outcome in {model.Outcome.PENDING, model.Outcome.HELD}]
    # The runtime can still skip a fire whose turn has not started.
    not_started = [fire for fire in wakes if fire.outcome in {model.Outcome.SENT, model.Outcome.ACCEPTED}]
    return without_wakes(snapshot, task, unsent, "taken over", now), not_started


def without_wakes(
    snapshot: model.Snapshot, task: model.Task, unsent: Sequence[model.Fire], reason: str, now: datetime
) -> entries.Plan:
    """Return the plan that stores `task` and settles its unsent wakes as skipped for `reason`."""
    returned = sum(fire.accepted_at is not None for fire in unsent)
    settled = tuple(entries.settled_skipped(fire, reason, now) for fire in unsent)
    return entries.Plan(
        task=model.replace(task, accepted=task.accepted - returned), changed=settled, tail=snapshot.tail
    )


def withdrawn(task: model.Task, fires: Sequence[model.Fire], reason: str) -> model.Pacing | None:
    """Return a task's pacing after unsent fires were withdrawn. Re-arm a withdrawn wake unless the task ended."""
    wake = next((fire for fire in fires if fire.kind is model.FireKind.WAKE), None)
    pacing = task.pacing
    over = task.state in _ENDED or not task.definition.is_self_paced
    if wake is None or pacing is None or pacing.armed_at is not None or over:
        return pacing
    return model.replace(pacing, armed_at=wake.nominal_at, why=f"{wake.fire_id} was withdrawn unsent: {reason}")


def next_step(task: model.Task, opened: Sequence[model.Fire], now: datetime) -> tuple[model.Task, model.Fire | None]:
    """Return the next state of an active self-paced task, and the wake to commit now, if any."""
    pacing, limit = _pacing(task), task.definition.max_fires
    if any(fire.kind in model.COUNTED for fire in opened):
        return model.replace(task, wake_at=None), None
    if limit is not None and task.accepted >= limit:
        reason = f"max_fires is {limit}, and {task.accepted} were accepted"
        return model.replace(task, state=model.TaskState.DONE, reason=reason, wake_at=None), None
    at, end = pacing.armed_at, task.definition.ends_at
    if end is not None and (at or now) > end:
        reason = f"the next wake would come later than its end at {_utc(end)}"
        return model.replace(task, state=model.TaskState.EXPIRED, reason=reason, wake_at=None), None
    if at is None and task.definition.if_silent == END:  # the task had ended, and was then disabled and enabled
        return model.replace(task, state=model.TaskState.DONE, reason=pacing.why, wake_at=None), None
    if at is None or at > now:
        return model.replace(task, wake_at=at or (end and end + _SECOND)), None
    number = pacing.iteration + 1
    spent = model.replace(pacing, iteration=number, armed_at=None)
    return model.replace(task, wake_at=None, pacing=spent, cursor_at=max(task.cursor_at, at)), _wake(
        task, at, number, now
    )


def _wake(task: model.Task, at: datetime, number: int, now: datetime) -> model.Fire:
    due_at = wake_due(task, at)
    return entries.entry(
        task,
        entries.single(at),
        model.Outcome.PENDING,
        fire_id=model.fire_id(task.id, at, f"~w{number}"),
        kind=model.FireKind.WAKE,
        due_at=due_at,
        ready_at=max(now, due_at),
        retries=task.definition.retries,
    )


def wake_due(task: model.Task, at: datetime) -> datetime:
    """Return the due time of a wake armed for `at`: that time plus the jitter of the wake."""
    return due_of(task.id, Never(), task.definition.jitter)(at)


def whole(at: datetime) -> datetime:
    """Round an instant up to a whole second."""
    return at if not at.microsecond else at.replace(microsecond=0) + _SECOND


def _from_now(definition: model.Definition, now: datetime, delay: timedelta) -> datetime:
    """Return the time of a wake `delay` from now; a delay of zero gives the current second."""
    return _bounded(definition, whole(now + delay) if delay else now.replace(microsecond=0))


def _bounded(definition: model.Definition, at: datetime) -> datetime:
    return at if definition.start_at is None else max(at, whole(definition.start_at))


def _without_setbacks(task: model.Task) -> model.Task:
    pacing = _pacing(task)
    return model.replace(task, pacing=model.replace(pacing, setbacks=0)) if pacing.setbacks else task


def _pacing(task: model.Task) -> model.Pacing:
    return task.pacing or model.Pacing()


def _utc(at: datetime) -> str:
    return f"{at.isoformat().removesuffix('+00:00')}Z"
