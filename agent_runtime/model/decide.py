"""What to do about a trigger: one pure function of the trigger, the turn table and the thread's checkpoint.

The first row that matches decides. Rows that act on another turn than the trigger's own say `again`: carry them out,
look once more, decide once more.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

MOST_TRIES = 5
UNFINISHED = ("running", "interrupted", "paused")
FINISHED = frozenset({"succeeded", "silent", "failed", "cancelled"})


class Position(StrEnum):
    """Where a thread's newest checkpoint stands."""

    NONE = "none"
    END = "end"
    INTERRUPTED = "interrupted"
    OPEN = "open"  # steps are left: cancelled, killed, drained or failed there


class Action(StrEnum):
    """What is to be done."""

    DROP = "drop"  # archive: it has been taken before
    GIVE_INPUT = "give-input"  # an unfinished turn whose input never reached the checkpoint
    GIVE_ANSWER = "give-answer"  # an unfinished resume whose answer never reached the checkpoint
    CONTINUE = "continue"  # from the checkpoint, without input
    RECORD = "record"  # the graph had come to a stop; what it came to was not written yet
    GIVE_UP = "give-up"  # it was tried too often
    SET_ASIDE = "set-aside"  # quarantine: its turn was given up
    WAIT = "wait"  # leave it queued
    HOLD = "hold"  # archive; the runner sends it again once the thread is released
    RESUME = "resume"  # give the author's decisions to the interrupts
    ANSWER = "answer"  # take a message as the answer to an interrupt
    KEEP_BACK = "keep-back"  # store a message until the thread is released
    RESUME_PAUSE = "resume-pause"  # a bounded pause meets the trigger it waits for
    SEAL_PAUSE = "seal-pause"  # a bounded pause waited in vain
    RELEASE = "release"  # the interrupt was settled by another path
    SETTLE_CANCELLED = "settle-cancelled"
    FAIL = "fail"  # it cannot run on this thread
    START = "start"
    START_SEALED = "start-sealed"  # after sealing what was left undone


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """What came in.

    Attributes:
        source: a fire, an author's message, an agent's message, the author's decision, a cancel, or a look at what a
            crash left.
        turn_id: the turn that a fire or message will be; the turn that a cancel means.
        task_id: the task behind a fire.
        kept: a message that was kept back and now comes from the store.
    """

    source: Literal["fire", "message", "agent", "decision", "cancel", "recovery"]
    turn_id: str = ""
    task_id: str = ""
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class TurnFacts:
    """One row of the turn table.

    Attributes:
        answered: the interrupts that its newest resume answers; empty when it began with an input.
        tries: intervals begun since its start or its newest resume, but for those that ended with their process in
            good order.
        paused_until: when a bounded pause ends; `pause` is its interrupt.
        graph, context_json, config_json: what it runs, as in its row.
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
        inputs: the turns, among those asked about, whose input is in it.
        pending: ids of the interrupts that wait in it.
    """

    position: Position = Position.NONE
    inputs: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Question:
    """An interrupt that waits for the author; with `allows_text` an ordinary message may answer it."""

    interrupt_id: str
    allows_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known when a decision is made, all read together.

    Attributes:
        newest: the newest row of another turn on the thread that is not over, else the newest of all.
        taken: what the trigger's key became, where it has been taken without a turn of its own.
        cancelled: a cancel is stored for the trigger's own turn.
        live: a turn is running on the thread in this process.
        questions: asked on the thread and undecided.
        decided: interrupts that the author has decided and the graph has not gone on with.
        elsewhere: why the trigger must not run on this thread; empty where it may.
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
    """What to do, about which turn and interrupts.

    Attributes:
        turn_id: the turn it acts on; empty where that is the trigger's own, still unwritten.
        interrupts: what holds the thread, or is answered.
        until: when to look again, for a wait that ends by itself.
        again: decide once more when it is done: the trigger itself is still to be dealt with.
    """

    action: Action
    turn_id: str = ""
    interrupts: tuple[str, ...] = ()
    until: datetime | None = None
    again: bool = False


_DROP = Decision(action=Action.DROP)
_TRIGGERS = frozenset({"fire", "message", "agent"})


def decide(asked: Incoming, facts: Facts) -> Decision:
    """Return the one thing to do next about `asked`."""
    for row in _ROWS:
        decision = row(asked, facts)
        if decision is not None:
            return decision
    return _start(facts.thread)


def _taken_before(asked: Incoming, facts: Facts) -> Decision | None:
    """Change nothing if the key was taken before, or if the turn has run."""
    own = facts.own if asked.source != "cancel" else None
    if own is not None and own.status == "failed" and own.tries >= MOST_TRIES:
        return Decision(action=Action.SET_ASIDE, turn_id=own.turn_id)
    ran = own is not None and own.status != "running"
    taken = facts.taken and not (asked.kept and facts.taken == "kept")
    return _DROP if ran or taken else None


def _under_way(_asked: Incoming, facts: Facts) -> Decision | None:
    return Decision(action=Action.WAIT) if facts.live else None


def _unfinished(asked: Incoming, facts: Facts) -> Decision | None:
    """Run a turn that a crash interrupted before anything else."""
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
    """Refuse a thread of another graph, which is neither read nor written."""
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
    """Bring a turn that a crash left unfinished to its end, and never give it anything twice."""
    unanswered = bool(turn.answered & thread.pending)
    given = not unanswered if turn.answered else turn.turn_id in thread.inputs
    too_often = turn.tries >= MOST_TRIES
    if turn.cancelled:
        action = Action.SETTLE_CANCELLED
    elif given and (thread.position is Position.END or (too_often and thread.position is Position.INTERRUPTED)):
        action = Action.RECORD
    elif too_often:
        action, again = Action.GIVE_UP, True  # its envelope is still to be dealt with
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
    """Hold everything but the author's decision while the thread waits for the author."""
    again = asked.source in _TRIGGERS
    pending = facts.thread.pending
    # Only what the checkpoint still asks: LangGraph takes an answer to a task's first question for its next one.
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
    by_author = asked.source == "message"  # no agent answers in an author's place
    texts = tuple(question.interrupt_id for question in questions if question.allows_text and by_author)
    if texts:
        return Decision(action=Action.ANSWER, turn_id=turn.turn_id, interrupts=texts[:1])
    return Decision(action=Action.KEEP_BACK, turn_id=turn.turn_id, interrupts=waiting)


def _at_pause(asked: Incoming, turn: TurnFacts, facts: Facts) -> Decision:
    """Resume the thread with the next fire of the task for which it waits."""
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
    """Record the question that a thread asks after another program moved it, or end its turn."""
    action = Action.RECORD if facts.thread.pending else Action.RELEASE
    return Decision(action=action, turn_id=turn.turn_id, again=asked.source in _TRIGGERS)


def _start(thread: ThreadState) -> Decision:
    """Nothing stands in the way. What a cancelled or failed turn left undone is sealed first."""
    undone = thread.position in {Position.OPEN, Position.INTERRUPTED}
    return Decision(action=Action.START_SEALED if undone else Action.START)
