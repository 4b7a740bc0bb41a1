"""Handling of one trigger: read the facts, decide, act, archive the envelope, notify the author.

The turn's row and its key are stored before the graph gets any input. The envelope is archived after the outcome is
stored. So after a crash, the next process always finds the envelope or the row, and decides again. The author is
notified by a local command; if the command fails, hangs or is missing, turns are not affected.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agent_runtime.graph.context import WAKEUP_TOOL
from agent_runtime.graph.engine.protocol import CALLED, Answers, Continue, Ended, Engines, Input, Order
from agent_runtime.mailbox.agent_messages import AgentMessages
from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.model.approval import Waits
from agent_runtime.model.decide import UNFINISHED, Action, Decision, Facts, Position, decide
from agent_runtime.model.trigger import Trigger, TriggerHeader
from agent_runtime.model.turn import InterruptRecord, Said, TurnRecord
from agent_runtime.store.leases import Fenced
from agent_runtime.store.turn_reads import get_turn, is_cancelled, last_answer, newest_on_thread
from agent_runtime.store.turn_store import Finished, Store, Transcript
from agent_runtime.turns.exceptions import StandingExceptions
from agent_runtime.turns.interval import Intervals
from agent_runtime.turns.lanes import Handled, Item, Lanes
from turnkeeper.bus.event_log import EventLog, told_if_late
from turnkeeper.clock import Clock
from turnkeeper.config.json_text import as_data
from turnkeeper.config.settings import NotifySettings, Settings
from turnkeeper.errors import MachineTrouble, machine_trouble
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.files import Files

LONGEST_NOTIFY_S = 30.0
MOST_NOTIFYING = 8
LONGEST_ANSWER = 24_000  # bytes of the last answer in a prompt
Event = Literal["interrupt", "failure", "pause", "reminder", "expired"]
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)


@dataclass(frozen=True, kw_only=True)
class Notification:
    """A message that the author may want at once. The command gets each field as an environment variable.

    Attributes:
        task: the task's name; empty for a turn that an author started.
        interrupt_id: the question; empty for a failure.
    """

    event: Event
    task: str
    channel: str
    turn_id: str
    interrupt_id: str = ""


class Notifier:
    """Runner of `[notify] command`, with the shell and in the background."""

    def __init__(self, settings: NotifySettings, log: EventLog, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._log = log
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self._under_way: set[asyncio.Task[None]] = set()

    def notify(self, notification: Notification) -> None:
        """Start the command if the settings list this event. Never wait or raise."""
        if not self._settings.command or notification.event not in self._settings.on:
            return
        if len(self._under_way) >= MOST_NOTIFYING:
            self._log.emit("notify.failed", turn_id=notification.turn_id, reason="too many at once")
            return
        task = asyncio.create_task(self._run(notification), name=f"notify-{notification.turn_id}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Stop the running commands."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _run(self, notification: Notification) -> None:
        said = {f"TURNKEEPER_{name.upper()}": value for name, value in vars(notification).items()}
        try:
            reason = await self._shell(self._environ | said)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
        if reason:
            self._log.emit("notify.failed", turn_id=notification.turn_id, reason=reason)
        else:
            self._log.emit("notify.done", turn_id=notification.turn_id, about=notification.event)

    async def _shell(self, environ: Mapping[str, str]) -> str:
        """Run the command in its own session; return why it failed, or an empty string."""
        process = await asyncio.create_subprocess_shell(
            self._settings.command,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(LONGEST_NOTIFY_S):
                code = await process.wait()
        except TimeoutError:
            return f"took longer than {LONGEST_NOTIFY_S:.0f} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, 9)
                await process.wait()
        return "" if code == 0 else f"exit status {code}"


PRUNING_S = 0.05  # interval between requests for pruning that was postponed
MOST_ROUNDS = 10  # decisions about one trigger: a crashed turn, a stored decision, a pause, then the trigger itself
_OTHER_STATE = ("write", "checkpoint_id")  # options of a client's run that write into a state, or fork a thread
_ENDINGS = {"cancelled": "was cancelled before it finished", "failed": "failed before it finished"}
# The result of an action: True if the action is done, False if it waits for the next process, or None if the facts
# changed before it took effect, so that a new decision is needed.
Do = Callable[[Item, Decision, Facts], Awaitable[bool | None]]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that turns use."""

    store: Store
    engines: Engines
    intervals: Intervals
    mailboxes: Mailboxes
    agent_messages: AgentMessages
    notifier: Notifier
    log: EventLog
    failpoints: Failpoints
    settings: Settings
    exceptions: StandingExceptions
    files: Files


class Turns:
    """Handler of triggers, which carries out decisions. The lanes allow one decision at a time on each thread."""

    def __init__(self, parts: Parts, lanes: Lanes, clock: Clock) -> None:
        self._store = parts.store
        self._engines = parts.engines
        self._intervals = parts.intervals
        self._mailboxes = parts.mailboxes
        self._agent_messages = parts.agent_messages
        self._notifier = parts.notifier
        self._log = parts.log
        self._failpoints = parts.failpoints
        self._waits = Waits(**parts.settings.approvals.model_dump())
        self._exceptions = parts.exceptions
        self._lanes = lanes
        self._pruning: dict[asyncio.Task[None], str] = {}  # the thread of each task
        self._clock = clock
        self._graph_wait_s = parts.settings.faults.graph_wait_s
        self._failing_since: dict[str, float] = {}  # by turn: when the machine began to fail its graph's calls
        self._uncounted: set[str] = set()  # turns whose last interval the machine ended; the next is not counted
        self._acts: Mapping[Action, Do] = {
            Action.DROP: self._drop,
            Action.GIVE_INPUT: self._give_input,
            Action.GIVE_ANSWER: self._give_answer,
            Action.CONTINUE: self._continue,
            Action.RECORD: self._record,
            Action.GIVE_UP: self._give_up,
            Action.SET_ASIDE: self._set_aside,
            Action.HOLD: self._hold,
            Action.RESUME: self._resume,
            Action.ANSWER: self._answer,
            Action.KEEP_BACK: self._keep_back,
            Action.RESUME_PAUSE: self._resume_pause,
            Action.SEAL_PAUSE: self._seal_pause,
            Action.RELEASE: self._release,
            Action.SETTLE_CANCELLED: self._settle_cancelled,
            Action.FAIL: self._fail,
            Action.START: self._start,
            Action.START_SEALED: self._start,
        }

    async def handle(self, thread_id: str, item: Item) -> Handled:
        """Handle an item until it is done, has to wait, or the process stops."""
        for _ in range(MOST_ROUNDS):
            facts = await self._store.facts(item.asked, thread_id, item.trigger)
            facts = await self._with_thread(thread_id, item, facts)
            decision = decide(item.asked, facts)
            if decision.action is Action.WAIT:
                return Handled(done=False, until=decision.until)
            settled = await self._acts[decision.action](item, decision, facts)
            if settled is False:
                return Handled(done=False)
            if settled and not decision.again:
                if decision.action is not Action.SET_ASIDE and item.delivery is not None:
                    await self._mailboxes.archive(item.delivery)
                return Handled(done=True)
        raise RuntimeError(f"{item.asked} is still undecided after {MOST_ROUNDS} rounds")

    async def _with_thread(self, thread_id: str, item: Item, facts: Facts) -> Facts:
        """Add the thread's position in its graph to the facts, or the other graph if the trigger names another."""
        known = facts.own or facts.newest
        elsewhere = self._engines.catalog.belongs_elsewhere(item.trigger, known.graph) if item.trigger and known else ""
        waits = facts.own is None and known is not None and known.status in {"interrupted", "paused"}
        if waits and item.trigger is not None and item.trigger.asks_for(*_OTHER_STATE):
            elsewhere = f"thread {thread_id} waits for a decision, so its state is neither written nor forked"
        if elsewhere:
            return replace(facts, elsewhere=elsewhere)
        graph = known.graph if known else item.trigger.graph if item.trigger else ""
        turns = [turn for turn in (facts.own, facts.newest) if turn is not None]
        asked_about, strict = [turn.turn_id for turn in turns], any(turn.status in UNFINISHED for turn in turns)
        thread = await self._engines.of(graph).read(thread_id, asked_about, strict=strict)
        return replace(facts, thread=thread)

    def released(self, finished: Finished) -> None:
        """Queue the messages that waited for the end of a turn, and wake the agent that waits for an answer."""
        self._lanes.put_all(finished.kept)
        if finished.owes:
            self._agent_messages.owing.notify()

    def notify(
        self, event: Event, of: TurnRecord | Trigger | TriggerHeader | InterruptRecord, interrupt_id: str = ""
    ) -> None:
        """Notify the author of an event that may matter at once."""
        where = {"task": of.task_name, "channel": of.channel, "turn_id": of.turn_id}
        self._notifier.notify(Notification(event=event, **where, interrupt_id=interrupt_id))

    async def _drop(self, item: Item, _decision: Decision, facts: Facts) -> bool:
        newest = facts.newest
        if self._mailboxes.is_shared and item.asked.source == "recovery" and newest and newest.status == "paused":
            await self._store.look_again(newest.turn_id)  # another machine's clock is ahead, so the pause continues
        return True

    async def _start(self, item: Item, _decision: Decision, facts: Facts) -> bool:
        trigger = self._engines.catalog.setup(await self._filled(_trigger(item)), facts.newest)
        turn = await self._told(trigger.turn_id, "start", self._store.begin(trigger))
        order = _input(turn, facts.newest.status if facts.newest else "", facts.thread.end)
        return await self._run(turn, order, "start")

    async def _filled(self, trigger: Trigger) -> Trigger:
        """Return a trigger with the last answer of its task in the prompt, if the runner left a mark for the answer."""
        place = f"{{{{last.answer of {trigger.task_id}}}}}"
        if trigger.source != "fire" or place not in trigger.prompt:
            return trigger
        answer = as_data(await self._store.read(last_answer, trigger), LONGEST_ANSWER)
        return replace(trigger, prompt=trigger.prompt.replace(place, answer))

    async def _told(self, turn_id: str, begin: str, write: Awaitable[TurnRecord]) -> TurnRecord:
        """Return the written turn; if the store delays the write, log that a turn is about to begin."""
        with told_if_late(self._log, lambda: [("turn.waits", {"turn_id": turn_id, "begin": begin})]):
            return await write

    async def _give_input(self, _item: Item, decision: Decision, _facts: Facts) -> bool:
        turn = await self._again(decision.turn_id)
        before = await self._store.look(newest_on_thread, turn.thread_id, besides=turn.turn_id)
        return await self._run(turn, _input(turn, before.status if before else ""), "continue")

    async def _give_answer(self, _item: Item, decision: Decision, facts: Facts) -> bool:
        turn = await self._again(decision.turn_id)
        wanted = {name: value for name, value in turn.answers.items() if name in facts.thread.pending}
        return await self._run(turn, Answers(values=wanted), "continue")

    async def _continue(self, _item: Item, decision: Decision, _facts: Facts) -> bool:
        return await self._run(await self._again(decision.turn_id), Continue(), "continue")

    async def _again(self, turn_id: str) -> TurnRecord:
        """Record that another interval of a turn begins. Count the try unless the machine ended the last interval."""
        counted = turn_id not in self._uncounted
        turn = await self._told(turn_id, "continue", self._store.try_again(turn_id, counted=counted))
        self._uncounted.discard(turn_id)
        return turn

    async def _resume(self, _item: Item, decision: Decision, _facts: Facts) -> bool:
        resumed = self._store.resume(decision.turn_id, decision.interrupts)
        turn = await self._told(decision.turn_id, "continue", resumed)
        return await self._run(turn, Answers(values=turn.answers), "resume")

    async def _resume_pause(self, item: Item, decision: Decision, facts: Facts) -> bool:
        trigger = self._engines.catalog.setup(await self._filled(_trigger(item)), facts.newest)
        mark = await self._engines.of(trigger.graph).last_message(trigger.thread_id)
        resumed = self._store.resume_pause(trigger, decision.turn_id, decision.interrupts[0], mark)
        turn = await self._told(trigger.turn_id, "start", resumed)
        return await self._run(turn, Answers(values=turn.answers), "start")

    async def _record(self, _item: Item, decision: Decision, _facts: Facts) -> bool:
        turn = await self._turn(decision.turn_id)
        return await self._settle(turn, await self._engines.of(turn.graph).look(turn.thread_id, turn.after_message))

    async def _give_up(self, _item: Item, decision: Decision, _facts: Facts) -> bool:
        turn = await self._turn(decision.turn_id)
        return await self._finish(turn, "failed", f"was tried {turn.tries} times and never finished")

    async def _set_aside(self, item: Item, decision: Decision, _facts: Facts) -> bool:
        if item.delivery is not None:
            reason = (await self._turn(decision.turn_id)).error
            await self._mailboxes.quarantine(item.delivery, reason)
            where: dict[str, Any] = {"agent": item.delivery.agent, "name": item.delivery.claimed.name}
            self._log.emit("envelope.quarantined", turn_id=decision.turn_id, **where, reason=reason)
        return True

    async def _hold(self, item: Item, decision: Decision, _facts: Facts) -> bool:
        trigger = _trigger(item)
        await self._store.hold(trigger, decision.interrupts)
        held = {"fire_id": trigger.fire_id, "attempt": trigger.attempt, "thread_id": trigger.thread_id}
        self._log.emit("turn.held", durable=False, turn_id=trigger.turn_id, **held)
        return True

    async def _answer(self, item: Item, decision: Decision, _facts: Facts) -> bool | None:
        trigger = _trigger(item)
        if not await self._store.take_answer(trigger, decision.turn_id, decision.interrupts[0]):
            return None  # the author decided while the facts were being read
        self._log.emit("interrupt.resolved", interrupt_id=decision.interrupts[0], decision="answer", via=trigger.via)
        self._lanes.put_decision(trigger.thread_id)
        return True

    async def _keep_back(self, item: Item, _decision: Decision, _facts: Facts) -> bool:
        trigger = _trigger(item)
        await self._store.keep(trigger)
        self._log.emit("message.kept", turn_id=trigger.turn_id, thread_id=trigger.thread_id)
        return True

    async def _seal_pause(self, _item: Item, decision: Decision, _facts: Facts) -> bool:
        turn = await self._turn(decision.turn_id)
        return await self._finish(turn, "cancelled", "its pause ended before the awaited fire came")

    async def _release(self, _item: Item, decision: Decision, facts: Facts) -> bool:
        turn = await self._turn(decision.turn_id)
        if facts.thread.position is Position.END:
            return await self._finish(turn, "succeeded", "")
        is_lost = facts.thread.position is Position.NONE
        elsewhere = "the question that it waited for was settled elsewhere"
        why = "the state of its conversation is lost" if is_lost else elsewhere
        return await self._finish(turn, "cancelled", why)

    async def _settle_cancelled(self, item: Item, decision: Decision, _facts: Facts) -> bool:
        if decision.turn_id:
            return await self._finish(await self._turn(decision.turn_id), "cancelled", "")
        await self._store.begin_ended(_trigger(item), "cancelled")
        return True

    async def _fail(self, item: Item, _decision: Decision, facts: Facts) -> bool:
        trigger = _trigger(item)
        state = "cancelled" if trigger.asks_for(*_OTHER_STATE) else "failed"
        self.released(await self._store.begin_ended(trigger, state, facts.elsewhere))
        if state == "failed":
            self.notify("failure", trigger)
        return True

    async def _run(self, turn: TurnRecord, order: Order, mode: str) -> bool:
        """Run an interval and write its result. If the machine interrupts the interval, do not count the try."""
        try:
            return await self._run_counted(turn, order, mode)
        except Exception as error:
            if machine_trouble(error) is None:
                raise
            self._uncounted.add(turn.turn_id)
            await self._store.give_back(turn.turn_id)  # if this write fails too, the next interval is not counted
            self._uncounted.discard(turn.turn_id)
            raise

    async def _run_counted(self, turn: TurnRecord, order: Order, mode: str) -> bool:
        self._failpoints.reach("runtime.started")
        try:
            ended = await self._intervals.run(turn, order, mode)
        except MachineTrouble as trouble:
            return await self._outlast(turn, trouble)
        self._failing_since.pop(turn.turn_id, None)
        if ended is None:
            cancelled = await self._store.look(is_cancelled, turn.turn_id)
            error = "" if cancelled else "was cancelled by its own graph"
            return await self._finish(turn, "cancelled" if cancelled else "failed", error)
        ran = {"turn_id": turn.turn_id, "thread_id": turn.thread_id, "state": ended.stopped}
        with told_if_late(self._log, lambda: [("turn.ran", ran)]):
            return await self._settle(turn, ended)

    async def _outlast(self, turn: TurnRecord, trouble: MachineTrouble) -> bool:
        """Raise the machine's trouble, so that the turn is retried when the machine works again.

        Turns wait for Turnkeeper's own stores without a limit. If a file or device that only the graph uses fails, the
        turn fails after `graph_wait_s`, because a waiting turn would block the thread.
        """
        if trouble.where == CALLED:
            now = self._clock.monotonic()
            waited_s = now - self._failing_since.setdefault(turn.turn_id, now)
            if 0 < self._graph_wait_s <= waited_s:
                error = f"a file or device of its graph {trouble.what}; the runtime retried for {waited_s:.0f} s"
                done = await self._finish(turn, "failed", error)
                del self._failing_since[turn.turn_id]
                return done
        self._stopped(turn, "waits")
        raise trouble

    async def _settle(self, turn: TurnRecord, ended: Ended) -> bool:
        """Write the result of an interval; return False if the interval stopped only because the process stops."""
        if ended.stopped == "drained":
            await self._store.give_back(turn.turn_id)
            self._stopped(turn, "drained")
            return False
        said = ended.step.messages, ended.step.used
        if ended.step.wake_after_s is not None:
            await self._store.wake(turn.turn_id, ended.step.wake_after_s)
        if ended.stopped == "interrupted":
            await self._store.record(turn.turn_id, *said)
            return await self._wait_for(turn, ended)
        if ended.refused and await self._ask_again(turn, ended):
            return True
        self._failpoints.reach("runtime.finished")
        if ended.stopped in {"timeout", "refused"}:
            return await self._finish(turn, "cancelled", ended.error, said)
        state = "succeeded" if ended.stopped == "end" else "failed"
        done = await self._finish(turn, state, ended.error, said, ended.returned)
        if ended.stopped == "end":
            task = asyncio.create_task(self._prune(turn), name=f"prune-{turn.thread_id}")
            self._pruning[task] = turn.thread_id
            task.add_done_callback(self._pruning.pop)
        return done

    async def pruned(self, thread_id: str = "") -> None:
        """Wait until pruning after finished turns is on disk, for one thread or for all."""
        while waiting := [task for task, of in self._pruning.items() if thread_id in ("", of)]:
            self._engines.flush()
            await asyncio.wait(waiting, timeout=PRUNING_S)

    async def _prune(self, turn: TurnRecord) -> None:
        """Drop checkpoints that the thread no longer needs. The next turn's pruning drops all others."""
        try:
            await self._engines.of(turn.graph).prune(turn.thread_id)
        except Fenced:
            return  # the thread's next owner prunes it
        except Exception as error:  # noqa: BLE001  recorded; the turn is over
            what: dict[str, Any] = {"thread_id": turn.thread_id, "turn_id": turn.turn_id, "tries": 1}
            self._log.emit("turn.trouble", **what, reason=f"its thread cannot be pruned: {error}"[:500])

    async def _wait_for(self, turn: TurnRecord, ended: Ended) -> bool:
        questions = [item for item in ended.interrupts if item.kind != "pause"]
        if not questions:
            finished = await self._store.paused(turn.turn_id, ended.interrupts[0])
            self._stopped(turn, "paused")
            until = (await self._turn(turn.turn_id)).paused_until
            if until is not None:
                self._lanes.put_at(turn.thread_id, until)
            self.released(finished)
            self.notify("pause", turn)
            return True
        holding = await self._exceptions.holding(turn)
        found = await self._store.interrupted(turn.turn_id, questions, self._waits, holding)
        self._store.asked.notify()
        self._stopped(turn, "decided" if len(found.decided) == len(questions) else "interrupted")
        self._exceptions.ended(found.ended)
        for one, number in found.decided.items():
            by: dict[str, Any] = {"exception": number} if number else {}
            self._log.emit("interrupt.resolved", interrupt_id=one, turn_id=turn.turn_id, decision="approve", **by)
            self._failpoints.reach("runtime.excepted")
            self._lanes.put_decision(turn.thread_id)
        for item in questions:
            if item.interrupt_id in found.fresh:
                asked = {"tool": item.tool, "missing_scope": item.missing_scope, "turn_id": turn.turn_id}
                self._log.emit("interrupt.raised", durable=False, interrupt_id=item.interrupt_id, **asked)
                self.notify("interrupt", turn, item.interrupt_id)
        return True

    async def _ask_again(self, turn: TurnRecord, ended: Ended) -> bool:
        """Reopen the questions whose answers the graph refused; return False if the graph itself asked none of them."""
        left = (await self._engines.of(turn.graph).read(turn.thread_id)).pending
        again = await self._store.ask_again(turn.turn_id, ended.refused, left, ended.error)
        self._store.asked.notify()
        for one in again:
            self._log.emit("interrupt.refused", interrupt_id=one, turn_id=turn.turn_id, error=ended.error)
            self.notify("interrupt", turn, one)
        if again:
            self._stopped(turn, "interrupted")
        return bool(again)

    async def _finish(
        self,
        turn: TurnRecord,
        state: str,
        error: str,
        said: Transcript | None = None,
        returned: tuple[Said | None, str] = (None, ""),
    ) -> bool:
        told: dict[str, Any] = {"error": error, "said": said, "returned": returned}
        finished = await self._store.finish(turn.turn_id, state, **told, wakeup_tool=WAKEUP_TOOL)
        self._failpoints.reach("runtime.recorded")
        self._stopped(turn, finished.state)
        for held in finished.released:
            self._log.emit("turn.released", turn_id=held, thread_id=turn.thread_id)
        self.released(finished)
        if finished.state == "failed":
            self.notify("failure", turn)
        return True

    def _stopped(self, turn: TurnRecord, state: str) -> None:
        self._log.emit("turn.stopped", turn_id=turn.turn_id, thread_id=turn.thread_id, state=state)
        if self._engines.events is not None:
            self._engines.events.stopped(turn.thread_id, turn.turn_id, state)

    async def _turn(self, turn_id: str) -> TurnRecord:
        turn = await self._store.look(get_turn, turn_id)
        assert turn is not None, "a decision must name a stored turn"
        return turn


def _trigger(item: Item) -> Trigger:
    assert item.trigger is not None, "only fires and messages have this decision"
    return item.trigger


def _input(turn: TurnRecord, before: str, end: Any = None) -> Input:
    note = f"The turn before this one on this thread {_ENDINGS[before]}." if before in _ENDINGS else ""
    given = {name: getattr(turn, name) for name in ("prompt", "payload_json", "input_json", "run_json")}
    return Input(note=note, end=end, **given)
