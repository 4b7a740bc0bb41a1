"""A real gateway on a free port of this machine, and requests to it at the level of bytes."""

import http.client
import json
import os
import signal
import socket
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from tests.support import program
from tests.support.forked_daemons import WEB, fork_server
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import log_of
from turnkeeper.entropy import SystemEntropy
from turnkeeper.gateway.keys import Keys, sign_token
from turnkeeper.rpc.process import last_beat

ROOT = Path(__file__).parents[2]
NAME = "turnkeeper.localhost"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: str


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def settings(port: int, more: str = "") -> str:
    return f"[web]\nenabled = true\nport = {port}\n{more}"


def configure(home: Home, text: str) -> None:
    """Write the settings of a home, and keep its shared store if it has one."""
    said = tomllib.loads(home.config.read_text()) if home.config.exists() else {}
    if url := said.get("store", {}).get("url"):
        node = "".join(f"{name} = {json.dumps(value)}\n" for name, value in said["node"].items())
        text += f'[store]\nurl = "{url}"\n[node]\n{node}'
    home.config.write_text(text)


class Web:
    """A running gateway, and a browser's side of it."""

    def __init__(self, home: Home, port: int) -> None:
        self.home, self.port = home, port
        self.host = f"{NAME}:{port}"
        self.origin = f"http://{self.host}"
        self.cookie = self.page_key = ""

    def start(self, **environ: str) -> None:
        """Start the process, with additional variables. Return once it serves."""
        self.pid = fork_server().start(self.home, WEB, log_of(self.home, program.WEB), os.environ | environ)

        def serves() -> bool:
            beat = last_beat(self.home, WEB)
            return beat is not None and beat.pid == self.pid

        assert SystemClock().poll(serves, timeout_s=60, every_s=0.02), log_of(self.home, program.WEB).read_text()

    def kill(self) -> None:
        """End the process as a crash does."""
        fork_server().kill(self.pid)

    def stop(self) -> None:
        """End the process as the supervisor does."""
        fork_server().kill(self.pid, signal.SIGTERM)

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, *, host: str | None = None, **headers: str
    ) -> Answer:
        """Send one request. In names of headers, `_` stands for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            given = {"Host": host or self.host} | {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, path, body, given)
            found = connection.getresponse()
            return Answer(
                found.status, {key.lower(): value for key, value in found.getheaders()}, found.read().decode()
            )
        finally:
            connection.close()

    def token(self, *, plain_host: bool = False) -> str:
        secret = Keys(self.home).login_secret()
        return sign_token(secret, SystemClock().now(), SystemEntropy(), plain_host=plain_host)

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        """Send a form as the page does."""
        sent = {"content_type": "application/x-www-form-urlencoded", "origin": self.origin, "cookie": self.cookie}
        return self.ask(path, "POST", urlencode(form).encode(), **(sent | headers))

    def log_in(self, token: str = "") -> None:
        """Exchange a token for a cookie, as the page does: one from `turnkeeper web open`, or a new one."""
        answer = self.post("/ui/login", {"token": token or self.token()})
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def key(self, name: str, scope: str = "work") -> str:
        return Keys(self.home).make(name, scope, SystemClock().now(), SystemEntropy())[1]

    def reachable(self) -> bool:
        try:
            return self.ask("/lg/ok").status == 200
        except OSError:
            return False

    @staticmethod
    @contextmanager
    def listening() -> Iterator[int]:
        """Occupy a port, as another program would."""
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            bound.listen(1)
            yield bound.getsockname()[1]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextmanager
def serving(home: Home, more: str = "") -> Iterator[Web]:
    """Start the gateway as the supervisor does. No daemon needs to run."""
    port = free_port()
    configure(home, settings(port, more))
    web = Web(home, port)
    try:
        web.start()
        yield web
    finally:
        web.stop()
