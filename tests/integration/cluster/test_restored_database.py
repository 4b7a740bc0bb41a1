"""A database that machines share is put back to an earlier time: the history goes on as that of a restored home."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.integration.cluster.shared import Cluster
from tests.support.constellation import Constellation
from tests.support.postgres import Server, find_binaries
from turnkeeper.config.home import Home
from turnkeeper.constellation.audit.records import examine
from turnkeeper.constellation.upkeep.migrate import mark_restored
from turnkeeper.errors import EXIT_CONFLICT, EXIT_USAGE
from turnkeeper.storage.database import make_schemas

pytestmark = pytest.mark.process
SECOND = timedelta(seconds=1)


@pytest.fixture
def shared(home: Home, postgres_server: Server | None) -> Iterator[Constellation]:
    if postgres_server is None:
        pytest.skip("machines share a server's database: --database postgres")
    url = postgres_server.create()
    home.config.write_text(f'[store]\nurl = "{url}"\n[node]\nname = "cellar"\n')
    made = Constellation(home)
    yield made
    made.stop()
    postgres_server.drop(url)


@pytest.fixture
def alone() -> Iterator[Constellation]:
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    home = Home(root=folder / "home")
    home.create()
    made = Constellation(home)
    yield made
    made.stop()
    shutil.rmtree(folder)


class Told(NamedTuple):
    """What the history of a task says.

    Attributes:
        outcomes: of its entries.
        caught_up: of what was due while nothing ran, whether it ran after all.
    """

    outcomes: set[str]
    caught_up: bool


def history_of(one: Constellation, task: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = one.ask("task-runner", "history", task, "-n", "1000")
    return sorted(found, key=lambda entry: entry["nominal_at"])


def work(one: Constellation) -> None:
    """Let tasks of both policies fire, and one that waits for its author."""
    one.start()
    one.create("every-second", "--every", "1s", "--catch-up", "run-all")
    one.create("skips", "--every", "1s", "--catch-up", "skip", "--grace", "1s")
    one.await_outcome("every-second", "succeeded", 2)


def go_on(one: Constellation) -> None:
    """What happens after the copy was made, and is forgotten."""
    one.create("afterwards", "--in", "1s")
    one.await_outcome("afterwards", "succeeded", 1)
    one.stop()


def judged(one: Constellation, before: int) -> dict[str, Told]:
    """Start again; hold what was promised, and return what the histories say."""
    one.start()
    one.await_outcome("every-second", "succeeded", before + 4)
    one.await_outcome("skips", "skipped", 1)
    one.stop()
    assert {task["name"] for task in one.ask("task-runner", "list")} == {"every-second", "skips"}
    assert one.violations(drained=False) == []
    entries = history_of(one, "every-second")
    nominals = [datetime.fromisoformat(entry["nominal_at"]) for entry in entries]
    assert nominals == [nominals[0] + number * SECOND for number in range(len(nominals))], (
        "each time once, and none lost"
    )
    assert examine(one.home).faults == []
    return {task: told_of(history_of(one, task)) for task in ("every-second", "skips")}


def told_of(entries: list[dict[str, Any]]) -> Told:
    settled = {entry["outcome"] for entry in entries} & {"succeeded", "skipped", "failed", "quarantined"}
    return Told(settled, any(entry["outcome"] == "succeeded" and entry.get("caught_up") for entry in entries))


def test_a_database_that_was_put_back_goes_on_as_a_restored_home_does(
    shared: Constellation, alone: Constellation, tmp_path: Path
) -> None:
    work(alone)
    backup = tmp_path / "backup"
    alone.command("turnkeeper", "backup", str(backup))
    kept = len([entry for entry in history_of(alone, "every-second") if entry["outcome"] == "succeeded"])
    go_on(alone)
    alone.command("turnkeeper", "restore", str(backup))
    (alone.home.root / "state" / "restored").unlink()  # as `up --takeover` does
    expected = judged(alone, kept)

    work(shared)
    said = shared.attempt("turnkeeper", "backup", str(tmp_path / "of-shared")).stderr.splitlines()
    dump, put_back = (next(line for line in said if line.strip().startswith(word)) for word in ("(umask", "pg_restore"))
    assert "PostgreSQL's programs do not read .env" in "".join(said), "or they ask for a password that the home has"
    by_postgres(dump, tmp_path)
    assert (tmp_path / "turnkeeper.dump").stat().st_mode & 0o077 == 0, "only its owner reads it"
    kept = len([entry for entry in history_of(shared, "every-second") if entry["outcome"] == "succeeded"])
    url = shared.home.config.read_text().split('"')[1]
    running = shared.attempt("turnkeeper", "restore", "--mark")
    assert running.returncode == EXIT_CONFLICT, running.stderr
    with psycopg.connect(url, autocommit=True) as database:
        go_on(shared)
        before = facts(database)
    by_postgres(put_back, tmp_path)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("UPDATE runner.nodes SET beat_us = beat_us - 20000000")  # what was dumped lived just then
        database.execute("UPDATE runtime.owners SET until_us = 0")
        unmarked = examine(shared.home).faults
        assert [fault for fault in unmarked if "the end was cut off" in fault], (
            "until somebody says that it was put back"
        )
        shared.command("turnkeeper", "restore", "--mark")
        after = facts(database)
        assert after[0] != before[0], "who counted by numbers of before counts anew"
        assert after[1] > 1 << 30, "no epoch is given out twice"
        assert judged(shared, kept) == expected
    told = shared.attempt("turnkeeper", "audit", "verify")
    assert "the database was restored to an earlier time" in told.stdout


def by_postgres(line: str, folder: Path) -> None:
    """Run what the command said, with the programs of the server."""
    binaries = find_binaries()
    assert binaries is not None, "the server runs"
    path = f"{os.environ['PATH']}:{(binaries / 'postgres').resolve().parent}"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def facts(database: "psycopg.Connection[Any]") -> tuple[str, int]:
    query = "SELECT value, (SELECT min(epoch) FROM runtime.threads) FROM runtime.meta WHERE key = 'incarnation'"
    (found,) = database.execute(query)
    return found


@pytest.mark.parametrize("daemon", ["runner", "runtime"])
def test_who_was_stopped_while_the_database_was_put_back_writes_nothing_more(cluster: Cluster, daemon: str) -> None:
    home, beside = cluster.home(1), cluster.home(2)
    make_schemas(cluster.url)
    process = cluster.start(home) if daemon == "runner" else cluster.start_runtime(home)
    cluster.sql.execute("INSERT INTO runtime.meta VALUES ('incarnation', 'before') ON CONFLICT DO NOTHING")
    cluster.until(lambda: cluster.value("SELECT coalesce(max(beat_us - started_us), 0) FROM runner.nodes") > 3_000_000)
    process.send_signal(signal.SIGSTOP)
    cluster.sql.execute("UPDATE runner.nodes SET beat_us = 0")
    cluster.sql.execute("UPDATE runtime.owners SET until_us = 0")
    mark_restored(beside)
    cluster.forget(process)
    process.send_signal(signal.SIGCONT)
    assert process.wait(30) == EXIT_CONFLICT
    assert "was restored to an earlier time while this process ran; it stops writing" in said_by(home)
    assert (
        cluster.value("SELECT count(*) FROM runner.nodes") == cluster.value("SELECT count(*) FROM runtime.owners") == 0
    )


def said_by(home: Home) -> str:
    return (home.root / "stderr").read_text()


def test_only_a_shared_database_is_marked_and_the_command_says_what_it_wants(alone: Constellation) -> None:
    for argv in (("--mark",), (), ("somewhere", "--mark")):
        done = alone.attempt("turnkeeper", "restore", *argv)
        assert done.returncode == EXIT_USAGE, (argv, done.stderr)
        assert done.stderr.startswith("error: ")
