"""The event log: whole lines, one file a day."""

from pathlib import Path

from tests.support.clock import ManualClock
from turnkeeper.bus.event_log import EventLog, read_events
from turnkeeper.config.home import Home


def test_the_trail_is_whole_lines_by_day(home: Home, clock: ManualClock) -> None:
    log = EventLog(home.logs, "task-runner", clock)
    log.emit("task.created", task_id="task-1", durable=True)
    clock.advance(86_400)
    log.emit("task.paused", task_id="task-1")
    assert [record["event"] for record in read_events(home.logs)] == ["task.created", "task.paused"]
    assert sorted(path.name for path in home.logs.iterdir()) == [
        "events-task-runner-2026-03-02.jsonl",
        "events-task-runner-2026-03-03.jsonl",
    ]


def test_no_field_of_an_event_takes_the_place_of_its_time_and_process(home: Home, clock: ManualClock) -> None:
    fields = {"at": "2027-01-01T00:00:00Z", "process": "another", "pid": 1}
    EventLog(home.logs, "task-runner", clock).emit_all([("task.armed", fields)])
    (record,) = read_events(home.logs)
    assert (record["at"], record["process"]) == ("2026-03-02T09:00:00Z", "task-runner")


def test_a_torn_last_line_is_passed_over(home: Home, clock: ManualClock) -> None:
    EventLog(home.logs, "task-runner", clock).emit("task.created")
    (path,) = home.logs.iterdir()
    with path.open("ab") as file:
        file.write(b'{"at":"2026')
    assert [record["event"] for record in read_events(home.logs)] == ["task.created"]


def test_a_linked_log_is_followed(home: Home, clock: ManualClock, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (home.logs / "events-task-runner-2026-03-02.jsonl").symlink_to(elsewhere)
    EventLog(home.logs, "task-runner", clock).emit("task.created", durable=True)
    assert elsewhere.read_text(encoding="utf-8").count("task.created") == 1


def test_events_come_by_time_and_lines_that_are_none_are_skipped(home: Home) -> None:
    lines = ['{"at":"2026-03-02T09:00:00.2Z"}', '{"at":"2026-03-02T09:00:00Z"}', '{"at":1}', "{}", "[]", "\0"]
    home.logs.joinpath("events-x-2026-03-02.jsonl").write_text("\n".join(lines))
    assert [record["at"] for record in read_events(home.logs)] == ["2026-03-02T09:00:00Z", "2026-03-02T09:00:00.2Z"]


def test_a_line_is_ascii_whatever_its_fields_hold(home: Home, clock: ManualClock) -> None:
    awkward = {
        "text": "ä\x7f\x9b\u2028\ud800",
        "long": 1 << 70,
        "at_home": home.logs,
        "seen": clock.now(),
        "key": {1: 2},
    }
    log = EventLog(home.logs, "task-runner", clock)
    log.emit_all([("awkward", {name: value}) for name, value in awkward.items()])
    log.close()
    (path,) = home.logs.iterdir()
    data = path.read_bytes()
    assert data.isascii()
    assert b"\x7f" not in data
    read = {name: record[name] for record in read_events(home.logs) for name in awkward if name in record}
    assert read == {**awkward, "at_home": str(home.logs), "seen": str(clock.now()), "key": {"1": 2}}
