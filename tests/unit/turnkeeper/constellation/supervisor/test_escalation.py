"""Posting an escalation: to a webhook, or through apprise where the address has a scheme of its own."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.program import app
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.console import run
from turnkeeper.console.unseen import plain
from turnkeeper.constellation.inspect.condition import findings
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.escalation import Routes, post, send, send_all

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


@pytest.mark.parametrize("hidden", ["\u200b", "\u202e", "\x1b[2J", "\U000e0041", "\u3164"])
def test_an_alert_hides_nothing_and_its_text_is_no_argument(home: Home, tmp_path: Path, hidden: str) -> None:
    log, text = EventLog(home.logs, "watchdog", SystemClock()), f"approve the tool send{hidden} 4711-secret"
    command = f'cat /proc/[0-9]*/cmdline > "{tmp_path}/arguments"; printf %s "$TURNKEEPER_TEXT" > "{tmp_path}/told"'
    assert send(text, Routes(command=command), log, os.environ)
    assert (tmp_path / "told").read_text() == plain(text) != text
    assert b"4711-secret" not in (tmp_path / "arguments").read_bytes()


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


def run_turnkeeper(home: Home, *argv: str) -> int:
    return run(app, ["--home", str(home.root), *argv])


def test_an_author_sends_an_alert_by_the_page_command(home: Home) -> None:
    told = home.root / "told"
    home.config.write_text(f"[watchdog]\ncommand = 'printf %s \"$TURNKEEPER_TEXT\" > {told}'\n")
    assert run_turnkeeper(home, "escalate", "the build is red") == 0
    assert told.read_text() == f"turnkeeper: the build is red ({home.root})"
    assert list(markers.found(home, markers.ESCALATION)) == []


def test_an_alert_that_no_route_takes_is_kept_and_tried_again_at_a_later_tick(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.config.write_text("[watchdog]\ncommand = 'exit 3'\n")
    assert run_turnkeeper(home, "escalate", "the build is red") == 1
    assert "the supervisor tries again at each tick" in capsys.readouterr().err
    (finding,) = findings(home, 0.0)
    assert "alert not delivered: turnkeeper: the build is red" in str(finding)
    told, log = home.root / "told", EventLog(home.logs, "watchdog", SystemClock())
    routes, now = Routes(command=f'printf %s "$TURNKEEPER_TEXT" > {told}'), SystemClock().now().timestamp()
    send_all(home, routes, log, os.environ, now=now + 1, every_s=60.0)
    assert not told.exists(), "it was tried a moment ago"
    send_all(home, routes, log, os.environ, now=now + 61, every_s=60.0)
    assert told.read_text().startswith("turnkeeper: the build is red")


@pytest.mark.parametrize("text", ["", " ", "x\0y", "x" * 4097])
def test_what_is_no_text_is_refused_and_nothing_is_kept(home: Home, text: str) -> None:
    home.config.write_text("[watchdog]\ncommand = 'true'\n")
    assert run_turnkeeper(home, "escalate", text) == 2
    assert list(markers.found(home, markers.ESCALATION)) == []


def test_without_a_route_there_is_nobody_to_send_it_to(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_turnkeeper(home, "escalate", "the build is red") == 2
    assert "set [watchdog] command or webhook in config.toml" in capsys.readouterr().err
    assert list(markers.found(home, markers.ESCALATION)) == []
