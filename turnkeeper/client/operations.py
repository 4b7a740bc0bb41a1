"""The client's operations, written once for a blocking and an asynchronous transport.

While a daemon is unavailable, a call that is safe to repeat is repeated for the client's `patience`. Reads, and
requests with their own id, are safe to repeat. Every other call is made once.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from google.protobuf.message import Message

from turnkeeper.client import values
from turnkeeper.client.specs import Duration, TaskFields, span, spec_of
from turnkeeper.client.transport import OnLoop
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.channel import Greeted, Greeting, daemon_of
from turnkeeper.rpc.errors import AlreadyExists
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as runner

_AGAIN_S = 0.2
_POLLS_S = (0.05, 0.5)  # seconds between two polls of a turn: the first and the longest pause
_PAGE = 200
_WITHOUT_TURN = frozenset({"succeeded", "failed", "cancelled", "skipped", "coalesced", "pruned"})  # may have no turn
_TRIES = 3  # attempts to create a task if no answer says whether the task was created


class TurnFailed(TurnkeeperError):
    """The turn failed or was cancelled; `turn` holds its messages."""

    def __init__(self, turn: values.Turn) -> None:
        what = f"the turn {turn.status}: {turn.error or 'no reason is recorded'}"
        super().__init__(what, where=turn.turn_id, hint=f"see: turnkeeper turns show {turn.turn_id}")
        self.turn = turn


class NeedsDecision(Denied):
    """The turn waits for its author; `turn.approvals` holds its questions."""

    def __init__(self, turn: values.Turn) -> None:
        asked = [one.tool or one.question for one in turn.approvals if one.status == "pending"]
        what = f"the turn waits for its author: {', '.join(asked) or turn.status}"
        super().__init__(what, where=turn.turn_id, hint="decide it, or see: turnkeeper approvals list")
        self.turn = turn


class TimedOut(TurnkeeperError):
    """The turn has not ended within the timeout; it continues to run."""


class SendOptions(TypedDict, total=False):
    """Options of a message; see `turnkeeper send --help`."""

    thread_id: str
    new_thread: bool
    graph: str
    context: Mapping[str, Any]
    config: Mapping[str, Any]
    input: Mapping[str, Any]
    agent: str
    category: str
    keep_loop: bool
    request_id: str


Decision = Literal["approve", "reject", "edit", "answer"]


class Operations:
    """The operations of both clients. `AsyncTurnkeeper` inherits them; `Turnkeeper` has them as blocking methods."""

    def __init__(self, home: Home, transport: OnLoop, patience: Duration) -> None:
        self._home, self._transport, self._patience_s = home, transport, span(patience, "patience").total_seconds()

    # --- tasks

    async def create_task(self, name: str, **fields: Unpack[TaskFields]) -> values.Task:
        """Create a task exactly once, even if a daemon dies meanwhile.

        Raises:
            InvalidInput: a field is not valid; `where` names it.
            AlreadyExists: another task has the name.
            Unreachable: the task runner does not answer.
        """
        spec = spec_of(name, fields, now=SystemClock().now())
        request = runner.CreateTaskRequest(spec=spec)
        for left in reversed(range(_TRIES)):
            try:
                return values.task_of((await self._transport.call(request)).task)
            except Unreachable:
                if not left or not self._may_return(request):
                    raise
            if (made := await self._made(spec)) is not None:
                return made
        raise AssertionError("the last attempt returns or raises")

    async def _made(self, spec: runner.TaskSpec) -> values.Task | None:
        """Return the task that a request without an answer created, or None if it created none."""
        try:
            found = await self.get_task(spec.name)
        except NotFound:
            return None
        same = runner.UpdateTaskRequest(name=spec.name, spec=spec, dry_run=True)
        if (await self._again(same)).changed:
            raise AlreadyExists(f"a task named {spec.name!r} exists", where="name", hint="choose another name")
        return found

    async def list_tasks(
        self, *, category: str = "", channel: str = "", state: str = "", tags: Mapping[str, str] | None = None
    ) -> list[values.Task]:
        """Return the tasks that match all filters, ordered by next fire time, soonest first."""
        request = runner.ListTasksRequest(category=category, channel=channel, state=state, tags=tags or {}, limit=_PAGE)
        return [values.task_of(one) for one in await self._pages(request, "tasks")]

    async def get_task(self, name: str) -> values.Task:
        """Return a task by its name or id. Raises NotFound."""
        return values.task_of(await self._again(runner.GetTaskRequest(name=name)))

    async def update_task(self, name: str, **fields: Unpack[TaskFields]) -> values.Task:
        """Change fields of a task. None removes a field. Raises Conflict if the task was changed meanwhile."""
        now = await self._again(runner.GetTaskRequest(name=name))
        base = now.spec
        if base.thread_id == now.id:
            base.ClearField("thread_id")  # the default thread, which has the task's id
        spec = spec_of(base.name, fields, now=SystemClock().now(), base=base)
        request = runner.UpdateTaskRequest(name=now.id, spec=spec, revision=now.revision)
        return values.task_of((await self._transport.call(request)).task)

    async def pause_task(self, name: str, *, note: str = "", until: datetime | None = None) -> values.Task:
        """Pause a task until it is resumed, or until the time `until`."""
        end = "" if until is None else _instant(until)
        return await self._task(runner.PauseTaskRequest(name=name, note=note, until=end))

    async def resume_task(self, name: str, *, replay: bool = False) -> values.Task:
        """Let a paused task fire again. With `replay`, also send fires for the times during the pause."""
        return await self._task(runner.ResumeTaskRequest(name=name, replay=replay))

    async def disable_task(self, name: str, *, cancel_running: bool = False) -> values.Task:
        """Stop a task from firing. Its thread and history stay."""
        return await self._task(runner.DisableTaskRequest(name=name, cancel_running=cancel_running))

    async def enable_task(self, name: str) -> values.Task:
        """Let a disabled task fire again."""
        return await self._task(runner.EnableTaskRequest(name=name))

    async def delete_task(self, name: str) -> values.Task:
        """Delete a task. Its history stays. Raises NotFound."""
        return await self._task(runner.DeleteTaskRequest(name=name))

    async def run_task(self, name: str, *, request_id: str = "") -> values.Fire:
        """Fire a task now, once per request id."""
        request = runner.RunTaskRequest(name=name, request_id=request_id or SystemEntropy().hex(12))
        return values.read(values.Fire, await self._again(request))

    async def get_fire(self, fire_id: str) -> values.Fire:
        """Return one entry of the ledger. Raises NotFound."""
        return values.read(values.Fire, await self._again(runner.GetFireRequest(fire_id=fire_id)))

    async def list_fires(
        self,
        name: str = "",
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        outcome: str = "",
        limit: int = 50,
    ) -> list[values.Fire]:
        """Return the newest ledger entries of one task, or of all tasks, with a time between `begin` and `end`."""
        request = runner.ListFiresRequest(name=name, outcome=outcome, limit=min(limit, _PAGE))
        for field, at in (("from", begin), ("to", end)):
            if at is not None:
                getattr(request, field).FromDatetime(at)
        found = await self._pages(request, "fires", most=limit)
        return [values.read(values.Fire, one) for one in found]

    async def explain_task(self, name: str, at: datetime | None = None) -> values.Explanation:
        """Explain why a task did or did not run at a time. Without a time, explain the latest fire that was due."""
        request = runner.ExplainFireRequest(name=name, at="" if at is None else _instant(at))
        return values.read(values.Explanation, await self._again(request))

    # --- turns

    async def send(self, channel: str, text: str, **options: Unpack[SendOptions]) -> values.Sent:
        """Send a message into a channel's conversation, once per request id.

        The message continues the thread of the channel's newest turn, unless `thread_id` or `new_thread` is given.
        """
        request = runtime.SendMessageRequest(channel=channel, text=text, **_of_message(options))
        return values.read(values.Sent, await self._again(request))

    async def wait(
        self,
        what: values.Sent | values.Fire | values.Turn | str,
        *,
        timeout: Duration = timedelta(minutes=10),  # noqa: ASYNC109
    ) -> values.Turn:
        """Wait until a turn has ended or waits for its author, also across restarts of the daemons. Return the turn.

        Args:
            what: the sent message, the fire, the turn, or a turn's id.
            timeout: the longest time to wait.

        Raises:
            InvalidInput: `what` is of a different kind, such as a task or the result of `run`.
            TimedOut: the turn neither ended nor asked a question in time. It continues to run.
            Conflict: the fire has no turn: it was skipped, coalesced into another fire, or withdrawn.
        """
        if not isinstance(what, values.Sent | values.Fire | values.Turn | str):
            hint = "give the value that run_task or send returned; run has already waited"
            raise InvalidInput(f"a {type(what).__name__} is not a turn, a fire or a message", where="what", hint=hint)
        clock, pause_s = SystemClock(), _POLLS_S[0]
        deadline = clock.monotonic() + span(timeout, "timeout").total_seconds()
        while True:
            if isinstance(what, values.Fire) and not what.turn_id:
                what = _to_be_run(await self.get_fire(what.fire_id))
            turn_id = what if isinstance(what, str) else what.turn_id
            if turn_id:
                turn = await self._again(runtime.GetTurnRequest(turn_id=turn_id))
                if turn.status in values.OVER | values.WAITING:
                    whole = await self._whole(turn)
                    if not whole.is_decided:
                        return whole
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                raise _timed_out(turn_id or str(getattr(what, "fire_id", "")), timeout)
            await self._transport.pause(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _POLLS_S[1])

    async def run(
        self,
        text: str,
        *,
        channel: str = "general",
        timeout: Duration = timedelta(minutes=10),  # noqa: ASYNC109
        **options: Unpack[SendOptions],
    ) -> values.Result:
        """Run a turn and return its result. Without a thread id, the turn gets a new thread.

        Raises:
            TurnFailed: the turn failed or was cancelled.
            NeedsDecision: the turn waits for its author.
            TimedOut: the turn has not ended in time; it continues to run.
        """
        if not options.get("thread_id"):
            options["new_thread"] = True
        turn = await self.wait(await self.send(channel, text, **options), timeout=timeout)
        if turn.waits:
            raise NeedsDecision(turn)
        if turn.status in {"failed", "cancelled"}:
            raise TurnFailed(turn)
        return values.Result(text=turn.text, state=turn.state, turn=turn)

    async def get_turn(self, turn_id: str) -> values.Turn:
        """Return a turn with its messages. Raises NotFound."""
        return await self._whole(await self._again(runtime.GetTurnRequest(turn_id=turn_id)))

    async def cancel_turn(self, turn_id: str, reason: str = "") -> values.Turn:
        """Cancel a turn: it stops at its next await. The cancellation is on disk when this method returns."""
        request = runtime.CancelTurnRequest(turn_id=turn_id, reason=reason)
        return await self._whole(await self._again(request))

    async def read_conversation(self, channel: str = "", *, thread_id: str = "", limit: int = 50) -> list[values.Turn]:
        """Return the newest turns of a channel, or of one thread, oldest first."""
        request = runtime.GetConversationRequest(channel=channel, thread_id=thread_id, limit=limit)
        found = await self._again(request)
        return [values.turn_of(one) for one in found.turns]

    # --- decisions

    async def list_approvals(
        self, *, channel: str = "", thread_id: str = "", status: str = "pending"
    ) -> list[values.Approval]:
        """Return the approvals that wait for their author, oldest first."""
        request = runtime.ListInterruptsRequest(channel=channel, thread_id=thread_id, status=status, limit=_PAGE)
        found = await self._pages(request, "interrupts")
        return [values.read(values.Approval, one) for one in found]

    async def decide(
        self,
        approval: values.Approval | str,
        decision: Decision,
        *,
        message: str = "",
        args: Mapping[str, Any] | None = None,
    ) -> values.Approval:
        """Decide an approval once. The same decision again changes nothing.

        Args:
            approval: the approval that was read, so that the decision is valid only for its arguments; or an id.
            decision: `edit` needs `args`, which replace the call's arguments. `answer` takes `message`, or `args` if
                the answer is not text. `reject` may give a reason in `message`.
            message: see `decision`.
            args: see `decision`.

        Raises:
            NotFound: no approval has this id.
            Conflict: the approval was decided otherwise, is no longer pending, or now has other arguments.
        """
        shown = approval if isinstance(approval, values.Approval) else None
        request = runtime.ResolveInterruptRequest(
            interrupt_id=shown.interrupt_id if shown is not None else str(approval),
            decision=decision,
            message=message,
            args_json=_json(args),
            args_hash=shown.args_hash if shown is not None else "",
        )
        return values.read(values.Approval, await self._again(request))

    # --- following

    def follow(self, channel: str = "", *, thread_id: str = "", limit: int = 50) -> AsyncIterator[values.Turn]:
        """Yield the newest turns of a channel or thread, then each turn again when it changes, also across restarts."""
        whole: Any = self._followed(channel, thread_id, limit, live=False)
        return whole  # type: ignore[no-any-return]

    def follow_live(
        self, channel: str = "", *, thread_id: str = "", limit: int = 50
    ) -> AsyncIterator[values.Turn | values.Speech]:
        """Yield turns as :meth:`follow` does, and also the text of running turns in pieces."""
        return self._followed(channel, thread_id, limit, live=True)

    async def follow_turns(self) -> AsyncIterator[values.TurnEvent]:
        """Yield turn events from now on, each once and in order, also across restarts of the daemon."""
        request = runtime.WatchTurnsRequest(details=True, from_now=True)

        def greeted(greeting: Greeting) -> None:
            request.incarnation, request.after_sequence, request.from_now = greeting.incarnation, greeting.after, False

        async with aclosing(self._stream(request, greeted)) as events:
            async for event in events:
                request.after_sequence = event.sequence
                yield values.read(values.TurnEvent, event)

    async def _followed(
        self, channel: str, thread_id: str, limit: int, *, live: bool
    ) -> AsyncGenerator[values.Turn | values.Speech]:
        request = runtime.WatchConversationRequest(channel=channel, thread_id=thread_id, limit=limit, live=live)
        sent, open_ = dict[str, bytes](), dict[int, str]()
        async with aclosing(self._stream(request, lambda _: None)) as turns:
            async for turn in turns:
                if turn.HasField("speech"):
                    yield values.read(values.Speech, turn.speech, turn_id=turn.turn_id, thread_id=turn.thread_id)
                    continue
                whole = turn.SerializeToString(deterministic=True)
                if sent.get(turn.turn_id) != whole:
                    sent[turn.turn_id] = whole
                    yield values.turn_of(turn)
                _remember(request, turn, open_, sent)

    # --- helpers of the operations

    async def _task(self, request: Message) -> values.Task:
        return values.task_of(await self._transport.call(request))

    async def _whole(self, turn: runtime.Turn) -> values.Turn:
        """Return a turn with its messages, read from the conversation. A silent turn has no messages."""
        request = runtime.GetConversationRequest(thread_id=turn.thread_id, limit=_PAGE)
        while turn.thread_id:
            page = await self._again(request)
            if (found := next((one for one in page.turns if one.turn_id == turn.turn_id), None)) is not None:
                return replace(values.turn_of(found), status=turn.status, error=turn.error)
            if not page.next_cursor:
                break
            request.cursor = page.next_cursor
        return values.turn_of(turn)

    async def _pages(self, request: Any, field: str, *, most: int = 0) -> list[Any]:
        found: list[Any] = []
        while not most or len(found) < most:
            page = await self._again(request)
            found += getattr(page, field)
            request.cursor = page.next_cursor
            if not page.next_cursor:
                break
        return found[:most] if most else found

    async def _again(self, request: Message) -> Any:
        """Make a call that is safe to repeat. Repeat the call while the daemon is unavailable."""
        patience = self._patience()
        while True:
            try:
                return await self._transport.call(request)
            except Unreachable as error:
                await self._rest(request, patience, error)

    async def _stream(self, request: Message, greeted: Greeted) -> AsyncGenerator[Any]:
        """Yield the items of a stream. If the daemon restarts, send `request` again with the caller's changes."""
        patience = self._patience()
        while True:
            try:
                async with aclosing(self._transport.stream(request, greeted)) as items:  # type: ignore[type-var]
                    async for item in items:
                        patience = self._patience()
                        yield item
            except Unreachable as error:
                await self._rest(request, patience, error)

    def _patience(self) -> float:
        return SystemClock().monotonic() + self._patience_s

    def _may_return(self, request: Message) -> bool:
        """Return True if a daemon that does not answer may return soon. A daemon that was stopped has no socket."""
        return bool(self._patience_s) and self._home.socket(daemon_of(request)).exists()

    async def _rest(self, request: Message, deadline: float, error: Unreachable) -> None:
        """Wait before the next attempt. Raise the error after the deadline, or if the daemon will not return."""
        if SystemClock().monotonic() >= deadline or not self._may_return(request):
            raise error
        await self._transport.pause(_AGAIN_S)


def _remember(
    request: runtime.WatchConversationRequest, turn: Any, open_: dict[int, str], sent: dict[str, bytes]
) -> None:
    """Store the cursor for a restart of the stream: the oldest turn that can still change, or else the newest turn."""
    over = turn.status in values.OVER and not any(one.lifecycle == "candidate" for one in turn.candidates)
    if over:
        open_.pop(turn.number, None)
        if len(sent) > _PAGE:
            sent.pop(next(iter(sent)))
    else:
        open_[turn.number] = turn.cursor
    request.cursor = open_[min(open_)] if open_ else turn.cursor


def _to_be_run(fire: values.Fire) -> values.Fire:
    """Return the fire if it has a turn or may still get one. Raises Conflict."""
    if not fire.turn_id and fire.outcome in _WITHOUT_TURN:
        what = f"the fire was {fire.outcome}: {fire.reason or 'it has no turn'}"
        raise Conflict(what, where=fire.fire_id, hint=f"see: turnkeeper task explain {fire.task_name}")
    return fire


def _timed_out(where: str, timeout: Duration) -> TimedOut:
    hint = f"see: turnkeeper turns show {where}" if where.startswith("turn-") else "see: turnkeeper task history"
    return TimedOut(f"has not ended within {timeout}; it continues to run", where=where, hint=hint)


def _of_message(options: SendOptions) -> dict[str, Any]:
    given: dict[str, Any] = {"request_id": SystemEntropy().hex(32), **options}
    for name in ("context", "config", "input"):
        given[f"{name}_json"] = _json(given.pop(name, None))
    return given


def _json(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else json.dumps(value)


def _instant(at: datetime) -> str:
    return rfc3339(at) if at.tzinfo is not None else at.isoformat()
