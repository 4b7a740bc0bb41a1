"""The tools for loops: a self-paced turn asks for its next iteration; any turn may make, list and stop loops.

This module forwards a turn's requests to the runner's `Schedules`, within the turn's permissions, and names the turn.
A loop never has more permissions than the turn that made it.
"""

import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from sqlalchemy import Connection

from agent_runtime.graph.context import WAKEUP_TOOL, ToolSpec
from agent_runtime.model.trigger import WAKES
from agent_runtime.model.turn import Category, TurnContext, TurnRecord
from agent_runtime.permissions.categories import Categories
from agent_runtime.permissions.judge import LOOPS, beyond, intersect, require
from agent_runtime.store import turn_writes
from agent_runtime.store.idempotency import Call, known, once, refuse_ended
from agent_runtime.store.turn_reads import get_turn
from agent_runtime.store.turn_store import Store
from agent_runtime.tools.call import Result, Runtime, call_of, spec
from agent_runtime.tools.tasks import Tasks
from agent_runtime.workspace.model import check_text
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

WAKEUP, LIST, DELETE, EMIT = "loop.wakeup", "loop.list", "loop.delete", "event.emit"
LONGEST_WAKE_S = 7 * 86_400
DEFAULT_CATEGORY = "loop"  # default category of a loop that an author's turn makes
LONGEST_SHOWN = 200  # characters of a prompt
MOST_LISTED = 100


class Loops(Tasks):
    """Executor of the tools' calls, in the turn's row or at the runner, once for each call."""

    def __init__(self, store: Store, categories: Categories, home: Home, clock: Clock) -> None:
        super().__init__(home)
        self._store = store
        self._categories = categories
        self._clock = clock

    async def wake(self, call: Call, delay_s: float) -> Result:
        """Store the delay of the loop's next iteration in the turn's row. The last call of a turn counts.

        The delay begins at the turn's end. The runner gets the delay with the outcome, unless the turn fails.

        Raises:
            Denied: not in scope, the turn has ended, or no task started it.
            InvalidInput: the delay is not from 0 to seven days.
        """
        require(WAKEUP, "read", {}, call.context)
        delay = _read_delay(delay_s)
        at, free_at = self._clock.now(), await self._wakes_from(call.context)

        def work(connection: Connection) -> Result:
            turn = _turn_of(connection, call.context.turn_id)
            if not turn.fire_id:
                by = "another agent" if call.context.by_agent else "the author"
                what = f"{by} began this turn, not a loop, so there is nothing to wake"
                raise Denied(what, hint="to make a loop, call LoopCreate")

            def write() -> Result:
                turn_writes.change_turn(connection, turn.turn_id, wake_after_s=delay)
                return _woken(
                    turn, delay, "" if free_at is None or at + timedelta(seconds=delay) >= free_at else rfc3339(free_at)
                )

            return once(connection, call, WAKEUP, at, refuse_ended, write).result

        return await self._store.write(work)

    async def _wakes_from(self, context: TurnContext) -> datetime | None:
        """Return the earliest next wake if the loop has used up its hourly budget; None if a wake may come at any time.

        Return None if the runner does not answer, because the runner enforces the budget in any case.
        """
        if not context.fire_id:
            return None
        try:
            task: wire.Task = await self.runner.GetTask(wire.GetTaskRequest(name=context.fire_id.partition("@")[0]))
        except TurnkeeperError:
            return None
        return task.wakes_from.ToDatetime(UTC) if task.HasField("wakes_from") else None

    async def create(self, call: Call, asked: Mapping[str, Any]) -> Result:
        """Make a loop, within the turn's permissions.

        `asked` contains fields of a `TaskSpec`, including its `prompt`; empty values are ignored. Without `every`,
        `cron` or `on`, the loop is self-paced.

        Raises:
            Denied: not in scope, or beyond the turn's category.
            InvalidInput: the runner refuses the loop.
            Exhausted: the agent has reached its limit of loops.
            Unreachable: the runner does not answer.
        """
        context = call.context
        require(LOOPS, "write", {"channel": asked.get("channel", "")}, context)
        _check_texts(asked)
        own = context.category.name if context.started_by == "fire" else DEFAULT_CATEGORY
        category = self._categories.get(asked.get("category") or own)
        turn = await self._store.read(lambda connection: _turn_of(connection, context.turn_id))
        # An author's approval of this one call grants no permission to the loop.
        bare = replace(context, category=intersect(turn.grant, context.category))
        if reason := beyond(category, bare):
            raise Denied(reason, where="category", hint="name a category that grants no more than this turn has")
        spec_ = _spec(call, asked, category, read_only=turn.read_only)
        request = wire.CreateTaskRequest(spec=spec_, loop=True, fire_id=context.fire_id)
        return await self._once(call, LOOPS, lambda: self._made(request))

    async def list(self, call: Call) -> Result:
        """Return the agent's own loops and the loops of the turn's channel. Raises Denied, Unreachable."""
        context = call.context
        require(LIST, "read", {}, context)
        own = wire.ListTasksRequest(made_by=context.agent, limit=MOST_LISTED)
        here = wire.ListTasksRequest(channel=context.channel, limit=MOST_LISTED)
        answers: list[wire.ListTasksResponse] = [await self.runner.ListTasks(request) for request in (own, here)]
        found = {task.id: task for answer in answers for task in answer.tasks}
        shown = [task for task in found.values() if _is_own(task, context) or _is_here(task, context)]
        left_out = sum(answer.total - len(answer.tasks) for answer in answers)
        return {"loops": [_listed(task, context) for task in shown], "left_out": left_out}

    async def delete(self, call: Call, loop: str, *, pause: bool) -> Result:
        """Delete one of the agent's own loops, or pause it.

        Raises:
            Denied: not in scope, or another agent made the loop.
            InvalidInput: `loop` contains text that a message cannot carry.
            NotFound: no such loop exists.
            Unreachable: the runner does not answer.
        """
        require(DELETE, "write", {"loop": loop}, call.context)
        _check_texts({"loop": loop})
        return await self._once(call, DELETE, lambda: self._ended(call.context, loop, pause=pause))

    async def emit(self, call: Call, name: str, data: Mapping[str, Any]) -> Result:
        """Emit an event to every task that listens for it.

        Raises:
            Denied: not in scope, or the turn has ended.
            InvalidInput: the name is invalid or reserved, or the data is not an acceptable JSON object.
            Unreachable: the runner does not answer.
        """
        context = call.context
        require(EMIT, "write", {"name": name}, context)
        try:
            _check_texts({"name": name, "data": json.dumps(data, ensure_ascii=False)})
            data_json = json.dumps(data, allow_nan=False) if data else ""
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"is not JSON: {error}", where="data") from error
        request = wire.EmitEventRequest(
            name=name, data_json=data_json, event_id=f"call-{_digest(call)}", created_by=_maker(context),
            fire_id=context.fire_id, channel=context.channel, thread_id=context.thread_id,
        )  # fmt: skip
        return await self._once(call, EMIT, lambda: self._emitted(request))

    async def _emitted(self, request: wire.EmitEventRequest) -> Result:
        answer: wire.EmitEventResponse = await self.runner.EmitEvent(request)
        return {"event": request.name, "event_id": answer.event_id, "listening_tasks": answer.matched}

    async def _made(self, request: wire.CreateTaskRequest) -> Result:
        spec = request.spec
        try:
            made: wire.CreateTaskResponse = await self.runner.CreateTask(request)
        except Conflict:
            # An earlier run of this call may have reached the runner: its loop has the same name.
            task: wire.Task = await self.runner.GetTask(wire.GetTaskRequest(name=spec.name))
            if task.spec.created_by != spec.created_by:
                raise
            made = wire.CreateTaskResponse(task=task)
        return _made(made)

    async def _ended(self, context: TurnContext, loop: str, *, pause: bool) -> Result:
        task: wire.Task = await self.runner.GetTask(wire.GetTaskRequest(name=loop))
        if not _is_own(task, context):
            if not _is_here(task, context):
                raise NotFound(f"no loop {loop[:80]!r}", where="loop", hint="see LoopList")
            raise Denied(f"{context.agent} did not make loop {task.id}", hint="the author can stop it")
        if not pause and task.state != "deleted":
            await self.runner.DeleteTask(wire.DeleteTaskRequest(name=task.id))
        if pause and task.state != "paused":
            note = f"by {context.agent} in {context.turn_id}"
            await self.runner.PauseTask(wire.PauseTaskRequest(name=task.id, note=note))
        return {"loop": task.id, "state": "paused" if pause else "deleted"}

    async def _once(self, call: Call, scope: str, act: Callable[[], Awaitable[Result]]) -> Result:
        """Act and store the result, unless an earlier run of this call did so.

        After a crash between the act and the storing, the call acts again, without a second effect at the runner.
        """
        at = self._clock.now()

        def look(connection: Connection) -> Result | None:
            before = known(connection, call)
            if before is None:
                refuse_ended(connection, call.context)
            return before

        before = await self._store.read(look)
        if before is not None:
            return before
        result = await act()
        kept = await self._store.write(lambda connection: once(connection, call, scope, at, _keep, lambda: result))
        return kept.result


def loop_tools(loops: Loops) -> list[ToolSpec]:

    async def wakeup(
        runtime: Runtime,
        delay_seconds: Annotated[float, "seconds from the end of this turn to the next iteration; 0 is at once"] = 0,
        reason: Annotated[str, "why it continues, in a few words"] = "",  # noqa: ARG001  the author reads it in the call
    ) -> Result:
        """Continue this self-paced loop: its next iteration begins so long after this turn has ended, or at once.

        Do this iteration's work first, call this once at its end, then end your turn. Not calling it ends the loop: do
        so when its goal is met, or when the event that it waits for has come.
        """
        return await loops.wake(call_of(runtime), delay_seconds)

    return [spec(wakeup, scope=WAKEUP, effect="read", name=WAKEUP_TOOL, strict=True), *_loop_changes(loops)]


def _loop_changes(loops: Loops) -> list[ToolSpec]:
    async def create(
        prompt: Annotated[str, "the task of each turn of the loop; a turn sees nothing of this thread"],
        runtime: Runtime,
        *,
        every: Annotated[str, "an interval, such as 15m or 2h"] = "",
        cron: Annotated[str, "five fields, such as 0 9 * * 1-5; with no time and no event the loop paces itself"] = "",
        on: Annotated[str, "an event's name, such as task.succeeded or turn_end, beside a time or without one"] = "",
        where: Annotated[tuple[str, ...], "which events: field=value or field~=pattern, such as task=digest"] = (),
        debounce: Annotated[str, "how long after an event further events join its fire, such as 30s"] = "",
        recurring: Annotated[bool, "false: the loop fires only once"] = True,
        max_fires: Annotated[int, "the most fires; 0 for no limit"] = 0,
        read_only: Annotated[bool, "its turns only read"] = False,
        category: Annotated[str, "the permissions of its turns: at most those of this turn"] = "",
        channel: Annotated[str, "another channel, if the category reaches it; empty for the turn's own"] = "",
    ) -> Result:
        """Make a loop: a prompt that is repeated on its own thread, at times, after events, or at its own pace.

        It ends automatically after seven days. You can have at most 25 loops at a time.
        """
        asked: dict[str, Any] = {
            "prompt": prompt,
            "every": every,
            "cron": cron,
            "on": on,
            "filters": where,
            "debounce": debounce,
        }
        asked |= {"max_fires": max_fires if recurring else 1, "read_only": read_only}
        return await loops.create(call_of(runtime), asked | {"category": category, "channel": channel})

    async def listed(runtime: Runtime) -> Result:
        """List your loops and those of this channel, each with its id, next fire, number of fires, and prompt."""
        return await loops.list(call_of(runtime))

    async def delete(
        loop: Annotated[str, "its id or name, as LoopList gives it"],
        runtime: Runtime,
        action: Annotated[Literal["delete", "pause"], "pause keeps it without firing"] = "delete",
    ) -> Result:
        """Delete or pause a loop that you made. A running turn of the loop continues to its end."""
        return await loops.delete(call_of(runtime), loop, pause=action == "pause")

    async def emit(
        name: Annotated[str, "a name for the event: a-z, 0-9, _, ., : and -"],
        runtime: Runtime,
        data: Annotated[dict[str, Any] | None, "a JSON object of a few facts, for the prompts of those tasks"] = None,
    ) -> Result:
        """Emit your own event, to every task that listens for it."""
        return await loops.emit(call_of(runtime), name, data or {})

    return [
        spec(emit, scope=EMIT, effect="write"),
        spec(create, scope=LOOPS, effect="write", name="LoopCreate"),
        spec(listed, scope=LIST, effect="read", name="LoopList"),
        spec(delete, scope=DELETE, effect="write", name="LoopDelete"),
    ]


def _turn_of(connection: Connection, turn_id: str) -> TurnRecord:
    """Return a turn's row. Raises Denied if the row is missing."""
    turn = get_turn(connection, turn_id)
    if turn is None:
        raise Denied("the turn is not stored", where=turn_id)
    return turn


def _read_delay(asked: float) -> int:
    """Return a delay in whole seconds, rounded up.

    >>> _read_delay(0), _read_delay(2.1)
    (0, 3)

    Raises:
        InvalidInput: the delay is below 0 or more than seven days.
    """
    if not math.isfinite(asked) or not 0 <= asked <= LONGEST_WAKE_S:
        what = f"must be a number of seconds from 0 to {LONGEST_WAKE_S} (seven days), not {asked}"
        raise InvalidInput(what, where="delay_seconds", hint="0 continues at once; to end the loop, do not call it")
    return math.ceil(asked)


def _woken(turn: TurnRecord, delay_s: int, put_off_to: str) -> Result:
    when = f"{delay_s} s after the end of this turn" if delay_s else "as soon as this turn has ended"
    told = {"wake_after_s": delay_s, "next": f"the next iteration begins {when}; end your turn now"}
    if put_off_to:
        why = "the hourly budget that the author set for this loop is used up"
        told["next"] = f"put off: {why}, so the next iteration begins at {put_off_to}; end your turn now"
        told["put_off_to"] = put_off_to
    if turn.kind not in WAKES:
        told["note"] = f"{turn.task_name} was not woken as a self-paced task; in other tasks this call has no effect"
    return told


def _check_texts(said: Mapping[str, object]) -> None:
    """Raise InvalidInput for text that no message can carry, because models may write half an emoji as valid JSON."""
    for field, value in said.items():
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                check_text(text, field)


def _keep(_connection: Connection, _context: TurnContext) -> None:
    """Refuse nothing, so that the runner's result is stored even if the turn was cancelled meanwhile."""


def _spec(call: Call, asked: Mapping[str, Any], category: Category, *, read_only: bool) -> wire.TaskSpec:
    """Return the task spec of a loop. Its name is derived from the call, so that one call makes one loop."""
    context = call.context
    if asked.get("every") and asked.get("cron"):
        raise InvalidInput("every and cron cannot be combined", where="every", hint="give at most one of the two")
    made = wire.TaskSpec(**{name: value for name, value in asked.items() if value})
    made.name = f"agent-loop-{_digest(call)[:12]}"
    made.category, made.channel, made.agent = category.name, made.channel or context.channel, context.agent
    made.read_only = made.read_only or read_only or context.read_only
    made.created_by.CopyFrom(_maker(context))
    if not (made.every or made.cron or made.on):
        made.dynamic = True
    return made


def _maker(context: TurnContext) -> wire.CreatedBy:
    return wire.CreatedBy(turn_id=context.turn_id, category=context.category.name, agent=context.agent)


def _digest(call: Call) -> str:
    """Return a digest of the call, the same for each run of the call, that identifies it to the runner."""
    return hashlib.sha256(call.key.encode()).hexdigest()[:32]


def _fields(task: wire.Task) -> dict[str, Any]:
    return {
        "loop": task.id,
        "name": task.spec.name,
        "fires": "self-paced" if task.spec.dynamic else task.schedule,
        "next_fire_at": rfc3339(task.next_fire_at.ToDatetime(UTC)) if task.HasField("next_fire_at") else None,
        "channel": task.spec.channel,
    }


def _made(made: wire.CreateTaskResponse) -> Result:
    task = made.task.spec
    granted = {"expires_at": task.expires_at, "category": task.category, "read_only": task.read_only}
    return {**_fields(made.task), **granted, "warnings": list(made.warnings)}


def _listed(task: wire.Task, context: TurnContext) -> Result:
    return {
        **_fields(task),
        "state": task.state,
        "fired": task.iteration if task.spec.dynamic else task.fires,
        "yours": _is_own(task, context),
        "prompt": task.spec.prompt[:LONGEST_SHOWN],
    }


def _is_own(task: wire.Task, context: TurnContext) -> bool:
    return task.spec.HasField("created_by") and task.spec.created_by.agent == context.agent


def _is_here(task: wire.Task, context: TurnContext) -> bool:
    return task.id.startswith("loop-") and task.spec.channel == context.channel
