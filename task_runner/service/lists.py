"""Lists of tasks and previews of times, over a session of the store or over :mod:`task_runner.store.reading`.

Commands use these functions while no daemon is running. Import nothing here that only a daemon uses.
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from task_runner.model.task import HALTED, Definition, Outcome, Task, TaskState
from task_runner.planner.entries import describe
from task_runner.service.task_spec import Defaults, parse_spec
from task_runner.service.views import AWAY, STATES, instant, previewed, show_task, stamp, state_of
from task_runner.store.rows import Glance
from turnkeeper.config.surfaces import offered
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.pages import page_of
from turnkeeper.v1 import schedules_pb2 as wire

LATENESS_OF = 100
# A runner that starts together with its runtime records an outage until the runner retries, at most 2 s later.
_STARTS_WITHIN = timedelta(seconds=15)
_LATENESS_UP_TO = 100
_MOST_PREVIEWED = 1000
_PREVIEWED_AT_ONCE = 10


def away(session: Any, now: datetime) -> str:
    """Say since when the runtime has not answered. Empty if the runtime answers or may still be starting."""
    newest = session.outages.listed()[:1]
    return next((str(each) for each in newest if each.lasts and now - each.since >= _STARTS_WITHIN), "")


def blocked(session: Any, gone: str) -> str:
    """Describe the wait of the fires of all tasks: for the runtime if it is `gone`, or for the end of a cordon."""
    if gone or not hasattr(session, "connection"):  # a command without a daemon imports only what a list needs
        return AWAY if gone else ""
    return offered("cordon of fires", session) or ""


def list_tasks(session: Any, request: wire.ListTasksRequest, now: datetime) -> wire.ListTasksResponse:
    """Return the tasks that match the filters, by next fire time, without deleted tasks. Raises InvalidInput."""
    check_word(request.state, STATES, "state")
    check_word(request.outcome, [*Outcome], "outcome")
    found = session.tasks.listed(category=request.category, channel=request.channel, made_by=request.made_by)
    if request.tags:
        wanted = set(request.tags.items())
        found = [task for task in found if wanted <= set(task.definition.tags)]
    paused = sum(task.state is TaskState.PAUSED for task in found)
    if request.state or request.outcome:
        standing = session.fires.glances([task.id for task in found])
        found = [task for task in found if _fits(task, standing[task.id], request)]
    found, told = page_of(found, "id", limit=request.limit, cursor=request.cursor)
    glances = session.fires.glances([task.id for task in found])
    gone = away(session, now)
    holds = blocked(session, gone)
    # Computing lateness reads the history of each task, which is too slow for a long list.
    few = found if len(found) <= _LATENESS_UP_TO else []
    late = {task.id: session.fires.lateness(task.id, LATENESS_OF) for task in few}
    shown = [show_task(task, glances[task.id], now, late.get(task.id, ()), blocked=holds) for task in found]
    edited = session.tasks.edited_at([task.id for task in found if task.revision > 1])
    for each in shown:
        stamp(each.updated_at, edited.get(each.id))
    return wire.ListTasksResponse(tasks=shown, paused=paused, runtime_away=gone, **told)


def check_word(word: str, known: Collection[str], field: str) -> None:
    """Raise InvalidInput if a filter names a state or an outcome that does not exist."""
    if word and word not in known:
        hint = f"one of {', '.join(sorted(known))}"
        raise InvalidInput(f"there is no {field} {word[:40]!r}", where=field, hint=hint)


def _fits(task: Task, glance: Glance, request: wire.ListTasksRequest) -> bool:
    last = glance.last.outcome if glance.last else ""
    shown = {"", last, Outcome.WAITING} if last in HALTED else {"", last}
    return request.outcome in shown and request.state in {"", state_of(task, glance.open)}


def span_of(request: wire.ListFiresRequest) -> dict[str, datetime]:
    """Return the span of time that a request names, as `begin` and `end`. Raises InvalidInput."""
    given = (("begin", "from"), ("end", "to"))
    return {name: instant(getattr(request, at), at) for name, at in given if request.HasField(at)}  # type: ignore[arg-type]


def previewed_definition(request: wire.PreviewScheduleRequest, defaults: Defaults, now: datetime) -> Definition:
    """Return the definition of a schedule that is not stored. Raises InvalidInput."""
    spec = wire.TaskSpec(name="preview", category="preview", channel="preview", prompt="preview")
    spec.MergeFrom(request.spec)
    return parse_spec(spec, defaults, now)


def preview(definition: Definition) -> wire.PreviewScheduleResponse:
    """Return the answer to a preview of a definition, without its times."""
    return wire.PreviewScheduleResponse(
        timezone=definition.timezone, schedule=describe(definition), on=definition.on.event if definition.on else None
    )


def upcoming(
    request: wire.PreviewScheduleRequest, definition: Definition, now: datetime, task: Task | None
) -> Iterator[list[wire.Nominal]]:
    """Yield the next times in small batches, so that a daemon can work between batches. Raises InvalidInput."""
    start = instant(getattr(request, "from"), "from") if request.HasField("from") else now
    left = min(request.count or 5, _MOST_PREVIEWED)
    while left > 0:
        asked = min(_PREVIEWED_AT_ONCE, left)
        more = previewed(definition, start, asked, task)
        yield more
        if len(more) < asked:
            return
        start, left = more[-1].nominal_at.ToDatetime(tzinfo=UTC), left - asked
