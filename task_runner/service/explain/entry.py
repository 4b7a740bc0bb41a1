"""One ledger entry in plain sentences. Pure."""

from datetime import datetime, timedelta

from task_runner.model.task import CatchUp, Definition, Fire, FireKind, Outcome
from task_runner.planner.overlap import CANCELS
from turnkeeper.times import format_duration, format_rough, rfc3339

_SKIPPED = {
    "missed": "It was missed: not sent within the grace of {grace}, and catch-up skip runs nothing that was missed.",
    "catch_up_window": "It was missed longer ago than catch_up_window allows ({window}).",
    "max_catch_up": "More was missed than max_catch_up ({most}) lets catch up: the newest were kept.",
    "max_fires": "The limit on fires was reached, until an edit.",
    "queue_full": "More waited in line than max_catch_up ({most}) allows: the oldest gave way.",
    "overlap": "The task's last fire was under way then, and overlap skip fires nothing meanwhile.",
    "queued": "The fire of an event was waiting to be sent: what fell due meanwhile gave way to it.",
    "paused": "The task was paused then.",
    "disabled": "The task was disabled then.",
    "deleted": "The task was deleted before it was sent.",
    "quarantined": "The task was quarantined before it was sent.",
    "rescheduled": "It was committed and not yet sent when somebody said when it is to wake instead.",
    "taken over": "Its author wrote into the thread before it was sent, and took over.",
    "superseded": "It was committed and not yet sent when an edit made a schedule that does not name it.",
}
_ONE_SECOND = timedelta(seconds=1)
_ENDS = {
    Outcome.SUCCEEDED: "Its turn succeeded",
    Outcome.FAILED: "Its turn failed",
    Outcome.CANCELLED: "Its turn was cancelled",
}


def account_of(entry: Fire, at: datetime, definition: Definition) -> tuple[str, list[str]]:
    """Return one word and sentences for a time that an entry covers.

    Args:
        entry: the entry.
        at: the time, one of those it covers.
        definition: the one in force at that time.
    """
    lines: list[str] = []
    if entry.count > 1:
        run = f"{entry.count} nominal times from {rfc3339(entry.first_at)} to {rfc3339(entry.last_at)}"
        lines.append(f"{entry.fire_id} stands for {run}." if entry.fire_id else f"One entry covers {run}.")
    if entry.outcome is Outcome.SKIPPED:
        return "skipped", [*lines, _skipped(entry, definition)]
    if entry.outcome is Outcome.PRUNED:
        return "pruned", [*lines, "What became of it was pruned from the history."]
    if entry.outcome is Outcome.WAITING:
        what = "The task's last fire is under way: it waits in one entry with what else comes due, and is sent afresh."
        if entry.reason == CANCELS:
            what += " The turn is asked to end at its next await (overlap cancel-running)."
        return "coalesced", [*lines, what]
    lines += _sending(entry)
    lines += _turn(entry)
    if entry.nominal_at != at:
        return "stood_for", lines
    late = entry.fired_at is not None and entry.fired_at > entry.due_at + definition.grace
    settled = entry.outcome in _ENDS
    return ("late" if late and settled and entry.outcome is Outcome.SUCCEEDED else entry.outcome.value), lines


def _skipped(entry: Fire, definition: Definition) -> str:
    text = _SKIPPED.get(entry.reason, f"It was skipped: {entry.reason}.")
    window = format_duration(definition.catch_up_window) if definition.catch_up_window is not None else "none"
    return text.format(grace=format_duration(definition.grace), window=window, most=definition.max_catch_up)


def _sending(entry: Fire) -> list[str]:
    due = f"It was due at {rfc3339(entry.due_at)}"
    if entry.due_at > entry.nominal_at:
        why = "the event by its debounce" if entry.kind is FireKind.EVENT else "its nominal time by its jitter"
        put_off = entry.due_at - entry.nominal_at
        # An event is named by its second, and happens within it.
        due += f", {_after(put_off)} {why}" if entry.kind is not FireKind.EVENT or put_off >= _ONE_SECOND else ""
    lines = [f"{due}."]
    if entry.caught_up:
        how = "one fire for all" if entry.policy is CatchUp.RUN_ONCE else "each by itself"
        lines.append(f"It was missed and caught up by catch-up {entry.policy} ({how}).")
    if entry.outcome is Outcome.PENDING:
        when = f"from {rfc3339(entry.ready_at)} on" if entry.ready_at else "when the fire before it has ended"
        why = f" ({entry.reason})" if entry.reason else ""
        return [*lines, f"{entry.fire_id} is committed and not sent; it goes {when}{why}."]
    if entry.fired_at is not None:
        late = entry.fired_at - entry.due_at
        lines.append(f"It was sent at {rfc3339(entry.fired_at)}, {_after(late)} it was due.")
    if entry.attempt > 1:
        lines.append(f"This is attempt {entry.attempt}: the runtime held, or its turn failed, before.")
    return lines


def _turn(entry: Fire) -> list[str]:
    turn = f" {entry.turn_id}" if entry.turn_id else ""
    under_way = {
        Outcome.SENT: "The runtime has not answered: it is sent again, under the same id, until it does.",
        Outcome.ACCEPTED: f"The runtime accepted it as turn{turn}, which has not started.",
        Outcome.RUNNING: f"Its turn{turn} is running.",
        Outcome.INTERRUPTED: f"Its turn{turn} is interrupted, for its author to decide: agent-runtime approvals list.",
        Outcome.HELD: "Its thread waits for its author: the fire is held, and sent again once that is decided.",
    }
    if entry.outcome not in _ENDS:
        return [under_way[entry.outcome]] if entry.outcome in under_way else []
    ended = f" at {rfc3339(entry.ended_at)}" if entry.ended_at else ""
    why = f": {entry.reason}" if entry.reason else ""
    return [f"{_ENDS[entry.outcome]}{ended}{why}.{f' It is turn{turn}.' if turn else ''}"]


def _after(span: timedelta) -> str:
    return f"{format_rough(span.total_seconds())} after" if span > timedelta(milliseconds=1) else "when"
