"""What both daemons tell of themselves to programs that watch machines."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation, Daemon

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
NAME = re.compile(r"turnkeeper_[a-z_]+")
PARTS = re.compile(r"_(bucket|count|sum)$")
ASKS = ("--prompt", "remember: the pump was replaced")


OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def get(constellation: Constellation, daemon: Daemon, path: str, kind: str = OPEN_METRICS) -> tuple[int, str]:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(constellation.home.http(daemon.name)))
    with closing(connection):
        connection.request("GET", path, headers={"Accept": kind})
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

    runner, runtime = samples(constellation, TASK_RUNNER), samples(constellation.at_work, AGENT_RUNTIME)
    assert (runner["fires_total", "succeeded"], runner["fires_committed_total", "scheduled"]) == (2, 3)
    assert runner["fire_lateness_seconds_count", "false"] == 3
    assert (runner["fires_open", "interrupted"], runner["tasks",], runner["runtime_connected",]) == (1, 2, 1)
    assert (runtime["turns_total", "succeeded"], runtime["turns_open", "interrupted"]) == (2, 1)
    shared = len(constellation.homes) > 1
    received = 0 if shared else 3  # of a shared store nobody receives one: it lies in a table
    assert (runtime["turn_duration_seconds_count",], runtime["fires_received_total", "true"]) == (3, received)
    assert (runtime["approvals_pending",], runtime["approvals_asked_total",]) == (1, 1)
    assert all(found["scrape_complete",] for found in (runner, runtime))
    for daemon in (TASK_RUNNER, AGENT_RUNTIME):
        text = get(constellation, daemon, "/metrics")[1]
        assert not {"garden", "errand", "pump", "general"} & set(text.replace('"', "-").split("-")), daemon
        assert get(constellation, daemon, "/healthz") == get(constellation, daemon, "/readyz") == (200, "ok\n")
    files = {"turnkeeper_store_bytes"} if shared else set[str]()  # such a store is none
    assert named_in(*(name for name, *_ in [*runner, *runtime])) == documented() - files

    (pending,) = constellation.ask("agent-runtime", "approvals", "list")
    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    constellation.until_outcome("errand", "succeeded")
    runtime = samples(constellation, AGENT_RUNTIME)  # which was asked to decide
    assert (runtime["approvals_pending",], runtime["approvals_decided_total", "approve"]) == (0, 1)
    assert runtime["approval_wait_seconds_count",] == 1
    assert samples(constellation.at_work, AGENT_RUNTIME)["turns_total", "succeeded"] == 3

    constellation.kill(AGENT_RUNTIME)
    constellation.until("the runner to know", lambda: get(constellation, TASK_RUNNER, "/readyz")[0] == 503)
    assert get(constellation, TASK_RUNNER, "/readyz")[1] == "agent-runtime is not connected\n"
    assert get(constellation, TASK_RUNNER, "/healthz")[0] == 200
    constellation.start(AGENT_RUNTIME)
    assert samples(constellation, AGENT_RUNTIME)["restarts_total", "agent-runtime"] == 1


def named_in(*names: str) -> set[str]:
    """The metrics behind the names of samples; those of the process are every client's."""
    return {PARTS.sub("", f"turnkeeper_{name}") for name in names if not name.startswith("process_")}


def documented() -> set[str]:
    return set(NAME.findall((ROOT / "docs" / "reference" / "metrics.md").read_text()))


def test_the_examples_ask_for_metrics_that_there_are() -> None:
    asked = {PARTS.sub("", name) for path in EXAMPLES.iterdir() for name in NAME.findall(path.read_text())}
    assert asked
    assert asked <= documented()


class Prometheus:
    """A real one, on a port of its own."""

    def __init__(self, folder: Path, ports: dict[int, int]) -> None:
        shutil.copytree(EXAMPLES, folder)
        config = (folder / "prometheus.yml").read_text().replace("15s", "1s")
        for usual, used in ports.items():
            config = config.replace(f":{usual}", f":{used}")
        (folder / "prometheus.yml").write_text(config)
        self.port, (self.folder, self.log) = free_port(), (folder, (folder / "log").open("w"))
        at, data = f"--web.listen-address=127.0.0.1:{self.port}", f"--storage.tsdb.path={folder}/data"
        argv = ["prometheus", f"--config.file={folder}/prometheus.yml", at, data]
        self.process = subprocess.Popen(argv, stdout=self.log, stderr=self.log)

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.load(answer)["data"]

    def value(self, query: str) -> float | None:
        try:
            found = self.ask("/api/v1/query", query=query)["result"]
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def watched(stopped: Constellation, tmp_path: Path) -> Iterator[tuple[Constellation, Prometheus]]:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("Prometheus is not installed: make test-services")
    ports = {9464: free_port(), 9465: free_port()}
    config = stopped.home.config.read_text()
    for name, port in zip(("task_runner_port", "agent_runtime_port"), ports.values(), strict=True):
        assert f"# {name} = 0" in config
        config = config.replace(f"# {name} = 0", f"{name} = {port}")
    stopped.home.config.write_text(config)
    stopped.start()
    made = Prometheus(tmp_path / "prometheus", ports)
    yield stopped, made
    made.stop()


@pytest.mark.sqlite_only("what Prometheus reads is the text of each daemon, whatever its store")
@pytest.mark.service
def test_prometheus_scrapes_and_its_rules_and_the_dashboard_work(watched: tuple[Constellation, Prometheus]) -> None:
    constellation, prometheus = watched
    constellation.create("digest", "--every", "1s", "--max-fires", "1")
    constellation.until_outcome("digest", "succeeded")
    constellation.until("both to be scraped", lambda: prometheus.value('sum(up{job="turnkeeper"})') == 2)
    counted = 'turnkeeper_fires_total{daemon="task-runner",outcome="succeeded"}'
    constellation.until("the fire to be counted", lambda: prometheus.value(counted) == 1)
    rules = [rule for group in prometheus.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert {(rule["health"], rule["state"]) for rule in rules} <= {("ok", "inactive"), ("unknown", "inactive")}
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    for expr in [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]:
        prometheus.ask("/api/v1/query", query=expr.replace("$__rate_interval", "1m"))  # raises where it cannot be read
    for daemon in (TASK_RUNNER, AGENT_RUNTIME):
        text = get(constellation, daemon, "/metrics", kind="text/plain")[1]
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    for what in (
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "config", "prometheus.yml"],
    ):
        done = subprocess.run(["promtool", *what], cwd=EXAMPLES, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
