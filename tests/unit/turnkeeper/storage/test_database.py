"""The database thread: many units, one commit, and nobody is told of what is not on disk."""

import asyncio
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from tests.support.postgres import Places
from turnkeeper import errors
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, MachineTrouble, TurnkeeperError, Unreachable
from turnkeeper.storage import nodes, schema_revision
from turnkeeper.storage.database import Database, check_schemas
from turnkeeper.storage.server import following, handover, snapshot
from turnkeeper.storage.server.url import in_schema
from turnkeeper.storage.statements import Statement

CLOCK = SystemClock()
_END_OWN = "SELECT pg_terminate_backend(pg_backend_pid())"
MIGRATIONS = str(Path(__file__).parent / "migrations")


@pytest.fixture
def place(place_of: Places, tmp_path: Path) -> Path | str:
    return place_of(tmp_path / "store.db")


@pytest.fixture
def database(place: Path | str) -> Iterator[Database]:
    made = Database(place, migrations=MIGRATIONS)
    yield made
    made.close()


def insert(number: int):
    def work(connection: Connection) -> int:
        connection.execute(text("INSERT INTO things (id) VALUES (:id)"), {"id": number})
        return number

    return work


def ids(connection: Connection) -> list[int]:
    return list(connection.execute(text("SELECT id FROM things ORDER BY id")).scalars())


async def test_a_failing_unit_undoes_itself_alone(database: Database) -> None:
    results = await asyncio.gather(*(database.run(insert(n)) for n in (1, 2, 1, 3)), return_exceptions=True)
    assert [r for r in results if isinstance(r, int)] == [1, 2, 3]
    assert isinstance(results[2], IntegrityError)
    assert await database.run(ids) == [1, 2, 3]


async def test_units_that_wait_together_share_one_commit(database: Database) -> None:
    gate = threading.Event()
    blocker = database.submit(lambda connection: gate.wait())
    waiting = [database.submit(insert(n)) for n in range(100)]
    seen = []
    for future in waiting:
        future.add_done_callback(lambda future: seen.append(future.result()))
    gate.set()
    await asyncio.gather(*map(asyncio.wrap_future, [blocker, *waiting]))
    assert seen == list(range(100))


async def test_a_caller_that_gives_up_harms_nobody_else(database: Database) -> None:
    gate = threading.Event()
    began = threading.Event()

    def slow(connection: Connection) -> None:
        began.set()
        gate.wait()
        insert(1)(connection)

    under_way = asyncio.ensure_future(database.run(slow))
    await asyncio.to_thread(began.wait)
    not_begun = asyncio.ensure_future(database.run(insert(2)))
    await asyncio.to_thread(database.submit, ids)  # a turn of the loop, so that it is queued
    for task in (under_way, not_begun):
        task.cancel()
    await asyncio.gather(under_way, not_begun, return_exceptions=True)
    gate.set()
    assert await database.run(insert(3)) == 3
    assert await database.run(ids) == [1, 3], "what had begun is finished, what had not is not begun"


async def test_every_commit_is_synced(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.db", migrations=MIGRATIONS)

    def pragmas(connection: Connection) -> tuple[object, object]:
        mode = connection.execute(text("PRAGMA journal_mode")).scalar()
        return mode, connection.execute(text("PRAGMA synchronous")).scalar()

    full = 2
    assert await database.run(pragmas) == ("wal", full)
    database.close()


def test_a_file_that_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database, not at all" * 100)
    with pytest.raises(Corrupt) as refused:
        Database(path, migrations=MIGRATIONS)
    assert refused.value.where == str(path)


@pytest.mark.parametrize("mode", ["wal", "delete"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path, mode: str, read_only: bool) -> None:
    path = tmp_path / "store.db"
    Database(path, migrations=MIGRATIONS).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        newer.execute(f"PRAGMA journal_mode={mode}")
    before = path.read_bytes()
    with pytest.raises(Conflict, match="newer version") as refused:
        Database(path, migrations=MIGRATIONS, read_only=read_only)
    assert (refused.value.where, refused.value.hint) == (str(path), "upgrade turnkeeper")
    assert "9999" in refused.value.what
    assert "0001" in refused.value.what
    assert path.read_bytes() == before


def test_what_a_killed_newer_version_left_in_its_log_is_seen_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    Database(path, migrations=MIGRATIONS).close()
    (tmp_path / "killed").mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as newer:
        newer.execute("PRAGMA wal_autocheckpoint=0")
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        for file in tmp_path.glob("store.db*"):
            shutil.copy(file, tmp_path / "killed")
    path = tmp_path / "killed" / "store.db"
    log = path.with_name("store.db-wal")
    before = path.read_bytes(), log.read_bytes()
    with pytest.raises(Conflict, match="9999"):
        Database(path, migrations=MIGRATIONS)
    assert (path.read_bytes(), log.read_bytes()) == before


@pytest.mark.parametrize("package", ["task_runner.store", "agent_runtime.store"])
def test_migrations_are_named_by_their_revisions(package: str) -> None:
    config = Config()
    config.set_main_option("script_location", f"{package}:migrations")
    scripts = ScriptDirectory.from_config(config)
    revisions = {script.revision for script in scripts.walk_revisions()}
    assert schema_revision.known_revisions(f"{package}:migrations") == revisions
    assert schema_revision.newest(f"{package}:migrations") == scripts.get_current_head()


async def test_a_reader_beside_the_writer_cannot_write(database: Database, place: Path | str) -> None:
    await database.run(insert(1))
    reader = Database(place, migrations=MIGRATIONS, read_only=True)
    assert await reader.run(ids) == [1]
    with pytest.raises((DBAPIError, MachineTrouble), match="readonly|read-only|query_only"):
        await reader.run(insert(2))
    reader.close()


def test_a_reader_changes_no_schema(place: Path | str) -> None:
    if isinstance(place, Path):
        place.touch()
    wrong, said = (Corrupt, "older schema") if isinstance(place, Path) else (Conflict, "no tables yet")
    with pytest.raises(wrong, match=said):
        Database(place, migrations=MIGRATIONS, read_only=True)


async def test_a_store_is_opened_again_with_what_is_in_it(place: Path | str) -> None:
    for number in (1, 2):
        database = Database(place, migrations=MIGRATIONS)
        await database.run(insert(number))
        database.close()
    database = Database(place, migrations=MIGRATIONS)
    assert await database.run(ids) == [1, 2]
    database.close()


async def test_a_newer_version_is_refused_and_nothing_is_changed(place: Path | str) -> None:
    newer = Database(place, migrations=MIGRATIONS)
    await newer.run(lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    newer.close()
    for read_only in (False, True):
        with pytest.raises(Conflict, match="9999"):
            Database(place, migrations=MIGRATIONS, read_only=read_only)


@pytest.mark.parametrize("url", ["mysql://here/store", "sqlite:///store.db", "postgresql+psycopg2:///store"])
def test_a_url_of_another_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not known"):
        Database(url, migrations=MIGRATIONS)


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://someone:secret@/store?host={tmp_path}"
    with pytest.raises(Unreachable) as refused:
        Database(url, migrations=MIGRATIONS)
    assert refused.value.where.startswith("postgresql://someone:***@/store")
    assert str(tmp_path) in refused.value.what
    assert "\n" not in refused.value.what


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidInput) as refused:
        Database("postgresql:///store", migrations=MIGRATIONS)
    assert refused.value.hint == "install turnkeeper[postgres]"


async def test_a_caller_that_gives_up_does_not_stop_the_writer(database: Database) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(_connection: Connection) -> None:
        entered.set()
        go.wait(10)

    begun = asyncio.create_task(database.run(slow))
    await asyncio.to_thread(entered.wait, 10)
    queued = asyncio.create_task(database.run(lambda _connection: None))
    for task in (begun, queued):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    go.set()
    assert await database.run(insert(1)) == 1


def roll_back(connection: Connection) -> None:
    connection.connection.driver_connection.execute("ROLLBACK")
    connection.execute(text("INSERT INTO things (id) VALUES (7), (7)"))


def insert_or_roll_back(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        roll_back(connection)
    connection.execute(text("INSERT OR ROLLBACK INTO things (id) VALUES (7), (7)"))


@pytest.mark.parametrize("undo", [roll_back, insert_or_roll_back])
async def test_what_undoes_a_whole_batch_is_told_to_all_of_it(database: Database, undo: Any) -> None:
    gate = threading.Event()
    blocker = database.submit(lambda connection: gate.wait())
    batch = [database.submit(work) for work in (insert(1), undo, insert(2))]
    gate.set()
    _, *outcomes = await asyncio.gather(*map(asyncio.wrap_future, [blocker, *batch]), return_exceptions=True)
    # On a server each unit is a transaction of its own.
    alone = database.dialect != "sqlite"
    others = int if alone else IntegrityError
    assert [type(outcome) for outcome in outcomes] == [others, IntegrityError, others]
    assert await database.run(ids) == ([1, 2] if alone else [])
    assert await database.run(insert(3)) == 3


def fill(connection: Connection) -> None:
    """Meet a full disk that undoes the whole transaction, as SQLite may."""
    driver: Any = connection.connection.driver_connection
    driver.execute("ROLLBACK")
    driver.execute("PRAGMA max_page_count=1")  # as many as there are
    try:
        connection.execute(text("CREATE TABLE large AS SELECT zeroblob(1000000) AS value"))
    finally:
        driver.execute("PRAGMA max_page_count=1000000")


async def test_a_full_disk_that_undoes_a_whole_batch_is_told_as_the_machines_trouble(database: Database) -> None:
    if database.is_shared:
        pytest.skip("on a server each unit has a transaction of its own")
    gate = threading.Event()
    blocker = database.submit(lambda _connection: gate.wait())
    batch = [database.submit(work) for work in (insert(1), fill, insert(2))]
    gate.set()
    outcomes = await asyncio.gather(*map(asyncio.wrap_future, [blocker, *batch]), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MachineTrouble] * 4
    assert "disk is full" in database.trouble
    assert await database.run(insert(3)) == 3
    assert database.trouble == ""


async def test_a_lost_connection_is_told_to_all_and_made_again(database: Database) -> None:
    def lose(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            connection.connection.driver_connection.close()
        else:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    gate = threading.Event()
    blocker = database.submit(lambda connection: gate.wait())
    batch = [database.submit(work) for work in (insert(1), lose, insert(2))]
    gate.set()
    _, *outcomes = await asyncio.gather(*map(asyncio.wrap_future, [blocker, *batch]), return_exceptions=True)
    if database.dialect == "sqlite":
        assert all(isinstance(outcome, Exception) for outcome in outcomes), outcomes
        outcomes = []
    else:  # only the unit that lost it is in doubt, and the machine is at fault, not the unit
        assert [type(outcome) for outcome in outcomes] == [int, errors.ServerTrouble, int]
    assert await database.run(insert(3)) == 3
    assert await database.run(ids) == [*([1, 2] if outcomes else []), 3]


@pytest.fixture
def pool(place: Path | str) -> Iterator[Database]:
    """A server's database with two connections."""
    if isinstance(place, Path):
        pytest.skip("a file has one connection: --database postgres")
    made = Database(place, migrations=MIGRATIONS, connections=2)
    yield made
    made.close()


async def test_units_run_at_once_on_a_server(pool: Database) -> None:
    gate = threading.Event()
    blocker = pool.submit(lambda connection: gate.wait(10))
    assert await pool.run(insert(1)) == 1, "while the one before it waits"
    gate.set()
    assert blocker.result(10)


async def test_a_unit_that_a_deadlock_ended_is_run_again_whole(pool: Database) -> None:
    for number in (1, 2):
        await pool.run(insert(number))
    both = threading.Barrier(2)
    tries: list[tuple[int, int]] = []

    def lock(connection: Connection, number: int) -> None:
        connection.execute(text("SELECT id FROM things WHERE id = :id FOR UPDATE"), {"id": number})

    def crosswise(first: int, second: int):
        def work(connection: Connection) -> int:
            tries.append((first, second))
            lock(connection, first)
            if len(tries) <= 2:
                both.wait(10)
            lock(connection, second)
            return insert(10 * first + second)(connection)

        return work

    done = await asyncio.gather(pool.run(crosswise(1, 2)), pool.run(crosswise(2, 1)))
    assert done == [12, 21]
    assert len(tries) >= 3, "one of the two was run again, or both if the server ended both"
    assert await pool.run(ids) == [1, 2, 12, 21]


@pytest.fixture
def server_url(place: Path | str) -> str:
    return place if isinstance(place, str) else pytest.skip("of a server: --database postgres")


def setting(url: str, what: str) -> None:
    """Change what new sessions of a database begin with."""
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute("SET default_transaction_read_only = off")
        sql.execute(f'ALTER DATABASE "{sql.info.dbname}" {what}'.encode())


async def test_limits_that_are_set_for_other_clients_do_not_hold(server_url: str) -> None:
    for name in ("statement_timeout", "lock_timeout", "idle_session_timeout"):
        setting(server_url, f"SET {name} = '1ms'")
    made = Database(in_schema(f"{server_url}&options=-cwork_mem%3D1234kB", "one"), migrations=MIGRATIONS)
    shows = "SELECT name, current_setting(name) FROM unnest(array[{}]) AS name ORDER BY name"
    names = ["statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout"]
    query = text(shows.format(", ".join(f"'{name}'" for name in [*names, "work_mem", "search_path"])))
    found = dict(await made.run(lambda c: [tuple(row) for row in c.execute(query)]))
    made.close()
    assert found == {
        "statement_timeout": "0", "lock_timeout": "0", "idle_session_timeout": "0",
        "idle_in_transaction_session_timeout": "10s", "work_mem": "1234kB", "search_path": "one",
    }  # fmt: skip
    asked = psycopg.conninfo.conninfo_to_dict(in_schema(server_url, "one"))
    assert (asked["keepalives_idle"], asked["tcp_user_timeout"]) == ("5", "10000"), "a server that is gone is noticed"


async def test_a_process_that_is_stopped_between_the_rows_of_a_batch_holds_its_locks_no_longer_than_the_limit(
    server_url: str,
) -> None:
    made = Database(in_schema(server_url, "one"), migrations=MIGRATIONS)
    add = Statement(sa.insert(sa.Table("things", sa.MetaData(), sa.Column("id", sa.Integer))))

    def lives(session: int) -> bool:
        with psycopg.connect(server_url) as sql:
            return bool(sql.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [session]).fetchone())

    class Rows(list[dict[str, int]]):
        session = 0

        def __iter__(self) -> Iterator[dict[str, int]]:
            yield self[0]
            deadline = CLOCK.monotonic() + 20
            while lives(self.session):
                assert CLOCK.monotonic() < deadline, "the server waits for the next row without end"
                CLOCK.block(0.02)
            yield self[1]

    def stop_after_a_row(connection: Connection) -> None:
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '100ms'"))
        rows = Rows([{"id": 1}, {"id": 2}])
        rows.session = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        add.run_each(connection, rows)

    with pytest.raises(errors.ServerTrouble):
        await made.run(stop_after_a_row)
    assert await made.run(ids) == []
    made.close()


async def test_each_connection_notices_a_server_that_is_gone_without_a_word(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, str]] = []
    for kind in (psycopg.Connection, psycopg.AsyncConnection):
        ends = kind._connect_gen

        def recorded(conninfo: str, ends: Any = ends, **how: Any) -> Any:
            made.append(psycopg.conninfo.conninfo_to_dict(conninfo))
            return ends(conninfo, **how)

        monkeypatch.setattr(kind, "_connect_gen", recorded)
    Database(server_url, migrations=MIGRATIONS).close()
    check_schemas(server_url)
    snapshot.SharedSnapshot(server_url, "runner").close()
    with suppress(TurnkeeperError):  # it has no tables
        nodes.read_cluster(server_url)
    heard = asyncio.Event()
    url = in_schema(server_url, "one")
    listening = asyncio.create_task(following.listen(url, lambda *_: heard.set(), str, SystemClock()))
    await heard.wait()
    listening.cancel()
    assert len(made) >= 5
    times = [(one.get("connect_timeout"), one.get("keepalives_idle"), one.get("tcp_user_timeout")) for one in made]
    assert set(times) == {("5", "5", "10000")}


async def test_a_notification_follows_the_commit_in_a_transaction_of_its_own(server_url: str) -> None:
    """Transactions that notify commit one after the other. A unit that fails sends no notification."""
    made = Database(server_url, migrations=MIGRATIONS)

    def fails(connection: Connection) -> None:
        handover.notify(connection, ["in vain"])
        connection.execute(text("SELECT 1 / 0"))

    with psycopg.connect(server_url, autocommit=True) as listening:
        listening.execute(f"LISTEN {handover.NEWS}")
        await asyncio.gather(made.run(fails), return_exceptions=True)
        await made.run(lambda c: c.execute(text("SELECT 1")))
        await made.run(lambda c: handover.notify(c, ["one", "two", "one"]))
        with psycopg.connect(server_url, autocommit=True) as sql:
            sql.execute(f"SELECT pg_notify('{handover.NEWS}', 'end')".encode())
        heard = [one.payload for one in listening.notifies(timeout=30, stop_after=3)]
    assert heard == ["one", "two", "end"]
    made.close()


async def test_a_session_that_may_not_write_is_left_for_one_that_may(server_url: str) -> None:
    """As after a failover: the session was made while the server was a standby, or leads to the old primary."""
    made = Database(server_url, migrations=MIGRATIONS)
    setting(server_url, "SET default_transaction_read_only = on")
    lost = await asyncio.gather(made.run(lambda c: c.execute(text(_END_OWN))), return_exceptions=True)
    assert isinstance(lost[0], MachineTrouble)
    for number in (1, 2):
        refused = await asyncio.gather(made.run(insert(number)), return_exceptions=True)
        assert isinstance(refused[0], MachineTrouble), "whoever meets it waits"
    setting(server_url, "RESET default_transaction_read_only")
    await asyncio.gather(made.run(insert(3)), return_exceptions=True)
    assert await made.run(insert(4)) == 4
    made.close()


@pytest.mark.parametrize("port", ["", ":5432"])
async def test_of_several_hosts_the_one_that_takes_writes_is_used(server_url: str, tmp_path: Path, port: str) -> None:
    head, _, query = server_url.partition("@/")
    name, _, there = query.partition("?host=")
    hosts = f"{quote(str(tmp_path), safe='')}{port},{there}{port}"
    url = f"{head}@{hosts}/{name}?target_session_attrs=read-write"
    made = Database(in_schema(url, "one"), migrations=MIGRATIONS)
    assert await made.run(insert(1)) == 1
    made.close()
    psycopg.connect(in_schema(url, "one")).close()


async def test_stores_that_are_opened_at_once_are_migrated_once(place: Path | str) -> None:
    if isinstance(place, Path):
        pytest.skip("a file has one owner: --database postgres")
    opened = await asyncio.gather(
        *(asyncio.to_thread(Database, place, migrations=MIGRATIONS) for _ in range(4)), return_exceptions=True
    )
    assert all(isinstance(each, Database) for each in opened), opened
    assert await opened[0].run(ids) == []
    for each in opened:
        each.close()
