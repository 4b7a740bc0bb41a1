"""What a daemon counts, and how it answers those who ask: over HTTP, on its own socket and on the machine's."""

import asyncio
import contextlib
import http.client
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from turnkeeper.bus.event_log import EventLog, count_events, read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import MachineTrouble
from turnkeeper.rpc.metrics import MOST_AT_ONCE, Counter, Exporter, Gauge, Histogram, Source

OPEN_METRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


class Bench:
    """An exporter over three metrics, and what stands in for a daemon around it."""

    def __init__(self, home: Home, port: int = 0) -> None:
        self.home, self.log = home, EventLog(home.logs, "task-runner", SystemClock())
        self.fires = Counter("turnkeeper_fires", "fires", "outcome")
        self.late = Histogram("turnkeeper_late_seconds", "how late", steps=(0.1, 1.0))
        self.trouble, self.broken = "", False
        known = Gauge("turnkeeper_trouble", "a gauge that needs no store")
        source = Source(
            [self.fires, self.late], self.read, lambda: self.trouble, lambda: [known.of(bool(self.trouble))]
        )
        self.exporter = Exporter(source, self.log, path=home.http("task-runner"), port=port)

    async def read(self) -> Sequence[Any]:
        if self.broken:
            raise MachineTrouble("the disk is full")
        return [Gauge("turnkeeper_depth", "what waits").of(3)]

    async def get(self, path: str, *, port: int = 0, **headers: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(self._get, path, port, headers)

    def _get(self, path: str, port: int, headers: dict[str, str]) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        if not port:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(self.home.http("task-runner")))
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        with contextlib.closing(connection):
            return answer.status, answer.headers["Content-Type"], answer.read().decode()

    async def samples(self) -> dict[tuple[str, ...], float]:
        status, _, text = await self.get("/metrics", **OPEN_METRICS)
        assert status == 200
        found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(one.name, *one.labels.values()): one.value for one in found}


@pytest.fixture
async def bench(home: Home) -> AsyncIterator[Bench]:
    made = Bench(home)
    made.exporter.keep()
    yield made
    made.exporter.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening_at(port: int) -> list[str]:
    """The addresses, as Linux writes them, on which this machine listens at a port."""
    found = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [fields[1].split(":") for fields in found if fields[3] == "0A"]
    return [address for address, at in listening if int(at, 16) == port]


async def test_what_was_counted_is_open_metrics_on_a_socket_of_the_owner_alone(bench: Bench) -> None:
    bench.fires.add("succeeded")
    bench.fires.add("succeeded", by=2)
    bench.fires.add("failed")
    for late_s in (0.05, 0.1, 0.5, 20.0):
        bench.late.add(late_s)
    found = await bench.samples()
    assert found["turnkeeper_fires_total", "succeeded"] == 3
    assert found["turnkeeper_fires_total", "failed"] == 1
    assert [found["turnkeeper_late_seconds_bucket", end] for end in ("0.1", "1.0", "+Inf")] == [2, 3, 4]
    assert found["turnkeeper_late_seconds_count",] == 4
    assert found["turnkeeper_late_seconds_sum",] == pytest.approx(20.65)
    assert found["turnkeeper_depth",] == 3
    assert found["turnkeeper_scrape_complete",] == 1
    assert found["process_open_fds",] > 0
    assert stat.S_IMODE(bench.home.http("task-runner").stat().st_mode) == 0o600
    status, kind, text = await bench.get("/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain"), "for scrapers that know no OpenMetrics"
    assert any(family.name == "turnkeeper_fires" for family in plain_families(text))


async def test_events_are_counted_whether_or_not_they_can_be_written(bench: Bench) -> None:
    count_events(bench.log, {"fire.settled": lambda fields: bench.fires.add(fields["outcome"])})
    bench.log.emit("fire.settled", outcome="succeeded")
    bench.home.logs.chmod(0o500)
    bench.log.close()
    bench.log.emit_all([("fire.settled", {"outcome": "failed"}), ("fire.sent", {})])
    bench.home.logs.chmod(0o700)
    found = await bench.samples()
    assert (found["turnkeeper_fires_total", "succeeded"], found["turnkeeper_fires_total", "failed"]) == (1, 1)


async def test_health_is_of_the_event_loop_and_readiness_of_the_work(bench: Bench) -> None:
    assert (await bench.get("/healthz"))[0::2] == (200, "ok\n")
    assert (await bench.get("/readyz"))[0::2] == (200, "ok\n")
    bench.trouble = "the disk is full"
    assert (await bench.get("/healthz"))[0] == 200
    assert (await bench.get("/readyz"))[0::2] == (503, "the disk is full\n")
    assert (await bench.get("/"))[0] == 404


async def test_a_store_that_cannot_be_read_costs_its_gauges_alone(bench: Bench) -> None:
    bench.fires.add("succeeded")
    bench.broken, bench.trouble = True, "the disk is full"
    found = await bench.samples()
    assert found["turnkeeper_fires_total", "succeeded"] == 1
    assert ("turnkeeper_depth",) not in found
    assert (found["turnkeeper_scrape_complete",], found["turnkeeper_trouble",]) == (0, 1)


async def test_a_socket_that_was_removed_is_put_back_and_another_ones_is_left(bench: Bench) -> None:
    path = bench.home.http("task-runner")
    path.unlink()
    bench.exporter.keep()
    assert (await bench.get("/healthz"))[0] == 200
    path.unlink()
    path.write_text("another's")
    bench.exporter.close()
    assert path.read_text() == "another's"


async def test_on_tcp_it_answers_this_machine_alone_and_no_page_of_the_web(home: Home) -> None:
    port = free_port()
    bench = Bench(home, port)
    bench.exporter.keep()
    assert listening_at(port) == ["0100007F"], "on 127.0.0.1"
    assert (await bench.get("/metrics", port=port))[0] == 200
    assert (await bench.get("/metrics", port=port, Host=f"localhost:{port}"))[0] == 200
    for host in ("rebound.example", f"rebound.example:{port}", f"127.0.0.1.example:{port}"):
        assert (await bench.get("/metrics", port=port, Host=host))[0] == 403, host
    assert (await bench.get("/metrics", Host="anything"))[0] == 200, "a Unix socket is reached by no page"
    bench.exporter.close()


async def test_a_port_that_is_taken_is_told_once_and_used_when_it_is_free(home: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        bench = Bench(home, port)
        bench.exporter.keep()
        bench.exporter.keep()
        (told,) = read_events(home.logs)
        assert (told["event"], told["where"]) == ("metrics.unserved", f"127.0.0.1:{port}")
        assert (await bench.get("/healthz"))[0] == 200, "the socket is served all the same"
    bench.exporter.keep()
    assert (await bench.get("/healthz", port=port))[0] == 200
    bench.exporter.close()


async def test_who_connects_and_says_nothing_holds_up_nobody_else(bench: Bench) -> None:
    silent = await connected(bench, MOST_AT_ONCE - 1)
    assert (await bench.get("/healthz"))[0] == 200
    more = await connected(bench, 3)
    await until(lambda: refused(more[-1]))
    for each in (*silent, *more):
        each.close()


async def test_connections_that_send_nothing_are_closed_and_make_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.rpc.metrics._Handler.timeout", 0.2)
    silent = await connected(bench, MOST_AT_ONCE)
    await until(lambda: all(refused(each) for each in silent))
    assert (await bench.get("/healthz"))[0] == 200
    for each in silent:
        each.close()


async def connected(bench: Bench, count: int) -> list[socket.socket]:
    made = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for each in made:
        await asyncio.to_thread(each.connect, str(bench.home.http("task-runner")))
        each.setblocking(False)
    return made


def refused(connection: socket.socket) -> bool:
    """Whether it was closed from the other side."""
    with contextlib.suppress(BlockingIOError):
        return connection.recv(1) == b""
    return False


async def until(probe: Callable[[], bool]) -> None:
    while not probe():
        await SystemClock().sleep(0.01)


async def test_without_descriptors_a_connection_waits_and_the_loop_does_not_spin(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def take(_server: object) -> None:
        taken.append(1)
        raise OSError(24, os.strerror(24))

    with monkeypatch.context() as without:
        without.setattr("turnkeeper.rpc.metrics._Server.take", take)
        asked = asyncio.create_task(bench.get("/healthz"))
        await until(lambda: bool(taken))
        await SystemClock().sleep(0.1)
        assert len(taken) == 1
    assert (await asked)[0] == 200
