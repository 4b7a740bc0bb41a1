"""The machines that share a database: what each says of itself, what keeps one from starting, and what it works on."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import Connection

from agent_runtime.store.database import open_database
from tests.integration.cluster.shared import Cluster
from tests.support.constellation import Constellation
from tests.support.web import free_port
from turnkeeper.clock import SharedClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import NodeSettings, load_settings
from turnkeeper.constellation.inspect.cluster import of_nodes, of_server
from turnkeeper.constellation.inspect.condition import findings
from turnkeeper.constellation.peers.__main__ import Claim
from turnkeeper.constellation.supervisor.escalation import take_pending
from turnkeeper.constellation.supervisor.up_down import orders_of
from turnkeeper.errors import EXIT_CONFLICT, Conflict, Unreachable
from turnkeeper.rpc.channel import is_serving
from turnkeeper.storage import nodes, schema_revision
from turnkeeper.storage.database import Database, make_schemas
from turnkeeper.storage.server.url import in_schema

pytestmark = pytest.mark.process


def test_no_daemon_starts_on_a_server_that_may_lose_what_it_acknowledged(cluster: Cluster) -> None:
    cluster.sql.execute(f"ALTER DATABASE {cluster.name} SET synchronous_commit = off".encode())
    home = cluster.home(1)
    for start in (cluster.start, cluster.start_runtime):
        assert start(home).wait(60) == EXIT_CONFLICT
        (said,) = (home.root / "stderr").read_text().splitlines()
        assert said.startswith("error: ")
        assert "synchronous_commit is off" in said
        assert "set it to on" in said
        (home.root / "stderr").unlink()
    cluster.sql.execute(f"ALTER DATABASE {cluster.name} SET synchronous_commit = local".encode())
    open_database(in_schema(cluster.url, "runtime")).close()  # without a standby it keeps as much as `on`


def test_doctor_says_that_commits_wait_for_a_standby_that_is_not_there(cluster: Cluster) -> None:
    make_schemas(cluster.url)
    over = threading.Event()

    def commit() -> None:
        with psycopg.connect(cluster.url, autocommit=True) as database:
            while not over.is_set():
                database.execute("SELECT pg_logical_emit_message(true, '', '')")

    def found() -> str:
        return "".join(f"{one.what}; {one.fix}" for one in of_server(nodes.read_cluster(cluster.url)))

    assert "standby" not in found()
    cluster.sql.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    cluster.sql.execute("SELECT pg_reload_conf()")
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(commit)
        try:
            cluster.until(lambda: "1 commit waits for a synchronous standby" in (said := found()) and said)
            assert "synchronous_standby_names is absent" in found()
        finally:
            over.set()
            cluster.sql.execute("ALTER SYSTEM RESET synchronous_standby_names")
            cluster.sql.execute("SELECT pg_reload_conf()")
        done.result()


BOUNCER = """
[databases]
* = host={folder} user=postgres
[pgbouncer]
unix_socket_dir = {own}
listen_port = 5432
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = {ignored}
"""


@pytest.fixture
def pooler(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a PgBouncer before the server, and return the database's URL by it."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        absent = "PgBouncer is not installed: make test-services"
        pytest.fail(absent) if "CI" in os.environ else pytest.skip(absent)
    folder, started = Path(tempfile.mkdtemp(prefix="tk-")), []
    folder.chmod(0o777)

    def start(mode: str, ignored: str) -> str:
        server = cluster.sql.info.host
        (folder / "ini").write_text(BOUNCER.format(folder=server, own=folder, mode=mode, ignored=ignored))
        user = ["-u", "postgres"] if os.getuid() == 0 else []
        started.append(subprocess.Popen([program, "-q", *user, str(folder / "ini")], stderr=subprocess.DEVNULL))
        url = f"postgresql://postgres@/{cluster.name}?host={quote(str(folder), safe='')}"
        cluster.until((folder / ".s.PGSQL.5432").exists)
        return url

    yield start
    for process in started:
        process.kill()
        process.wait()
    shutil.rmtree(folder)


OTHERS = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
BETWEEN = "a pooler, such as PgBouncer, is in between"


@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest.mark.parametrize("ignored", ["extra_float_digits", "options"])
def test_a_pooler_is_refused_before_anything_is_written(
    cluster: Cluster, pooler: Callable[..., str], mode: str, ignored: str
) -> None:
    before, url = sorted(cluster.rows(OTHERS)), pooler(mode, ignored)
    for schema in schema_revision.STORES:
        with pytest.raises(Conflict if ignored == "options" else Unreachable) as caught:
            Database(in_schema(url, schema), migrations=schema_revision.STORES[schema])
        assert BETWEEN in str(caught.value.hint)
    with pytest.raises(Conflict if ignored == "options" else Unreachable) as caught:
        nodes.read_cluster(url)
    assert BETWEEN in str(caught.value.hint)
    assert sorted(cluster.rows(OTHERS)) == before


def test_a_session_without_the_settings_that_it_asked_for_is_refused_before_anything_is_written(
    cluster: Cluster,
) -> None:
    cluster.url += "&options=-csearch_path%3Dpublic"  # as by a pooler that drops what is asked
    before, home = sorted(cluster.rows(OTHERS)), cluster.home(1)
    process = cluster.start(home)
    assert process.wait(60) == EXIT_CONFLICT
    cluster.forget(process)
    said = (home.root / "stderr").read_text().splitlines() + command(home, "status").stderr.splitlines()[1:2]
    home.config.unlink()
    said += command(home, "migrate", "--to", cluster.url).stderr.splitlines()
    assert len(said) == 3
    for line in said:
        assert "search_path" in line
        assert BETWEEN in line
    assert sorted(cluster.rows(OTHERS)) == before


NEXT = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "9001", "{newest}"
oldest_reader = "{oldest}"
def upgrade() -> None:
    for table in {tables}:
        op.add_column(table, sa.Column("of_later", sa.Text(), nullable=False, server_default=""))
"""
TABLES = {"runner": ("tasks", "fires", "nodes"), "runtime": ("turns", "threads", "turn_events", "envelopes", "meta")}


def later_version(cluster: Cluster, folder: Path, schema: str, oldest: str = "") -> None:
    """Bring a schema to the next revision, as a daemon of a later version does."""
    migrations, newest = schema_revision.STORES[schema], schema_revision.newest(schema_revision.STORES[schema])
    copied = folder / schema
    if not copied.exists():
        package, _, name = migrations.partition(":")
        shutil.copytree(Path(str(import_module(package).__file__)).parent / name, copied)
    said = NEXT.format(newest=newest, oldest=oldest, tables=TABLES[schema])
    (copied / "versions" / "9001_later.py").write_text(said)
    Database(in_schema(cluster.url, schema), migrations=str(copied)).close()


def test_a_later_version_upgrades_the_schema_under_daemons_that_go_on_and_an_older_one_starts_no_more(
    cluster: Cluster, tmp_path: Path
) -> None:
    home, behind = cluster.home(1), cluster.home(2)
    behind.config.write_text(
        f'{behind.config.read_text()}[peers]\nenabled = true\nlisten = "127.0.0.1:{free_port()}"\n'
    )
    cluster.start(home)
    cluster.start_runtime(home)
    cluster.until(lambda: all(is_serving(home.socket(name)) for name in ("task-runner", "agent-runtime")))
    made = ("task", "create", "often", "--prompt", "p", "--every", "1s", "--category", "loop", "--channel", "general")
    assert command(home, *made).returncode == 0
    over = "SELECT count(*) FROM runner.fires WHERE outcome = 'succeeded'"
    cluster.until(lambda: cluster.value(over) > 5)  # by now its statements are prepared on the server
    for schema in schema_revision.STORES:
        later_version(cluster, tmp_path, schema)
    before = cluster.value(over)
    cluster.until(lambda: cluster.value(over) > before + 2)
    assert "Traceback" not in (home.root / "stderr").read_text()
    started = [start(behind) for start in (cluster.start, cluster.start_runtime, cluster.start_peers)]
    for process in started:
        assert process.wait(60) == EXIT_CONFLICT
        cluster.forget(process)
    refused, older = (behind.root / "stderr").read_text().splitlines(), Constellation(behind)
    assert len(refused) == 3
    asked = ("turnkeeper up", "turnkeeper up --foreground", "task-runner list", "task-runner delete often")
    for line in (*asked, "agent-runtime turns list", "turnkeeper report", "turnkeeper audit verify"):
        done = older.attempt(*line.split())
        assert (done.returncode, done.stdout) == (EXIT_CONFLICT, ""), (line, done)
        refused.append(done.stderr.splitlines()[-1])
    for line in refused:
        assert re.search(r"^error: .*written by a newer version \(its schema is 9001, .*; upgrade turnkeeper$", line), (
            line
        )
    told = older.attempt("turnkeeper", "events")
    assert (told.returncode, "upgrade turnkeeper" in told.stderr) == (0, True), "its own files are told"
    assert "upgrade turnkeeper" in older.attempt("turnkeeper", "doctor").stdout
    assert "machine-1" in older.attempt("turnkeeper", "status").stdout


def test_a_schema_that_older_versions_cannot_use_waits_until_none_of_them_lives(
    cluster: Cluster, tmp_path: Path
) -> None:
    store = Database(in_schema(cluster.url, "runner"), migrations=schema_revision.STORES["runner"])
    beat = nodes.Beat(store.run, SharedClock(), node_id="n", name="cellar", role="task-runner")
    asyncio.run(beat.once())
    unknown = f"{int(schema_revision.newest(schema_revision.STORES['runner'])) + 1:04}"
    for oldest in ("9001", unknown):
        with pytest.raises(Conflict, match="an older version runs on cellar") as refused:
            later_version(cluster, tmp_path, "runner", oldest)
        assert refused.value.hint == "run there first: turnkeeper down"
    revision = "SELECT version_num FROM runner.alembic_version"
    assert cluster.value(revision) == schema_revision.newest(schema_revision.STORES["runner"])
    cluster.sql.execute(b"UPDATE runner.nodes SET beat_us = beat_us - 11000000")
    later_version(cluster, tmp_path, "runner", "9001")
    assert cluster.value(revision) == "9001"
    store.close()


def test_who_reads_for_long_keeps_a_later_version_waiting_and_nobody_else(cluster: Cluster, tmp_path: Path) -> None:
    Database(in_schema(cluster.url, "runner"), migrations=schema_revision.STORES["runner"]).close()
    with ThreadPoolExecutor() as pool, psycopg.connect(cluster.url) as reading:
        reading.execute(b"SELECT count(*) FROM runner.tasks")
        upgraded = pool.submit(later_version, cluster, tmp_path, "runner")
        cluster.until(lambda: cluster.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        cluster.sql.execute(b"SET statement_timeout = '6s'")
        assert cluster.value("SELECT count(*) FROM runner.tasks") == 0
        assert not upgraded.done()
        reading.rollback()
        upgraded.result()
    assert cluster.value("SELECT version_num FROM runner.alembic_version") == "9001"


def test_a_command_leaves_a_schema_of_an_older_version_to_the_daemons(cluster: Cluster, tmp_path: Path) -> None:
    home, known = cluster.home(1), schema_revision.newest(schema_revision.STORES["runner"])
    assert command(home, "task", "list").returncode == 0, "of an empty database it makes the tables"
    cluster.sql.execute(b"UPDATE runner.alembic_version SET version_num = '0007'")
    cluster.sql.execute(b"UPDATE runtime.alembic_version SET version_num = '0016'")
    alone = Home(root=tmp_path / "alone")
    alone.create()
    asked = (("task", "list"), ("task", "delete", "t"), ("turns", "list"), ("migrate", "--to", cluster.url))
    for words in asked:
        done = command(alone if words[0] == "migrate" else home, *words)
        assert (done.returncode, done.stdout) == (EXIT_CONFLICT, ""), (words, done)
        assert "its tables are of an older version; a daemon that starts brings them up to date" in done.stderr
    assert cluster.value("SELECT version_num FROM runner.alembic_version") == "0007" != known
    assert cluster.value("SELECT version_num FROM runtime.alembic_version") == "0016"


UNREAD = (
    "no envelope waits; 1 is quarantined",
    "1 envelope waits for codex since Mon 2026-09-21 14:13:20 UTC, and no program reads its inbox",
    "1 envelope of codex in quarantine",
)

NO_USE = "; machine-2 has one that cannot be used: "
UNUSABLE = "category conversation cannot be used on machine-2: other machines begin its fires"


def plant_unread(cluster: Cluster) -> None:
    """Put into an inbox of a terminal what nobody reads, and what was set aside."""
    for key, state in (("a", "waiting"), ("b", "quarantined")):
        cluster.sql.execute(f"INSERT INTO runtime.inbox_envelopes (agent, key, envelope, state, at_us)"
                            f" VALUES ('codex', '{key}', '', '{state}', 1790000000000000)".encode())  # fmt: skip
    cluster.sql.execute(b"INSERT INTO runtime.inboxes VALUES ('codex', 1, 'a reader that is gone', 0)")


def test_status_and_doctor_tell_of_all_machines_and_where_they_differ(cluster: Cluster) -> None:
    one, two, three = homes = [cluster.home(number) for number in (1, 2, 3)]
    two.config.write_text(two.config.read_text() + "[scheduler]\ngrace_s = 5\n")
    (two.categories / "loop.toml").write_text('name = "loop"\nscopes.tools = []\n')
    (two.categories / "conversation.toml").write_text("name = 7\n")
    doomed = cluster.start(three)
    for home in homes[:2]:
        cluster.start(home)
        cluster.start_runtime(home)
    told = "SELECT name, role FROM runner.nodes WHERE facts_json <> '{}' ORDER BY 1, 2"
    both = ("agent-runtime", "task-runner")
    wanted = [(f"machine-{number}", role) for number in (1, 2) for role in both] + [("machine-3", "task-runner")]
    cluster.until(lambda: tables(cluster) and cluster.rows(told) == wanted)
    doomed.send_signal(signal.SIGSTOP)
    now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    cluster.sql.execute(f"UPDATE runner.nodes SET beat_us = {now} - 42000000, offset_us = 3500000 "
                        "WHERE name = 'machine-3'".encode())  # fmt: skip
    cluster.sql.execute(
        "INSERT INTO runtime.envelopes (key, thread_id, agent, kind, envelope, state, not_before_us, at_us)"
        f" VALUES ('k', 't', 'agent0', 'fire', '', 'quarantined', 0, {now})".encode()
    )
    plant_unread(cluster)
    rows = json.loads(command(one, "status", "-o", "json").stdout)
    machines = {row["node"]: row for row in rows if "node" in row}
    assert [(row["status"], row["roles"]) for row in machines.values()] == [
        ("ready", ["runtime", "runner"]), ("ready", ["runtime", "runner"]), ("stale", ["runner"]),
    ]  # fmt: skip
    assert 42 <= machines["machine-3"]["silent_s"] < 100
    assert (machines["machine-3"]["offset_s"], abs(machines["machine-1"]["offset_s"]) < 1) == (3.5, True)
    assert (machines["machine-1"]["threads"], machines["machine-1"]["turns"]) == (0, 0)
    assert rows[-1] == {"queue": "envelopes", "waiting": 0, "oldest_s": None, "quarantined": 1}
    assert {row["process"] for row in rows if "process" in row} >= {"task-runner", "agent-runtime"}
    said = command(one, "status")
    assert re.search(r"machine-3 +stale +runner +\S+ +\S+ +[\dms]+ ago +\+3\.5s +0 +0", said.stdout), said.stdout
    assert all(one in said.stderr for one in (*UNREAD, UNUSABLE))
    checks = json.loads(command(one, "doctor", "-o", "json").stdout)
    found = {(row["check"], row["state"]): [] for row in checks}
    for row in checks:
        found[row["check"], row["state"]].append(row["finding"])
    broken, notes = "\n".join(found["nodes", "broken"]), "\n".join(found["nodes", "note"])
    assert re.search(r"category loop differs: machine-1 has [0-9a-f]{12}; machine-2 has [0-9a-f]{12}", broken), broken
    assert [one in broken for one in ("task-runner of machine-3", NO_USE, "category peer")] == [True, True, False]
    assert all(one in notes for one in ("config [scheduler] differs: machine-1 has", "+3.5s from the database's")), (
        notes
    )
    server = "\n".join(found["database", "broken"] + found["database", "ok"])
    assert "fsync is off" in server
    assert re.search(r"PostgreSQL 1\d\.\S*.*, schemas runner \d{4} and runtime \d{4}; \d+ of \d+ connections", server)
    refused = command(one, "forget", "machine-2")
    assert (refused.returncode, "is running" in refused.stderr) == (EXIT_CONFLICT, True)
    assert "no machine has this name; use one of: machine-1, machine-2" in command(one, "forget", "machine-4").stderr
    assert "forgot 1 process that is gone of machine-3;" in command(one, "forget", "machine-3").stderr
    assert "machine-3" not in command(one, "status").stdout
    with psycopg.connect(cluster.url.replace(f"/{cluster.name}?", "/postgres?"), autocommit=True) as server_itself:
        server_itself.execute(f"ALTER DATABASE {cluster.name} ALLOW_CONNECTIONS false".encode())
        others = "FROM pg_stat_activity WHERE datname = %s AND pid <> %s"
        mine = (cluster.name, cluster.sql.info.backend_pid)
        server_itself.execute(f"SELECT pg_terminate_backend(pid) {others}".encode(), mine)
    said = command(one, "status")
    assert re.search(r"agent-runtime +running", said.stdout), "this machine's processes are known without the database"
    assert "not currently accepting connections; start it, or correct [store] url" in said.stderr


def test_a_command_that_does_a_runners_work_once_leaves_no_machine_to_be_missed(cluster: Cluster) -> None:
    home = cluster.home(1)
    made = ("task", "create", "soon", "--prompt", "p", "--in", "1s", "--category", "loop", "--channel", "general")
    assert command(home, *made).returncode == 0
    waiting = "SELECT state FROM runtime.envelopes"
    cluster.until(lambda: command(home, "task", "tick").returncode == 0 and cluster.rows(waiting) == [("waiting",)])
    assert cluster.rows("SELECT name FROM runner.nodes") == []


def test_a_machine_runs_what_its_roles_name_and_a_page_alone_is_answered(cluster: Cluster) -> None:
    runner, page = cluster.home(1), cluster.home(2)
    runner.config.write_text(runner.config.read_text() + 'roles = ["runner"]\n')
    page.config.write_text(page.config.read_text() + "roles = []\n[web]\nenabled = true\nport = 7999\n")
    assert [one.name for one in orders_of(load_settings(runner)).wanted] == ["task-runner"]
    cluster.start(page)
    cluster.start_runtime(page)
    cluster.until(lambda: tables(cluster) and cluster.rows("SELECT role FROM runner.nodes") == [("web",), ("web",)])
    cluster.sql.execute(b"DELETE FROM runtime.owners")
    made = ("task", "create", "daily", "--prompt", "p", "--every", "1h", "--category", "loop", "--channel", "general")
    cluster.until(lambda: all(is_serving(page.socket(name)) for name in ("task-runner", "agent-runtime")))
    done = command(page, *made)
    assert done.returncode == 0, done.stderr
    shown = cluster.rows("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
    assert {("turnkeeper task-runner machine-2",), ("turnkeeper agent-runtime machine-2",)} <= {*shown}
    assert list(of_nodes(nodes.read_cluster(cluster.url))) == [], "a runner has no categories, on a page either"
    assert command(page, "send", "general", "hello").returncode == 0
    assert cluster.rows("SELECT state FROM runtime.envelopes") == [("waiting",)], "a machine with the role takes it"
    listed = command(runner, "task", "list")
    assert (listed.returncode, "nothing fires" in listed.stderr) == (0, False), "others may plan"
    assert "not running on this machine" in listed.stderr
    for role, asked in (("runner", "send general hello"), ("runtime", "task run daily --wait")):
        runner.config.write_text(runner.config.read_text().replace('roles = ["runner"]', f'roles = ["{role}"]'))
        said = command(runner, *asked.split()).stderr
        assert "leaves it out on this machine; ask on another: turnkeeper status lists them" in said, said
    assert cluster.value("SELECT count(*) FROM runtime.owners") == 0, (
        "it takes no threads, and nobody thinks that it may"
    )


def test_one_home_speaks_with_peers_for_all_that_share_the_store(cluster: Cluster) -> None:
    homes = [cluster.home(number) for number in (1, 2)]
    for home in homes:
        home.config.write_text(
            home.config.read_text() + f'[peers]\nenabled = true\nlisten = "127.0.0.1:{free_port()}"\n'
        )
    first = cluster.start_peers(homes[0])
    cluster.until(lambda: is_serving(homes[0].socket("peers")))
    second = cluster.start_peers(homes[1])
    assert second.wait(60) == EXIT_CONFLICT
    (said,) = (homes[1].root / "stderr").read_text().splitlines()
    assert "machine-1 (" in said
    assert "speaks with peers" in said
    cluster.forget(second)
    first.kill()
    first.wait()
    again = cluster.start_peers(homes[0])
    cluster.until(lambda: is_serving(homes[0].socket("peers")))
    again.send_signal(signal.SIGSTOP)  # or it may take the slot back before the other has started
    cluster.sql.execute(b"UPDATE runner.slots SET until_us = 0 WHERE name = 'peers'")
    cluster.start_peers(homes[1])
    cluster.until(lambda: is_serving(homes[1].socket("peers")))
    again.send_signal(signal.SIGCONT)
    assert again.wait(60) == EXIT_CONFLICT, "who finds that another has it speaks no more"
    cluster.forget(again)


class Steps(SharedClock):
    """A clock whose steady counter is set by hand."""

    at_s = 0.0

    def monotonic(self) -> float:
        return self.at_s


def test_nobody_speaks_with_peers_for_longer_as_the_servers_clock_is_set_back(cluster: Cluster) -> None:
    database = Database(in_schema(cluster.url, "runner"), migrations=schema_revision.STORES["runner"])
    one, two = (Claim(database, "peers", cluster.home(each), NodeSettings(name=f"{each}")) for each in (1, 2))
    assert [asyncio.run(each.take()) for each in (one, two)] == [True, False]
    cluster.sql.execute("UPDATE runner.slots SET until_us = until_us + 3600000000")
    assert [asyncio.run(each.take()) for each in (two, one)] == [True, False]
    database.close()


def test_a_machine_that_is_gone_is_one_alert_of_one_node(cluster: Cluster) -> None:
    database, clock, told = (
        Database(in_schema(cluster.url, "runner"), migrations=schema_revision.STORES["runner"]),
        Steps(),
        [],
    )
    named = [("one", "task-runner"), ("one", "agent-runtime"), ("two", "task-runner"), ("away", "agent-runtime")]
    beats = [nodes.Beat(database.run, clock, node_id=f"{name}-{role}", name=name, role=role) for name, role in named]
    for beat in beats:
        beat.on_gone = lambda node: told.append(node.name)

    async def all_beat(*but: str) -> None:
        for _ in range(8):
            clock.at_s += 9
            await all_beat_once(beats[: len(beats) - len(but)])

    async def look(of: Sequence[nodes.Beat]) -> None:
        for beat in of:
            await beat.look()

    def silence(of: str, seconds: int) -> None:
        cluster.sql.execute("UPDATE runner.nodes SET beat_us = beat_us - %s WHERE name = %s", (seconds * 1_000_000, of))

    asyncio.run(all_beat())
    silence("away", 59)
    asyncio.run(look(beats[:3]))
    assert told == [], "it may only be slow"
    silence("away", 2)
    clock.at_s += 11
    asyncio.run(all_beat_once(beats[:3]))
    asyncio.run(look(beats[:3]))
    assert told == [], "who did not beat for a while cannot tell who else is gone"
    asyncio.run(all_beat("away"))
    asyncio.run(look(beats[:3] * 2))
    assert told == ["away"], "once, whoever looks"
    asyncio.run(all_beat())
    silence("away", 61)
    beats[0].on_gone = fail
    with pytest.raises(OSError, match="no room"):
        asyncio.run(look(beats[:1]))
    asyncio.run(look(beats[1:3]))
    assert told == ["away"], "for a minute it is the other's"
    cluster.sql.execute(b"UPDATE runner.nodes SET alerted_us = alerted_us - 61000000 WHERE name = 'away'")
    asyncio.run(look(beats[1:3]))
    assert told == ["away", "away"], "it was back, and is gone again; who failed to tell leaves it to another"
    database.close()


def test_a_clock_of_the_server_that_is_set_forward_makes_no_machine_gone(cluster: Cluster) -> None:
    """As after a failover to a server whose clock is ahead: the others beat a moment later."""
    database = Database(in_schema(cluster.url, "runner"), migrations=schema_revision.STORES["runner"])
    clock, told = Steps(), list[str]()
    beats = [nodes.Beat(database.run, clock, node_id=name, name=name, role="task-runner") for name in ("one", "two")]
    for number in range(9):
        clock.at_s += 9 if number else 0
        asyncio.run(all_beat_once(beats))
    beats[0].on_gone = lambda node: told.append(node.name)
    clock.set(clock.now() - timedelta(hours=1))
    cluster.sql.execute("UPDATE runner.nodes SET beat_us = beat_us - 3600000000")
    asyncio.run(beats[0].once())
    asyncio.run(beats[0].look())
    assert told == []
    database.close()


def test_an_alert_about_a_machine_is_dated_once_it_is_back(cluster: Cluster) -> None:
    database = Database(in_schema(cluster.url, "runner"), migrations=schema_revision.STORES["runner"])
    home, said = cluster.home(1), {"role": "task-runner"}
    one, away = (nodes.Beat(database.run, Steps(), node_id=name, name=name, **said) for name in ("one", "away"))
    one.on_seen = lambda found, at: nodes.date_alerts(home, found, at)
    asyncio.run(all_beat_once([away]))
    nodes.alert(home, lambda *_, **__: None, database.submit(nodes.nodes_of().listed).result()[0])
    cluster.sql.execute("UPDATE runner.nodes SET beat_us = beat_us - 61000000")
    asyncio.run(all_beat_once([one]))
    assert [found.degraded for found in findings(home, 0)] == [True]
    asyncio.run(all_beat_once([away, one]))
    (found,) = findings(home, 0)
    assert (found.degraded, "(its cause is over since " in found.what) == (False, True)
    database.close()


def test_of_two_that_look_at_once_one_alerts(cluster: Cluster) -> None:
    place = in_schema(cluster.url, "runner")
    database = Database(place, migrations=schema_revision.STORES["runner"], connections=2)
    asyncio.run(nodes.Beat(database.run, Steps(), node_id="n", name="away", role="agent-runtime").once())
    cluster.sql.execute(b"UPDATE runner.nodes SET beat_us = beat_us - 61000000")
    listed = nodes.nodes_of()

    def look(connection: Connection) -> tuple[list[nodes.Node], list[nodes.Node]]:
        return listed.gone(connection), database.submit(listed.gone).result(5)

    mine, others = database.submit(look).result(10)
    assert ([node.name for node in mine], others) == (["away"], [])
    database.close()


def test_an_alert_of_a_machine_is_left_for_the_supervisor(home: Home) -> None:
    said: list[str] = []
    at = datetime(2026, 11, 22, 9, tzinfo=UTC)
    node = nodes.Node(
        node_id="n", name="cellar", role="task-runner", host="box", version="1", draining=False, owner="", alerted_us=0,
        facts={}, started_at=at, beat_at=at, offset_s=0.0, silent_s=90.0,
    )  # fmt: skip
    for _ in range(2):
        nodes.alert(home, lambda event, **_fields: said.append(event), node)
    (text,) = take_pending(home)
    assert "machine cellar (box) has not been seen since 2026-11-22T09:00:00Z" in text
    assert said == ["node.gone"] * 2


async def all_beat_once(beats: Sequence[nodes.Beat]) -> None:
    for beat in beats:
        await beat.once()


def fail(_node: nodes.Node) -> None:
    raise OSError("no room")


def tables(cluster: Cluster) -> bool:
    """Return whether a daemon has made the tables of the machines."""
    return bool(cluster.value("SELECT to_regclass('runner.nodes') IS NOT NULL"))


def command(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(Path(sys.executable).with_name("turnkeeper")), "--home", str(home.root), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("options", "how"), [([], signal.SIGINT), (["--cluster"], signal.SIGTERM)])
def test_a_demonstration_that_is_told_to_end_leaves_nothing(options: list[str], how: signal.Signals) -> None:
    """It is told twice, as by `timeout`, and so is whatever else is of its group."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        Path(folder).chmod(0o755)  # for the user that PostgreSQL runs as
        environ = os.environ | {"TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "examples.demo", *options]
        heed = partial(signal.signal, how, signal.SIG_DFL)  # which the tests ignore where they run in the background
        started = {"env": environ, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        with subprocess.Popen(command, **started, preexec_fn=heed) as demo:  # noqa: PLW1509  no other thread forks
            assert demo.stdout
            assert any("workspace list" in line for line in demo.stdout), "all its daemons answer"
            for _ in range(2):
                os.killpg(demo.pid, how)
            assert demo.wait(60) == 128 + signal.SIGINT
        assert os.listdir(folder) == []
        assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if folder in text_of(path)] == []


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it ended meanwhile
        return ""
