"""The page's server as a process of the constellation: started, looked after and stopped as the daemons are."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.constellation import Constellation
from tests.support.program import WEB
from tests.support.web import Web, free_port, settings
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, SUPERVISOR, TASK_RUNNER, process_of

pytestmark = pytest.mark.process


@pytest.fixture
def constellation(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    yield made
    made.stop()


def test_up_starts_it_where_it_is_enabled_a_death_is_repaired_and_down_ends_it(constellation: Constellation) -> None:
    home, port = constellation.home, free_port()
    home.config.write_text(f"[web]\nport = {port}\n")
    constellation.command("turnkeeper", "up")
    assert process_of(home, WEB) is None, "off by default"
    running = [process_of(home, daemon) for daemon in (SUPERVISOR, AGENT_RUNTIME, TASK_RUNNER)]
    assert [process.net_connections("inet") for process in running if process] == [[], [], []], "nothing listens"
    assert not (home.keys / "web.json").exists()
    assert constellation.attempt("turnkeeper", "web", "open", "--print").returncode == 5

    home.config.write_text(settings(port))
    assert "web is up" in constellation.attempt("turnkeeper", "up").stderr
    first = process_of(home, WEB)
    assert first is not None
    rows = {row["process"]: row for row in constellation.ask("turnkeeper", "status")}
    assert (rows["web"]["state"], rows["web"]["pid"]) == ("running", first.pid)
    assert Web(home, port).ask("/lg/ok").status == 200
    address = constellation.command("turnkeeper", "web", "open", "--print").strip()
    assert address.startswith(f"http://turnkeeper.localhost:{port}/#token=")
    constellation.command("turnkeeper", "doctor")

    os.kill(first.pid, signal.SIGKILL)
    constellation.until("web to be started again", lambda: (found := process_of(home, WEB)) and found.pid != first.pid)
    constellation.until("web to answer", lambda: Web(home, port).reachable())
    assert Web(home, port).post("/ui/login", {"token": address.partition("=")[2]}).status == 403, (
        "made for another process"
    )
    home.config.write_text(f"[web]\nport = {port}\n")
    constellation.command("turnkeeper", "up")
    assert not Web(home, port).reachable(), "up ends what is enabled no more"

    home.config.write_text(settings(port))
    constellation.command("turnkeeper", "up")
    assert "web stopped" in constellation.attempt("turnkeeper", "down").stderr
    assert not Web(home, port).reachable()


def test_a_port_that_is_taken_is_said_and_stops_no_daemon(constellation: Constellation) -> None:
    with Web.listening() as port:
        constellation.home.config.write_text(settings(port))
        done = constellation.attempt("turnkeeper", "up")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert constellation.ask("task-runner", "list") == []
