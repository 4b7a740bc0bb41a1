"""`turnkeeper events` on a home in which nothing runs: every source, none of them whole."""

import json
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

import agent_runtime.store.schema as runtime
import task_runner.store.schema as runner
from tests.support.program import app
from turnkeeper import console
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.timeline import stores
from turnkeeper.errors import EXIT_INTERRUPTED
from turnkeeper.storage import schema_revision
from turnkeeper.times import parse_rfc3339, rfc3339, to_us

FIRE = "task-1@20261122T020000Z"
AT = "2026-11-22T02:00:0{}Z"


def us(second: int) -> int:
    return to_us(parse_rfc3339(AT.format(second)))


def trail(home: Home, process: str, *lines: dict[str, Any], end: str = "") -> Path:
    path = home.logs / f"events-{process}-2026-11-22.jsonl"
    text = "".join(json.dumps({"process": process, "pid": 7, **line}) + "\n" for line in lines)
    path.write_text(text + end)
    return path


def add(path: Path, table: Any, **row: Any) -> None:
    missing = {
        column.name: 0 if "INT" in str(column.type) or "BOOL" in str(column.type) else ""
        for column in table.c
        if not column.nullable and not column.primary_key
    }
    values = missing | row
    with closing(sqlite3.connect(path)) as store, store:
        store.execute(
            f"INSERT INTO {table.name} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
            [*values.values()],
        )


@pytest.fixture
def told(home: Home) -> Home:
    """A fire of task `nightly` asked something at second 4, and was answered in second 6."""
    home.create()
    for path, schema in ((home.schedules_db, runner), (home.agent_db, runtime)):
        engine = create_engine(f"sqlite:///{path}")
        schema.metadata.create_all(engine)
        engine.dispose()
    about = {"fire_id": FIRE, "attempt": 1}
    definition = json.dumps({"agent": "agent0", "thread_id": "desk"})
    add(home.schedules_db, runner.tasks, id="task-1", name="nightly", channel="ops", definition=definition)
    times = {"nominal_us": us(0), "due_us": us(0), "fired_us": us(1), "accepted_us": us(2), "ended_us": us(8)}
    add(home.schedules_db, runner.fires, task_id="task-1", **about, outcome="succeeded", **times)
    named = {"turn_id": "turn-1", "thread_id": "desk"}
    whose = {"channel": "ops", "agent": "agent0", "task_id": "task-1", "task_name": "nightly"}
    add(
        home.agent_db, runtime.turns, **named, **whose, **about, trigger="fire", status="succeeded", started_at_us=us(3)
    )
    for second, state in ((3, "STARTED"), (4, "INTERRUPTED"), (7, "RESUMED"), (7, "SUCCEEDED")):
        add(home.agent_db, runtime.turn_events, **named, **about, state=state, at_us=us(second))
    asked = {"interrupt_id": "q-1", "channel": "ops", "kind": "permission", "tool": "memory_put", "status": "resolved"}
    answered = {"created_at_us": us(4), "resolved_at_us": us(6), "decision": "approve", "decided_by": "turnkeeper/cli"}
    add(home.agent_db, runtime.interrupts, **named, **asked, **answered, args_json='{"text": "the secret plan"}')
    runner_says = [
        {"at": AT.format(0), "event": "fire.committed", **about, "task_id": "task-1", "due_at": AT.format(0)},
        {"at": AT.format(1), "event": "fire.sent", **about, "task_id": "task-1"},
        {"at": AT.format(8), "event": "fire.settled", **about, "task_id": "task-1", "outcome": "succeeded"},
    ]
    trail(home, "task-runner", *runner_says)
    runtime_says = [
        {"at": AT.format(2), "event": "fire.received", **about, "turn_id": "turn-1", "name": "0-task-runner.json"},
        {"at": AT.format(3), "event": "turn.started", **named, "fire_id": FIRE, "mode": "start"},
        {
            "at": AT.format(4),
            "event": "interrupt.raised",
            "interrupt_id": "q-1",
            "turn_id": "turn-1",
            "tool": "memory_put",
        },
        {
            "at": AT.format(6),
            "event": "act.done",
            "method": "ResolveInterrupt",
            "subject": "q-1",
            "via": "turnkeeper/cli",
        },
    ]
    trail(home, "agent-runtime", *runtime_says)
    received = {
        "at": AT.format(2),
        "process": "agent-runtime",
        "event": "envelope.received",
        "name": "0-task-runner.json",
    }
    of_fire = {"agent": "agent0", "kind": "fire", "from": "task-runner", "thread": "desk"}
    (home.logs / "channel-acks-2026-11-22.jsonl").write_text(json.dumps(received | of_fire) + "\n")
    trail(
        home,
        "watchdog",
        {"at": AT.format(5), "event": "daemon.killed", "daemon": "agent-runtime", "killed": 7, "reason": "x"},
    )
    return home


def events(home: Home, *argv: str, capsys: Any) -> tuple[int, list[str], str]:
    whole = ["--since", "2026-11-21T00:00:00Z", "--until", "2026-11-23T00:00:00Z"] if "--trace" not in argv else []
    code = console.run(app, ["--home", str(home.root), "--utc", "events", *whole, *argv])
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err


def rows(home: Home, *argv: str, capsys: Any) -> list[dict[str, Any]]:
    code, lines, _ = events(home, "-o", "jsonl", *argv, capsys=capsys)
    assert code == 0
    return [json.loads(line) for line in lines]


def test_every_source_is_told_in_order_and_each_step_once(told: Home, capsys: Any) -> None:
    found = rows(told, capsys=capsys)
    assert [row["at"] for row in found] == sorted(row["at"] for row in found)
    assert {row["source"] for row in found} == {"trail", "acks", "schedules.db", "agent.db"}
    steps = [(row["event"], row.get("state") or row.get("mode") or "") for row in found]
    assert len(steps) == len(set(steps)), "no step is told twice"
    assert ("turn.stopped", "interrupted") in steps, "which the trail does not tell"


def test_a_line_says_when_with_the_zone_who_and_what(told: Home, capsys: Any) -> None:
    told.config.write_text('[scheduler]\ntimezone = "Asia/Tokyo"\n')
    console.run(app, ["--home", str(told.root), "events", "--since", "2026-11-21", "--kind", "fire.committed"])
    assert capsys.readouterr().out == (
        f"2026-11-22 11:00:00.000 JST  the task runner recorded fire {FIRE} of task nightly, due 2026-11-22 11:00:00 JST.\n"
    )


def test_a_filter_that_takes_nothing_says_which_kinds_there_were(told: Home, capsys: Any) -> None:
    code, lines, said = events(told, "--kind", "alert", capsys=capsys)
    assert (code, lines) == (0, [])
    assert "nothing of the kind alert happened in that time; its events are of these kinds: " in said
    assert "daemon (1), " in said


@pytest.mark.parametrize("id_", [FIRE, "turn-1", "q-1"])
def test_a_fire_a_turn_and_an_approval_are_followed_through_every_source(told: Home, id_: str, capsys: Any) -> None:
    found = rows(told, "--trace", id_, capsys=capsys)
    kinds = [row["event"] for row in found]
    story = ["fire.committed", "fire.sent", "fire.received", "envelope.received", "fire.accepted", "turn.started"]
    assert set(story) <= set(kinds)
    assert kinds.index("act.done") > kinds.index("daemon.killed") > kinds.index("interrupt.raised")
    assert kinds[-1] == "fire.settled"
    _, lines, _ = events(told, "--trace", id_, capsys=capsys)
    assert any("+1.0s" in line for line in lines), "the time between two steps"


def test_an_id_of_which_nothing_is_known_is_an_error_that_says_what_to_do(told: Home, capsys: Any) -> None:
    code, lines, said = events(told, "--trace", "turn-9", capsys=capsys)
    assert (code, lines) == (3, [])
    assert "turn-9" in said
    assert "-o wide" in said


def test_a_locked_a_damaged_and_an_old_store_are_named_and_the_trails_tell_the_rest(told: Home, capsys: Any) -> None:
    with closing(sqlite3.connect(told.agent_db, isolation_level=None)) as locks:
        locks.execute("PRAGMA journal_mode=WAL")
        locks.execute("PRAGMA locking_mode=EXCLUSIVE")
        locks.execute("BEGIN EXCLUSIVE")
        locks.execute("CREATE TABLE x (y)")
        told.schedules_db.write_bytes(b"no store at all" * 1000)
        code, lines, said = events(told, capsys=capsys)
    assert code == 0
    assert "agent.db: cannot be read: database is locked" in said
    assert "schedules.db: cannot be read: file is not a database" in said
    assert sum("turn turn-1" in line for line in lines) >= 2


def test_locked_stores_delay_the_answer_by_less_than_two_seconds(
    told: Home, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    waits = []
    for module in (schema_revision, stores):
        opened = module.reader

        def reader(path: Path, wait_s: float, opened: Any = opened) -> sqlite3.Connection:
            waits.append(wait_s)
            found: sqlite3.Connection = opened(path, min(wait_s, 0.01))
            return found

        monkeypatch.setattr(module, "reader", reader)
    with ExitStack() as locked:
        for path in (told.agent_db, told.schedules_db):
            locks = locked.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            for statement in ("journal_mode=WAL", "locking_mode=EXCLUSIVE"):
                locks.execute(f"PRAGMA {statement}")
            locks.execute("CREATE TABLE x (y)")
        code, lines, said = events(told, capsys=capsys)
    assert (code, bool(lines)) == (0, True), "the trails tell the rest"
    for name in ("agent.db", "schedules.db"):
        assert f"{name}: cannot be read: database is locked; its events are missing here" in said
    assert 0 < sum(waits) < 2, "seconds, of all waits together"


def test_a_damaged_trail_is_named_and_its_whole_lines_are_told(told: Home, capsys: Any) -> None:
    path = told.logs / "events-task-runner-2026-11-22.jsonl"
    path.write_bytes(b'{"at": "2026-11\n\xff\xfe\n[]\n' + path.read_bytes() + b'{"at": "2026-11-22T02:00:09Z", "ev')
    code, lines, said = events(told, "--kind", "fire.committed", capsys=capsys)
    assert (code, len(lines)) == (0, 1)
    assert "events-task-runner-2026-11-22.jsonl: 3 damaged lines" in said


def test_a_line_without_an_end_is_not_read_as_a_whole(told: Home, capsys: Any) -> None:
    with (told.logs / "events-task-runner-2026-11-22.jsonl").open("ab") as file:
        file.truncate(200 << 20)  # a hole of zeros, as a crash of the machine leaves it
    code, lines, said = events(told, "--kind", "fire.committed", capsys=capsys)
    assert (code, len(lines)) == (0, 1)
    assert "damaged" in said or not said


def test_markers_and_restart_statuses_are_told(told: Home, capsys: Any) -> None:
    markers.write_marker(markers.CRASH_LOOP.at(told, process="task-runner"), {"at": 0, "reason": "ten times"})
    status = markers.STATUS.at(told, id="s-1")
    status.parent.mkdir()
    says = {"id": "s-1", "process": "task-runner", "phase": "failed", "error": "ended by signal 9", "at": AT.format(5)}
    markers.write_marker(status, says)
    status.with_name("s-2.json").write_text("{")
    console.run(app, ["--home", str(told.root), "events", "--since", "2026-11-21"])
    said = capsys.readouterr()
    assert "state/task-runner-crashloop-suspected has existed since then" in said.out
    assert "ten times" in said.out
    assert "the start s-1 of task-runner reached the phase failed: ended by signal 9." in said.out
    assert "s-2.json: cannot be read" in said.err


def test_no_text_of_a_prompt_or_an_argument_is_told(told: Home, capsys: Any) -> None:
    assert "secret plan" not in json.dumps(rows(told, capsys=capsys))


@pytest.mark.parametrize("name", ["--task=nightly", "--channel=ops", "--thread=desk", "--agent=agent0"])
def test_a_name_chooses_what_belongs_to_it(told: Home, name: str, capsys: Any) -> None:
    found = rows(told, name, capsys=capsys)
    assert {"fire.committed", "turn.started", "interrupt.raised"} <= {row["event"] for row in found}
    assert "daemon.killed" not in {row["event"] for row in found}
    option = name.partition("=")[0]
    assert rows(told, f"{option}=nobody", capsys=capsys) == []


def test_the_newest_are_shown_and_what_was_left_out_is_said(told: Home, capsys: Any) -> None:
    code, lines, said = events(told, "-n", "2", capsys=capsys)
    assert (code, len(lines)) == (0, 2)
    assert "ended as succeeded" in lines[-1]
    assert "the newest 2 of " in said


def test_json_is_one_array_also_of_nothing(told: Home, capsys: Any) -> None:
    _, lines, _ = events(told, "-o", "json", capsys=capsys)
    assert len(json.loads("\n".join(lines))) > 5
    _, lines, _ = events(told, "-o", "json", "--task", "nobody", capsys=capsys)
    assert json.loads("\n".join(lines)) == []


@pytest.mark.parametrize("argv", [("--since", "soon"), ("--until", "\u0000"), ("--follow", "--trace", "x")])
def test_bad_options_are_refused_with_what_to_write_instead(told: Home, argv: tuple[str, ...], capsys: Any) -> None:
    code = console.run(app, ["--home", str(told.root), "events", *argv])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("error: ")


def test_nothing_is_written(told: Home, capsys: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in told.root.rglob("*")}
    events(told, capsys=capsys)
    assert {path: path.stat().st_mtime_ns for path in told.root.rglob("*")} == before


def test_what_happens_is_told_once_as_it_is_written(told: Home, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The clock that the command waits on writes the next lines, then interrupts it as a person does."""
    path, looks = told.logs / "events-task-runner-2026-11-22.jsonl", iter(["task.paused", "task.resumed", ""])

    def wait(_clock: object, _seconds: float) -> None:
        if not (event := next(looks)):
            raise KeyboardInterrupt
        now = rfc3339(console.SystemClock().now())
        line = {"at": now, "process": "task-runner", "pid": 7, "event": event, "task_id": "task-1"}
        with path.with_name(f"events-task-runner-{now[:10]}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    monkeypatch.setattr("turnkeeper.clock.SystemClock.block", wait)
    argv = ["--home", str(told.root), "--utc", "events", "--since", "2026-11-22T02:00:08Z", "--task", "nightly", "-f"]
    assert console.run(app, argv) == EXIT_INTERRUPTED
    told_lines = [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert told_lines[-2:] == ["the task runner paused task nightly.", "the task runner resumed task nightly."]
    assert len(told_lines) == len(set(told_lines))
