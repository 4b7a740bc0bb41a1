"""The runner's operations, as one object that takes and returns protobuf messages.

The daemon serves it over gRPC; the command line calls the same object in its own process if no daemon is running.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from task_runner.dispatcher.runtime_client import Runtime
from task_runner.model import task as model
from task_runner.model.fields import parse_instant
from task_runner.planner.budgets import HOURLY
from task_runner.planner.entries import describe, kind_of
from task_runner.planner.log_records import LogRecord
from task_runner.scheduler.events import emit, read_emitted
from task_runner.scheduler.planning import Planned
from task_runner.service import changes, lists
from task_runner.service.causes import cause_of
from task_runner.service.task_spec import Defaults, as_loop, minutes_of_rule, parse_spec, refuse_nul
from task_runner.service.views import previewed, show_fire, show_task, stamp
from task_runner.service.watch import REST_S, Change, TaskChanges
from task_runner.store.rows import Glance
from task_runner.store.store import Session, Store
from turnkeeper import __version__
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import offered, required
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, InvalidInput, NotFound, TurnkeeperError, meant
from turnkeeper.rpc.callers import Rules, current
from turnkeeper.storage.statements import cursor_at, number_of
from turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2 import FireRequest

_PREVIEW = 3
_COMPARED = 7  # times before and after an edit: a week of a daily schedule, which shows the days without a fire
_SCANNED_AT_ONCE = 10_000  # entries of the ledger; a scan of them takes about two milliseconds
_UNNAMED = "loop-00000000"  # replaces the name until the id is drawn
_DECISIONS_DEADLINE_S = 0.3
_ON_GRANT = {"category", "read_only"}  # fields that can make a task more restricted


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The state of the daemon that a service runs in. A command line without a daemon passes None.

    Attributes:
        connected: returns whether the stream of fires to the runtime is open.
    """

    since: datetime
    connected: Callable[[], bool]


class Service:
    """The runner's operations. Each writes its result to disk before it answers."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        clock: Clock,
        entropy: Entropy,
        log: EventLog,
        defaults: Defaults,
        tick: Callable[[], Awaitable[Planned]],
        changed: Callable[[], None],
        serving: Serving | None = None,
        watched: TaskChanges | None = None,
    ) -> None:
        self._store, self._runtime, self._clock, self._entropy = store, runtime, clock, entropy
        self._log, self._defaults, self._tick, self._changed = log, defaults, tick, changed
        self._serving, self._watched = serving, watched or TaskChanges("none")
        self._names = Names(runtime, clock)

    async def create_task(self, request: wire.CreateTaskRequest) -> wire.CreateTaskResponse:
        """Store a new task. With `dry_run`, only return the task that would be stored."""
        now, request = self._clock.now(), _worded(request)
        spec = as_loop(request.spec, _UNNAMED) if request.loop else request.spec
        definition = parse_spec(spec, self._defaults, now, own_id=_UNNAMED)
        self._check_lasting([spec])
        warnings = await self._names.check({definition.category}, {definition.graph}, definition)
        warnings += minutes_of_rule(definition)
        warnings += await self._store.read(lambda session: offered("missing before", session, definition) or [])
        if request.dry_run:
            shown = wire.Task(spec=spec, schedule=describe(definition), kind=kind_of(definition))
            return wire.CreateTaskResponse(task=shown, warnings=warnings, next=previewed(definition, now, _PREVIEW))
        how: Any = {"loop": request.loop, "by": str(current())}
        done = await self._store.change(
            lambda session: changes.create(
                session, _within(session, request), self._defaults, now, self._entropy, **how
            )
        )
        self._record(done.events)
        return wire.CreateTaskResponse(
            task=show_task(done.task, Glance(), now),
            warnings=warnings,
            next=previewed(done.task.definition, now, _PREVIEW, done.task),
        )

    async def get_task(self, request: wire.GetTaskRequest) -> wire.Task:
        return await self._store.read(lambda session: self._shown(session, changes.find(session, request.name)))

    async def list_tasks(self, request: wire.ListTasksRequest) -> wire.ListTasksResponse:
        """Return the existing tasks that match the filters, by next fire time."""
        now = self._clock.now()
        answer = await self._store.read(lambda session: lists.list_tasks(session, request, now))
        if self._serving is not None:
            stamp(answer.serving_since, self._serving.since)
            answer.daemon_version = __version__
        with suppress(TurnkeeperError):
            answer.decisions_waiting = await self._runtime.decisions_waiting(_DECISIONS_DEADLINE_S)
        return answer

    async def update_task(self, request: wire.UpdateTaskRequest) -> wire.UpdateTaskResponse:
        """Give a task a new definition from now on. With `dry_run`, only return the old and new next times."""
        now = self._clock.now()
        task = await self._store.read(lambda session: changes.find_living(session, request.name))
        definition = parse_spec(request.spec, self._defaults, now, previous=task.definition, own_id=task.id)
        changed = changes.changed_fields(task.definition, definition)
        given = definition if set(_GIVEN) & set(changed) else None
        warnings = await self._names.check({definition.category}, {definition.graph}, given)
        warnings += minutes_of_rule(definition)
        warnings += await self._store.read(lambda session: offered("missing before", session, definition) or [])
        answer = wire.UpdateTaskResponse(
            changed=definition != task.definition,
            changed_fields=changed,
            warnings=warnings,
            old_next=previewed(task.definition, now, _COMPARED, task),
            new_next=previewed(definition, now, _COMPARED, task),
        )
        if not request.dry_run:
            how: Any = {"revision": request.revision, "by": str(current())}
            await self._change(
                lambda session: changes.update(session, task.id, request.spec, self._defaults, now, **how)
            )
            if _ON_GRANT & {*answer.changed_fields}:
                await self._review_exceptions()
        answer.task.CopyFrom(await self.get_task(wire.GetTaskRequest(name=task.id)))
        return answer

    async def apply_tasks(self, request: wire.ApplyTasksRequest) -> wire.ApplyTasksResponse:
        """Create or update several tasks in one transaction. With `prune`, also delete the others."""
        now = self._clock.now()
        self._check_lasting(request.specs)
        named = {spec.category for spec in request.specs if spec.category}
        warnings = await self._names.check(named, {spec.graph for spec in request.specs})
        done = await self._store.rehearse(self._apply(request, now))
        unread = await self._unread(done)
        if not request.dry_run:
            done = await self._store.change(self._apply(request, now))
            self._record([event for change in done for event in change.events])
            if any(change.action == "deleted" or _ON_GRANT & {*change.fields} for change in done):
                await self._review_exceptions()
        applied = [
            wire.Applied(
                name=change.task.definition.name,
                action=change.action,
                changed_fields=change.fields,
                warnings=[*warnings, *unread.get(change.task.definition.name, ())]
                if change.action in {"created", "updated"}
                else (),
            )
            for change in done
        ]
        return wire.ApplyTasksResponse(applied=applied)

    async def _unread(self, planned: Iterable[changes.Changed]) -> dict[str, list[str]]:
        """Return, by task, warnings about the rules of new and changed tasks, and inputs that their graphs ignore.

        Tasks that differ only in their prompts are checked once. Raises InvalidInput, which names the task.
        """
        asked, found = dict[tuple[Any, ...], list[str]](), dict[str, list[str]]()
        for change in planned:
            given = change.task.definition
            found[given.name] = minutes_of_rule(given)
            key = (bool(given.prompt), given.agent, *(getattr(given, name) for name in _GIVEN[1:]))
            if change.action == "created" or set(_GIVEN) & {*change.fields}:
                try:
                    asked[key] = asked[key] if key in asked else await self._names.check(set(), set(), given)
                except InvalidInput as error:
                    error.where = f"{given.name}: {error.where}"
                    raise
                found[given.name] += asked[key]
        return found

    async def delete_task(self, request: wire.DeleteTaskRequest) -> wire.Task:
        """Delete a task. Withdraw its unsent fires, let a running turn finish, and keep the history."""
        task = await self._stop(request.name, model.TaskState.DELETED, "")
        await self._review_exceptions()
        return task

    async def restore_task(self, request: wire.RestoreTaskRequest) -> wire.Task:
        """Restore a task that was deleted within the last day."""
        now = self._clock.now()
        return await self._change(lambda session: changes.restore(session, request.name, now))

    async def pause_task(self, request: wire.PauseTaskRequest) -> wire.Task:
        """Pause a task until it is resumed or until a time. Raises InvalidInput if the time is not in the future."""
        refuse_nul(request.note, "note")
        now = self._clock.now()

        def pause(session: Session) -> changes.Changed:
            zone = changes.find_living(session, request.name).definition.timezone
            until = parse_instant(request.until, zone, field="until") if request.until else None
            if until is not None and until <= now:
                raise InvalidInput("is not in the future", where="until")
            return changes.stop(session, request.name, model.TaskState.PAUSED, request.note, now, until=until)

        return await self._change(pause)

    async def disable_task(self, request: wire.DisableTaskRequest) -> wire.Task:
        """Stop a task from firing. With `cancel_running`, also cancel its fires in the runtime."""
        task = await self._stop(request.name, model.TaskState.DISABLED, "")
        if request.cancel_running:
            snapshots = await self._store.read(lambda session: session.tasks.snapshots([task.id]))
            for fire in snapshots[0].open:
                if fire.outcome in model.UNDER_WAY:
                    await self._runtime.cancel(fire.fire_id, fire.attempt, "cancelled by the author")
        return task

    async def resume_task(self, request: wire.ResumeTaskRequest) -> wire.Task:
        """Resume a paused, disabled or quarantined task."""
        now = self._clock.now()
        return await self._change(lambda session: changes.resume(session, request.name, now, replay=request.replay))

    async def enable_task(self, request: wire.EnableTaskRequest) -> wire.Task:
        """Resume a task without a replay: the older name of the request, which clients still send."""
        return await self.resume_task(wire.ResumeTaskRequest(name=request.name))

    async def reschedule_task(self, request: wire.RescheduleTaskRequest) -> wire.Task:
        """Wake a self-paced task after a number of seconds. Raises Conflict if the task is not self-paced."""
        now = self._clock.now()
        return await self._change(lambda session: changes.reschedule(session, request.name, request.seconds, now))

    async def end_ephemeral(self) -> None:
        """Delete ephemeral tasks when a daemon stops, and those that a killed daemon left when the next one starts."""
        now = self._clock.now()
        self._record(await self._store.change(lambda session: changes.end_ephemeral(session, now)))

    async def run_task(self, request: wire.RunTaskRequest) -> wire.Fire:
        """Commit a manual fire. Raises InvalidInput for a value that its prompt or its graph does not accept."""
        request_id = model.check_request_id(request.request_id or self._entropy.hex(12))
        now, asked = self._clock.now(), None
        if request.vars or request.prompt or request.payload_json or request.input_json:
            asked, task = request, await self._store.read(lambda session: changes.find_living(session, request.name))
            await self._names.check(set(), set(), required("a run as asked", task.definition, request))
        fire, events, task = await self._store.change(
            lambda session: changes.run_now(session, request.name, request_id, now, asked)
        )
        self._record(events)
        return show_fire(fire, task.definition.name)

    async def backfill_task(self, request: wire.BackfillTaskRequest) -> wire.BackfillTaskResponse:
        """Commit a fire for each past nominal time of a span that has no accepted fire."""
        now, asked = self._clock.now(), wire.BackfillTaskRequest()
        asked.CopyFrom(request)
        asked.request_id = model.check_request_id(request.request_id or self._entropy.hex(12))
        work = partial(required, "BackfillTask", asked, now)
        answer: wire.BackfillTaskResponse
        answer, events = await (self._store.rehearse(work) if asked.dry_run else self._store.change(work))
        if not asked.dry_run:
            self._record(events)
        return answer

    async def explain_fire(self, request: wire.ExplainFireRequest) -> wire.ExplainFireResponse:
        """Explain the past or future outcome of a time in plain sentences."""
        now = self._clock.now()
        answer: wire.ExplainFireResponse = await self._store.read(partial(required, "ExplainFire", request, now))
        return answer

    async def list_fires(self, request: wire.ListFiresRequest) -> wire.ListFiresResponse:
        """Return one page of the ledger of one task or of all tasks, newest first."""
        for word in request.outcome.split(","):
            lists.check_word(word, [*model.Outcome], "outcome")
        most = request.limit or 50
        how: dict[str, Any] = {"outcome": request.outcome, "without_folded": request.without_folded}
        how |= {"before": number_of(request.cursor)} | lists.span_of(request)
        if request.name:
            how["task_id"] = (await self._store.read(lambda session: changes.find(session, request.name))).id
        if {"begin", "end"} & set(how):
            entries, total = await self._scan(most, how)
        else:
            entries, total = await self._store.read(lambda session: session.fires.page(most, **how))
        shown = await self._store.read(lambda session: _fires_shown(session, entries))
        following = cursor_at(entries[-1].entry_id) if len(entries) == most else ""
        return wire.ListFiresResponse(fires=shown, total=total, next_cursor=following)

    async def _scan(self, most: int, how: dict[str, Any]) -> tuple[list[model.Fire], int]:
        """Scan the whole ledger in parts, because times have no index. The runner can work between parts."""
        found, total = list[model.Fire](), 0
        for high in range(await self._store.read(lambda session: session.fires.newest()), 0, -_SCANNED_AT_ONCE):
            ids, left = (high - _SCANNED_AT_ONCE, high), most - len(found)
            some = partial(_page, most=left, how=how | {"ids": ids})
            entries, count = await self._store.read(some)
            found, total = found + entries, total + count
            await self._clock.sleep(0)
        return found, total

    async def get_fire(self, request: wire.GetFireRequest) -> wire.Fire:

        def read(session: Session) -> wire.Fire:
            fire = session.fires.by_ids([request.fire_id]).get(request.fire_id)
            if fire is None:
                raise NotFound(f"no fire {request.fire_id[:100]!r}", where="fire_id")
            return _fires_shown(session, [fire])[0]

        return await self._store.read(read)

    async def preview_schedule(self, request: wire.PreviewScheduleRequest) -> wire.PreviewScheduleResponse:
        """Return the next times of a task, or of a schedule that may not be stored."""
        now = self._clock.now()
        if request.name:
            task = await self._store.read(lambda session: changes.find(session, request.name))
            definition, of = task.definition, task
        else:
            definition, of = lists.previewed_definition(request, self._defaults, now), None
        answer = lists.preview(definition)
        for part in lists.upcoming(request, definition, now, of):
            answer.nominals.extend(part)
            await self._clock.sleep(0)  # the runner can work between small batches of times
        return answer

    async def simulate(self, request: wire.SimulateRequest) -> wire.SimulateResponse:
        """Simulate tasks over a span of time, with declared outages."""
        answer: wire.SimulateResponse = await required("Simulate", request, self._store, self._clock)
        return answer

    async def emit_event(self, request: wire.EmitEventRequest) -> wire.EmitEventResponse:
        """Record an event that an author or an agent emits, once for each id."""
        now = self._clock.now()
        event = read_emitted(request, now, self._entropy.hex(12))
        taken = await self._store.change(lambda session: emit(session, event, now))
        self._record(taken.planned.events)
        told: dict[str, Any] = {"matched": taken.matched - len(taken.paused), "paused": taken.paused}
        return wire.EmitEventResponse(duplicate=not taken.fresh, event_id=event.id, **told)

    async def tick(self, _request: wire.TickRequest) -> wire.TickResponse:
        """Plan the times that are due now."""
        done = await self._tick()
        return wire.TickResponse(planned=done.tasks, committed=done.committed, skipped=done.skipped)

    async def get_status(self, _request: wire.GetStatusRequest) -> wire.RunnerStatus:
        """Return the runner's counts, and whether the runtime is connected."""
        totals = await self._store.read(lambda session: session.tasks.totals())
        status = wire.RunnerStatus(
            tasks=totals.tasks, open_fires=totals.open_fires, unsent=totals.unsent, version=__version__
        )
        stamp(status.next_due_at, totals.next_wake_at)
        if self._serving is not None:
            stamp(status.serving_since, self._serving.since)
            status.runtime_connected = self._serving.connected()
        return status

    def _check_lasting(self, specs: Iterable[wire.TaskSpec]) -> None:
        if self._serving is None and any(spec.ephemeral for spec in specs):
            what = "no daemon runs, and an ephemeral task lasts only as long as a daemon"
            raise Conflict(what, where="ephemeral", hint="start it: turnkeeper up")

    def _apply(self, request: wire.ApplyTasksRequest, now: datetime) -> Callable[[Session], list[changes.Changed]]:
        keep = set(request.also_declared) if request.prune else None
        how: Any = {"keep": keep, "by": str(current())}
        return lambda session: changes.apply(session, request.specs, self._defaults, now, self._entropy, **how)

    async def _stop(self, name: str, state: model.TaskState, note: str) -> wire.Task:
        now = self._clock.now()
        return await self._change(lambda session: changes.stop(session, name, state, note, now))

    async def _review_exceptions(self) -> None:
        """Have the runtime review calls allowed for a task, after the task is restricted or deleted.

        If the runtime is not connected, the runtime checks each call itself before it allows the call.
        """
        with suppress(TurnkeeperError):
            await self._runtime.review_exceptions(_DEADLINE_S)

    async def _change(self, work: Callable[[Session], changes.Changed]) -> wire.Task:
        """Run a change, write its log records, and return the changed task."""

        def changing(session: Session) -> tuple[changes.Changed, wire.Task]:
            done = work(session)
            return done, self._shown(session, done.task)

        done, shown = await self._store.change(changing)
        self._record(done.events)
        return shown

    async def watch_tasks(self, request: wire.WatchTasksRequest) -> AsyncIterator[wire.TaskChange]:
        """Yield each change to a task after the cursor, until the daemon stops."""
        watched = self._watched
        number = watched.number_at(request.cursor) if request.cursor else watched.newest
        if not request.cursor:
            yield wire.TaskChange(cursor=watched.cursor(watched.newest), change=Change.WATCHING)
        while number is None or await watched.wait(number):
            await self._clock.sleep(REST_S)
            found = None if number is None else watched.since(number)
            if found is None:
                number = watched.newest
                yield wire.TaskChange(cursor=watched.cursor(number), change=Change.LIST_AGAIN)
                continue
            ids = {each.task_id for each in found}
            told = await self._store.read(partial(self._named if request.names_only else self._shown_by_id, ids))
            for each in found:
                number = each.number
                about = told.get(each.task_id, {})
                yield wire.TaskChange(cursor=watched.cursor(number), change=each.change, task_id=each.task_id, **about)

    def _named(self, ids: set[str], session: Session) -> dict[str, dict[str, Any]]:
        return {task_id: {"name": name} for task_id, name in session.tasks.names(ids).items()}

    def _shown_by_id(self, ids: set[str], session: Session) -> dict[str, dict[str, Any]]:
        found = filter(None, map(session.tasks.find, sorted(ids)))
        return {
            task.id: {"task": self._shown(session, task)} for task in found if task.state is not model.TaskState.DELETED
        }

    def _shown(self, session: Session, task: model.Task) -> wire.Task:
        glance, now = session.fires.glances([task.id])[task.id], self._clock.now()
        lateness = session.fires.lateness(task.id, lists.LATENESS_OF)
        shown = show_task(task, glance, now, lateness, blocked=lists.blocked(session, lists.away(session, now)))
        shown.edited_by = session.tasks.edited_by(task)
        stamp(shown.updated_at, session.tasks.edited_at([task.id])[task.id])
        return shown

    def _record(self, events: list[LogRecord]) -> None:
        self._log.emit_all(events)
        if events:
            self._changed()


def _worded(request: wire.CreateTaskRequest) -> wire.CreateTaskRequest:
    """Return the request with the words of a loop parsed into its spec. Raises InvalidInput."""
    if not request.words:
        return request
    if not request.loop:
        raise InvalidInput("are for a loop", where="words", hint="give the fields of the spec")
    said, whole = required("words of a loop", request.words), wire.CreateTaskRequest()
    whole.CopyFrom(request)
    setattr(whole.spec, said.kind, said.schedule or True)
    whole.spec.prompt = said.prompt
    return whole


def _within(session: Session, request: wire.CreateTaskRequest) -> wire.TaskSpec:
    """Return the spec to create. If a fire's turn creates the task, cap its budget at that of the fire's task."""
    fire = session.fires.by_ids([request.fire_id]).get(request.fire_id) if request.fire_id else None
    task = session.tasks.find(fire.task_id) if fire is not None else None
    spec = wire.TaskSpec()
    spec.CopyFrom(request.spec)
    for key, limit in task.definition.budget if task is not None else ():
        if key in HOURLY and not spec.dynamic:
            continue
        spec.budget[key] = min(limit, request.spec.budget.get(key, limit))
    return spec


def _page(session: Session, most: int, how: Mapping[str, Any]) -> tuple[list[model.Fire], int]:
    return session.fires.page(most, **how)


def _fires_shown(session: Session, entries: Iterable[model.Fire]) -> list[wire.Fire]:
    outages, shown, tasks = session.outages_of_all_kinds(), list[wire.Fire](), dict[str, model.Definition]()
    for fire in entries:
        definition = tasks.get(fire.task_id) or changes.find(session, fire.task_id).definition
        tasks[fire.task_id] = definition
        shown.append(show_fire(fire, definition.name, cause_of(fire, definition.grace, outages)))
    return shown


# Fields of a task, and of its fires, that the graph reads, or that name the graph or its category.
_GIVEN = ("prompt", "payload_json", "thread_id", "category", *model.OF_GRAPH)
_DEADLINE_S = 1.0
_LOADING_S = 5.0  # before it answers, a runtime may import the package of a model
_KNOWN_FOR_S = 5.0


class Names:
    """A check of names against the runtime. Known categories are cached for a few seconds; unknown ones are not."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._known = frozenset[str]()
        self._asked_at = float("-inf")

    async def check(self, categories: set[str], graphs: set[str], given: model.Definition | None = None) -> list[str]:
        """Return warnings if the runtime does not answer, or if the graph of the task `given` does not read its prompt.

        Raises InvalidInput if the runtime does not know a name, or if the graph would refuse the task's input.
        """
        hosted = given is not None and model.HOSTED.fullmatch(given.agent)  # an agent in a terminal runs no graph
        inputs = [FireRequest(**{name: getattr(given, name) for name in _GIVEN})] if hosted else []
        warnings = await self._check_categories(categories)
        within_s = _DEADLINE_S if warnings else _LOADING_S
        return (warnings if categories else []) + await self._check_graphs(graphs - {""}, inputs, within_s)

    async def _check_graphs(self, names: set[str], inputs: list[FireRequest], within_s: float) -> list[str]:
        if not names and not inputs:
            return []
        try:
            known, unread = await self._runtime.graphs(within_s, inputs)
        except InvalidInput:
            raise
        except TurnkeeperError:
            return [_unchecked(f"the graph {', '.join(sorted(names))}")] if names else []
        for name in sorted(names):
            if name not in known:
                raise InvalidInput(f"unknown graph {name!r}", where="graph", hint=meant(name, known))
            if known[name]:
                raise InvalidInput(f"the graph {name} cannot run: {known[name]}", where="graph")
        return unread

    async def _check_categories(self, names: set[str]) -> list[str]:
        steady = self._clock.monotonic()
        if names <= self._known and steady - self._asked_at < _KNOWN_FOR_S:
            return []
        try:
            self._known = await self._runtime.categories(_DEADLINE_S)
        except TurnkeeperError:
            return [_unchecked(f"category {', '.join(sorted(names))}")]
        self._asked_at = steady
        if unknown := sorted(names - self._known):
            hint = f"known are: {', '.join(sorted(self._known)) or 'none'}"
            raise InvalidInput(f"unknown category {unknown[0]!r}", where="category", hint=hint)
        return []


def _unchecked(what: str) -> str:
    return f"agent-runtime does not answer: whether {what} exists was not checked; an unknown one stops the task later"


# The interface of the service's callers.
RULES = Rules(
    peer="agent-runtime",
    reads=frozenset(
        {
            *("GetTask", "ListTasks", "ListFires", "GetFire"),
            *("ExplainFire", "PreviewSchedule", "Simulate", "GetStatus", "WatchTasks"),
        }
    ),
    acts={
        "CreateTask": "answer.task.id",
        "UpdateTask": "answer.task.id",
        "DeleteTask": "answer.id",
        "RestoreTask": "answer.id",
        "PauseTask": "answer.id",
        "ResumeTask": "answer.id",
        "DisableTask": "answer.id",
        "EnableTask": "answer.id",
        "RescheduleTask": "answer.id",
        "RunTask": "answer.fire_id",
        "BackfillTask": "request.name",
        "ApplyTasks": "answer.applied.name",
        "EmitEvent": "request.name",
        "Tick": "",
    },
    author_fields={"CreateTask": ("words",)},  # text that a person typed; a program's text is never a command
    reserved_fields={
        "CreateTask": ("spec.created_by", "fire_id"),
        "ApplyTasks": ("specs.created_by",),
        "EmitEvent": ("created_by", "fire_id", "channel", "thread_id"),
    },
    daemon_fields={"EmitEvent": ("fire_id",)},  # id of the fire whose result is delivered as an event
)
# Maps each method of the contract to a method of the service.
METHODS = {
    method.name: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in method.name).lstrip("_")
    for method in wire.DESCRIPTOR.services_by_name["Schedules"].methods
}
STREAMS = frozenset({"WatchTasks"})


class Servicer:
    """The gRPC servicer, which passes each call to the service. Made from the contract, so no method is missing."""

    def __init__(self, service: Service) -> None:
        for method, own in METHODS.items():
            setattr(self, method, (_stream if method in STREAMS else _handler)(getattr(service, own)))


def _handler(operation: Any) -> Any:
    async def handle(request: Any, _context: object) -> Any:
        return await operation(request)

    return handle


def _stream(operation: Any) -> Any:
    return lambda request, _context: operation(request)
