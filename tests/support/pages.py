"""A web server on loopback that serves a test's pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@dataclass(kw_only=True)
class Answer:
    """The server's answer for one path. `hangs` sends nothing until the server is stopped."""

    body: bytes = b""
    status: int = 200
    kind: str = "text/html; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False


@dataclass(kw_only=True)
class Site:
    """A running server: its port, its answers by path, and the requested paths and hosts."""

    port: int
    pages: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@contextmanager
def serving() -> Iterator[Site]:
    """Serve during the block."""
    site, over = Site(port=0), Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            site.hosts.append(self.headers["Host"])
            answer = site.pages.get(self.path, Answer(status=404))
            if answer.hangs:
                over.wait()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.port = server.server_port
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()
