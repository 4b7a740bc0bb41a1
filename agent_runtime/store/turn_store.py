"""The store of turns, and the changes that commit together with those of a turn.

Reads are functions of :mod:`agent_runtime.store.turn_reads`, run by :meth:`Store.read`. Each change is a method of
:class:`Store` and one transaction, which first checks that this process still owns the store.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from sqlalchemy import Connection

from agent_runtime.model import approval
from agent_runtime.model.approval import AuthorDecision, RaisedInterrupt
from agent_runtime.model.decide import FINISHED, MOST_TRIES, Facts, Incoming
from agent_runtime.model.mapping import canonical
from agent_runtime.model.trigger import Trigger, TriggerHeader
from agent_runtime.model.turn import LONGEST_SUMMARY, InterruptRecord, Said, TurnRecord, Used
from agent_runtime.permissions.exceptions import ForTask, StandingException
from agent_runtime.store import exceptions, mail, turn_reads, turn_writes
from agent_runtime.store.leases import Right, take_lease
from agent_runtime.store.schema import audit, handover
from agent_runtime.store.turn_events import EventSource, Signal, add_event
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, NotFound
from turnkeeper.storage.database import Database
from turnkeeper.storage.statements import storable
from turnkeeper.times import to_us

P = ParamSpec("P")
T = TypeVar("T")
# A turn's messages, or None if only the cost is known, and its tokens.
Transcript = tuple[Sequence[Said] | None, Used]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The result of ending a turn.

    Attributes:
        released: ids of the turns whose fires may be sent again.
        kept: messages that waited for the turn's end.
        owes: True if an agent waits for an answer to the turn's message.
    """

    state: str
    released: tuple[str, ...] = ()
    kept: tuple[Trigger, ...] = ()
    owes: bool = False


def _transaction(
    work: Callable[Concatenate["Store", Connection, datetime, P], T],
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]:
    """Make a method one transaction at the current time. In a shared store, only a thread's owner may call it."""
    return _made(work, by_owner=True)


def _act(
    work: Callable[Concatenate["Store", Connection, datetime, P], T],
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]:
    """Make a method one transaction that any process may run: an author's action, or a change that its rows guard."""
    return _made(work, by_owner=False)


def _made(
    work: Callable[Concatenate["Store", Connection, datetime, P], T], *, by_owner: bool
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]:
    @wraps(work)
    async def run(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        at = self.clock.now()
        if by_owner:
            self.right.demand()
        return await self.write(lambda connection: work(self, connection, at, *args, **kwargs))

    return run


class Store:
    """The database `agent.db`, as its owner writes it.

    Attributes:
        incarnation: the name of this store; another store, or a restored older copy, has other numbers.
        epoch: the number of this owner of the store.
        events: notified when turn events were added.
        asked: notified when a turn asked its author a question, and when the author decided.
        with_handoffs: turns that have handoffs of an earlier session.
        event_source: the writer of events inside turns.
        read_up_to: the number of the last turn event that the runner received.
    """

    def __init__(
        self, database: Database, clock: Clock, event_source: EventSource, *, incarnation: str, right: Right
    ) -> None:
        self._database = database
        self.clock = clock
        self.incarnation = incarnation
        self.epoch = right.epoch
        self.right = right
        self.events = Signal()
        self.conversations = Signal()
        self.asked = Signal()
        self.with_handoffs, self.read_up_to = set[str](), 0
        self.event_source = event_source

    @classmethod
    async def take_over(cls, database: Database, clock: Clock, entropy: Entropy, *, shared: bool = False) -> "Store":
        """Become the owner of the store; the previous owner can no longer write. If `shared`, become one of several."""
        drawn = entropy.hex(32)

        def work(connection: Connection) -> Store:
            incarnation, epoch = take_lease(connection, drawn)
            audit.begin(connection, clock.now(), entropy, partial(turn_writes.known, connection, clock.now()))
            store = cls(
                database, clock, EventSource(connection), incarnation=incarnation, right=Right(epoch, shared=shared)
            )
            store.with_handoffs = mail.unfinished_with_handoffs(connection)
            return store

        return await database.run(work)

    async def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query, a function of an open connection, with these arguments."""
        return await self._database.read(lambda connection: work(connection, *args, **kwargs))

    async def look(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a quick query as :meth:`read` does, if possible on the caller's thread, without waiting for changes."""
        return await self._database.look(lambda connection: work(connection, *args, **kwargs))

    async def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a change in one transaction. Raises Conflict if another process has taken over the store."""
        proven = self.right.proven(lambda connection: work(connection, *args, **kwargs))
        result = await self._database.run(proven)
        self.events.notify()
        self.conversations.notify()
        if self.event_source.take_news():
            self.event_source.news.notify()
        return result

    def report(self, log: EventLog, event: str, fields: Mapping[str, Any]) -> None:
        """Log an event of the workspace. Wake the followers of conversations, which show the outcomes of proposals."""
        log.emit(event, **fields)
        self.conversations.notify()
        self.events.notify()

    async def facts(self, asked: Incoming, thread_id: str, trigger: Trigger | None = None) -> Facts:
        """Return the turn table's facts about `asked`. The checkpoint's part is not filled in."""
        return await self.look(turn_reads.read_facts, asked, thread_id, trigger, self.clock.now())

    @_transaction
    def begin(self, connection: Connection, at: datetime, trigger: Trigger) -> TurnRecord:
        """Write a turn that is about to start, and take its key. Give waiting handoffs to the turn."""
        silent = trigger.source == "fire" and trigger.grant.silent
        self._add_turn(connection, at, trigger, status="running", tries=1, visible=not silent)
        with_author = trigger.source == "message"
        if found := mail.give_handoffs(connection, trigger.agent, trigger.turn_id, with_author=with_author):
            text = "\n\n".join(f"{item.label}: {item.text}" for item in found)
            line = Said(role="trigger", text=text[: mail.LONGEST_SHOWN])
            turn_writes.put_message(connection, trigger.turn_id, 1, line, at)  # after the prompt, before the agent's
            self.with_handoffs.add(trigger.turn_id)
        self.right.begun(connection, trigger.thread_id, trigger.graph)
        self._add_event(connection, trigger, "STARTED", at, trigger=turn_writes.begun_by(trigger))
        return _turn(connection, trigger.turn_id)

    @_transaction
    def begin_ended(
        self, connection: Connection, at: datetime, trigger: Trigger, state: str, error: str = ""
    ) -> Finished:
        """Write a turn that failed or was cancelled before it started. Its graph received no input."""
        self._add_ended(connection, at, trigger, state, error)
        return Finished(state=state, owes=trigger.source == "agent")

    @_transaction
    def refuse(self, connection: Connection, at: datetime, trigger: Trigger, error: str) -> Finished:
        """Record that a trigger failed: fail its turn if there is one, else write a failed turn."""
        turn = turn_reads.get_turn(connection, trigger.turn_id)
        if turn is not None and turn.status == "running":
            return self._end(connection, at, turn, "failed", error)
        taken = turn_reads.get_keys(connection, [trigger.key]).get(trigger.key)
        if taken is None or taken.became == "kept":
            self._add_ended(connection, at, trigger, "failed", error, tries=MOST_TRIES)
        return Finished(state=turn.status if turn is not None else "failed", owes=trigger.source == "agent")

    @_transaction
    def refuse_unread(self, connection: Connection, at: datetime, unread: TriggerHeader, why: str, field: str) -> bool:
        """Record that a trigger failed because `field` cannot be used or read. Return False if its key was in use."""
        if turn_reads.get_keys(connection, [unread.key]):
            return False
        turn_writes.add_key(connection, unread, became="refused", into=field, at=at)
        add_event(connection, unread, "FAILED", at, trigger="fire" if unread.fire_id else "author", error=why)
        return True

    @_transaction
    def resume(self, connection: Connection, at: datetime, turn_id: str, interrupt_ids: Sequence[str]) -> TurnRecord:
        """Record that an interrupted turn continues with the decisions on these interrupts and their values.

        Keep other decisions for another resume.
        """
        turn = _turn(connection, turn_id, turn_reads.lock_turn)
        answers = {
            item.interrupt_id: approval.resume_value(item)
            for item in turn_reads.open_interrupts(connection, turn.thread_id)
            if item.turn_id == turn_id and item.status == "resolved" and item.interrupt_id in interrupt_ids
        }
        changes = {"status": "running", "answers_json": canonical(answers), "tries": 1, "epoch": self.right.epoch}
        turn_writes.change_turn(connection, turn_id, **changes)
        self._add_event(connection, turn, "RESUMED", at, trigger="answer")
        return _turn(connection, turn_id)

    @_transaction
    def resume_pause(
        self, connection: Connection, at: datetime, trigger: Trigger, paused: str, interrupt_id: str, after_message: str
    ) -> TurnRecord:
        """Write the turn that continues a paused thread after the awaited trigger has arrived."""
        answers = canonical({interrupt_id: approval.pause_value(trigger)})
        resumed = {"answers_json": answers, "resumes": paused, "after_message": after_message}
        self._add_turn(connection, at, trigger, status="running", tries=1, **resumed)
        ended = _turn(connection, paused)
        self.event_source.ended(connection, ended, "succeeded", at)
        turn_writes.put_end(connection, at, ended, "succeeded")
        turn_writes.change_turn(connection, paused, status="succeeded", ended_at_us=to_us(at))
        turn_writes.void_interrupts(connection, paused, at)
        self._add_event(connection, trigger, "STARTED", at, trigger="fire")
        return _turn(connection, trigger.turn_id)

    @_transaction
    def take_answer(
        self, connection: Connection, at: datetime, trigger: Trigger, turn_id: str, interrupt_id: str
    ) -> bool:
        """Record that a message answers an interrupt. Return False, and write nothing, if the interrupt is settled."""
        if turn_writes.asked_of(connection, interrupt_id).status != "pending":
            return False
        decided = AuthorDecision(decision="answer", message=trigger.prompt)
        if not turn_writes.settle_interrupt(connection, interrupt_id, decided, at, trigger.via):
            return False
        turn_writes.add_key(connection, trigger, became="answer", into=turn_id, at=at)
        turn_writes.add_line(connection, turn_id, Said(role="author", text=trigger.prompt), at)
        self._look(connection, at, trigger.thread_id, interrupt_id)
        return True

    @_transaction
    def try_again(self, connection: Connection, _at: datetime, turn_id: str, *, counted: bool = True) -> TurnRecord:
        """Record that another interval of an unfinished turn begins. If `counted`, the interval counts as a try."""
        tries = _turn(connection, turn_id).tries + counted
        turn_writes.change_turn(connection, turn_id, tries=tries, epoch=self.right.epoch)
        return _turn(connection, turn_id)

    @_transaction
    def give_back(self, connection: Connection, _at: datetime, turn_id: str) -> None:
        """Undo the count of an interval that a clean shutdown ended, because nothing failed."""
        turn = _turn(connection, turn_id)
        if turn.status == "running":
            turn_writes.change_turn(connection, turn_id, tries=max(0, turn.tries - 1))

    @_transaction
    def record(
        self,
        connection: Connection,
        at: datetime,
        turn_id: str,
        lines: Sequence[Said] | None,
        used: Used,
        *,
        known: int = 0,
        cancelled: bool = False,
    ) -> None:
        """Write the messages of a running turn, from the line `known` on, and its tokens.

        If a cancellation is stored, write only the tokens, because they are already used. With `cancelled`, write also
        the messages, which precede the cancellation. Without `lines`, keep the recorded messages, and never lower the
        recorded tokens.
        """
        self._record(connection, at, _turn(connection, turn_id), (lines, used), known=known, cancelled=cancelled)

    def _record(
        self,
        connection: Connection,
        at: datetime,
        turn: TurnRecord,
        said: Transcript,
        *,
        known: int = 0,
        cancelled: bool = False,
    ) -> None:
        if turn.status != "running":
            return
        lines, used = said
        if lines is None:
            used = max(used, turn.used, key=Used.total)
        elif cancelled or not turn_reads.is_cancelled(connection, turn.turn_id):
            turn_writes.put_transcript(connection, turn.turn_id, lines, at, known=known)
            self.event_source.said(connection, turn.turn_id, lines, at)
        turn_writes.count_tokens(connection, turn, used, at)

    @_transaction
    def wake(self, connection: Connection, _at: datetime, turn_id: str, after_s: int) -> None:
        """Write the wake-up time that a turn's graph asked for last. The event of the turn's end reports this time."""
        turn_writes.change_turn(connection, turn_id, wake_after_s=after_s)

    @_transaction
    def narrow(self, connection: Connection, _at: datetime, turn_id: str, grant_json: str) -> None:
        """Write the reduced grant of a turn."""
        turn_writes.change_turn(connection, turn_id, grant_json=grant_json)

    @_transaction
    def interrupted(
        self,
        connection: Connection,
        at: datetime,
        turn_id: str,
        raised: Sequence[RaisedInterrupt],
        without_task: approval.Waits = approval.FOR_EVER,
        holding: Collection[int] = (),
    ) -> exceptions.Asked:
        """Record that a turn waits for its author; `without_task` sets how long if no task started the turn.

        Approve at once the calls that the author approved when the graph itself asked, and those that an exception in
        `holding` allows. If this decides all questions, no turn event reports that the turn waits.
        """
        turn = _turn(connection, turn_id)
        turn_writes.mark_applied(connection, tuple(turn.answers))
        fresh = turn_writes.add_interrupts(connection, turn, raised, at, approval.waits_of(turn, without_task))
        news = [one for one in raised if one.interrupt_id in fresh]
        answered = exceptions.decide_at_once(connection, at, turn, news, holding)
        turn_writes.change_turn(connection, turn_id, status="interrupted", visible=True, tries=0)
        if asked := [one for one in raised if one.interrupt_id not in answered.decided]:
            by, summary = turn_writes.started_by(turn), (asked[0].tool or asked[0].question)[:LONGEST_SUMMARY]
            held_by = tuple(one.interrupt_id for one in asked)
            add_event(connection, turn, "INTERRUPTED", at, trigger=by, summary=summary, held_by=held_by, turn=turn)
        self.event_source.happened(connection, turn_id, "INTERRUPTED", at)
        if answered.decided:
            self._look(connection, at, turn.thread_id, turn_id)
        return answered

    @_transaction
    def ask_again(
        self,
        connection: Connection,
        at: datetime,
        turn_id: str,
        refused: Collection[str],
        left: Collection[str],
        error: str,
    ) -> list[str]:
        """Record that a turn waits again for the answers that its graph refused. Return the ids of these questions.

        Only the graph's own questions are asked again; if there are none, write nothing. `left` holds the ids of
        the interrupts that the thread waits for.
        """
        turn = _turn(connection, turn_id)
        asked = turn_reads.interrupts_of(connection, [turn_id])[turn_id]
        answered = [one for one in asked if one.kind == "question" and one.decision != approval.EXPIRED]
        again = [one.interrupt_id for one in answered if one.interrupt_id in refused]
        if not again or turn.status != "running" or turn_reads.is_cancelled(connection, turn_id):
            return []
        turn_writes.mark_applied(connection, [one for one in turn.answers if one not in left])
        turn_writes.ask_again(connection, again, error, at)
        turn_writes.change_turn(connection, turn_id, status="interrupted", visible=True, tries=0)
        what = {"summary": f"the graph refused the answer: {error}"[:LONGEST_SUMMARY], "held_by": tuple(left)}
        self._add_event(connection, turn, "INTERRUPTED", at, trigger=turn_writes.started_by(turn), turn=turn, **what)
        return again

    @_transaction
    def paused(self, connection: Connection, at: datetime, turn_id: str, pause: RaisedInterrupt) -> Finished:
        """Record that a turn waits, for a bounded time, for its task's next fire."""
        until = at + timedelta(seconds=pause.timeout_s)
        turn = _turn(connection, turn_id)
        turn_writes.mark_applied(connection, tuple(turn.answers))
        turn_writes.add_interrupts(connection, turn, [pause], at)
        turn_writes.change_turn(connection, turn_id, status="paused", paused_until_us=to_us(until), tries=0)
        self._add_event(connection, turn, "PAUSED", at, trigger=turn_writes.started_by(turn), turn=turn)
        self._look(connection, at, turn.thread_id, turn_id, until=until)
        return Finished(state="paused", released=turn_writes.release_held(connection, turn.thread_id, at))

    @_transaction
    def look_again(self, connection: Connection, at: datetime, turn_id: str) -> None:
        """Ask the thread's owner to check a paused turn at the end of the pause."""
        turn = _turn(connection, turn_id)
        self._look(connection, at, turn.thread_id, turn_id, until=turn.paused_until)

    @_transaction
    def finish(
        self,
        connection: Connection,
        at: datetime,
        turn_id: str,
        state: str,
        *,
        error: str = "",
        said: Transcript | None = None,
        returned: tuple[Said | None, str] = (None, ""),
        wakeup_tool: str = "",
    ) -> Finished:
        """Write the end of a turn, and release fires and messages that waited for it. A second end changes nothing.

        `state` is succeeded, failed or cancelled; a succeeded turn without text may become silent. `error` is one
        sentence, for failed and cancelled. `said` holds all messages of the turn, with its tokens, if known. `returned`
        is a line for what the graph returned, and its kind. A `message` is added only to a turn without other text.
        `wakeup_tool` names the tool that asks for the next iteration.
        """
        turn = _turn(connection, turn_id)
        if said is not None:
            self._record(connection, at, turn, said, cancelled=True)
            counted = said[1] != turn.used
            turn = _turn(connection, turn_id) if counted else turn
        ends_well = state == "succeeded" and not turn_reads.is_cancelled(connection, turn_id)
        (line, kind), silent = returned, turn.grant.silent and turn.trigger == "fire"
        hidden = silent if kind == "answer" else kind == "message" and turn_writes.last_words(connection, turn_id)
        if line is not None and not hidden and turn.status not in FINISHED:
            turn_writes.add_line(connection, turn_id, line, at)
        vain = turn_writes.misasked(connection, turn, wakeup_tool) if ends_well else ""
        return self._end(connection, at, turn, state, error or vain)

    def _end(self, connection: Connection, at: datetime, turn: TurnRecord, state: str, error: str) -> Finished:
        if turn.status in FINISHED:
            return Finished(state=turn.status)
        turn_id, cancelled = turn.turn_id, turn_reads.is_cancelled(connection, turn.turn_id)
        state = "cancelled" if cancelled and state == "succeeded" else state  # the cancellation was acknowledged
        silent = state == "succeeded" and turn.grant.silent and turn.trigger == "fire"
        ended = "silent" if silent and not turn_writes.has_spoken(connection, turn_id) else state
        summary = turn_writes.last_words(connection, turn_id)[:LONGEST_SUMMARY]
        turn_writes.void_interrupts(connection, turn_id, at)
        why = storable(error) or (turn_reads.cancel_reason(connection, turn_id) if state == "cancelled" else "")
        changes = {"status": ended, "visible": ended != "silent", "summary": summary, "error": why}
        turn_writes.change_turn(connection, turn_id, ended_at_us=to_us(at), **changes)
        by, (expired, *others) = turn_writes.started_by(turn), turn_writes.asked_and_not(connection, turn)
        told = "; ".join(filter(None, (why, expired, *others)))
        add_event(connection, turn, ended.upper(), at, trigger=by, summary=summary, error=told, turn=turn)
        self.event_source.ended(connection, turn, ended, at)
        turn_writes.put_end(connection, at, turn, ended)
        released = turn_writes.release_held(connection, turn.thread_id, at, why=expired)
        kept = turn_writes.kept(connection, turn.thread_id)
        if kept:
            self._look(connection, at, turn.thread_id, turn_id)
        return Finished(state=ended, released=released, kept=kept, owes=bool(mail.OWE.run(connection, of=turn_id)))

    @_transaction
    def hold(self, connection: Connection, at: datetime, trigger: Trigger, held_by: tuple[str, ...]) -> None:
        """Record that a fire is held because its thread waits for the author. The runner sends it again later."""
        turn_writes.add_key(connection, trigger, became="held", at=at)
        add_event(connection, trigger, "HELD", at, trigger="fire", held_by=held_by)

    @_transaction
    def keep(self, connection: Connection, at: datetime, trigger: Trigger) -> None:
        """Store a message until its thread is released."""
        turn_writes.add_key(connection, trigger, became="kept", at=at)
        turn_writes.keep_message(connection, trigger, at)

    @_act
    def cancel(
        self,
        connection: Connection,
        at: datetime,
        turn_id: str,
        reason: str,
        *,
        thread_id: str = "",
        unless_waiting: bool = False,
    ) -> bool:
        """Store the cancellation of a turn that runs, waits or has not begun. The first reason is kept. Return True if
        the cancellation was stored.

        If another process owns `thread_id`, notify it. With `unless_waiting`, store no cancellation for a turn that
        waits for its author or for the end of a pause.
        """
        if unless_waiting and turn_reads.waits(connection, turn_id):
            return False
        if self.right.shared and thread_id:
            handover.cancel(connection, turn_id, thread_id, reason, at)
        else:
            turn_writes.add_cancel(connection, turn_id, reason, at)
        return True

    @_act
    def decide(
        self,
        connection: Connection,
        at: datetime,
        decisions: Sequence[tuple[str, AuthorDecision, str]],
        by: str = "",
        for_task: ForTask | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> list[InterruptRecord]:
        """Store an author's decisions and their channel, all or none. Storing the same decisions again changes nothing.

        Each decision concerns one interrupt, and may carry the hash of the arguments that the author saw. `for_task`
        makes the one approval a standing exception. `run` changes options of the turns' run.

        Raises:
            NotFound: no such interrupt exists.
            Conflict: one interrupt is already decided differently or withdrawn, or the author saw other arguments.
            InvalidInput, Exhausted: as :func:`agent_runtime.store.exceptions.give`.
        """
        asked = [turn_writes.asked_of(connection, one) for one, _, _ in decisions] if for_task is not None else []
        done = [self._decide(connection, at, *each, by) for each in decisions]
        for one in done:
            self._look(connection, at, one.thread_id, one.interrupt_id)
            if run:
                offered("run-options", connection, _turn(connection, one.turn_id), run)
        for item in asked:
            assert for_task is not None, "no row was read in any other case"
            exceptions.give(connection, at, item, _turn(connection, item.turn_id), for_task, by)
        return [turn_writes.asked_of(connection, one.interrupt_id) for one in done] if asked else done

    @_act
    def end_exceptions(
        self, connection: Connection, at: datetime, ends: exceptions.Ends, by: str = ""
    ) -> list[StandingException]:
        """End standing exceptions, given by number with the reason. Return the exceptions that were still open."""
        return exceptions.end(connection, at, ends, by)

    def _decide(
        self, connection: Connection, at: datetime, interrupt_id: str, decided: AuthorDecision, args_hash: str, by: str
    ) -> InterruptRecord:
        item = turn_writes.asked_of(connection, interrupt_id)
        decided = replace(decided, message=storable(decided.message))
        if args_hash and args_hash != item.args_hash:
            raise Conflict("the arguments differ from those that were shown", where="args_hash", hint="look again")
        if item.status == "pending":
            if not turn_writes.settle_interrupt(connection, interrupt_id, decided, at, by):
                return self._decide(connection, at, interrupt_id, decided, args_hash, by)  # another decision came first
            if decided.decision == "answer":
                turn_writes.add_line(connection, item.turn_id, Said(role="author", text=decided.message), at)
        elif item.decision == approval.EXPIRED:
            raise approval.too_late(item)
        elif item.status == "void" or approval.recorded_decision(item) != decided:
            what = "is no longer asked" if item.status == "void" else f"was already decided: {item.decision}"
            raise Conflict(f"interrupt {interrupt_id} {what}", where="interrupt_id")
        return turn_writes.asked_of(connection, interrupt_id)

    @_act
    def expire(self, connection: Connection, at: datetime) -> list[InterruptRecord]:
        """End the approvals that were not answered in time, and return them. An answer that was stored first counts."""
        due = [item for item in turn_reads.timed_interrupts(connection) if item.expires_at and item.expires_at <= at]
        settle = partial(turn_writes.settle_interrupt, connection, at=at)
        ended = [item for item in due if settle(item.interrupt_id, approval.expired(item))]
        for item in ended:
            self._look(connection, at, item.thread_id, item.interrupt_id)
        return ended

    @_act
    def told(
        self, connection: Connection, at: datetime, interrupt_id: str, what: Literal["reminded_at", "escalated_at"]
    ) -> bool:
        """Record that the author was reminded or alerted. Return False if that is on record or the approval is over."""
        return turn_writes.mark_told(connection, interrupt_id, what, at)

    def _look(self, connection: Connection, at: datetime, thread_id: str, why: str, until: Any = None) -> None:
        """Ask the owner of a thread, which may be another process, to check the thread: now, or after `until`."""
        if self.right.shared:
            handover.look(connection, thread_id, f"{why} {to_us(at)}", at, until=until)

    def _add_turn(self, connection: Connection, at: datetime, trigger: Trigger, **columns: Any) -> None:
        turn_writes.add_key(connection, trigger, became="turn", at=at)
        turn_writes.add_turn(connection, trigger, epoch=self.right.epoch, at=at, **columns)

    def _add_ended(
        self, connection: Connection, at: datetime, trigger: Trigger, state: str, error: str, **columns: Any
    ) -> None:
        columns |= {"error": storable(error), "ended_at_us": to_us(at)}
        columns |= turn_writes.graph_of_thread(connection, trigger)
        self._add_turn(connection, at, trigger, status=state, **columns)
        add_event(connection, trigger, state.upper(), at, trigger=turn_writes.begun_by(trigger), error=error)

    def _add_event(
        self, connection: Connection, subject: TurnRecord | Trigger, state: str, at: datetime, **what: Any
    ) -> None:
        add_event(connection, subject, state, at, **what)
        self.event_source.happened(connection, subject.turn_id, state, at)


def _turn(connection: Connection, turn_id: str, find: Any = turn_reads.get_turn) -> TurnRecord:
    turn: TurnRecord | None = find(connection, turn_id)
    if turn is None:
        raise NotFound(f"no turn {turn_id}", where="turn_id", hint="see: turnkeeper turns list")
    return turn
