"""`turnkeeper query`: what it answers, and every way to make it do more than read what it shows."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

import agent_runtime.store.schema as runtime
import task_runner.store.schema as runner
from tests.support.program import app
from turnkeeper import console
from turnkeeper.config.home import Home
from turnkeeper.constellation.query.snapshot import Snapshot
from turnkeeper.constellation.query.tables import TABLES, Text, described
from turnkeeper.constellation.supervisor import markers
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, TurnkeeperError

SECRET = "the pump costs 400"
US = 1_795_300_000_000_000


def insert(path: Path, table: Any, rows: list[dict[str, Any]]) -> None:
    needed = {
        column.name: 0 if "INT" in str(column.type) or "BOOL" in str(column.type) else ""
        for column in table.c
        if not column.nullable and not column.primary_key
    }
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("PRAGMA journal_mode=WAL")
        for row in rows:
            values = needed | row
            places = ", ".join("?" * len(values))
            store.execute(f"INSERT INTO {table.name} ({', '.join(values)}) VALUES ({places})", [*values.values()])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Two tasks, four fires, three turns, one approval, one memory entry, and a line of each trail."""
    home = Home(root=tmp_path_factory.mktemp("filled") / "home")
    home.create()
    for path, schema in ((home.schedules_db, runner), (home.agent_db, runtime)):
        engine = create_engine(f"sqlite:///{path}")
        schema.metadata.create_all(engine)
        engine.dispose()
    schedule = {"kind": "cron", "text": "0 3 * * *"}
    definition = json.dumps({"agent": "agent0", "prompt": SECRET, "schedule": schedule, "timezone": "Etc/UTC"})
    named = {"definition": definition, "state": "active", "category": "loop", "channel": "ops", "created_us": US}
    insert(
        home.schedules_db,
        runner.tasks,
        [{"id": one, "name": name, **named} for one, name in (("task-1", "nightly"), ("loop-2", "pulse"))],
    )
    times = {
        "nominal_us": US,
        "due_us": US,
        "fired_us": US + 2_000_000,
        "started_us": US + 3_000_000,
        "ended_us": US + 5_000_000,
    }
    fires = [("task-1", "succeeded"), ("task-1", "succeeded"), ("task-1", "failed"), ("loop-2", "succeeded")]
    insert(
        home.schedules_db,
        runner.fires,
        [
            {
                "task_id": task,
                "fire_id": f"{task}@{n}",
                "outcome": outcome,
                "turn_id": f"turn-{n}",
                "tokens": 10,
                **times,
            }
            for n, (task, outcome) in enumerate(fires)
        ],
    )
    about = {"thread_id": "desk", "channel": "ops", "agent": "agent0", "trigger": "author", "status": "succeeded"}
    said = {
        "prompt": SECRET,
        "summary": SECRET,
        "tokens_in": 7,
        "tokens_out": 3,
        "started_at_us": US,
        "ended_at_us": US + 1_000_000,
    }
    insert(home.agent_db, runtime.turns, [{"turn_id": f"turn-{n}", **about, **said} for n in range(3)])
    calls = json.dumps([{"id": "c-1", "name": "memory_put", "args": {"text": SECRET}}])
    lines = [
        {"position": 0, "role": "author", "text": SECRET},
        {"position": 100, "role": "agent", "tool_calls_json": calls},
    ]
    insert(home.agent_db, runtime.messages, [{"turn_id": "turn-0", "at_us": US, **line} for line in lines])
    asked = {"turn_id": "turn-0", "channel": "ops", "kind": "permission", "tool": "memory_put", "status": "resolved"}
    answer = {"args_json": json.dumps({"text": SECRET}), "question": SECRET, "message": SECRET, "decision": "approve"}
    waited = {"created_at_us": US, "resolved_at_us": US + 90_000_000}
    insert(home.agent_db, runtime.interrupts, [{"interrupt_id": "q-1", **asked, **answer, **waited}])
    kept = {
        "tier": "workspace",
        "key": SECRET,
        "text": SECRET,
        "form": "text",
        "origin": "authored",
        "written_by": "author",
    }
    insert(home.agent_db, runtime.memory, [{"entry_id": "m-1", **kept, "created_at_us": US, "updated_at_us": US}])
    written = {"title": SECRET, "body": SECRET, "tags": "[]", "origin": "agent-produced", "turn_id": "turn-0"}
    page = {"page_id": "garden", **written, "candidate_id": "c-1", "lifecycle": "canonical", "updated_at_us": US}
    insert(home.agent_db, runtime.pages, [page])
    proposed = {
        "kind": "candidate-page",
        "lifecycle": "candidate",
        "agent": "agent0",
        "note": SECRET,
        "created_at_us": US,
    }
    insert(home.agent_db, runtime.candidates, [{"candidate_id": "c-1", "page_id": "garden", **written, **proposed}])
    sent = {"sender": "agent0", "parent": "turn-0", "agent": "agent1", "hops": 1, "state": "answered"}
    insert(home.agent_db, runtime.delegations, [{"turn_id": "turn-1", **sent}])
    left = {
        "turn_id": "turn-9",
        "agent": "codex",
        "fire_id": "task-1@0",
        "state": "failed",
        "reason": SECRET,
        "at_us": US,
    }
    insert(home.agent_db, runtime.deliveries, [{"key": "k", **left}])
    insert(home.agent_db, runtime.token_days, [{"day": "2026-11-22", "tokens": 30}])
    says = {"at": "2026-11-22T02:00:00Z", "pid": 1}
    for name, line in (
        (
            "events-watchdog",
            {"event": "revive.failed", "process": "watchdog", "daemon": "agent-runtime", "id": "s-1", "served": True},
        ),
        (
            "events-task-runner",
            {
                "event": "act.done",
                "process": "task-runner",
                "method": "PauseTask",
                "subject": "task-1",
                "via": "turnkeeper/cli",
            },
        ),
        (
            "channel-acks",
            {
                "event": "envelope.received",
                "process": "agent-runtime",
                "id": "ack-1",
                "from": "author",
                "agent": "agent0",
                "kind": "message",
            },
        ),
    ):
        (home.logs / f"{name}-2026-11-22.jsonl").write_text(json.dumps(says | line) + "\n")
    status = markers.STATUS.at(home, id="s-1")
    status.parent.mkdir()
    markers.write_marker(
        status,
        {"id": "s-1", "process": "agent-runtime", "phase": "failed", "error": "ended by signal 9", "at": says["at"]},
    )
    return home


@pytest.fixture(autouse=True)
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of a process would stay with the tests; one test below tries them in a process of its own."""
    monkeypatch.setattr("turnkeeper.constellation.query.commands.confine", lambda: None)


def ask(home: Home, sql: str, *, texts: bool = False, within_s: float = 20.0) -> list[tuple[Any, ...]]:
    shot = Snapshot(home, texts=texts)
    try:
        _, *rows = shot.run(sql, within_s=within_s, seize=lambda: None)
        return [tuple(row) for row in rows]
    finally:
        shot.close()


def command(home: Home, *argv: str, capsys: Any) -> tuple[int, str, str]:
    code = console.run(app, ["--home", str(home.root), "query", *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_each_end_of_a_process_that_was_not_planned_is_one_crash(tmp_path: Path) -> None:
    home = Home(root=tmp_path / "home")
    home.create()
    killed, loop = "ended by signal 9", "it ended 6 times: ended by signal 11"
    unseen = "ended while no supervisor was running"
    told: list[dict[str, Any]] = [
        {"event": "daemon.started", "id": "s-1", "crashed": False},
        {"event": "daemon.started", "id": "s-2", "crashed": True, "reason": killed},
        {"event": "revive.failed", "id": "s-2", "served": False},
        {"event": "daemon.started", "id": "s-3", "crashed": True, "reason": "cannot be configured"},
        {"event": "crashloop.suspected", "reason": loop},
        {"event": "daemon.started", "id": "s-4", "crashed": False},
        {"event": "daemon.lost", "id": "s-4", "reason": unseen},
        {"event": "daemon.started", "id": "s-5", "crashed": False},
    ]
    lines = (
        {"at": f"2026-11-22T02:00:0{n}Z", "pid": 1, "process": "watchdog", "daemon": "task-runner"} | event
        for n, event in enumerate(told)
    )
    home.logs.joinpath("events-watchdog-2026-11-22.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert ask(home, "SELECT process, start_id, had_served, error FROM crashes ORDER BY at") == [
        ("task-runner", "s-1", 1, killed),
        ("task-runner", "s-2", 0, None),
        ("task-runner", "s-3", 1, loop),
        ("task-runner", "s-4", 1, unseen),
    ]


def test_a_turn_that_another_agent_began_is_no_authors(filled: Home, tmp_path: Path) -> None:
    home = Home(root=tmp_path / "home")
    shutil.copytree(filled.root, home.root)
    begun = {
        "turn_id": "turn-9",
        "trigger": "author",
        "kind": "agent-for-fire",
        "status": "succeeded",
        "started_at_us": US,
    }
    insert(home.agent_db, runtime.turns, [begun])
    assert ask(home, "SELECT trigger, count(*) FROM turns GROUP BY 1 ORDER BY 1") == [("agent", 1), ("author", 3)]


def test_fires_are_counted_by_task_and_outcome(filled: Home) -> None:
    sql = "SELECT task, outcome, count(*), avg(late_s), avg(took_s) FROM fires GROUP BY 1, 2 ORDER BY 1, 2"
    rows = [
        ("nightly", "failed", 1, 2.0, 2.0),
        ("nightly", "succeeded", 2, 2.0, 2.0),
        ("pulse", "succeeded", 1, 2.0, 2.0),
    ]
    assert ask(filled, sql) == rows


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_columns_and_a_row(filled: Home, name: str) -> None:
    shot = Snapshot(filled, texts=False)
    _, (count,) = shot.run(f"SELECT count(*) FROM {name}", within_s=20, seize=lambda: None)
    columns, *rows = shot.run(f"SELECT * FROM {name}", within_s=20, seize=lambda: None)
    shot.close()
    assert count == len(rows)
    assert list(columns) == list(TABLES[name].columns)
    assert rows


def test_both_stores_are_asked_together(filled: Home) -> None:
    sql = "SELECT f.task, sum(t.tokens_out) FROM fires AS f JOIN turns AS t USING (turn_id) GROUP BY 1"
    assert ask(filled, sql) == [("nightly", 9)]
    assert ask(filled, "SELECT process, error FROM crashes") == [("agent-runtime", "ended by signal 9")]
    assert ask(filled, "SELECT tool, waited_s FROM approvals") == [("memory_put", 90.0)]
    assert ask(filled, "SELECT method, subject FROM calls") == [("PauseTask", "task-1")]


@pytest.fixture
def written(filled: Home) -> Iterator[Home]:
    """The same, while a daemon has its store open, and with one day of tokens more afterwards."""
    with closing(sqlite3.connect(filled.agent_db, isolation_level=None)) as daemon:
        daemon.execute("UPDATE meta SET value = value")
        yield filled
        daemon.execute("DELETE FROM token_days WHERE day = '2026-11-23'")


def test_the_snapshot_stays_while_others_write(written: Home) -> None:
    shot = Snapshot(written, texts=False)
    insert(written.agent_db, runtime.token_days, [{"day": "2026-11-23", "tokens": 1}])
    assert len(list(shot.run("SELECT * FROM tokens", within_s=20, seize=lambda: None))) == 2
    shot.close()
    assert len(ask(written, "SELECT * FROM tokens")) == 2


def test_a_daemon_that_begins_to_write_meanwhile_makes_the_answer_an_error(filled: Home) -> None:
    shot = Snapshot(filled, texts=False)
    rows = shot.run("SELECT * FROM turns", within_s=20, seize=lambda: None)
    next(rows)
    with closing(sqlite3.connect(filled.agent_db, isolation_level=None)) as daemon:
        daemon.execute("UPDATE meta SET value = value")
        with pytest.raises(Conflict, match="began to write"):
            list(rows)
    shot.close()


def everything(home: Home, *, texts: bool) -> str:
    return json.dumps([ask(home, f"SELECT * FROM {name}", texts=texts) for name in TABLES])


def test_words_of_people_and_models_are_null_unless_the_author_allows_them(filled: Home, capsys: Any) -> None:
    assert SECRET not in everything(filled, texts=False)
    shown = json.dumps(ask(filled, "SELECT prompt FROM turns UNION SELECT text FROM messages", texts=True))
    assert SECRET in shown
    for name, table in TABLES.items():
        for column in (key for key, value in table.columns.items() if isinstance(value, Text)):
            assert any(SECRET in str(row) for row in ask(filled, f"SELECT {column} FROM {name}", texts=True)), name
    _, _, said = command(filled, "SELECT text FROM messages", capsys=capsys)
    assert "hidden, and null here: messages.text" in said


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT prompt FROM agent.turns",
        "SELECT args_json FROM interrupts",
        "SELECT args_json FROM agent.interrupts",
        "WITH approvals AS (SELECT args_json FROM agent.interrupts) SELECT * FROM approvals",
        "WITH turns AS (SELECT prompt FROM agent.turns) SELECT * FROM turns",
        "SELECT * FROM (SELECT text FROM agent.messages) AS messages",
        "SELECT 1 FROM agent.messages WHERE text LIKE 'the pump%'",
        "SELECT count(*) FROM agent.turns GROUP BY prompt",
        "SELECT count(*) FROM turns ORDER BY (SELECT max(text) FROM agent.memory)",
        "SELECT definition FROM schedules.tasks",
        "SELECT request FROM outbox",
        "SELECT text FROM handoffs",
        "SELECT body FROM agent.pages",
        "SELECT tags FROM pages",
        "SELECT body FROM agent.candidates",
        "WITH pages AS (SELECT body FROM agent.pages) SELECT * FROM pages",
        "SELECT reason FROM agent.deliveries",
        "SELECT data FROM attachments",
        "SELECT sql FROM agent.sqlite_master",
        "SELECT * FROM sqlite_temp_master",
        "SELECT * FROM sqlite_schema",
        "SELECT file FROM pragma_database_list",
        "SELECT * FROM pragma_table_info('turns')",
        "SELECT * FROM dbstat",
        "SELECT * FROM sqlite_dbpage",
        "EXPLAIN SELECT 1",
        "EXPLAIN QUERY PLAN SELECT * FROM turns",
        "  explain select 1",
        "/**/ EXPLAIN SELECT 1",
    ],
)
def test_nothing_but_what_is_shown_can_be_read(filled: Home, sql: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ask(filled, sql)
    assert SECRET not in str(refused.value)
    assert str(filled.root) not in str(refused.value)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO turns (turn_id) VALUES ('x')",
        "INSERT INTO agent.token_days VALUES ('2026-11-24', 1)",
        "UPDATE agent.turns SET status = 'failed'",
        "DELETE FROM schedules.fires",
        "REPLACE INTO agent.meta VALUES ('epoch', '9')",
        "WITH x AS (SELECT 1) DELETE FROM agent.turns",
        "INSERT INTO trail VALUES (1, '', '', '', '') RETURNING at_us",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x AS SELECT * FROM turns",
        "CREATE TEMP TRIGGER x AFTER INSERT ON tasks BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE x USING fts5(y)",
        "DROP TABLE agent.turns",
        "DROP VIEW turns",
        "ALTER TABLE agent.turns RENAME TO x",
        "VACUUM",
        "VACUUM INTO '/dev/shm/copy-of-a-store.db'",
        "REINDEX",
        "ANALYZE",
        "ATTACH '/dev/shm/other.db' AS other",
        "DETACH agent",
        "PRAGMA query_only=OFF",
        "PRAGMA writable_schema=ON",
        "PRAGMA temp_store_directory='/'",
        "PRAGMA hard_heap_limit=0",
        "PRAGMA trusted_schema=ON",
        "PRAGMA journal_mode=DELETE",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
        "SELECT load_extension('x')",
        "SELECT fts3_tokenizer('simple', x'00')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/dev/shm/x', 'x')",
        "SELECT 1; DELETE FROM agent.turns",
        "SELECT 1; SELECT 2",
        "",
        ";",
        "-- nothing",
        "SELECT",
        "SELECT nothing FROM turns",
        "SELECT * FROM nothing",
        "SELECT '\x00'",
    ],
)
def test_nothing_but_one_select_is_run(filled: Home, sql: str) -> None:
    before = {path: path.read_bytes() for path in filled.root.rglob("*.db*") if not path.name.endswith("-shm")}
    with pytest.raises(TurnkeeperError):
        ask(filled, sql)
    assert {path: path.read_bytes() for path in before} == before
    assert not list(Path("/dev/shm").glob("copy-of-a-store.db"))


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "SELECT count(*) FROM fires a, fires b, fires c, fires d, fires e, fires f, fires g, fires h, fires i, fires j, fires k, fires l, fires m",
    ],
)
def test_what_runs_for_ever_is_ended(filled: Home, sql: str) -> None:
    with pytest.raises(Exhausted, match="took longer than 0.2 s"):
        ask(filled, sql, within_s=0.2)


def test_a_slow_reader_of_the_answer_costs_no_time(filled: Home) -> None:
    shot = Snapshot(filled, texts=False)
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) SELECT i FROM n"
    rows = shot.run(sql, within_s=0.3, seize=lambda: None)
    next(rows)
    console.SystemClock().block(0.5)
    assert len(list(rows)) == 2000
    shot.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT zeroblob(2000000000)",
        "SELECT hex(zeroblob(4000000))",
        "SELECT replace(printf('%1000000d', 1), ' ', 'xxxxxxxxxxxxxxxx')",
        f"SELECT {'(' * 300}1{')' * 300}",
        f"SELECT {' + '.join(['1'] * 5000)}",
        "SELECT 'x' LIKE printf('%1000d', 1)",
        f"SELECT '{'x' * 70_000}'",
    ],
)
def test_what_would_take_all_memory_is_refused(filled: Home, sql: str) -> None:
    with pytest.raises((InvalidInput, Exhausted)):
        ask(filled, sql)


def test_an_answer_that_is_too_large_to_be_printed_as_a_whole_is_refused(
    filled: Home, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("turnkeeper.constellation.query.commands.MOST_HELD_BYTES", 10_000)
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) SELECT i FROM n"
    code, _, said = command(filled, sql, capsys=capsys)
    assert code != 0
    assert "-o csv" in said
    code, out, _ = command(filled, sql, "-o", "csv", capsys=capsys)
    assert (code, len(out.splitlines())) == (0, 2001)


PROCESS = """
import sys
from turnkeeper.constellation.query import snapshot
from tests.support.program import app
from turnkeeper import console
snapshot._GRACE_S = 0.2
sys.exit(console.run(app, sys.argv[1:]))
"""


def test_a_process_of_its_own_is_bounded_in_memory_in_files_and_in_what_cannot_be_interrupted(filled: Home) -> None:
    def ends(sql: str, timeout: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-c", PROCESS, "--home", str(filled.root), "query", sql, "--timeout", timeout]
        return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)

    long = "replace(hex(zeroblob({})), '0', 'a')"
    slow = f"SELECT instr({long.format(1_900_000)}, {long.format(900_000)} || 'b')"  # one call, for minutes
    over = ends(slow, "1s")
    assert (over.returncode, over.stdout) == (1, "")
    assert "took longer than 1 s" in over.stderr
    large = "SELECT json_group_array(i || printf('%1000d', i)) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n)"
    full = ends(large, "30s")
    assert full.returncode not in {0, -9}
    assert full.stderr.startswith("error: SQL: ")


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_the_answer_is_printed_in_each_form(filled: Home, form: str, capsys: Any) -> None:
    sql = "SELECT task, outcome, count(*) AS number, NULL AS nobody FROM fires GROUP BY 1, 2 ORDER BY 1, 2"
    code, out, _ = command(filled, sql, "-o", form, capsys=capsys)
    assert code == 0
    if form == "json":
        assert json.loads(out)[0] == {"task": "nightly", "outcome": "failed", "number": 1, "nobody": None}
    elif form == "jsonl":
        assert [json.loads(line)["number"] for line in out.splitlines()] == [1, 2, 1]
    elif form == "csv":
        assert out.splitlines()[:2] == ["task,outcome,number,nobody", "nightly,failed,1,"]
    else:
        assert out.splitlines()[0].split() == ["task", "outcome", "number", "nobody"]


def test_parquet_is_written_or_refused_with_what_to_install(filled: Home, tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        PROCESS,
        "--home",
        str(filled.root),
        "query",
        "SELECT task, late_s FROM fires",
        "-o",
        "parquet",
    ]
    done = subprocess.run(argv, capture_output=True, check=False)
    try:
        from pyarrow import parquet
    except ImportError:
        assert done.returncode == 2
        assert b"install turnkeeper[parquet]" in done.stderr
        return
    (tmp_path / "x.parquet").write_bytes(done.stdout)
    assert parquet.read_table(tmp_path / "x.parquet").to_pydict()["late_s"] == [2.0] * 4


def test_what_a_terminal_would_obey_is_shown_and_not_sent(filled: Home, capsys: Any) -> None:
    for form in ("table", "json", "jsonl"):
        _, out, _ = command(filled, "SELECT char(27) || '[31m' AS x, char(0x202e) AS y", "-o", form, capsys=capsys)
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_the_rows_are_limited_and_it_says_so(filled: Home, capsys: Any) -> None:
    code, out, said = command(filled, "SELECT task FROM fires", "-n", "2", "-o", "csv", capsys=capsys)
    assert (code, len(out.splitlines())) == (0, 3)
    assert "only the first 2 rows" in said


def test_a_store_that_is_missing_or_damaged_is_named_and_the_other_answers(home: Home, capsys: Any) -> None:
    home.create()
    home.agent_db.write_bytes(b"not a store at all" * 1000)
    code, _, said = command(home, "SELECT 1", capsys=capsys)
    assert code == 0
    assert "agent.db cannot be read" in said
    assert "schedules.db is not there" in said
    code, _, said = command(home, "SELECT * FROM turns", capsys=capsys)
    assert code == 2
    assert "no such table: turns" in said


def test_a_lock_on_a_store_and_a_home_in_use_are_no_obstacle(filled: Home) -> None:
    with closing(sqlite3.connect(filled.agent_db, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert ask(filled, "SELECT count(*) FROM turns") == [(3,)]


def test_the_page_has_the_tables_as_they_are() -> None:
    page = (Path(__file__).parents[5] / "docs" / "reference" / "tables.md").read_text()
    assert described() in page


def examples() -> Iterator[str]:
    page = (Path(__file__).parents[5] / "docs" / "query.md").read_text()
    for block in page.split("```sql\n")[1:]:
        yield block.partition("```")[0].strip()


@pytest.mark.parametrize("sql", list(examples()))
def test_the_examples_of_the_page_run(filled: Home, sql: str) -> None:
    ask(filled, sql)


def test_the_page_has_ten_examples() -> None:
    assert len(list(examples())) >= 10
