"""Processes of another build than the command's are named by `up`, `status` and `doctor`, and restarted on request."""

import json
from pathlib import Path

import pytest

from tests.support.constellation import Constellation
from turnkeeper.config.build import build
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import DAEMONS, SUPERVISOR, process_of

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


def other_build(path: Path) -> None:
    """Let a process have written another build."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"build": "0.0.9+gabc"}))


def said(constellation: Constellation, *argv: str) -> str:
    """Return the output of a command on one line."""
    done = constellation.attempt("turnkeeper", *argv)
    assert done.returncode == 0, done.stderr
    return " ".join(f"{done.stdout} {done.stderr}".split())
