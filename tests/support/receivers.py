"""Receivers of deliveries on loopback: an HTTP server that records requests, and a mail server that records letters."""

import base64
import hashlib
import hmac
import json
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request that was received."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["webhook-id"]

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


def is_signed(request: Request, secret: str) -> bool:
    """Check a request as the specification of Standard Webhooks says; shares no code with the sender."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((request.key.encode(), request.headers["webhook-timestamp"].encode(), request.body))
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{mac}" in request.headers["webhook-signature"].split(" ")


class Hook:
    """An HTTP server.

    Attributes:
        requests: in the order of their arrival.
        statuses: answered to the next requests; 204 once they are used up.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                named = {name.lower(): value for name, value in self.headers.items()}
                hook.requests.append(Request(self.path, named, body))
                self.send_response(hook.statuses.pop(0) if hook.statuses else 204)
                for name, value in hook.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def about(self, task: str) -> list[Request]:
        return [one for one in self.requests if one.said["data"].get("task") == task]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Letterbox:
    """A mail server that takes every letter.

    Attributes:
        letters: in the order of their arrival.
    """

    def __init__(self) -> None:
        self.letters: list[Message] = []
        box = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 letterbox\r\n")
                while line := self.rfile.readline():
                    word = line.split(b" ")[0].strip().upper()
                    if word == b"DATA":
                        self.wfile.write(b"354 go\r\n")
                        lines = iter(self.rfile.readline, b".\r\n")
                        box.letters.append(message_from_bytes(b"".join(lines)))
                    self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 letterbox\r\n")
                    if word == b"QUIT":
                        return

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return the subject and the text of each letter."""
        return [(str(one["subject"]), _text_of(one)) for one in self.letters]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _text_of(letter: Message) -> str:
    parts = [part for part in letter.walk() if part.get_content_maintype() == "text"]
    return "\n".join(bytes(part.get_payload(decode=True) or b"").decode() for part in parts)  # type: ignore[arg-type]


@contextmanager
def opened(made: Any) -> Iterator[Any]:
    """Close a receiver at the end of the block."""
    try:
        yield made
    finally:
        made.close()
