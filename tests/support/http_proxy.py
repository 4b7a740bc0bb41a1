"""An HTTP proxy before the gateway, as nginx or Caddy is: it answers 502 with a page of its own if the gateway is down."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

BAD_GATEWAY = b"<!doctype html><title>502</title><main id=content><h1>502 Bad Gateway</h1></main>"
_OF_ONE_CONNECTION = {"connection", "proxy-connection", "keep-alive", "transfer-encoding"}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._pass()

    def do_HEAD(self) -> None:
        self._pass()

    def do_POST(self) -> None:
        self._pass()

    def _pass(self) -> None:
        to, length = urlsplit(self.path), int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else None
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        upstream = http.client.HTTPConnection("127.0.0.1", to.port or 80, timeout=60)
        try:
            upstream.request(self.command, f"{to.path}?{to.query}" if to.query else to.path, body, kept)
            answer = upstream.getresponse()
        except (OSError, http.client.HTTPException):
            self._say(502, {"content-type": "text/html", "content-length": str(len(BAD_GATEWAY))}.items())
            self.wfile.write(b"" if self.command == "HEAD" else BAD_GATEWAY)
        else:
            self._say(answer.status, [one for one in answer.getheaders() if one[0].lower() not in _OF_ONE_CONNECTION])
            with suppress(OSError, http.client.HTTPException):  # the gateway or the browser ended
                while piece := answer.read1(1 << 16):
                    self.wfile.write(piece)
        finally:
            upstream.close()

    def _say(self, status: int, headers: object) -> None:
        self.send_response_only(status)
        for name, value in headers:  # type: ignore[attr-defined]
            self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def proxying() -> Iterator[str]:
    """Run a proxy during the block; yield its address, for a browser that sends all requests through it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
