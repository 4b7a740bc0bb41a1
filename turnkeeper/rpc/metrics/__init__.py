"""Metrics of a daemon: plain numbers while the daemon runs.

They are converted for Prometheus only when it scrapes them. Counting takes no lock and imports nothing: CPython does
not switch threads between the read of a count and its write. `prometheus_client` is imported at the first scrape.

A daemon answers `/metrics`, `/healthz` and `/readyz` over HTTP on its own Unix socket with mode 0600. If its settings
name a port, it also answers on 127.0.0.1. Each scrape runs in a thread and reads the stores on the daemon's loop.
"""

import asyncio
import socket
import socketserver
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from turnkeeper.bus.event_log import EventLog
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.locking import identity_of

# Seconds, in steps of about a factor of three: from the lateness of a fire to a turn of an hour.
STEPS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
# Seconds from an immediate answer to a week, in round units.
WAITS_S = (10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86_400.0, 3 * 86_400.0, 7 * 86_400.0)
MOST_AT_ONCE = 8  # concurrent scrapes; the server refuses more
_ANSWER_S = 5.0
_ALIVE_S = 2.0
_MODE = 0o600
_REST_S = 1.0
_IS_TCP = "turnkeeper.tcp"
_HOSTS = frozenset({"127.0.0.1", "localhost"})

Labels = tuple[str, ...]
OF_ALL = "; of the whole store: machines that share one report the same value, so take max, not sum"


class Counter:
    """Counts that only rise. With a label, there is one count for each value of the label. A label has few values."""

    def __init__(self, name: str, says: str, *label: str, of: Iterable[str] = ()) -> None:
        """Take the name without `_total`. The counts for the label values in `of` are exported from the start, as 0."""
        self.name, self.says, self.labels = name, says, label
        self._counts = defaultdict[Labels, float](int, {(value,): 0 for value in of})

    def add(self, *values: str, by: float = 1) -> None:
        """Increase the count for these label values."""
        self._counts[values] += by

    def family(self) -> Any:
        return _family("CounterMetricFamily", self.name, self.says, self.labels, self._counts)


class Histogram:
    """Counts of the values up to each bucket's bound, and the values' sum. With a label, there is one set per value."""

    def __init__(
        self, name: str, says: str, *label: str, of: Iterable[str] = (), steps: Sequence[float] = STEPS_S
    ) -> None:
        self.name, self.says, self.labels, self._steps = name, says, label, tuple(steps)
        self._counts: dict[Labels, list[int]] = {
            values: [0] * (len(steps) + 1) for values in ([(value,) for value in of] if label else [()])
        }
        self._sums = dict.fromkeys(self._counts, 0.0)

    def add(self, value: float, *values: str) -> None:
        """Record one value."""
        self._counts[values][bisect_left(self._steps, value)] += 1
        self._sums[values] += value

    def family(self) -> Any:
        from prometheus_client import core  # noqa: PLC0415  a quarter of a second, at the first scrape

        made = core.HistogramMetricFamily(self.name, self.says, labels=self.labels)
        ends = [*(str(step) for step in self._steps), "+Inf"]
        for values, counts in self._counts.items():
            total, buckets = 0, []
            for end, count in zip(ends, list(counts), strict=True):
                total += count
                buckets.append((end, total))
            made.add_metric(values, buckets, self._sums[values])
        return made


class Gauge:
    """A quantity for some label values, measured at each scrape."""

    def __init__(self, name: str, says: str, *labels: str) -> None:
        self.name, self.says, self.labels = name, says, labels

    def of(self, found: Mapping[Labels, float] | float) -> Any:
        """Return the gauge with measured values as a `prometheus_client` metric."""
        values: Mapping[Labels, float] = found if isinstance(found, Mapping) else {(): found}
        return _family("GaugeMetricFamily", self.name, self.says, self.labels, values)


_COMPLETE = Gauge("turnkeeper_scrape_complete", "1 if the stores could be read for this scrape, else 0")


def _family(kind: str, name: str, says: str, labels: Labels, found: Mapping[Labels, float]) -> Any:
    from prometheus_client import core  # noqa: PLC0415  a quarter of a second, at the first scrape

    made = getattr(core, kind)(name, says, labels=labels)
    for values, number in list(found.items()) or ([] if labels else [((), 0)]):
        made.add_metric(values, number)
    return made


def bytes_of(*files: Path) -> int:
    """Return the size of SQLite files on disk, including their write-ahead logs."""
    found = 0
    for path in (each for file in files for each in (file, file.with_name(f"{file.name}-wal"))):
        with suppress(OSError):
            found += path.stat().st_size
    return found


def restarts(folder: Path, process: str) -> Counter:
    """Record a start of a process in a file in `folder`. Return a counter of its restarts."""
    made = Counter(
        "turnkeeper_restarts", "how often the daemon was started again in this home", "process", of=(process,)
    )
    path, earlier = folder / f"{process}.starts", 0
    with suppress(OSError, ValueError):
        earlier = int(path.read_text(encoding="ascii")[:20])
    with suppress(OSError):  # a lost count does no harm
        path.write_text(f"{earlier + 1}\n", encoding="ascii")
    made.add(process, by=earlier)
    return made


class Source:
    """The data that a daemon exports: its counters, the numbers from its stores, and its readiness."""

    def __init__(
        self,
        counted: Sequence[Counter | Histogram],
        read: Callable[[], Awaitable[Sequence[Any]]],
        unready: Callable[[], str],
        known: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """Take the functions that return families and readiness.

        `read` returns families from the stores, on the daemon's event loop; `known` returns those that need no store.
        `unready` returns why the daemon is not ready, or "".
        """
        self.counted, self._read, self._unready, self._known = counted, read, unready, known
        self._loop = asyncio.get_running_loop()
        self._registry: Any = None

    def collect(self) -> Iterator[Any]:
        """Yield every family. If the stores do not answer in time, `turnkeeper_scrape_complete` is 0."""
        for each in self.counted:
            yield each.family()
        read: Sequence[Any] = ()
        with suppress(TurnkeeperError, TimeoutError, RuntimeError):  # a store is in trouble or already closed
            read = self.ask(self._read(), _ANSWER_S)
        yield from self._known()
        yield from read
        yield _COMPLETE.of(float(bool(read)))

    def ask(self, work: Any, patience_s: float) -> Any:
        """Run `work` on the daemon's event loop and return its result. Raises TimeoutError."""
        asked: Future[Any] = asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)
        try:
            return asked.result(patience_s)
        finally:
            asked.cancel()

    def unready(self) -> str:
        """Return why the daemon cannot work at the moment. Empty if it can."""
        return self._unready()

    def registry(self) -> Any:
        """Return the `prometheus_client` registry; the first scrape creates it."""
        if self._registry is None:
            from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
            registry.register(self)
            self._registry = registry
        return self._registry


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def _nothing() -> None:
    pass


def application(source: Source) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI application of a daemon: `/metrics`, `/healthz` and `/readyz`."""

    def wrong(path: str) -> str:
        try:
            source.ask(_nothing(), _ALIVE_S)
        except TimeoutError:
            return f"its event loop has not turned for {_ALIVE_S:.0f} s"
        return source.unready() if path == "/readyz" else ""

    def answer(environ: Mapping[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if not _is_own(environ):
            status, text = "403 Forbidden", "only for the hosts 127.0.0.1 and localhost"
        elif path == "/metrics":
            from prometheus_client import make_wsgi_app  # noqa: PLC0415

            return make_wsgi_app(source.registry())(environ, start)  # type: ignore[no-any-return]
        elif path in {"/healthz", "/readyz"}:
            text = wrong(path) or "ok"
            status = "200 OK" if text == "ok" else "503 Service Unavailable"
        else:
            status, text = "404 Not Found", "there are /metrics, /healthz and /readyz"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])  # the server adds to this list
        return [f"{text}\n".encode()]

    return answer


def _is_own(environ: Mapping[str, Any]) -> bool:
    """Return True if a request's host is this machine. A web page could send a request under its own host name."""
    before, _, last = str(environ.get("HTTP_HOST", "localhost")).rpartition(":")
    return not environ[_IS_TCP] or (before or last) in _HOSTS


class _Handler(WSGIRequestHandler):
    timeout = 5.0  # seconds to read a request, and to send the answer

    def log_message(self, *_said: object) -> None:
        """Log nothing."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A server that answers each connection in a thread, a few at once. The event loop accepts connections."""

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: Any, app: Callable[..., Iterable[bytes]]) -> None:
        self.address_family = family
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(address, _Handler)
        self.socket.setblocking(False)
        self.set_app(app)

    def server_bind(self) -> None:
        """Bind without a look-up of the machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()
        self.base_environ[_IS_TCP] = self.address_family == socket.AF_INET

    def take(self) -> None:
        """Accept a connection and answer it in a thread. Raises OSError."""
        with suppress(BlockingIOError):
            connection, _ = self.socket.accept()
            connection.setblocking(True)
            if not self._room.acquire(blocking=False):
                self.shutdown_request(connection)
                return
            self.process_request(connection, ("localhost", 0))

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the request. Then another scrape may take its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing if the client has closed the connection."""


class Exporter:
    """The server of a source on a Unix socket and, given a port, on 127.0.0.1. The caller holds the process's lock."""

    def __init__(self, source: Source, log: EventLog, *, path: Path, port: int = 0) -> None:
        self._app, self._log = application(source), log
        self._path, self._port = path, port
        self._servers: dict[str, _Server] = {}
        self._told: set[str] = set()
        self._bound = (0, 0)
        self._loop = asyncio.get_running_loop()

    def keep(self) -> None:
        """Open each endpoint that is not open: at the start, after its socket was removed, or after its port was freed.

        If an endpoint cannot be opened, log this once. The daemon continues to work.
        """
        if "unix" in self._servers and identity_of(self._path) != self._bound:
            self._end("unix")
        opens: dict[str, Callable[[], _Server]] = {"unix": self._open_unix}
        if self._port:
            opens["tcp"] = lambda: _Server(socket.AF_INET, ("127.0.0.1", self._port), self._app)
        for name, open_ in opens.items():
            if name in self._servers:
                continue
            try:
                self._servers[name] = server = open_()
            except OSError as error:
                if name not in self._told:
                    where = f"127.0.0.1:{self._port}" if name == "tcp" else str(self._path)
                    self._log.emit("metrics.unserved", where=where, reason=error.strerror)
                self._told.add(name)
            else:
                self._told.discard(name)
                self._listen(server)

    def close(self) -> None:
        """Stop serving, and remove the socket unless another process has replaced it."""
        if "unix" in self._servers and identity_of(self._path) == self._bound:
            self._path.unlink(missing_ok=True)
        for name in list(self._servers):
            self._end(name)

    def _listen(self, server: _Server) -> None:
        if server in self._servers.values():
            self._loop.add_reader(server.fileno(), self._take, server)

    def _take(self, server: _Server) -> None:
        try:
            server.take()
        except (OSError, RuntimeError):  # the machine has no free descriptor or thread: the connection waits
            self._loop.remove_reader(server.fileno())
            self._loop.call_later(_REST_S, self._listen, server)

    def _end(self, name: str) -> None:
        server = self._servers.pop(name)
        self._loop.remove_reader(server.fileno())
        server.server_close()

    def _open_unix(self) -> _Server:
        # The name is not longer than the final one, because the path of a socket has a short limit.
        own = self._path.with_name(f".{self._path.name[0]}m")
        own.unlink(missing_ok=True)
        server = _Server(socket.AF_UNIX, str(own), self._app)
        own.chmod(_MODE)
        self._bound = identity_of(own)
        own.rename(self._path)
        return server
