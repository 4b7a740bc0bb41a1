"""Budgets and consecutive failures, which pause a task automatically. Pure.

The runtime reports the usage of a turn when the turn ends. A daily limit pauses the task until the next day in its time
zone, when the count restarts. A limit per fire or on failures pauses the task until its author resumes it. An hourly
limit only delays the next wake of a self-paced task until the hour ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from task_runner.model.task import LONGEST_REASON, Definition, Fire, FireKind, Outcome, Task, TaskState, Usage, replace
from task_runner.timetable import zone
from turnkeeper.config.surfaces import offered
from turnkeeper.errors import BUDGET, InvalidInput

MONEY = "money_per_day"  # money is in millionths of the owner's currency
HOURLY = ("turns_per_hour", "tokens_per_hour")
DEFAULT_HOURLY = {"turns_per_hour": 600}  # the hourly limit of a self-paced task whose budget sets none
KEYS = (*(f"{what}_per_{span}" for span in ("fire", "day") for what in ("turns", "seconds", "tokens")), MONEY, *HOURLY)
LARGEST = 1_000_000_000_000
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A turn that ended, with its fire.

    Attributes:
        fire: the fire after the end of the turn; pending if it is retried.
        spent: how long the turn took.
        tokens: number of tokens that the turn used, in and out.
        money: the cost of the tokens, in millionths of the owner's currency; 0 without a price.
        unpriced: the tokens that have no price yet, as in `Usage`.
        wake_after_s: seconds from the end of the turn to the wake that the turn asked for; None if it asked for none.
    """

    fire: Fire
    at: datetime
    spent: timedelta
    tokens: int
    money: int = 0
    unpriced: str = ""
    wake_after_s: int | None = None


def check_budget(budget: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return a budget sorted by key. Raises InvalidInput if a key is unknown or a limit is out of range."""
    for key, limit in budget.items():
        if key not in KEYS:
            raise InvalidInput(f"{key[:40]!r} is not a limit", where="budget", hint=f"one of {', '.join(KEYS)}")
        if not 1 <= limit <= LARGEST:
            raise InvalidInput(f"{key} must be from 1 to {LARGEST}, not {limit}", where="budget")
    return tuple(sorted(budget.items()))


def hourly(definition: Definition) -> Mapping[str, int]:
    """Return the hourly limits of a self-paced task: its author's limits or the default."""
    return {key: limit for key, limit in definition.budget if key in HOURLY} or DEFAULT_HOURLY


def settle_up(task: Task, ended: Sequence[Ended]) -> tuple[Task, str]:
    """Count the ended turns. Return the task and the reason to pause it; the reason is empty if it need not pause."""
    reason = ""
    for turn in ended:
        task = replace(task, failures=_failures(task.failures, turn.fire), usage=_used(task, turn))
        reason = reason or _reached(task, turn.fire) or _too_many_failures(task.definition, task.failures, turn.fire)
    return task, reason[:LONGEST_REASON]


def used_up(task: Task, now: datetime) -> str:
    """Return the reason to pause a task whose usage today already reaches a limit; empty if no limit is reached."""
    is_today = task.usage is not None and task.usage.day == now.astimezone(zone(task.definition.timezone)).date()
    return _reached(task) if is_today else ""


def lifts(task: Task, definition: Definition) -> bool:
    """Return whether a new definition removes or raises the limit that stops a task."""
    key = task.reason.removeprefix(BUDGET).partition(" is ")[0]
    before, after = (dict(one.budget).get(key, LARGEST) for one in (task.definition, definition))
    return task.state is TaskState.PAUSED and task.reason.startswith(BUDGET) and after > before


def pauses_until(task: Task, reason: str) -> datetime | None:
    """Return the end of the day if a daily limit is the reason for a pause; None for any other reason."""
    if task.usage is None or not (reason.startswith(BUDGET) and reason.partition(" is ")[0].endswith("_day")):
        return None
    return datetime.combine(task.usage.day + timedelta(days=1), time(), zone(task.definition.timezone)).astimezone(UTC)


def _failures(before: int, fire: Fire) -> int:
    if fire.kind is FireKind.MANUAL:
        return before
    if fire.outcome is Outcome.FAILED:
        return before + 1
    return 0 if fire.outcome is Outcome.SUCCEEDED else before


def _too_many_failures(definition: Definition, failures: int, fire: Fire) -> str:
    limit = definition.pause_after_failures
    if limit is None or failures < limit or fire.outcome is not Outcome.FAILED:
        return ""
    return f"{failures} failures in a row, the last: {fire.reason or 'without a reason'}"


def _used(task: Task, turn: Ended) -> Usage:
    day = turn.at.astimezone(zone(task.definition.timezone)).date()
    before = task.usage if task.usage is not None and task.usage.day >= day else Usage(day=day)
    spent, tokens, money = before.spent + turn.spent, before.tokens + turn.tokens, before.money + turn.money
    unpriced = offered("sum of unpriced tokens", before.unpriced, turn.unpriced) or ""
    return replace(before, turns=before.turns + 1, spent=spent, tokens=tokens, money=money, unpriced=unpriced)


def _reached(task: Task, fire: Fire | None = None) -> str:
    """Return the daily or per-fire limit that is reached, with the usage; empty if no limit is reached."""
    usage = task.usage
    assert usage is not None
    used = {
        "turns_per_day": usage.turns,
        "seconds_per_day": usage.spent // _SECOND,
        "tokens_per_day": usage.tokens,
        MONEY: usage.money + (offered("money of unpriced tokens", usage.unpriced) or 0),
    }
    if fire is not None:
        # A retry would need more turns than the limit allows.
        used["turns_per_fire"] = fire.attempt - 1 if fire.outcome is Outcome.PENDING else 0
        used |= {"seconds_per_fire": fire.spent // _SECOND, "tokens_per_fire": fire.tokens}
    for key, limit in sorted(task.definition.budget, key=lambda one: one[0].endswith("_day")):
        if used.get(key, 0) >= limit:
            where = f"by {fire.fire_id}" if fire is not None and key.endswith("_fire") else f"on {usage.day}"
            shown = [amount / 1e6 if key == MONEY else amount for amount in (limit, used[key])]
            return f"{BUDGET}{key} is {shown[0]}, {shown[1]} used {where}"
    return ""
