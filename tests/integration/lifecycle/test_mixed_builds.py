"""`up`, `status` and `doctor` name processes of another build or with older settings; `up --restart` restarts them."""

import json
from pathlib import Path

import pytest

from tests.support.constellation import Constellation
from tests.support.program import WEB
from tests.support.web import Web, free_port, settings
from turnkeeper.config.build import build
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import DAEMONS, SUPERVISOR, process_of
from turnkeeper.errors import EXIT_CONFLICT

pytestmark = pytest.mark.process
ALL = (*DAEMONS, SUPERVISOR)


def test_each_process_of_another_build_is_named_and_restarted_on_request(home: Home) -> None:
    constellation = Constellation(home)
    try:
        constellation.command("turnkeeper", "up")
        for argv in (("status",), ("doctor",), ("up",)):
            assert " build" not in said(constellation, *argv).replace("builds and", ""), "all run this one"
        rows = constellation.ask("turnkeeper", "status")
        assert {row["process"]: row["build"] for row in rows} == dict.fromkeys((one.name for one in ALL), build())
        before = {daemon.name: process_of(home, daemon) for daemon in ALL}

        (home.run / "agent-runtime.started").unlink()  # as builds did that wrote none
        other_build(home.run / "task-runner.started")
        other_build(home.run / "supervisor.started")
        for argv in (("status",), ("doctor",), ("up",)):
            told = said(constellation, *argv)
            assert f"agent-runtime: runs a build older than {build()}" in told
            for name in ("task-runner", "supervisor"):
                assert f"{name}: runs build 0.0.9+gabc, and this is {build()}" in told, argv
            assert told.count("run: turnkeeper up --restart") == len(ALL), argv
        assert {daemon.name: process_of(home, daemon) for daemon in ALL} == before, "nothing is restarted unasked"

        assert " build" not in said(constellation, "up", "--restart").replace("with this build", "")
        now = {daemon.name: process_of(home, daemon) for daemon in ALL}
        assert [name for name in before if before[name] == now[name]] == []
        assert " build" not in said(constellation, "status")
    finally:
        constellation.stop()


def test_up_restart_stops_nothing_if_a_process_could_not_listen_again(home: Home) -> None:
    constellation = Constellation(home)
    port = free_port()
    home.config.write_text(settings(port))
    try:
        constellation.command("turnkeeper", "up")
        everything = (*ALL, WEB)
        before = {daemon.name: process_of(home, daemon) for daemon in everything}
        with Web.listening() as taken:
            home.config.write_text(settings(taken))
            done = constellation.attempt("turnkeeper", "up", "--restart")
            assert (done.returncode, "web keeps running as it is" in done.stderr) == (EXIT_CONFLICT, True), done.stderr
            assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in done.stderr
        assert {daemon.name: process_of(home, daemon) for daemon in everything} == before
        home.config.write_text(settings(port, 'langgraph_channel = "other"\n'))
        constellation.command("turnkeeper", "up", "--restart")
        assert process_of(home, WEB) != before["web"], "its own port does not keep it from a restart"
    finally:
        constellation.stop()


def other_build(path: Path) -> None:
    """Let a process have written another build."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"build": "0.0.9+gabc"}))


def said(constellation: Constellation, *argv: str) -> str:
    """Return the output of a command on one line."""
    done = constellation.attempt("turnkeeper", *argv)
    assert done.returncode == 0, done.stderr
    return " ".join(f"{done.stdout} {done.stderr}".split())
