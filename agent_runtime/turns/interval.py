"""One interval of a turn: the graph runs under the turn's grant, can be cancelled, and its progress is recorded."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from agent_runtime.graph.engine.protocol import Ended, Engines, Order, Step
from agent_runtime.model.approval import APPROVED_WITH, EXPIRED, call_key
from agent_runtime.model.mapping import canonical
from agent_runtime.model.trigger import AGENT_KINDS, WAKES, is_loop
from agent_runtime.model.turn import Category, InterruptRecord, Said, TurnContext, TurnRecord, Used
from agent_runtime.permissions.exceptions import ALLOWED_BY
from agent_runtime.permissions.judge import Narrowing
from agent_runtime.store.mail import handoffs_of, shown
from agent_runtime.store.turn_reads import asked_in_turn, is_cancelled
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.event_log import EventLog
from turnkeeper.rpc.process import Failpoints

CANCEL_AGAIN_S = 1.0  # time between two cancels of a graph that ignores them, until its interval ends
RECORD_S = 0.25  # the longest delay before new messages are stored
OVERDUE_S = 1.0  # the grace after the time limit, at which the graph was cancelled once
_COPIED = (  # the fields that a turn's context copies from its row
    *("turn_id", "thread_id", "channel", "agent", "read_only", "fire_id", "task_name", "prompt"),
    *("nominal_at", "stands_for", "context_json", "config_json", "run_json"),
)


class Intervals:
    """Runner of intervals, which tracks the running turns."""

    def __init__(
        self, *, store: Store, engines: Engines, narrowing: Narrowing, log: EventLog, failpoints: Failpoints
    ) -> None:
        self._store = store
        self._engines = engines
        self._narrowing = narrowing
        self._log = log
        self._failpoints = failpoints
        self._running: dict[str, asyncio.Task[Ended]] = {}

    @property
    def running(self) -> int:
        """Number of turns that are running."""
        return len(self._running)

    def cancel(self, turn_id: str) -> bool:
        """Stop a running turn at its next await; return False if it is not running. Store the cancellation first."""
        task = self._running.get(turn_id)
        if task is not None:
            _cancel(task)
        return task is not None

    async def run(self, turn: TurnRecord, order: Order, mode: str) -> Ended | None:
        """Run one interval; return None if it was cancelled.

        Args:
            turn: the turn's row, already on disk.
            mode: start, continue or resume, for the log.
        """
        recording = _Recording(self._store, self._failpoints, turn.turn_id, self._log, is_new=mode == "start")
        self._log_start(turn, mode)
        context = await self._context(turn)
        engine, used = self._engines.of(turn.graph), turn.used
        work = engine.run(order, context, turn.after_message, recording.step, used)
        task = asyncio.create_task(work, name=f"turn-{turn.turn_id}")
        self._running[turn.turn_id] = task
        seconds, in_time = context.category.seconds, {task}
        try:
            if await self._store.look(is_cancelled, turn.turn_id):
                _cancel(task)  # the cancellation was stored after the decision to run
            in_time, _ = await asyncio.wait([task], timeout=seconds + OVERDUE_S)
        except asyncio.CancelledError:  # the process stops and its grace period is over; the next process continues
            self._log.emit("turn.stopped", turn_id=turn.turn_id, thread_id=turn.thread_id, state="drained")
            await self._store.give_back(turn.turn_id)
            raise
        finally:
            _cancel(task)
            await asyncio.wait([task])
            del self._running[turn.turn_id]
            await recording.finished(written=_writes_outcome(task))
            await self._pin(turn, self._narrowing.end(turn.turn_id))
        if task.cancelled() and not in_time and not await self._store.read(is_cancelled, turn.turn_id):
            return Ended(stopped="timeout", error=f"took longer than {seconds} s")
        return None if task.cancelled() else task.result()

    async def _context(self, turn: TurnRecord) -> TurnContext:
        category = self._narrowing.begin(turn.turn_id, turn.grant)
        await self._pin(turn, category)
        with_handoffs = self._store.right.shared or turn.turn_id in self._store.with_handoffs
        handoffs = await self._store.look(handoffs_of, turn.turn_id) if with_handoffs else []
        fresh = turn.tries == 1 and not turn.answers and not turn.resumes  # the turn has not asked a question yet
        asked = [] if fresh else await self._store.look(asked_in_turn, turn)
        copied: dict[str, Any] = {name: getattr(turn, name) for name in _COPIED}
        return TurnContext(
            **copied,
            category=category,
            started_by="fire" if turn.trigger == "fire" or turn.kind == AGENT_KINDS["fire"] else "author",
            by_agent=turn.kind in AGENT_KINDS.values(),
            asked=frozenset(call_key(one) for one in asked if one.call_id),
            writes_approved=any(_approves_writes(one, turn.turn_id) for one in asked),
            handoff=shown(handoffs),
            paced=turn.kind in WAKES,
            graph=self._engines.catalog.label(turn.graph),
            asks=not (turn.read_only and is_loop(turn.task_id)),
            unanswered=any(one.decision == EXPIRED for one in asked),
        )

    async def _pin(self, turn: TurnRecord, category: Category) -> None:
        """Store the remaining part of a turn's grant, so that a narrowed grant stays narrow if its category changes."""
        if category != turn.grant:
            await self._store.narrow(turn.turn_id, canonical(category.to_dict()))

    def _log_start(self, turn: TurnRecord, mode: str) -> None:
        what: dict[str, Any] = {
            name: getattr(turn, name) for name in ("turn_id", "thread_id", "fire_id", "attempt", "agent")
        }
        what |= {"traceparent": turn.traceparent} if turn.traceparent else {}
        self._log.emit("turn.started", **what, epoch=self._store.right.epoch, trigger=turn.trigger, mode=mode)


def _cancel(task: asyncio.Task[Ended]) -> None:
    if not task.done():
        task.cancel()
        asyncio.get_running_loop().call_later(CANCEL_AGAIN_S, _cancel, task)


def _writes_outcome(task: asyncio.Task[Ended]) -> bool:
    """Return whether the outcome of an interval will be written together with all its messages."""
    if task.cancelled() or task.exception() is not None:
        return False
    return task.result().stopped != "drained" and task.result().step.messages is not None


def _is_over(write: asyncio.Task[None]) -> bool:
    """Return whether a write has ended. Also retrieve its error; the outcome repeats a failed write."""
    if write.done() and not write.cancelled():
        write.exception()
    return write.done()


def _approves_writes(asked: InterruptRecord, turn_id: str) -> bool:
    if asked.message.startswith((APPROVED_WITH, ALLOWED_BY)):  # the approval covers one call
        return False
    return asked.turn_id == turn_id and asked.kind == "proposal" and asked.decision in {"approve", "edit"}


class _Recording:
    """Writer of a running turn's messages. It delays writes, because the end of a short turn writes all of them.

    Tokens are written at once, because the daily cap is checked against them before each model call.
    """

    def __init__(self, store: Store, failpoints: Failpoints, turn_id: str, log: EventLog, *, is_new: bool) -> None:
        """Take `is_new`, False if the turn continues, so that tool calls of earlier intervals are not logged again."""
        self._log, self._told = log, 0 if is_new else None
        self._store = store
        self._failpoints = failpoints
        self._turn_id = turn_id
        self._known = 0
        self._wake: int | None = None
        self._used = Used()
        self._newest: Step | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._writes: list[asyncio.Task[None]] = []

    async def step(self, step: Step) -> None:
        """Log the new tool calls, then queue the new messages."""
        if step.messages is not None:
            self._tell_calls(step.messages)
        used = step.used
        if step.messages is not None and len(step.messages) > self._known:
            self._newest = step
            if used != self._used:
                self._write()
            elif self._soon is None:
                self._soon = asyncio.get_running_loop().call_later(RECORD_S, self._write)
        elif used.total() > self._used.total():
            self._count(used)
        if step.wake_after_s is not None and step.wake_after_s != self._wake:
            self._wake = step.wake_after_s
            self._writes.append(asyncio.create_task(self._store.wake(self._turn_id, self._wake)))
        self._failpoints.reach("runtime.turn_step")

    def _tell_calls(self, messages: Sequence[Said]) -> None:
        fresh = messages[len(messages) if self._told is None else self._told :]
        self._told = len(messages)
        calls = [call for message in fresh for call in message.tool_calls]
        if calls:
            named = [{"turn_id": self._turn_id, "call_id": call.id, "tool": call.name[:128]} for call in calls]
            self._log.emit_all([("tool.called", what) for what in named])

    async def finished(self, *, written: bool) -> None:
        """Wait for all queued writes; write the remaining messages unless they are `written` with the outcome.

        The outcome is written later and is complete, so it repairs a failed write.
        """
        if self._soon is not None:
            self._soon.cancel()
        if not written:
            self._write(cancelled=True)  # the messages precede the cancellation
        await asyncio.gather(*self._writes, return_exceptions=True)

    def _count(self, used: Used) -> None:
        self._used = used
        if self._newest is not None:
            self._newest = replace(self._newest, used=used)
        self._queue(self._store.record(self._turn_id, None, used))

    def _write(self, *, cancelled: bool = False) -> None:
        step, self._newest = self._newest, None
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if step is None or step.messages is None:
            return
        self._used = step.used
        write = self._store.record(self._turn_id, step.messages, self._used, known=self._known, cancelled=cancelled)
        self._known = len(step.messages)
        self._queue(write)

    def _queue(self, write: Coroutine[Any, Any, None]) -> None:
        self._writes = [task for task in self._writes if not _is_over(task)]
        self._writes.append(asyncio.create_task(write))
