"""The decision table: each row by name, then what holds whatever the facts are."""

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from agent_runtime.model.decide import (
    MOST_TRIES,
    Action,
    Decision,
    Facts,
    Incoming,
    Position,
    Question,
    ThreadState,
    TurnFacts,
    decide,
)

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
FIRE = Incoming(source="fire", turn_id="turn-own", task_id="task-a")
MESSAGE = Incoming(source="message", turn_id="turn-own")
KEPT = Incoming(source="message", turn_id="turn-own", kept=True)
DECIDED = Incoming(source="decision")
CANCEL = Incoming(source="cancel", turn_id="turn-own")
RECOVERY = Incoming(source="recovery")

FRESH = ThreadState()
AT_END = ThreadState(position=Position.END)
TAKEN = ThreadState(position=Position.OPEN, inputs=frozenset({"turn-own", "turn-old"}))
ENDED = ThreadState(position=Position.END, inputs=frozenset({"turn-own", "turn-old"}))
OPEN = ThreadState(position=Position.OPEN)
ASKING = ThreadState(position=Position.INTERRUPTED, pending=frozenset({"i1"}), inputs=frozenset({"turn-old"}))
ASKING_TWO = ThreadState(position=Position.INTERRUPTED, pending=frozenset({"i1", "i2"}))
ASKING_OTHER = ThreadState(position=Position.INTERRUPTED, pending=frozenset({"i9"}))
TAKEN_ASKING = ThreadState(
    position=Position.INTERRUPTED, pending=frozenset({"i1"}), inputs=frozenset({"turn-own", "turn-old"})
)
PERMISSION = (Question(interrupt_id="i1"),)
TEXT = (Question(interrupt_id="i1", allows_text=True),)


def own(status: str = "running", **changes: Any) -> TurnFacts:
    return TurnFacts(turn_id="turn-own", status=status, **{"tries": 1} | changes)


def old(status: str, **changes: Any) -> TurnFacts:
    return TurnFacts(turn_id="turn-old", status=status, **{"task_id": "task-a", "tries": 1} | changes)


def facts(**changes: Any) -> Facts:
    return Facts(now=NOW, **changes)


def does(action: Action, turn_id: str = "", interrupts: tuple[str, ...] = (), *, again: bool = False) -> Decision:
    return Decision(action=action, turn_id=turn_id, interrupts=interrupts, again=again)


PAUSED = old("paused", pause="p1", paused_until=NOW + timedelta(hours=1))
WAITING = ThreadState(position=Position.INTERRUPTED, pending=frozenset({"p1"}))

TABLE = [
    # the same trigger again
    ("the turn is over", FIRE, facts(own=own("succeeded"), thread=ENDED), does(Action.DROP)),
    ("the turn waits for its author", FIRE, facts(own=own("interrupted"), thread=ASKING), does(Action.DROP)),
    ("the turn is paused", FIRE, facts(own=own("paused"), thread=WAITING), does(Action.DROP)),
    ("it was held", FIRE, facts(taken="held"), does(Action.DROP)),
    ("it was an answer", MESSAGE, facts(taken="answer"), does(Action.DROP)),
    ("it was refused", FIRE, facts(taken="refused"), does(Action.DROP)),
    ("it was kept, and its envelope is still there", MESSAGE, facts(taken="kept"), does(Action.DROP)),
    ("it was kept, and comes from the store", KEPT, facts(taken="kept"), does(Action.START)),
    # an unfinished row of its own
    ("no input yet", FIRE, facts(own=own(), thread=FRESH), does(Action.GIVE_INPUT, "turn-own")),
    ("no input yet, on an old thread", FIRE, facts(own=own(), thread=AT_END), does(Action.GIVE_INPUT, "turn-own")),
    ("input there and at the end", FIRE, facts(own=own(), thread=ENDED), does(Action.RECORD, "turn-own")),
    ("input there, steps left", FIRE, facts(own=own(), thread=TAKEN), does(Action.CONTINUE, "turn-own")),
    (
        "a resume whose answer never arrived",
        FIRE,
        facts(own=own(answered=frozenset({"i1"})), thread=ASKING),
        does(Action.GIVE_ANSWER, "turn-own"),
    ),
    (
        "a resume whose answer arrived",
        FIRE,
        facts(own=own(answered=frozenset({"i0"})), thread=ASKING),
        does(Action.CONTINUE, "turn-own"),
    ),
    (
        "a resume that had come to its end",
        FIRE,
        facts(own=own(answered=frozenset({"i1"})), thread=AT_END),
        does(Action.RECORD, "turn-own"),
    ),
    ("a cancel is stored", FIRE, facts(own=own(cancelled=True), thread=TAKEN), does(Action.SETTLE_CANCELLED, "turn-own")),
    ("tried too often", FIRE, facts(own=own(tries=MOST_TRIES), thread=TAKEN), does(Action.GIVE_UP, "turn-own", again=True)),
    (
        "tried too often before its input arrived, on a thread at its end",
        FIRE,
        facts(own=own(tries=MOST_TRIES), thread=AT_END),
        does(Action.GIVE_UP, "turn-own", again=True),
    ),
    (
        "tried too often with an answer that never arrived",
        FIRE,
        facts(own=own(tries=MOST_TRIES, answered=frozenset({"i1"})), thread=TAKEN_ASKING),
        does(Action.GIVE_UP, "turn-own", again=True),
    ),
    ("tried too often, yet it asks", FIRE, facts(own=own(tries=MOST_TRIES), thread=TAKEN_ASKING), does(Action.RECORD, "turn-own")),
    ("it was given up", FIRE, facts(own=own("failed", tries=MOST_TRIES), thread=TAKEN), does(Action.SET_ASIDE, "turn-own")),
    ("it failed", FIRE, facts(own=own("failed"), thread=TAKEN), does(Action.DROP)),
    ("tried too often, yet at its end", FIRE, facts(own=own(tries=MOST_TRIES), thread=ENDED), does(Action.RECORD, "turn-own")),
    # another turn's row is unfinished and nobody runs it
    (
        "a crash left another turn with steps",
        FIRE,
        facts(newest=old("running"), thread=TAKEN),
        does(Action.CONTINUE, "turn-old", again=True),
    ),
    (
        "a crash left another turn without its input",
        MESSAGE,
        facts(newest=old("running"), thread=FRESH),
        does(Action.GIVE_INPUT, "turn-old", again=True),
    ),
    (
        "a crash left another turn at its end",
        FIRE,
        facts(newest=old("running"), thread=ENDED),
        does(Action.RECORD, "turn-old", again=True),
    ),
    ("the start looks at what a crash left", RECOVERY, facts(newest=old("running"), thread=TAKEN), does(Action.CONTINUE, "turn-old")),
    ("the start finds nothing left", RECOVERY, facts(newest=old("succeeded"), thread=ENDED), does(Action.DROP)),
    # a turn runs
    ("a turn runs on the thread", FIRE, facts(newest=old("running"), live=True, thread=TAKEN), does(Action.WAIT)),
    ("a turn runs on the thread, a message comes", MESSAGE, facts(newest=old("running"), live=True), does(Action.WAIT)),
    # cancels
    ("it was cancelled before it started", FIRE, facts(cancelled=True), does(Action.SETTLE_CANCELLED)),
    ("cancel what waits", CANCEL, facts(own=own("interrupted"), thread=ASKING), does(Action.SETTLE_CANCELLED, "turn-own")),
    ("cancel a pause", CANCEL, facts(own=own("paused"), thread=WAITING), does(Action.SETTLE_CANCELLED, "turn-own")),
    ("cancel what is over", CANCEL, facts(own=own("failed"), thread=ENDED), does(Action.DROP)),
    ("cancel what a crash left", CANCEL, facts(own=own(cancelled=True), thread=TAKEN), does(Action.SETTLE_CANCELLED, "turn-own")),
    ("cancel what has not begun", CANCEL, facts(cancelled=True), does(Action.DROP)),
    # waiting for the author
    (
        "a fire finds a question",
        FIRE,
        facts(newest=old("interrupted"), questions=PERMISSION, thread=ASKING),
        does(Action.HOLD, "turn-old", ("i1",)),
    ),
    (
        "a fire of the same task finds a question",
        Incoming(source="fire", turn_id="turn-own", task_id="task-a"),
        facts(newest=old("interrupted"), questions=TEXT, thread=ASKING),
        does(Action.HOLD, "turn-old", ("i1",)),
    ),
    (
        "the author decides",
        DECIDED,
        facts(newest=old("interrupted"), decided=("i1",), thread=ASKING),
        does(Action.RESUME, "turn-old", ("i1",)),
    ),
    (
        "the author decided one of two",
        DECIDED,
        facts(newest=old("interrupted"), decided=("i2",), questions=PERMISSION, thread=ASKING_TWO),
        does(Action.RESUME, "turn-old", ("i2",)),
    ),
    (
        "the author decided what the graph no longer asks",
        DECIDED,
        facts(newest=old("interrupted"), decided=("i2",), questions=PERMISSION, thread=ASKING),
        does(Action.DROP),
    ),
    (
        "the author decided, and another path was there before",
        DECIDED,
        facts(newest=old("interrupted"), decided=("i1",), thread=ENDED),
        does(Action.RELEASE, "turn-old"),
    ),
    (
        "another path led to another question",
        FIRE,
        facts(newest=old("interrupted"), questions=PERMISSION, thread=ASKING_OTHER),
        does(Action.RECORD, "turn-old", again=True),
    ),
    (
        "a decision was stored before a crash",
        RECOVERY,
        facts(newest=old("interrupted"), decided=("i1",), thread=ASKING),
        does(Action.RESUME, "turn-old", ("i1",)),
    ),
    (
        "a fire comes between decision and resume",
        FIRE,
        facts(newest=old("interrupted"), decided=("i1",), thread=ASKING),
        does(Action.RESUME, "turn-old", ("i1",), again=True),
    ),
    ("nothing decided yet", DECIDED, facts(newest=old("interrupted"), questions=PERMISSION, thread=ASKING), does(Action.DROP)),
    ("the start leaves a question alone", RECOVERY, facts(newest=old("interrupted"), questions=PERMISSION, thread=ASKING), does(Action.DROP)),
    (
        "a message where text is allowed",
        MESSAGE,
        facts(newest=old("interrupted"), questions=TEXT, thread=ASKING),
        does(Action.ANSWER, "turn-old", ("i1",)),
    ),
    (
        "a message where it is not",
        MESSAGE,
        facts(newest=old("interrupted"), questions=PERMISSION, thread=ASKING),
        does(Action.KEEP_BACK, "turn-old", ("i1",)),
    ),
    (
        "a kept message, still not released",
        KEPT,
        facts(taken="kept", newest=old("interrupted"), questions=PERMISSION, thread=ASKING),
        does(Action.KEEP_BACK, "turn-old", ("i1",)),
    ),
    (
        "the question was settled by another path",
        FIRE,
        facts(newest=old("interrupted"), questions=PERMISSION, thread=ENDED),
        does(Action.RELEASE, "turn-old", again=True),
    ),
    # bounded pauses
    (
        "the next fire of the paused task",
        FIRE,
        facts(newest=PAUSED, thread=WAITING),
        does(Action.RESUME_PAUSE, "turn-old", ("p1",)),
    ),
    (
        "another task's fire",
        Incoming(source="fire", turn_id="turn-own", task_id="task-b"),
        facts(newest=PAUSED, thread=WAITING),
        Decision(action=Action.WAIT, until=NOW + timedelta(hours=1)),
    ),
    ("a message at a pause", MESSAGE, facts(newest=PAUSED, thread=WAITING), does(Action.KEEP_BACK, "turn-old", ("p1",))),
    (
        "the pause is over",
        FIRE,
        facts(newest=old("paused", pause="p1", paused_until=NOW), thread=WAITING),
        does(Action.SEAL_PAUSE, "turn-old", again=True),
    ),
    ("the start leaves a pause alone", RECOVERY, facts(newest=PAUSED, thread=WAITING), does(Action.DROP)),
    ("a pause was settled by another path", FIRE, facts(newest=PAUSED, thread=ENDED), does(Action.RELEASE, "turn-old", again=True)),
    (
        "another path led from a pause to a question",
        FIRE,
        facts(newest=PAUSED, thread=ASKING_OTHER),
        does(Action.RECORD, "turn-old", again=True),
    ),
    (
        "the start finds a pause that is over",
        RECOVERY,
        facts(newest=old("paused", pause="p1", paused_until=NOW), thread=WAITING),
        does(Action.SEAL_PAUSE, "turn-old"),
    ),
    # after an end that left something undone
    ("after a cancelled turn", FIRE, facts(newest=old("cancelled"), thread=OPEN), does(Action.START_SEALED)),
    ("after a failed turn", MESSAGE, facts(newest=old("failed"), thread=OPEN), does(Action.START_SEALED)),
    ("after a cancelled question", FIRE, facts(newest=old("cancelled"), thread=ASKING), does(Action.START_SEALED)),
    # nothing in the way
    ("a new thread", FIRE, facts(thread=FRESH), does(Action.START)),
    ("an old thread", MESSAGE, facts(newest=old("succeeded"), thread=AT_END), does(Action.START)),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "known", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(asked: Incoming, known: Facts, expected: Decision) -> None:
    assert decide(asked, known) == expected


def every_situation() -> list[tuple[Incoming, Facts]]:
    threads = [FRESH, AT_END, OPEN, ASKING, ENDED, TAKEN, WAITING]
    turns = [None, *(old(s) for s in ("running", "interrupted", "succeeded", "silent", "failed", "cancelled")), PAUSED]
    return [
        (asked, facts(newest=turn, thread=thread, questions=asks, decided=done, live=live, cancelled=gone))
        for asked, turn, thread, asks, done, live, gone in product(
            (FIRE, MESSAGE, KEPT, DECIDED, CANCEL, RECOVERY), turns, threads,
            ((), PERMISSION, TEXT), ((), ("i1",)), (False, True), (False, True),
        )
    ]  # fmt: skip


def test_a_thread_that_waits_for_its_author_starts_nothing() -> None:
    for asked, known in every_situation():
        waits = known.newest is not None and known.newest.status == "interrupted"
        if waits and known.thread.pending:
            assert decide(asked, known).action not in {Action.START, Action.START_SEALED}


def test_nothing_starts_beside_a_running_turn() -> None:
    for asked, known in every_situation():
        if known.live:
            assert decide(asked, known).action in {Action.WAIT, Action.DROP}


def test_only_fires_and_messages_start_turns() -> None:
    for asked, known in every_situation():
        if asked.source not in {"fire", "message"}:
            assert decide(asked, known).action not in {Action.START, Action.START_SEALED, Action.HOLD}


def test_what_comes_before_the_trigger_itself_asks_to_decide_again() -> None:
    for asked, known in every_situation():
        decision = decide(asked, known)
        if asked.source in {"fire", "message"} and decision.turn_id == "turn-old" and not known.live:
            on_behalf = {Action.HOLD, Action.ANSWER, Action.KEEP_BACK, Action.RESUME_PAUSE}
            assert decision.again is (decision.action not in on_behalf)
