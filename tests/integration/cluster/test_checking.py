"""The checker of a cluster's history is proved: a clean run passes, and each broken promise is reported."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.cluster.checking import Asked, Left, violations

S = 1_000_000
CALL = json.dumps([{"id": "call-1", "name": "note", "args": {}}])
GRANT = json.dumps({"tools": ["summary.propose"]})


def fire_id(second: int) -> str:
    return f"task-1@{second}"


def entry(second: int, **changes: Any) -> dict[str, Any]:
    at = second * S
    spans = {"nominal_us": at, "due_us": at, "first_us": at, "last_us": at, "fired_us": at + 9, "accepted_us": at + 9}
    named = {"task_id": "task-1", "fire_id": fire_id(second), "request_id": None, "turn_id": f"turn-{second}"}
    return {
        **spans,
        **named,
        "kind": "scheduled",
        "outcome": "succeeded",
        "reason": "",
        "count": 1,
        "attempt": 1,
        "caught_up": False,
        "entry_id": second,
        "ended_us": at + S // 2,
    } | changes


def turn(second: int, **changes: Any) -> dict[str, Any]:
    named = {"turn_id": f"turn-{second}", "fire_id": fire_id(second), "attempt": 1, "thread_id": "t", "trigger": "fire"}
    how = {"status": "succeeded", "category": "c", "grant_json": GRANT, "ended_at_us": second * S + S // 2}
    return named | how | changes


def told(second: int, state: str, **changes: Any) -> dict[str, Any]:
    return {"turn_id": f"turn-{second}", "fire_id": fire_id(second), "attempt": 1, "thread_id": "t"} | {
        "state": state, "taken": True, **changes
    }  # fmt: skip


def started(second: int, **changes: Any) -> dict[str, Any]:
    at = f"1970-01-01T00:00:{second:02}.5+00:00"
    what = {"event": "turn.started", "mode": "start", "pid": 1, "epoch": second, "at": at}
    return turn(second) | what | changes


def said(role: str, text: str = "", **changes: Any) -> dict[str, Any]:
    return {"turn_id": "turn-3", "role": role, "text": text, "tool_call_id": "", "tool_calls_json": ""} | changes


def late(second: int) -> dict[str, Any]:
    """Return a caught-up fire that was handed over as all the others were, and ran as long."""
    return entry(second, caught_up=True, accepted_us=50 * S, ended_us=60 * S)


def clean() -> Left:
    """Two fires of a task each second, a message, an event, a question that was approved, and what they wrote."""
    rows: dict[str, list[dict[str, Any]]] = {
        "tasks": [{"id": "task-1", "name": "digest", "created_us": 0, "cursor_us": 2 * S, "state": "disabled"}],
        "ledger": [entry(1), entry(2)],
        "triggers": [{"entry_id": 1, "event": "demo", "event_id": "e1", "task_id": "task-2"}],
        "turns": [turn(1), turn(2), turn(3, fire_id="", trigger="author")],
        "keys": [],
        "told": [
            *(told(1, state) for state in ("STARTED", "SUCCEEDED")),
            *(told(2, state) for state in ("STARTED", "INTERRUPTED", "RESUMED", "SUCCEEDED")),
            *(told(3, state, fire_id="") for state in ("STARTED", "SUCCEEDED")),
        ],
        "effects": [{"turn_id": "turn-1", "scope": "summary.propose"}, {"turn_id": "turn-2", "scope": "memory.put"}],
        "candidates": [{"turn_id": "turn-1", "candidate_id": "c1"}],
        "approved": [{"turn_id": "turn-2", "interrupt_id": "i1", "decision": "approve", "tool": "memory_put"}],
        "messages": [
            said("author", "hello"),
            said("agent", tool_calls_json=CALL),
            said("tool", "done", tool_call_id="call-1"),
            said("agent", "so it is"),
        ],
        "cancels": [{"turn_id": "turn-2", "at_us": 2 * S}],
        **{table: [] for table in ("forks", "left", "owned", "kept", "unsent")},
    }
    asked = [
        Asked(what="message", key="hello", answered=True), Asked(what="event", key="e1", answered=True),
        Asked(what="decision", key="i1", answered=True, said="approve"),
        Asked(what="message", key="lost on its way", answered=False), Asked(what="cancel", key="turn-2", answered=True),
    ]  # fmt: skip
    before = [{"id": "task-1", "name": "digest", "state": "active", "at_us": 4 * S}]
    before.append({"id": "task-9", "name": "limited", "state": "active", "at_us": 4 * S})
    events = [event for n in (1, 2) for event in (started(n), started(n, event="turn.stopped"))]
    return Left(
        rows=rows,
        events=events,
        asked=asked,
        every_s={"digest": 1},
        before=before,
        most={"limited": 3},
        told=["interrupt i1"],
    )


def add(table: str, *rows: dict[str, Any]) -> Callable[[Any], None]:
    return lambda left: left.rows[table].extend(rows)


def without(table: str, index: int) -> Callable[[Any], None]:
    return lambda left: left.rows[table].pop(index)


def seen(*events: dict[str, Any]) -> Callable[[Any], None]:
    return lambda left: left.events.extend(events)


def ask(what: str, key: str, *, answered: bool) -> Callable[[Any], None]:
    return lambda left: left.asked.append(Asked(what=what, key=key, answered=answered, said="approve"))


def moved(left: Any) -> None:
    left.rows["tasks"][0]["cursor_us"] = 4 * S


TOLD_3 = (told(9, "STARTED", fire_id=""), told(9, "SUCCEEDED", fire_id=""))
BROKEN: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a fire that is still open": ("I1", add("ledger", entry(3, outcome="accepted", accepted_us=None))),
    "a fire that succeeded without a turn": ("I1", add("ledger", entry(3))),
    "a fire that was committed and is in no ledger": ("I1", seen(started(7, event="fire.committed"))),
    "a turn without a fire": ("I2", add("turns", turn(7))),
    "two turns of one fire": ("I3", add("turns", turn(1, turn_id="turn-x"))),
    "a fire before its time": ("I6", lambda left: left.rows["ledger"][0].update(fired_us=1 * S - 1)),
    "a fire that left before its time": ("I6", seen(started(2, event="fire.sent", at="1970-01-01T00:00:01.9+00:00"))),
    "two fires of one slot": ("I6", add("ledger", entry(2, fire_id="task-1@again"))),
    "two turns at once on a thread": ("C1", lambda left: left.rows["told"].insert(1, TOLD_3[0])),
    "a turn that ended while another ran": ("C1", lambda left: left.rows["told"].insert(1, TOLD_3[1])),
    "a turn that began twice": ("C1", lambda left: left.rows["told"].insert(0, told(1, "STARTED"))),
    "a turn that ended twice": ("C1", add("told", told(1, "SUCCEEDED"))),
    "a turn that never ended": ("C1", without("told", 1)),
    "two processes under one epoch": ("C2", seen(started(1, pid=2, mode="continue"))),
    "a fork of a thread's checkpoints": (
        "C2", add("forks", {"thread_id": "t", "checkpoint_ns": "", "parent_checkpoint_id": "p", "count": 2})
    ),
    "a fire that was accepted and came to nothing": ("C3", add("ledger", entry(3, outcome="failed"))),
    "a fire that was withdrawn and ran all the same": (
        "C3",
        lambda left: left.rows["ledger"][1].update(outcome="skipped"),
    ),
    "a tool that took effect twice": ("C4", add("candidates", {"turn_id": "turn-1", "candidate_id": "c2"})),
    "an input that was given twice": ("C4", add("messages", said("author", "again"))),
    "a call of a tool that was answered twice": ("C4", add("messages", said("tool", "again", tool_call_id="call-1"))),
    "a call of a tool that was written twice": ("C4", add("messages", said("agent", tool_calls_json=CALL))),
    "a call of a tool that was never answered": ("C4", without("messages", 2)),
    "a write that was not granted": ("C5", add("effects", {"turn_id": "turn-1", "scope": "memory.put"})),
    "one approval for two writes": ("C5", add("effects", {"turn_id": "turn-2", "scope": "memory.put"})),
    "a slot that nobody accounts for": ("C6", add("ledger", entry(4))),
    "a slot that two entries account for": ("C6", add("ledger", entry(2, fire_id="x", outcome="skipped", turn_id=""))),
    "a first slot that nobody accounts for": ("C6", without("ledger", 0)),
    "a cursor that passed slots": ("C6", moved),
    "a message that was answered and lost": ("C7", ask("message", "lost", answered=True)),
    "an event that was answered and lost": ("C7", ask("event", "e2", answered=True)),
    "a decision that was answered and lost": ("C7", ask("decision", "i2", answered=True)),
    "a message that came twice": (
        "C7", add("messages", said("author", "hello", turn_id="turn-1"))
    ),
    "a webhook that was answered and lost": ("I9", ask("event", "e2", answered=True)),
    "a webhook that triggered its task twice": (
        "I9", add("triggers", {"entry_id": 2, "event": "demo", "event_id": "e1", "task_id": "task-2"})
    ),
    "an event whose fire is lost": ("C7", lambda left: left.rows["triggers"][0].update(entry_id=77)),
    "a cancel of a turn that is lost": ("C7", ask("cancel", "turn-77", answered=True)),
    "a thread that is kept for nothing": ("C8", add("owned", {"thread_id": "t", "owner": "one"})),
    "a message that is kept back for ever": ("C8", add("kept", {"thread_id": "t", "key": "k"})),
    "a request of a fire that is over": ("C8", add("unsent", {"entry_id": 1})),
    "a task that plans no more": ("C9", lambda left: left.before[0].update(at_us=20 * S)),
    "a task that was stopped": ("C9", lambda left: left.before[0].update(state="quarantined")),
    "a task that ended too soon": ("C9", lambda left: left.before[1].update(state="done")),
    "a task that fired too often": ("C9", add("ledger", *(entry(n, task_id="task-9") for n in (1, 2, 3, 4)))),
    "a decision that became another one": ("C10", lambda left: left.rows["approved"][0].update(decision="reject")),
    "a cancel that was not carried out": ("C10", lambda left: left.rows["turns"][1].update(ended_at_us=40 * S)),
    "a cancel that was carried out late": (
        "C10", lambda left: left.rows["turns"][1].update(ended_at_us=80 * S, status="cancelled")
    ),
    "a question of which the author was told twice": ("C10", lambda left: left.told.append("interrupt i1")),
    "too many caught-up fires at once": ("C11", add("ledger", *(late(n) for n in (3, 4, 5, 6, 7)))),
    "an envelope that waits for ever": ("C8", add("left", {"key": "k", "state": "waiting", "reason": ""})),
    "an outcome that no runner took in": ("C8", lambda left: left.rows["told"][-1].update(taken=False)),
    "a turn that runs for ever": ("C8", add("turns", turn(5, status="running", fire_id="", trigger="author"))),
}  # fmt: skip


def test_a_clean_history_has_no_violations() -> None:
    assert violations(clean()) == []


def test_a_turn_that_met_trouble_as_its_end_was_written_goes_on() -> None:
    left = clean()
    events: Any = left.events
    events.insert(1, again := started(1, mode="continue"))
    assert "I4" in {found.invariant for found in violations(left)}
    events.insert(1, again | {"event": "turn.trouble"})
    assert violations(left) == []


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_reported(what: str) -> None:
    invariant, doctor = BROKEN[what]
    left = clean()
    doctor(left)
    assert invariant in {found.invariant for found in violations(left)}
