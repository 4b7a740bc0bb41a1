"""A home with tasks, threads, an open approval, memory and history moves into a shared database, and goes on there."""

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.test_upgrades import RELEASED, Upgraded
from tests.integration.cluster.test_records import Machine
from tests.support.inboxes import message
from tests.support.postgres import Server
from turnkeeper.bus.inbox import Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import GO_BACK, MIGRATED, Home
from turnkeeper.constellation.audit.records import examine, export
from turnkeeper.constellation.query.snapshot import Snapshot
from turnkeeper.constellation.query.tables import TABLES
from turnkeeper.constellation.timeline.commands import _followed
from turnkeeper.constellation.timeline.records import merge
from turnkeeper.constellation.timeline.sources import Sources
from turnkeeper.constellation.timeline.stores import FOREVER_US, Wanted
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_CONFLICT, EXIT_FAILURE, EXIT_USAGE
from turnkeeper.storage.chain import key_of, linked, signed_head
from turnkeeper.storage.files import SystemFiles

pytestmark = pytest.mark.process
MADE_OF_FILES = {"alembic_version", "sqlite_sequence", "envelopes", "inboxes", "inbox_envelopes"}


@pytest.fixture
def url(postgres_server: Server | None) -> Iterator[str]:
    if postgres_server is None:
        pytest.skip("a home moves into a server's database: --database postgres")
    made = postgres_server.create()
    yield made
    postgres_server.drop(made)


@pytest.fixture
def left(url: str) -> Iterator[Upgraded]:
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    made = Upgraded(RELEASED[0], folder)
    yield made
    made.stop()
    shutil.rmtree(folder)


def test_a_home_moves_with_all_that_it_holds_and_goes_on(left: Upgraded, url: str) -> None:
    tables = {}
    codex = plant(left.home)
    done = left.attempt("turnkeeper", "migrate", "--to", url)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(left.home.agent_db)) as file, psycopg.connect(url) as database:
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            found = database.execute("SELECT to_regclass(%s)", (f"runtime.{name}",)).fetchone()
            if found != (None,) and name not in MADE_OF_FILES:
                count = f'SELECT count(*) FROM "{name}"'
                tables[name] = file.execute(count).fetchone()[0]
                query = count.replace('"', "runtime.", 1).replace('"', "")
                assert database.execute(query.encode()).fetchone() == (tables[name],), name
    assert min(tables["turns"], tables["memory"], tables["interrupts"]) > 0
    assert f"runtime.turns{tables['turns']}" in done.stderr.replace(" ", "")
    assert f"envelopesofterminals{codex['codex']}" in done.stderr.replace(" ", "")
    assert {row["agent"]: row for row in left.ask("agent-runtime", "inbox", "list")}["codex"] | {"oldest_at": ""} == {
        "agent": "codex", "waiting": 3, "claimed": 0, "delivered": 2, "quarantined": 1,
        "oldest_at": "", "hosted": False, "reader": None,
    }  # fmt: skip
    assert "already" in left.attempt("turnkeeper", "migrate", "--to", url).stderr, "it is moved once"
    left.command("turnkeeper", "up")
    for line in (
        line for line in left.told if line.startswith(("agent-runtime conversation", "agent-runtime workspace"))
    ):
        left.says_still(line)
    (pending,) = left.told["agent-runtime interrupts list"]
    left.command("agent-runtime", "interrupts", "resolve", pending["interrupt_id"], "--approve")
    (anew,) = left.until("the question that is asked again", lambda: left.ask("agent-runtime", "interrupts", "list"))
    assert "an earlier version asked, which did not record the tool's values" in anew["question"]
    left.command("agent-runtime", "interrupts", "resolve", anew["interrupt_id"], "--approve")
    assert left.ask("agent-runtime", "inbox", "quarantine")[0]["name"] == codex["torn"]
    drained = left.ask("agent-runtime", "inbox", "drain", "codex")
    told = left.told["agent-runtime inbox list codex"]
    assert [row["text"] for row in drained] == [*(row["text"] for row in told), "taken and not archived"]
    left.until_outcome("terminal", "succeeded")
    left.until_outcome("errand", "succeeded")
    left.until_outcome("held", "succeeded")
    assert "buy seeds" in {entry["text"] for entry in left.ask("agent-runtime", "memory", "list")}


def test_files_that_were_moved_start_only_if_somebody_says_so(left: Upgraded, url: str) -> None:
    home = left.home
    left.command("turnkeeper", "migrate", "--to", url)
    left.command("turnkeeper", "up")
    (pending,) = left.ask("agent-runtime", "interrupts", "list")
    left.command("agent-runtime", "interrupts", "resolve", pending["interrupt_id"], "--reject")
    left.command("turnkeeper", "down")
    home.config.write_text(re.sub(r'^url = "postgres.*$', "", home.config.read_text(), flags=re.MULTILINE))
    refused = [("turnkeeper", "up"), ("task-runner", "serve"), ("agent-runtime", "serve")]
    for argv in (*refused, ("turnkeeper", "migrate", "--to", url)):
        done = left.attempt(*argv)
        assert (done.returncode, MIGRATED in done.stderr, GO_BACK in done.stderr) == (EXIT_CONFLICT, True, True), argv
    for argv in (("status",), ("doctor",), ("approvals", "list"), ("task", "list")):
        done = left.attempt("turnkeeper", *argv)
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        assert (done.returncode, MIGRATED in said, "up --takeover" in said) == (0, True, True), argv
    left.command("turnkeeper", "up", "--takeover")
    assert [one["interrupt_id"] for one in left.ask("agent-runtime", "interrupts", "list")] == [pending["interrupt_id"]]
    left.command("turnkeeper", "down")
    left.command("turnkeeper", "up")  # the files are taken over for good


def test_a_role_without_rights_is_told_what_to_do_and_the_home_says_who_it_is(left: Upgraded, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as database:
        name = database.info.dbname
        database.execute("DROP ROLE IF EXISTS newcomer")
        database.execute("CREATE ROLE newcomer LOGIN")
        nobodys = url.replace("postgresql://postgres@", "postgres://")  # as others write it
        left.home.environment.write_text("PGUSER=newcomer\nPGPASSWORD=which is not asked for\n")
        left.home.environment.chmod(0o600)
        refused = left.attempt("turnkeeper", "migrate", "--to", nobodys)
        assert refused.returncode == EXIT_FAILURE
        (said,) = refused.stderr.splitlines()
        assert "permission denied for database" in said
        assert "make its role the owner of the database" in said
        assert "connect_timeout" not in said, "the URL is shown as it was written"
        database.execute(f'ALTER DATABASE "{name}" OWNER TO newcomer'.encode())
    assert left.attempt("turnkeeper", "migrate", "--to", nobodys).returncode == 0
    left.home.environment.chmod(0o644)
    assert "can be read by others" in left.attempt("turnkeeper", "status").stderr


def plant(home: Home) -> dict[str, Any]:
    """Put more into the inbox of codex: read, being read, put again after that, and set aside."""
    around: dict[str, Any] = {"files": SystemFiles(), "clock": SystemClock(), "entropy": SystemEntropy()}
    inbox = Inbox(home.inbox("codex"), settles_keys=True, **around)
    before = inbox.waiting()
    names = [inbox.put(replace(message(text, key), to="codex")).name for text, key in PLANTED]
    claimed = {item.name: item for item in inbox.claim(before + len(names))}
    inbox.archive(claimed[names[0]])
    inbox.quarantine(names[2], "a reason")
    again = Inbox(home.inbox("codex"), **around).put(replace(message("read", "k1"), to="codex"))
    assert again.fresh
    return {"codex": before + len(names) + 1, "torn": names[2]}


PLANTED = [("read", "k1"), ("taken and not archived", "k2"), ("set aside", "k3")]
LINE = '{"at":"2026-11-22T22:00:00Z","process":"task-runner","pid":1,"event":"process.started"}\n'


def answers(home: Home) -> list[object]:
    """Return what a home's stores say: each table, what happened, the records, and whether these are sound."""
    snapshot = Snapshot(home, texts=True)
    try:
        found: list[object] = [
            sorted(map(repr, snapshot.run(f"SELECT * FROM {name}", within_s=60, seize=lambda: None))) for name in TABLES
        ]
        found += [
            list(snapshot.run(f"SELECT count(*) FROM {name}", within_s=60, seize=lambda: None)) for name in TABLES
        ]
        assert snapshot.notes == []
    finally:
        snapshot.close()
    sources = Sources(home)
    try:
        happened = list(merge(sources.read(Wanted(since_us=0, until_us=FOREVER_US))))
        turns = [one.fields["turn_id"] for one in happened if one.kind == "turn.started"]
        known = [sources.stores.lookups()["turn"](turn_id) for turn_id in turns]
        story = list(merge(sources.stores.read(Wanted(since_us=0, until_us=FOREVER_US, ids=frozenset(turns[:1])))))
        assert sources.skipped == {}
    finally:
        sources.stores.close()
    return [*found, sorted(map(repr, happened)), known, story, list(export(home)), sorted(examine(home).faults)]


def test_what_is_asked_of_a_database_is_answered_as_of_files(left: Upgraded, url: str) -> None:
    config = left.home.config
    config.write_text('# as init writes it\n[store]\n# url = "sqlite"\n\n[node]\n# name = ""\n')
    left.command("turnkeeper", "migrate", "--to", url)
    moved = config.read_text()
    (left.home.logs / "events-task-runner-2026-11-22.jsonl").write_text(LINE)
    of_database = answers(left.home)
    config.write_text(moved.replace(f'url = "{url}"', ""))
    of_files = answers(left.home)
    for mine, theirs in zip(of_database, of_files, strict=True):
        assert mine == theirs
    config.write_text(moved.replace("/test_", "/gone_"))
    snapshot, sources = Snapshot(left.home, texts=False), Sources(left.home)
    assert not snapshot.has("turns")
    assert ["its tables are missing" in note for note in snapshot.notes] == [True]
    assert list(snapshot.run("SELECT count(*) > 0 FROM events", within_s=60, seize=lambda: None))[1] == (1,)
    snapshot.close()
    assert list(merge(sources.read(Wanted(since_us=0, until_us=FOREVER_US)))), "what files tell is told"
    assert sources.skipped.keys() == {"agent.db", "schedules.db"}


def test_who_follows_events_keeps_one_connection_and_misses_nothing_when_it_is_lost(
    left: Upgraded, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of who follows is a minute ahead."""
    left.command("turnkeeper", "migrate", "--to", url)
    sources, now = Sources(left.home), SystemClock().now
    monkeypatch.setattr(SystemClock, "now", lambda _self: now() + timedelta(minutes=1))
    now_us = sources.stores.now_us()
    stream = (record for record in _followed(sources, now_us) if record.kind == "outage.began")
    with psycopg.connect(url, autocommit=True) as sql, ThreadPoolExecutor() as pool:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        used = []
        for number in range(4):
            if number == 3:
                sql.execute(f"SELECT pg_terminate_backend(pid) {others}".encode())
            at = now_us + number
            sql.execute("INSERT INTO runner.outages (from_us, to_us, lasts) VALUES (%s, %s, true)", (at, at))
            assert next(stream).at_us == at
            used.append([row[0] for row in sql.execute(f"SELECT pid {others}".encode()).fetchall()])
        assert [len(each) for each in used] == [1] * 4
        assert used[0] == used[1] == used[2] != used[3]
        waiting = pool.submit(sources.stores.wait, 60.0)

        def woken() -> bool:
            sql.execute(b"NOTIFY turnkeeper_outcomes")
            return waiting.done()

        assert SystemClock().poll(woken, timeout_s=20.0, every_s=0.05), "a notification ends the wait"
    stream.close()
    sources.stores.close()


def test_the_chain_of_the_version_before_verifies_on_beside_those_of_machines(left: Upgraded, url: str) -> None:
    left.command("turnkeeper", "migrate", "--to", url)
    copied = left.attempt("turnkeeper", "backup", str(left.home.root.with_name("copy")))
    assert (copied.returncode, "back it up with PostgreSQL's tools" in copied.stderr) == (0, True), copied
    now = SystemClock().now()
    (key, *_) = key_of(left.home, now, SystemEntropy())
    with psycopg.connect(
        url, autocommit=True
    ) as database:  # one chain for all machines, as the version before wrote it
        facts = [{"kind": "begin", "store": "task-runner", "fire": 1 << 40}, {"kind": "withdrawn", "entry": 1}]
        rows = linked(0, b"", now, facts)
        rows += linked(2, rows[-1]["hash"], now, [signed_head("task-runner", 2, rows[-1]["hash"].hex(), key)])
        names = "number", "at_us", "body", "content_hash", "hash"
        values = [[row[name] for name in names] for row in rows]
        database.cursor().executemany(
            f"INSERT INTO runner.audit ({', '.join(names)}) VALUES (%s, %s, %s, %s, %s)", values
        )
    known = set(examine(left.home).faults)
    machines = [Machine(url, left.home, "one"), Machine(url, Home(root=left.home.root.with_name("other")), "other")]
    machines[1].home.create()
    machines[1].home.config.write_text(left.home.config.read_text())
    with psycopg.connect(url, autocommit=True) as database:
        for machine in machines:
            machine.write(1)
            assert machine.look() == []
            found = examine(machine.home)
            assert set(found.faults) <= known
            assert (found.chains["task-runner", ""].number, found.chains["task-runner", ""].signed) == (3, 2)
        database.execute("UPDATE runner.audit SET body = '{}' WHERE number = 2")
        for machine in machines:
            assert [fault for fault in machine.faults() if "record 2 was edited" in fault]
        database.execute("DELETE FROM runner.audit WHERE number >= 2")
        for machine in machines:
            assert [fault for fault in machine.faults() if "the end was cut off" in fault]
    for machine in machines:
        machine.close()


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("sqlite", EXIT_USAGE, "the home's own files"),
        ("postgresql://me:secret@h/d", EXIT_USAGE, "holds a password"),
        ("mysql://h/d", EXIT_USAGE, "--to"),
    ],
)
def test_a_url_that_will_not_do_changes_nothing(left: Upgraded, given: str, code: int, said: str) -> None:
    before = left.home.config.read_bytes() if left.home.config.exists() else b""
    done = left.attempt("turnkeeper", "migrate", "--to", given)
    assert (done.returncode, said in done.stderr, "secret" in done.stderr) == (code, True, False), done.stderr
    assert (left.home.config.read_bytes() if left.home.config.exists() else b"") == before
