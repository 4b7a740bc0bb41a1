"""The machines that share a database: what each says of itself, what keeps one from starting, and what it works on."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runtime.store.database import open_database
from constellation.supervisor.up_down import orders_of
from tests.integration.cluster.shared import Cluster
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.errors import EXIT_CONFLICT
from turnkeeper.rpc.channel import is_serving
from turnkeeper.storage.database import in_schema

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


def test_status_and_doctor_tell_of_all_machines_and_where_they_differ(cluster: Cluster) -> None:
    one, two, three = homes = [cluster.home(number) for number in (1, 2, 3)]
    two.config.write_text(two.config.read_text() + "[scheduler]\ngrace_s = 5\n")
    (two.categories / "loop.toml").write_text('name = "loop"\nscopes.tools = []\n')
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
    assert "no envelope waits; 1 is quarantined" in said.stderr
    checks = json.loads(command(one, "doctor", "-o", "json").stdout)
    found = {(row["check"], row["state"]): [] for row in checks}
    for row in checks:
        found[row["check"], row["state"]].append(row["finding"])
    broken, notes = "\n".join(found["nodes", "broken"]), "\n".join(found["nodes", "note"])
    assert "task-runner of machine-3" in broken
    assert re.search(r"category loop differs: machine-1 has [0-9a-f]{12}; machine-2 has [0-9a-f]{12}", broken), broken
    assert "category peer" not in broken
    assert re.search(r"config \[scheduler\] differs: machine-1 has", notes), notes
    assert "+3.5s from the database's" in notes
    server = "\n".join(found["database", "broken"] + found["database", "note"])
    assert "fsync is off" in server
    assert re.search(r"PostgreSQL 1\d\.\S*.*, schemas runner \d{4} and runtime \d{4}; \d+ of \d+ connections", server)


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
    assert command(page, "send", "general", "hello").returncode == 0
    assert cluster.rows("SELECT state FROM runtime.envelopes") == [("waiting",)], "a machine with the role takes it"
    assert cluster.value("SELECT count(*) FROM runtime.owners") == 0, (
        "it takes no threads, and nobody thinks that it may"
    )


def tables(cluster: Cluster) -> bool:
    """Return whether a daemon has made the tables of the machines."""
    return bool(cluster.value("SELECT to_regclass('runner.nodes') IS NOT NULL"))


def command(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(Path(sys.executable).with_name("turnkeeper")), "--home", str(home.root), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)
