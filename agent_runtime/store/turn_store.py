"""The turn table and all that becomes true together with it: each method is one transaction.

Every write first checks that this process still owns the store: one that was superseded changes nothing.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from agent_runtime.model.approval import (
    AuthorDecision,
    RaisedInterrupt,
    canonical,
    pause_value,
    recorded_decision,
    resume_value,
)
from agent_runtime.model.decide import MOST_TRIES, Facts, Incoming
from agent_runtime.model.signal import Signal
from agent_runtime.model.trigger import Trigger, Unread, from_meta
from agent_runtime.model.turn import InterruptRecord, Said, TurnRecord
from agent_runtime.store import tokens as counting
from agent_runtime.store import turn_events, turn_reads, turn_writes
from agent_runtime.store.mail import handoffs
from agent_runtime.store.turn_end import Finished, end, release
from agent_runtime.store.turn_events import Bridge
from agent_runtime.store.turn_reads import read_facts
from agent_runtime.store.turn_writes import LONGEST_SUMMARY, Happened, about, started_by, with_tokens
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, NotFound
from turnkeeper.storage.database import Database
from turnkeeper.times import to_us

T = TypeVar("T")


class Store:
    """`agent.db`, as the process that owns it writes it.

    Attributes:
        incarnation: names this store: another one, or an older copy put back, has other numbers.
        epoch: which owner of the store this process is.
        events: rings when turn events were added.
        talk: rings when a conversation changed.
        handed: turns that are shown what an earlier session left.
        bridge: what happens inside turns, for whoever asked for it.
    """

    def __init__(self, database: Database, clock: Clock, bridge: Bridge, *, incarnation: str, epoch: int) -> None:
        self._database = database
        self._clock = clock
        self.incarnation = incarnation
        self.epoch = epoch
        self.events = Signal()
        self.talk = Signal()
        self.handed: set[str] = set()
        self.bridge = bridge

    @classmethod
    async def take_over(cls, database: Database, clock: Clock, entropy: Entropy) -> "Store":
        """Become the owner of the store; whoever owned it before can write no more."""
        drawn = entropy.hex(32)

        def work(connection: Connection) -> tuple[str, int, set[str], Bridge]:
            incarnation = turn_reads.get_meta(connection, "incarnation") or drawn
            epoch = int(turn_reads.get_meta(connection, "epoch") or 0) + 1
            turn_writes.set_meta(connection, "incarnation", incarnation)
            turn_writes.set_meta(connection, "epoch", str(epoch))
            bridge = Bridge(turn_events.wanted(connection))
            return incarnation, epoch, handoffs.given_to_unfinished(connection), bridge

        incarnation, epoch, handed, bridge = await database.run(work)
        store = cls(database, clock, bridge, incarnation=incarnation, epoch=epoch)
        store.handed = handed
        return store

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a query."""
        return await self._database.run(work)

    async def facts(self, asked: Incoming, thread_id: str, key: str = "") -> Facts:
        """Return what the turn table knows that bears on `asked`; the checkpoint's part is left as it is."""
        now = self._clock.now()
        return await self.read(lambda connection: read_facts(connection, asked, thread_id, key, now))

    async def begin(self, trigger: Trigger) -> TurnRecord:
        """Write a turn that is about to start, and take its key; what waits for its agent is left to it."""
        at = self._clock.now()

        def work(connection: Connection) -> TurnRecord:
            quiet = trigger.source == "fire" and trigger.grant.silent
            turn_writes.add_key(connection, trigger, became="turn", at=at)
            turn_writes.add_turn(
                connection, trigger, status="running", epoch=self.epoch, at=at, tries=1, visible=not quiet
            )
            self._hand_over(connection, trigger, at)
            self._add_event(connection, trigger, Happened(state="STARTED", trigger=_by(trigger), at=at))
            return _turn(connection, trigger.turn_id)

        return await self.write(work)

    def _hand_over(self, connection: Connection, trigger: Trigger, at: datetime) -> None:
        found = handoffs.give(connection, trigger.agent, trigger.turn_id)
        if found:
            told = "\n\n".join(f"{item.label}: {item.text}" for item in found)
            line = Said(role="trigger", text=told[: handoffs.LONGEST_SHOWN])
            turn_writes.put_message(connection, trigger.turn_id, 1, line, at)  # after the prompt, before what is said
            self.handed.add(trigger.turn_id)

    async def begin_cancelled(self, trigger: Trigger) -> None:
        """Write a turn that was cancelled before it started."""
        at = self._clock.now()

        def work(connection: Connection) -> None:
            turn_writes.add_key(connection, trigger, became="turn", at=at)
            turn_writes.add_turn(
                connection, trigger, status="cancelled", epoch=self.epoch, at=at, ended_at_us=to_us(at)
            )
            turn_writes.add_event(connection, about(trigger), Happened(state="CANCELLED", trigger=_by(trigger), at=at))

        await self.write(work)

    async def refuse(self, trigger: Trigger, error: str) -> Finished:
        """Write that a trigger was tried in vain: its turn, where there is one, failed; else it is one that failed."""
        at = self._clock.now()

        def work(connection: Connection) -> Finished:
            turn = turn_reads.get_turn(connection, trigger.turn_id)
            if turn is not None and turn.status == "running":
                return self._end(connection, turn, "failed", error, at)
            taken = turn_reads.get_keys(connection, [trigger.key]).get(trigger.key)
            if taken is None or taken.became == "kept":
                turn_writes.add_key(connection, trigger, became="turn", at=at)
                ended = {"tries": MOST_TRIES, "error": error, "ended_at_us": to_us(at)}
                turn_writes.add_turn(connection, trigger, status="failed", epoch=self.epoch, at=at, **ended)
                happened = Happened(state="FAILED", trigger=_by(trigger), at=at, error=error)
                turn_writes.add_event(connection, about(trigger), happened)
            return Finished(state=turn.status if turn is not None else "failed", owes=trigger.source == "agent")

        return await self.write(work)

    async def refuse_unread(self, unread: Unread, error: str) -> bool:
        """Write that what was accepted can no longer be read, and failed; False if its key was taken before."""
        at = self._clock.now()
        return await self.write(lambda connection: turn_writes.refuse_unread(connection, unread, error, at))

    async def resume(self, turn_id: str, interrupt_ids: Sequence[str]) -> TurnRecord:
        """Write that an interrupted turn goes on with the decisions on these interrupts, and with which values.

        A decision on any other stays as it is: it is stored, and the graph is given it at another resume.
        """
        at = self._clock.now()

        def work(connection: Connection) -> TurnRecord:
            turn = _turn(connection, turn_id)
            answers = {
                item.interrupt_id: resume_value(item)
                for item in turn_reads.open_interrupts(connection, turn.thread_id)
                if item.turn_id == turn_id and item.status == "resolved" and item.interrupt_id in interrupt_ids
            }
            changes = {"status": "running", "answers_json": canonical(answers), "tries": 1, "epoch": self.epoch}
            turn_writes.change_turn(connection, turn_id, **changes)
            self._add_event(connection, turn, Happened(state="RESUMED", trigger="answer", at=at))
            return _turn(connection, turn_id)

        return await self.write(work)

    async def resume_pause(self, trigger: Trigger, paused: str, interrupt_id: str, after_message: str) -> TurnRecord:
        """Write the turn by which a paused thread goes on with the trigger it waited for."""
        at = self._clock.now()

        def work(connection: Connection) -> TurnRecord:
            turn_writes.add_key(connection, trigger, became="turn", at=at)
            turn_writes.add_turn(
                connection,
                trigger,
                status="running",
                epoch=self.epoch,
                at=at,
                tries=1,
                answers_json=canonical({interrupt_id: pause_value(trigger)}),
                resumes=paused,
                after_message=after_message,
            )
            self.bridge.ended(connection, _turn(connection, paused), "succeeded", at)
            turn_writes.change_turn(connection, paused, status="succeeded", ended_at_us=to_us(at))
            turn_writes.void_interrupts(connection, paused, at)
            self._add_event(connection, trigger, Happened(state="STARTED", trigger="fire", at=at))
            return _turn(connection, trigger.turn_id)

        return await self.write(work)

    async def take_answer(self, trigger: Trigger, turn_id: str, interrupt_id: str) -> bool:
        """Write that a message answers an interrupt; False, and nothing is written, if that was settled meanwhile."""
        at = self._clock.now()
        decided = AuthorDecision(decision="answer", message=trigger.prompt)

        def work(connection: Connection) -> bool:
            if _interrupt(connection, interrupt_id).status != "pending":
                return False
            turn_writes.add_key(connection, trigger, became="answer", into=turn_id, at=at)
            turn_writes.settle_interrupt(connection, interrupt_id, decided, at)
            turn_writes.add_answer(connection, turn_id, trigger.prompt, at)
            return True

        return await self.write(work)

    async def try_again(self, turn_id: str) -> TurnRecord:
        """Count another interval of an unfinished turn, before it begins."""

        def work(connection: Connection) -> TurnRecord:
            tries = _turn(connection, turn_id).tries + 1
            turn_writes.change_turn(connection, turn_id, tries=tries, epoch=self.epoch)
            return _turn(connection, turn_id)

        return await self.write(work)

    async def give_back(self, turn_id: str) -> None:
        """Take back the count of an interval that a process ended in good order: it failed at nothing."""

        def work(connection: Connection) -> None:
            turn = _turn(connection, turn_id)
            if turn.status == "running":
                turn_writes.change_turn(connection, turn_id, tries=max(0, turn.tries - 1))

        await self.write(work)

    async def record(
        self,
        turn_id: str,
        lines: Sequence[Said] | None,
        tokens: tuple[int, int],
        *,
        known: int = 0,
        cancelled: bool = False,
    ) -> None:
        """Write what a running turn has said and used; see :func:`agent_runtime.store.tokens.record`."""
        at = self._clock.now()
        put = partial(self._record, lines=lines, tokens=tokens, at=at, known=known, cancelled=cancelled)
        await self.write(lambda connection: put(connection, _turn(connection, turn_id)))

    def _record(self, connection: Connection, turn: TurnRecord, lines: Sequence[Said] | None, **how: Any) -> None:
        if counting.record(connection, turn, lines, **how) and lines is not None:
            self.bridge.said(connection, turn.turn_id, lines, how["at"])

    async def wake(self, turn_id: str, after_s: int) -> None:
        """Write when a turn's graph asked to be woken; the newest request counts, and its end reports it."""
        await self.write(lambda connection: turn_writes.change_turn(connection, turn_id, wake_after_s=after_s))

    async def narrow(self, turn_id: str, grant_json: str) -> None:
        """Write what is left of a turn's grant."""
        await self.write(lambda connection: turn_writes.change_turn(connection, turn_id, grant_json=grant_json))

    async def interrupted(self, turn_id: str, raised: Sequence[RaisedInterrupt]) -> list[str]:
        """Write that a turn waits for its author. Return the ids of what is newly asked."""
        at = self._clock.now()

        def work(connection: Connection) -> list[str]:
            turn = _turn(connection, turn_id)
            turn_writes.mark_applied(connection, tuple(turn.answers))
            fresh = turn_writes.add_interrupts(connection, turn, raised, at)
            turn_writes.change_turn(connection, turn_id, status="interrupted", visible=True, tries=0)
            asked = tuple(item.interrupt_id for item in raised)
            summary = next((item.tool or item.question for item in raised), "")[:LONGEST_SUMMARY]
            happened = Happened(state="INTERRUPTED", trigger=started_by(turn), at=at, summary=summary, held_by=asked)
            self._add_event(connection, turn, with_tokens(happened, turn))
            return fresh

        return await self.write(work)

    async def paused(self, turn_id: str, pause: RaisedInterrupt) -> Finished:
        """Write that a turn waits, for a bounded time, for its task's next fire."""
        at = self._clock.now()
        until = at + timedelta(seconds=pause.timeout_s)

        def work(connection: Connection) -> Finished:
            turn = _turn(connection, turn_id)
            turn_writes.mark_applied(connection, tuple(turn.answers))
            turn_writes.add_interrupts(connection, turn, [pause], at)
            turn_writes.change_turn(connection, turn_id, status="paused", paused_until_us=to_us(until), tries=0)
            happened = Happened(state="PAUSED", trigger=started_by(turn), at=at)
            self._add_event(connection, turn, with_tokens(happened, turn))
            return Finished(state="paused", released=release(connection, turn.thread_id, at))

        return await self.write(work)

    async def finish(self, turn_id: str, state: str, *, error: str = "", said: counting.Told | None = None) -> Finished:
        """Write how a turn ended, and release what waited for that. A second end changes nothing.

        Args:
            turn_id: which.
            state: succeeded, failed or cancelled; a turn that succeeded without a word may turn out silent.
            error: one sentence; for failed and cancelled.
            said: all that it said, and its tokens; None where that is not known.
        """
        at = self._clock.now()

        def work(connection: Connection) -> Finished:
            if said is not None:
                lines, tokens = said
                self._record(connection, _turn(connection, turn_id), lines, tokens=tokens, at=at, cancelled=True)
            return self._end(connection, _turn(connection, turn_id), state, error, at)

        return await self.write(work)

    def _add_event(self, connection: Connection, what: TurnRecord | Trigger, happened: Happened) -> None:
        turn_writes.add_event(connection, about(what), happened)
        self.bridge.happened(connection, what.turn_id, happened.state, happened.at)

    def _end(self, connection: Connection, turn: TurnRecord, state: str, error: str, at: datetime) -> Finished:
        finished = end(connection, turn, state, error, at)
        self.bridge.ended(connection, turn, finished.state, at)
        return finished

    async def hold(self, trigger: Trigger, held_by: tuple[str, ...]) -> None:
        """Write that a fire found its thread waiting for the author; the runner sends it again when it is released."""
        at = self._clock.now()

        def work(connection: Connection) -> None:
            turn_writes.add_key(connection, trigger, became="held", at=at)
            happened = Happened(state="HELD", trigger="fire", at=at, held_by=held_by)
            turn_writes.add_event(connection, about(trigger), happened)

        await self.write(work)

    async def keep(self, trigger: Trigger) -> None:
        """Store a message until its thread is released."""
        at = self._clock.now()

        def work(connection: Connection) -> None:
            turn_writes.add_key(connection, trigger, became="kept", at=at)
            turn_writes.keep_message(connection, trigger, at)

        await self.write(work)

    async def kept(self) -> list[Trigger]:
        """Return every message that is kept back, oldest first."""
        return await self.read(lambda connection: [from_meta(meta) for meta in turn_writes.kept(connection)])

    async def is_cancelled(self, turn_id: str) -> bool:
        """Return whether a cancel of this turn is stored."""
        return await self.read(lambda connection: turn_reads.is_cancelled(connection, turn_id))

    async def cancel(self, turn_id: str, reason: str, *, unless_waiting: bool = False) -> bool:
        """Store a cancel, of a turn that runs, waits or has not begun; return whether `unless_waiting` let it be."""
        at = self._clock.now()
        return await self.write(
            lambda connection: turn_writes.add_cancel(connection, turn_id, reason, at, unless_waiting=unless_waiting)
        )

    async def decide(self, interrupt_id: str, decided: AuthorDecision, args_hash: str) -> InterruptRecord:
        """Store an author's decision; the same one again changes nothing.

        Raises:
            NotFound: no such interrupt.
            Conflict: it is decided otherwise or withdrawn, or the arguments are not those that the author saw.
        """
        at = self._clock.now()

        def work(connection: Connection) -> InterruptRecord:
            item = _interrupt(connection, interrupt_id)
            if args_hash and args_hash != item.args_hash:
                raise Conflict("the arguments are not those that were shown", where="args_hash", hint="look again")
            if item.status == "pending":
                turn_writes.settle_interrupt(connection, interrupt_id, decided, at)
                if decided.decision == "answer":
                    turn_writes.add_answer(connection, item.turn_id, decided.message, at)
            elif item.status == "void" or recorded_decision(item) != decided:
                what = "is no longer asked" if item.status == "void" else f"was decided before: {item.decision}"
                raise Conflict(f"interrupt {interrupt_id} {what}", where="interrupt_id")
            return _interrupt(connection, interrupt_id)

        return await self.write(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a change in one transaction. Raises Conflict if another process has taken over the store."""

        def fenced(connection: Connection) -> T:
            turn_reads.check_lease(connection, self.epoch)
            return work(connection)

        result = await self._database.run(fenced)
        self.events.notify()
        self.talk.notify()
        if self.bridge.take_news():
            self.bridge.news.notify()
        return result


def _turn(connection: Connection, turn_id: str) -> TurnRecord:
    turn = turn_reads.get_turn(connection, turn_id)
    if turn is None:
        raise NotFound(f"no turn {turn_id}", where="turn_id", hint="see: agent-runtime turns list")
    return turn


def _interrupt(connection: Connection, interrupt_id: str) -> InterruptRecord:
    item = turn_reads.get_interrupt(connection, interrupt_id)
    if item is None or item.kind == "pause":
        raise NotFound("no such interrupt", where="interrupt_id", hint="see: agent-runtime approvals list")
    return item


def _by(trigger: Trigger) -> str:
    return trigger.source if trigger.source in {"fire", "agent"} else "author"
