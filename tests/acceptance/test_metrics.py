"""What both daemons tell of themselves to programs that watch machines."""

import http.client
import socket
from contextlib import closing

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation, Daemon

pytestmark = pytest.mark.process

ASKS = ("--prompt", "remember: the pump was replaced")


def get(constellation: Constellation, daemon: Daemon, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(constellation.home.http(daemon.name)))
    with closing(connection):
        connection.request("GET", path, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def samples(constellation: Constellation, daemon: Daemon) -> dict[tuple[str, ...], float]:
    status, text = get(constellation, daemon, "/metrics")
    assert status == 200
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(one.name.removeprefix("turnkeeper_"), *one.labels.values()): one.value for one in found}


def test_fires_turns_and_approvals_are_counted_and_nobody_is_named(constellation: Constellation) -> None:
    constellation.create("garden-digest", "--every", "1s", "--max-fires", "2", "--prompt", "Summarise the garden.")
    constellation.until_outcome("garden-digest", "succeeded", 2)
    constellation.create("errand", "--in", "1s", *ASKS)
    constellation.until_outcome("errand", "interrupted")

    runner, runtime = samples(constellation, TASK_RUNNER), samples(constellation, AGENT_RUNTIME)
    assert (runner["fires_total", "succeeded"], runner["fires_committed_total", "scheduled"]) == (2, 3)
    assert runner["fire_lateness_seconds_count", "false"] == 3
    assert (runner["fires_open", "interrupted"], runner["tasks",], runner["runtime_connected",]) == (1, 2, 1)
    assert (runtime["turns_total", "succeeded"], runtime["turns_open", "interrupted"]) == (2, 1)
    assert (runtime["turn_duration_seconds_count",], runtime["fires_received_total", "true"]) == (3, 3)
    assert (runtime["approvals_pending",], runtime["approvals_asked_total",]) == (1, 1)
    assert all(found["scrape_complete",] for found in (runner, runtime))
    for daemon in (TASK_RUNNER, AGENT_RUNTIME):
        text = get(constellation, daemon, "/metrics")[1]
        assert not {"garden", "errand", "pump", "general"} & set(text.replace('"', "-").split("-")), daemon
        assert get(constellation, daemon, "/healthz") == get(constellation, daemon, "/readyz") == (200, "ok\n")

    (pending,) = constellation.ask("agent-runtime", "approvals", "list")
    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    constellation.until_outcome("errand", "succeeded")
    runtime = samples(constellation, AGENT_RUNTIME)
    assert (runtime["approvals_pending",], runtime["approvals_decided_total", "approve"]) == (0, 1)
    assert runtime["approval_wait_seconds_count",] == 1
    assert runtime["turns_total", "succeeded"] == 3

    constellation.kill(AGENT_RUNTIME)
    constellation.until("the runner to know", lambda: get(constellation, TASK_RUNNER, "/readyz")[0] == 503)
    assert get(constellation, TASK_RUNNER, "/readyz")[1] == "agent-runtime is not connected\n"
    assert get(constellation, TASK_RUNNER, "/healthz")[0] == 200
