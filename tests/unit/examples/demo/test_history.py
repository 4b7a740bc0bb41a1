"""The history checker is proved: a clean run passes, and each broken promise turns it red."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from examples.demo.history import History, Outside, check

AT = "2026-03-02T09:0{}:00Z"


def entry(minute: int, **changes: Any) -> dict[str, Any]:
    nominal = AT.format(minute)
    return {
        "fire_id": f"task-00000001@2026030209{minute:02}00Z", "task_id": "task-00000001", "kind": "scheduled",
        "nominal_at": nominal, "due_at": nominal, "fired_at": nominal, "outcome": "succeeded", "reason": "",
        "count": 1, "first_nominal_at": nominal, "last_nominal_at": nominal, "attempt": 1,
    } | changes  # fmt: skip


def turn(minute: int, **changes: Any) -> dict[str, Any]:
    fire_id = f"task-00000001@2026030209{minute:02}00Z"
    return {"turn_id": f"turn-{minute}", "fire_id": fire_id, "attempt": 1, "thread_id": "t"} | changes


def event(name: str, minute: int, **changes: Any) -> dict[str, Any]:
    fields = {"event": name, "at": AT.format(minute), "pid": 1, "mode": "start"}
    return fields | turn(minute) | changes


def clean() -> dict[str, list[dict[str, Any]]]:
    return {
        "ledger": [entry(0), entry(1, outcome="skipped", reason="missed", fire_id=""), entry(2)],
        "turns": [turn(0), turn(2)],
        "events": [
            event("fire.committed", 0), event("fire.sent", 0), event("turn.started", 0), event("turn.stopped", 0),
            event("fire.sent", 2), event("turn.started", 2), event("turn.stopped", 2),
        ],
    }  # fmt: skip


def delivery(key: str, **changes: Any) -> dict[str, Any]:
    fields = {"key": key, "fire_id": entry(0)["fire_id"], "kind": "success", "target": "ops", "state": "delivered"}
    return fields | changes


def hook(event_id: str, **changes: Any) -> dict[str, Any]:
    return {"event_id": event_id, "status": 202, "duplicate": False} | changes


def call(text: str, **changes: Any) -> dict[str, Any]:
    fields = {"turn_id": "turn-0", "call_id": "c1", "tool": "mcp__desk__note", "args": {"text": text}}
    return fields | changes


def outside() -> dict[str, list[dict[str, Any]]]:
    """A result that was delivered at the second try, a webhook that came again, and a call that its author repeated."""
    return {
        "deliveries": [delivery("m1"), delivery("m2", kind="waits"), delivery("m3", kind="waits"), delivery("m4", state="waiting", target="b")],
        "received": [{"key": key, "body": key} for key in ("m1", "m1", "m2", "m3")],
        "triggers": [{"task_id": "task-2", "event_id": "h1"}, {"task_id": "task-3", "event_id": "h1"}],
        "hooks": [hook("h1", status=0), hook("h1"), hook("h1", duplicate=True), hook("h2", status=503)],
        "calls": [call("a"), call("a", turn_id="turn-2"), call("b", call_id="c2")],
        "again": [call("b")],
        "sent": [call("a"), call("a"), call("b"), call("b")],
    }  # fmt: skip


def checked(said: dict[str, list[dict[str, Any]]]) -> list[str]:
    seen = Outside(received=said["received"], hooks=said["hooks"], sent=said["sent"])
    rows: dict[str, Any] = {name: said[name] for name in ("deliveries", "triggers", "calls", "again")}
    return [found.invariant for found in check(History(**clean(), **rows, outside=seen), drained=True)]


def test_what_left_the_home_and_came_in_has_no_violations() -> None:
    assert checked(outside()) == []


@pytest.mark.parametrize(
    ("invariant", "part", "record"),
    [
        ("I8", "deliveries", delivery("m9", state="waiting")),  # one result, under two keys
        ("I8", "deliveries", delivery("m9", target="other")),  # never received
        ("I8", "received", {"key": "m1", "body": "changed"}),
        ("I8", "received", {"key": "m9", "body": ""}),
        ("I9", "triggers", {"task_id": "task-2", "event_id": "h1"}),
        ("I9", "hooks", hook("h1")),  # taken as new twice
        ("I9", "hooks", hook("h3")),  # answered, and lost
        ("I10", "sent", call("a")),
        ("I10", "sent", call("b")),  # its author let it run again once
        ("I10", "sent", call("never asked for")),
    ],
)
def test_a_delivery_a_webhook_or_a_call_that_breaks_its_promise_is_found(
    invariant: str, part: str, record: dict[str, Any]
) -> None:
    said = outside()
    said[part].append(record)
    assert checked(said) == [invariant]


def every_minute(_task: str, first: datetime, last: datetime) -> int:
    return (last - first) // timedelta(minutes=1) + 1


def test_a_clean_history_has_no_violations() -> None:
    assert check(History(**clean()), drained=True, count_nominals=every_minute) == []


def test_a_turn_that_a_crash_cut_is_continued_by_the_next_process() -> None:
    history = clean()
    history["events"][3:4] = [event("turn.started", 0, pid=2, mode="continue"), event("turn.stopped", 0, pid=2)]
    assert check(History(**history), drained=True) == []


def test_a_turn_is_over_for_the_process_that_lost_its_lease_and_for_no_other() -> None:
    history = clean()
    lost, goes_on = event("lease.lost", 5), [event("turn.started", 6, fire_id="", turn_id=name) for name in "ab"]
    history["events"] += [event("turn.started", 4, fire_id="", turn_id="cut off"), lost, goes_on[0]]
    assert check(History(**history), drained=True) == []
    history["events"] += [event("lease.lost", 7, pid=2), event("turn.stopped", 7, pid=2), goes_on[1]]
    assert [found.what for found in check(History(**history), drained=True)] == ["a and b ran at once on t"]


@pytest.mark.parametrize(
    ("invariant", "part", "record"),
    [
        ("I1", "ledger", entry(3, outcome="sent")),
        ("I1", "events", event("fire.committed", 4)),
        ("I1", "ledger", entry(3)),
        ("I2", "turns", turn(5)),
        ("I2", "turns", turn(0, attempt=2, turn_id="turn-x")),
        ("I3", "turns", turn(0, turn_id="turn-x")),
        ("I3", "events", event("turn.started", 2)),
        ("I4", "events", event("turn.started", 7, fire_id="")),
        ("I6", "ledger", entry(3, outcome="failed", fired_at=AT.format(2))),
        ("I6", "events", event("fire.sent", 2, at=AT.format(1))),
        ("I6", "ledger", entry(0, fire_id="task-00000001@other", outcome="failed")),
        ("I7", "ledger", entry(1, outcome="skipped", fire_id="", last_nominal_at=AT.format(1))),
        ("I7", "ledger", entry(4, outcome="skipped", fire_id="")),
    ],
)
def test_a_broken_promise_is_found(invariant: str, part: str, record: dict[str, Any]) -> None:
    history = clean()
    history[part].append(record)
    if invariant == "I4":
        history["events"].append(event("turn.started", 8, fire_id=""))
    found = check(History(**history), drained=True, count_nominals=every_minute)
    assert invariant in {violation.invariant for violation in found}
