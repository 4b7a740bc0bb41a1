"""The checker of a cluster's history is proved: a clean run passes, and each broken promise is reported."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.cluster.checking import Asked, Left, violations

S = 1_000_000
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
    } | changes


def turn(second: int, **changes: Any) -> dict[str, Any]:
    named = {"turn_id": f"turn-{second}", "fire_id": fire_id(second), "attempt": 1, "thread_id": "t", "trigger": "fire"}
    return {**named, "status": "succeeded", "category": "c", "grant_json": GRANT} | changes


def told(second: int, state: str, **changes: Any) -> dict[str, Any]:
    return {"turn_id": f"turn-{second}", "fire_id": fire_id(second), "attempt": 1, "thread_id": "t"} | {
        "state": state, "taken": True, **changes
    }  # fmt: skip


def started(second: int, **changes: Any) -> dict[str, Any]:
    at = f"1970-01-01T00:00:{second:02}.5+00:00"
    what = {"event": "turn.started", "mode": "start", "pid": 1, "epoch": second, "at": at}
    return turn(second) | what | changes


def clean() -> Left:
    """Two fires of a task each second, a message, an event, a question that was approved, and what they wrote."""
    rows: dict[str, list[dict[str, Any]]] = {
        "tasks": [{"id": "task-1", "name": "digest", "created_us": 0, "cursor_us": 2 * S, "state": "disabled"}],
        "ledger": [entry(1), entry(2)],
        "triggers": [{"event": "demo", "event_id": "e1", "task_id": "task-2"}],
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
        "messages": [{"turn_id": "turn-3", "role": "author", "text": "hello"}],
        "forks": [],
        "left": [],
    }
    asked = [
        Asked(what="message", key="hello", answered=True), Asked(what="event", key="e1", answered=True),
        Asked(what="decision", key="i1", answered=True), Asked(what="message", key="lost on its way", answered=False),
    ]  # fmt: skip
    events = [event for n in (1, 2) for event in (started(n), started(n, event="turn.stopped"))]
    return Left(rows=rows, events=events, asked=asked, every_s={"digest": 1})


def add(table: str, *rows: dict[str, Any]) -> Callable[[Any], None]:
    return lambda left: left.rows[table].extend(rows)


def without(table: str, index: int) -> Callable[[Any], None]:
    return lambda left: left.rows[table].pop(index)


def seen(*events: dict[str, Any]) -> Callable[[Any], None]:
    return lambda left: left.events.extend(events)


def ask(what: str, key: str, *, answered: bool) -> Callable[[Any], None]:
    return lambda left: left.asked.append(Asked(what=what, key=key, answered=answered))


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
    "an input that was given twice": ("C4", add("messages", {"turn_id": "turn-3", "role": "author", "text": "again"})),
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
        "C7", add("messages", {"turn_id": "turn-1", "role": "author", "text": "hello"})
    ),
    "an envelope that waits for ever": ("C8", add("left", {"key": "k", "state": "waiting", "reason": ""})),
    "an outcome that no runner took in": ("C8", lambda left: left.rows["told"][-1].update(taken=False)),
    "a turn that runs for ever": ("C8", add("turns", turn(5, status="running", fire_id="", trigger="author"))),
}  # fmt: skip


def test_a_clean_history_has_no_violations() -> None:
    assert violations(clean()) == []


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_reported(what: str) -> None:
    invariant, doctor = BROKEN[what]
    left = clean()
    doctor(left)
    assert invariant in {found.invariant for found in violations(left)}
