"""The real daemons, supervised: killed while tasks fire, backed up while they run, put back; and no secret gets out."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.constellation import AGENT_RUNTIME, Constellation
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.constellation.inspect.status import handoff_text
from turnkeeper.constellation.supervisor import markers, up_down
from turnkeeper.constellation.supervisor.daemons import DAEMONS, process_of
from turnkeeper.constellation.supervisor.handoff import drafts
from turnkeeper.constellation.upkeep.backup import restore
from turnkeeper.errors import EXIT_CONFLICT, EXIT_USAGE, Conflict

pytestmark = pytest.mark.process
PLANTED = "planted"
SETTINGS = """\
[model]
base_url = "https://user:planted-in-an-address@models.example/v1"
[watchdog]
webhook = "https://hooks.example/planted-in-a-webhook"
"""
TASK = (
    *("--category", "catch-up-summary", "--channel", "general", "--prompt", "Keep planted-in-a-prompt."),
    *("--every", "1s", "--catch-up", "run-all"),
)


@pytest.fixture
def constellation(home: Home) -> Iterator[Constellation]:
    made = Constellation(home, os.environ | {"SERVICE_TOKEN": "planted-in-the-environment"})
    home.config.write_text(SETTINGS)
    home.environment.write_text("OPENAI_API_KEY=planted-in-the-key-file\n")
    home.environment.chmod(0o600)
    yield made
    made.stop()


def test_a_restart_that_could_not_end_well_is_refused_and_everything_goes_on(home: Home):
    environ = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    constellation = Constellation(home, environ)
    home.config.write_text('[model]\nname = "openai:gpt-5"\nbase_url = "http://127.0.0.1:9/v1"\n')
    home.environment.write_text("OPENAI_API_KEY=planted-in-the-key-file\n")
    home.environment.chmod(0o600)
    try:
        constellation.command("turnkeeper", "up", "1")
        pid = process_of(home, AGENT_RUNTIME)
        home.environment.unlink()
        for argv in (("restart",), ("up", "2")):
            done = constellation.attempt("turnkeeper", *argv)
            assert done.returncode == 1, argv
            assert "OPENAI_API_KEY" in done.stderr
            assert "Traceback" not in done.stderr
            assert process_of(home, AGENT_RUNTIME) == pid, f"{argv} leaves it running"
        assert home.workers.read_text().strip() == "1"
        constellation.command("turnkeeper", "status")
        home.environment.write_text("OPENAI_API_KEY=planted-in-the-key-file\n")
        home.environment.chmod(0o600)
        done = constellation.attempt("turnkeeper", "restart", "--reason", "é" * 20_000)
        assert (done.returncode, "8192 bytes" in done.stderr) == (EXIT_USAGE, True), "the request would not be readable"
        assert process_of(home, AGENT_RUNTIME) == pid
        constellation.command("turnkeeper", "restart", "--reason", "a new key")
        assert process_of(home, AGENT_RUNTIME) != pid
        told = constellation.attempt("turnkeeper", "events").stdout
        assert "the author used turnkeeper restart, by turnkeeper/cli: a new key." in " ".join(told.split())
    finally:
        constellation.stop()


def test_a_daemon_that_up_stops_is_no_crash_even_if_the_watchdog_looks_just_before(home: Home):
    constellation = Constellation(home)
    try:
        constellation.command("turnkeeper", "up")
        pid = process_of(home, AGENT_RUNTIME)
        up_down.prepare(home, load_settings(home))
        constellation.command("turnkeeper", "watchdog", "tick")
        assert up_down.stop_some(home, {AGENT_RUNTIME.name}, os.environ) == {AGENT_RUNTIME.name: "stopped"}
        assert up_down.bring_up(home, os.environ)[AGENT_RUNTIME.name]
        assert process_of(home, AGENT_RUNTIME) not in {pid, None}
        assert not os.path.lexists(markers.FAILED_REVIVE.at(home, process=AGENT_RUNTIME.name))
        assert not any(drafts(home)), "agent0 is told of no crash"
        assert "ended unplanned" not in constellation.attempt("turnkeeper", "events").stdout
    finally:
        constellation.stop()


GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    topic: str

graph = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node")
"""


def test_a_new_graph_on_a_running_home_is_noticed_loaded_on_request_and_moves_no_task_unasked(
    home: Home, tmp_path: Path
):
    (tmp_path / "garden.py").write_text(GRAPH)
    adopt = ("init", "--graph", f"{tmp_path / 'garden.py'}:graph")
    constellation = Constellation(home)
    try:
        constellation.command("turnkeeper", "up")
        constellation.create("digest", "--every", "1d")
        pids = [process_of(home, daemon) for daemon in DAEMONS]
        done = constellation.attempt("turnkeeper", *adopt)
        assert (done.returncode, home.config.exists()) == (EXIT_CONFLICT, False), done.stderr
        assert "so do the tasks digest; give them the new graph: --tasks move; or leave them" in done.stderr
        said = constellation.attempt("turnkeeper", *adopt, "--tasks", "move").stderr
        assert "then: turnkeeper up --restart" in said
        for argv in (("status",), ("doctor",), ("up",)):
            done = constellation.attempt("turnkeeper", *argv)
            said = " ".join(f"{done.stdout} {done.stderr}".split())
            assert (done.returncode, "agents.agent0.graph" in said, "up --restart" in said) == (0, True, True), said
        assert [process_of(home, daemon) for daemon in DAEMONS] == pids, "nothing is restarted unasked"
        done = constellation.attempt("turnkeeper", "up", "--restart")
        assert "older settings" not in done.stderr, "and says nothing of what is loaded now"
        assert [process_of(home, daemon) == pid for daemon, pid in zip(DAEMONS, pids, strict=True)] == [False, True]
        assert "older settings" not in constellation.attempt("turnkeeper", "status").stderr
    finally:
        constellation.stop()


def test_an_edited_file_of_a_graph_is_named_until_the_runtime_has_loaded_it(home: Home, tmp_path: Path):
    (tmp_path / "garden.py").write_text(f"import beds\n{GRAPH}")
    (tmp_path / "beds.py").write_text("PLANTS = 1\n")
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"agent": "./garden.py:graph"}}')
    constellation = Constellation(home)

    def told(*argv: str) -> str:
        done = constellation.attempt("turnkeeper", *argv)
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        assert done.returncode == 0, said
        return said

    try:
        constellation.command("turnkeeper", "init", "--graph", f"{tmp_path / 'langgraph.json'}:agent")
        constellation.command("turnkeeper", "up")
        (tmp_path / "garden.py").touch()
        (tmp_path / "test_beds.py").write_text("was not loaded")
        assert "earlier code" not in told("status")
        for name in ("beds.py", "langgraph.json"):
            with (tmp_path / name).open("a") as file:
                file.write("\n")
        for argv in (("status",), ("doctor",), ("up",), ("graph", "check")):
            said = told(*argv)
            assert f"still runs the earlier code of {tmp_path / 'beds.py'}, {tmp_path / 'langgraph.json'}" in said
            assert "run: turnkeeper restart" in said
        pid = process_of(home, AGENT_RUNTIME)
        assert "earlier code" not in told("up", "--restart").partition("agent-runtime is up")[2]
        assert process_of(home, AGENT_RUNTIME) != pid
        (tmp_path / "beds.py").unlink()
        assert f"earlier code of {tmp_path / 'beds.py'};" in told("status")
    finally:
        constellation.stop()


def settle(constellation: Constellation) -> None:
    constellation.command("task-runner", "disable", "digest")
    constellation.until_settled("digest")
    assert constellation.violations() == []


def told_secrets(home: Home) -> list[Path]:
    """Every file of the home that holds something planted: messages, settings and keys apart, where it belongs."""
    # The watchdog's orders hold the way to reach the author, which must work while the settings are broken.
    own = {home.config, home.environment, markers.WANTED.at(home)}
    files = [path for path in home.root.rglob("*") if path.is_file() and path not in own]
    said = [path for path in files if PLANTED.encode() in path.read_bytes()]
    return [path for path in said if ".db" not in path.name and home.inbox("agent0") not in path.parents]


def test_killed_while_tasks_fire_put_back_from_a_backup_and_moved(constellation: Constellation):
    constellation.command("turnkeeper", "up")
    constellation.command("task-runner", "create", "digest", *TASK)
    constellation.await_outcome("digest", "succeeded", 1)
    killed = constellation.kill(AGENT_RUNTIME)
    target = constellation.home.root.parent / "backup"
    constellation.command("turnkeeper", "backup", str(target))
    constellation.await_outcome("digest", "succeeded", len(constellation.fires("digest")) + 1)
    status = constellation.command("turnkeeper", "status", "-o", "json")
    assert f'"pid": {killed}' not in status
    assert status.count('"state": "running"') == 3
    (path,) = constellation.until("the handoff", lambda: list(markers.found(constellation.home, markers.ARCHIVE)))
    handoff = handoff_text(constellation.home, "water the beds")
    assert "armed tasks: digest (every 1s, " in handoff
    assert handoff.endswith("notes:\nwater the beds")
    settle(constellation)
    assert PLANTED not in status + handoff + path.read_text()
    assert told_secrets(constellation.home) == []

    with pytest.raises(Conflict):
        restore(constellation.home, target, constellation.now())
    constellation.stop()
    constellation.command("turnkeeper", "restore", str(target))
    constellation.command("turnkeeper", "up", "--takeover")
    constellation.await_outcome("digest", "succeeded", len(constellation.fires("digest")) + 1)
    settle(constellation)

    constellation.stop()
    moved = Constellation(Home(root=constellation.home.root.rename(target.with_name("moved"))))
    moved.start()
    moved.command("task-runner", "enable", "digest")
    moved.command("task-runner", "run", "digest", "--wait")
    moved.stop()
