"""Decisions about a trigger: one pure function of the trigger, the turn table and the thread's checkpoint.

The first matching row decides. A decision about a turn other than the trigger's sets `again`. The caller carries out
the decision, reads the facts again, and decides again.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

MOST_TRIES = 5
UNFINISHED = ("running", "interrupted", "paused")
FINISHED = frozenset({"succeeded", "silent", "failed", "cancelled"})


class Position(StrEnum):
    """The position of a thread's newest checkpoint."""

    NONE = "none"
    END = "end"
    INTERRUPTED = "interrupted"
    OPEN = "open"  # some steps did not run: the turn was cancelled, killed, drained or failed there


class Action(StrEnum):
    """An action for a trigger or for a turn on its thread."""

    DROP = "drop"  # archive, because the trigger was handled before
    GIVE_INPUT = "give-input"  # an unfinished turn whose input never reached the checkpoint
    GIVE_ANSWER = "give-answer"  # an unfinished resume, whose answer never reached the checkpoint
    CONTINUE = "continue"  # continue from the checkpoint, without input
    RECORD = "record"  # the graph stopped, but its result was not written yet
    GIVE_UP = "give-up"  # too many attempts
    SET_ASIDE = "set-aside"  # quarantine, because its turn was abandoned
    WAIT = "wait"  # leave the trigger queued
    HOLD = "hold"  # archive; the runner sends the fire again after the thread is released
    RESUME = "resume"  # resume the interrupts with the author's decisions
    ANSWER = "answer"  # take a message as the answer to an interrupt
    KEEP_BACK = "keep-back"  # store a message until the thread is released
    RESUME_PAUSE = "resume-pause"  # the trigger that a bounded pause waits for has arrived
    SEAL_PAUSE = "seal-pause"  # a bounded pause ended without its trigger
    RELEASE = "release"  # the interrupt was settled elsewhere
    SETTLE_CANCELLED = "settle-cancelled"
    FAIL = "fail"  # the trigger cannot run on this thread
    START = "start"
    START_SEALED = "start-sealed"  # seal the unfinished turn first


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """The event that needs a decision.

    Attributes:
        source: a fire, a message of an author or an agent, a decision, a cancellation, or recovery after a crash.
        turn_id: the turn that a fire or message will start, or the turn to cancel.
        kept: True for a message that was kept back and now comes from the store.
    """

    source: Literal["fire", "message", "agent", "decision", "cancel", "recovery"]
    turn_id: str = ""
    task_id: str = ""
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class TurnFacts:
    """One row of the turn table.

    Attributes:
        answered: the interrupts that the turn's newest resume answers; empty if the turn began with an input.
        tries: intervals since the turn's start or newest resume, except those that an orderly stop ended.
        paused_until: the end of a bounded pause; `pause` is its interrupt.
        graph, context_json, config_json: the graph and its input, as in the turn's row.
    """

    turn_id: str
    status: str
    task_id: str = ""
    answered: frozenset[str] = frozenset()
    cancelled: bool = False
    tries: int = 0
    paused_until: datetime | None = None
    pause: str = ""
    graph: str = ""
    context_json: str = ""
    config_json: str = ""


@dataclass(frozen=True, kw_only=True)
class ThreadState:
    """The thread's newest checkpoint.

    Attributes:
        inputs: the turns whose input is in the checkpoint.
        end: LangGraph's snapshot, if no steps are left; otherwise None.
    """

    position: Position = Position.NONE
    inputs: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    end: Any = None


@dataclass(frozen=True)
class Question:
    """An interrupt that waits for the author. If `allows_text`, the incoming message may answer it."""

    interrupt_id: str
    allows_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts for a decision, all read together.

    Attributes:
        newest: the newest unfinished turn on the thread besides the trigger's own, else the newest of all.
        taken: the state of the trigger's key, if the key was used without its own turn.
        cancelled: True if a cancellation is stored for the trigger's own turn.
        live: True if a turn is running on the thread in this process.
        decided: the decided interrupts whose decisions the graph has not yet received.
        elsewhere: why the trigger must not run on this thread; empty if it may.
    """

    now: datetime
    own: TurnFacts | None = None
    newest: TurnFacts | None = None
    taken: str = ""
    cancelled: bool = False
    live: bool = False
    questions: tuple[Question, ...] = ()
    decided: tuple[str, ...] = ()
    thread: ThreadState = ThreadState()
    elsewhere: str = ""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """An action, its turn and its interrupts.

    Attributes:
        turn_id: the turn that the action changes; empty for the trigger's own turn if it has no row yet.
        interrupts: the interrupts that hold the thread, or that are answered.
        until: the time to check again, for a wait with a fixed end.
        again: True if the trigger itself needs another decision afterwards.
    """

    action: Action
    turn_id: str = ""
    interrupts: tuple[str, ...] = ()
    until: datetime | None = None
    again: bool = False


_DROP = Decision(action=Action.DROP)
_TRIGGERS = frozenset({"fire", "message", "agent"})


def decide(asked: Incoming, facts: Facts) -> Decision:
    """Return the next action about `asked`."""
    for row in _ROWS:
        decision = row(asked, facts)
        if decision is not None:
            return decision
    return _start(facts.thread)


def _taken_before(asked: Incoming, facts: Facts) -> Decision | None:
    """Drop the trigger if its key was used before, or if its turn has run."""
    own = facts.own if asked.source != "cancel" else None
    if own is not None and own.status == "failed" and own.tries >= MOST_TRIES:
        return Decision(action=Action.SET_ASIDE, turn_id=own.turn_id)
    ran = own is not None and own.status != "running"
    taken = facts.taken and not (asked.kept and facts.taken == "kept")
    return _DROP if ran or taken else None


def _under_way(_asked: Incoming, facts: Facts) -> Decision | None:
    return Decision(action=Action.WAIT) if facts.live else None


def _unfinished(asked: Incoming, facts: Facts) -> Decision | None:
    """Before any other action, finish a turn that a crash interrupted."""
    if facts.own is not None and facts.own.status == "running":
        return _finish(facts.own, facts.thread, again=False)
    if facts.newest is not None and facts.newest.status == "running":
        return _finish(facts.newest, facts.thread, again=asked.source != "recovery")
    return None


def _cancelled(asked: Incoming, facts: Facts) -> Decision | None:
    if asked.source == "cancel":
        return _cancel(facts.own)
    return Decision(action=Action.SETTLE_CANCELLED) if facts.cancelled else None


def _elsewhere(asked: Incoming, facts: Facts) -> Decision | None:
    """Refuse a trigger for another graph; the thread is neither read nor written."""
    return Decision(action=Action.FAIL) if facts.elsewhere and asked.source in _TRIGGERS else None


def _waiting(asked: Incoming, facts: Facts) -> Decision | None:
    if facts.newest is not None and facts.newest.status == "interrupted":
        return _at_interrupt(asked, facts.newest, facts)
    if facts.newest is not None and facts.newest.status == "paused":
        return _at_pause(asked, facts.newest, facts)
    return None


def _settled_long_ago(asked: Incoming, _facts: Facts) -> Decision | None:
    return _DROP if asked.source in {"decision", "recovery"} else None


_ROWS = (_taken_before, _under_way, _unfinished, _cancelled, _elsewhere, _waiting, _settled_long_ago)


def _finish(turn: TurnFacts, thread: ThreadState, *, again: bool) -> Decision:
    """Finish a turn that a crash interrupted, without giving it any input or answer twice."""
    unanswered = bool(turn.answered & thread.pending)
    given = not unanswered if turn.answered else turn.turn_id in thread.inputs
    too_often = turn.tries >= MOST_TRIES
    if turn.cancelled:
        action = Action.SETTLE_CANCELLED
    elif given and (thread.position is Position.END or (too_often and thread.position is Position.INTERRUPTED)):
        action = Action.RECORD
    elif too_often:
        action, again = Action.GIVE_UP, True  # its envelope still needs a decision
    elif unanswered:
        action = Action.GIVE_ANSWER
    elif not given:
        action = Action.GIVE_INPUT
    else:
        action = Action.CONTINUE
    return Decision(action=action, turn_id=turn.turn_id, again=again)


def _cancel(own: TurnFacts | None) -> Decision:
    if own is None or own.status in FINISHED:
        return _DROP
    return Decision(action=Action.SETTLE_CANCELLED, turn_id=own.turn_id)


def _at_interrupt(asked: Incoming, turn: TurnFacts, facts: Facts) -> Decision:
    """Hold every trigger except the author's decision while the thread waits for the author."""
    again = asked.source in _TRIGGERS
    pending = facts.thread.pending
    # Resume only interrupts in the checkpoint, because LangGraph would use an old answer for the task's next question.
    answers = tuple(interrupt_id for interrupt_id in facts.decided if interrupt_id in pending)
    if answers:
        return Decision(action=Action.RESUME, turn_id=turn.turn_id, interrupts=answers, again=again)
    questions = [question for question in facts.questions if question.interrupt_id in pending]
    if not questions:
        return _moved_elsewhere(asked, turn, facts)
    waiting = tuple(question.interrupt_id for question in questions)
    if asked.source == "fire":
        return Decision(action=Action.HOLD, turn_id=turn.turn_id, interrupts=waiting)
    if asked.source not in _TRIGGERS:
        return _DROP
    by_author = asked.source == "message"  # an agent never answers for an author
    texts = tuple(question.interrupt_id for question in questions if question.allows_text and by_author)
    if texts:
        return Decision(action=Action.ANSWER, turn_id=turn.turn_id, interrupts=texts[:1])
    return Decision(action=Action.KEEP_BACK, turn_id=turn.turn_id, interrupts=waiting)


def _at_pause(asked: Incoming, turn: TurnFacts, facts: Facts) -> Decision:
    """Resume the thread if the next fire of its task has come."""
    if turn.pause not in facts.thread.pending:
        return _moved_elsewhere(asked, turn, facts)
    if turn.paused_until is None or facts.now >= turn.paused_until:
        return Decision(action=Action.SEAL_PAUSE, turn_id=turn.turn_id, again=asked.source in _TRIGGERS)
    if asked.source == "fire" and asked.task_id == turn.task_id:
        return Decision(action=Action.RESUME_PAUSE, turn_id=turn.turn_id, interrupts=(turn.pause,))
    if asked.source == "fire":
        return Decision(action=Action.WAIT, until=turn.paused_until)
    if asked.source in _TRIGGERS:
        return Decision(action=Action.KEEP_BACK, turn_id=turn.turn_id, interrupts=(turn.pause,))
    return _DROP


def _moved_elsewhere(asked: Incoming, turn: TurnFacts, facts: Facts) -> Decision:
    """After another program moved the thread, record its pending question, or end its turn."""
    action = Action.RECORD if facts.thread.pending else Action.RELEASE
    return Decision(action=action, turn_id=turn.turn_id, again=asked.source in _TRIGGERS)


def _start(thread: ThreadState) -> Decision:
    """Start the turn. Seal any steps that a cancelled or failed turn left before the turn starts."""
    undone = thread.position in {Position.OPEN, Position.INTERRUPTED}
    return Decision(action=Action.START_SEALED if undone else Action.START)
