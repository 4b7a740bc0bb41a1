"""Posting an escalation: to a webhook, or through apprise where the address has a scheme of its own."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from constellation.supervisor.escalation import post

# apprise asks the standard library for the kind of an image
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


class Hook(BaseHTTPRequestHandler):
    took: ClassVar[list[dict[str, str]]] = []
    status = 204

    def do_POST(self) -> None:
        self.took.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def place() -> Iterator[str]:
    Hook.took, Hook.status = [], 204
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}/secret-path"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_is_posted_the_text(place: str) -> None:
    assert post(f"http://{place}", "it is down", 5) == ""
    assert Hook.took == [{"text": "it is down"}]


def test_another_scheme_goes_through_apprise(place: str) -> None:
    assert post(f"json://{place}", "it is down", 5) == ""
    assert Hook.took[0]["message"] == "it is down"


@pytest.mark.parametrize("scheme", ["http", "json"])
def test_why_it_failed_never_names_the_address(
    place: str, scheme: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    Hook.status = 500
    with caplog.at_level(logging.DEBUG):
        failure = post(f"{scheme}://{place}", "it is down", 5)
    assert failure
    assert "secret-path" not in failure + "".join(capfd.readouterr())


def test_a_scheme_that_nobody_knows_is_a_failure_like_any_other() -> None:
    assert post("nosuch://secret-path", "it is down", 5) == "apprise does not know this kind of address"
