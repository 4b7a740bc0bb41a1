"""What the doctor finds, and what it says to do."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.inboxes import message, open_inbox
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.console import program, run
from turnkeeper.console.commands import Program
from turnkeeper.constellation.inspect import condition
from turnkeeper.constellation.inspect.condition import examine, findings
from turnkeeper.constellation.supervisor import escalation, markers
from turnkeeper.constellation.supervisor.escalation import Routes, escalate, send_all
from turnkeeper.constellation.supervisor.markers import write_marker
from turnkeeper.constellation.supervisor.watchdog import Orders, write_orders
from turnkeeper.storage.locking import ProcessLock, ReaderLock


def broken(home: Home) -> dict[str, str]:
    """What is broken, with its fix."""
    found = [finding for check in examine(home, 0.0) for finding in check.findings if finding.degraded]
    return {finding.what: finding.fix for finding in found}


def test_a_fresh_home_is_well(home: Home):
    assert broken(home) == {}


def test_a_web_server_that_is_enabled_and_not_installed_is_named_with_what_to_install(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    home.config.write_text("[web]\nenabled = true\n")
    assert broken(home) == {}
    monkeypatch.setattr(condition, "find_spec", lambda name: None if name == "uvicorn" else object())
    what = "[web]: is enabled, but the packages that it needs are not installed"
    assert broken(home) == {what: f"run: {install_command('turnkeeper[web]')}"}


def test_what_is_meant_to_run_and_does_not(home: Home):
    write_orders(home, Orders(), datetime(2026, 3, 2, tzinfo=UTC))
    assert broken(home) == {"does not run": "run: turnkeeper up"}


def test_a_mistake_in_the_settings_is_named_by_line(home: Home):
    home.config.write_text("[scheduler]\ngrase_s = 1\n")
    (what,) = broken(home)
    assert f"{home.config}:2: scheduler.grase_s" in what


@pytest.mark.parametrize(
    "data", [b"not a store at all", b"SQLite format 3\0" + b"\xff" * 5000], ids=["text", "garbled"]
)
def test_a_damaged_store_is_named_with_what_to_do(home: Home, data: bytes):
    home.agent_db.write_bytes(data)
    found = broken(home)
    assert found
    assert all(str(home.agent_db) in what and "restore" in fix for what, fix in found.items())


def test_keys_that_others_can_read(home: Home):
    home.environment.write_text("KEY=1\n")
    home.environment.chmod(0o644)
    assert list(broken(home).values()) == [f"chmod 600 {home.environment}"]


def test_a_crash_loop(home: Home):
    says = {"at": 1.0, "reason": "it ended 11 times", "escalated": True}
    write_marker(markers.CRASH_LOOP.at(home, process="task-runner"), says)
    assert list(broken(home)) == ["crash loop suspected: it ended 11 times"]


def unread(home: Home) -> list[str]:
    now = SystemClock().now().timestamp() + 61
    return [str(finding) for finding in findings(home, now) if "no program reads" in finding.what]


def test_the_fix_of_quarantined_envelopes_lists_them(home: Home, capsys: pytest.CaptureFixture[str]):
    inbox = open_inbox(home.inbox("codex"))
    inbox.put(message("hello"))
    (item,) = inbox.claim(1)
    inbox.quarantine(item.name, "torn")
    (check,) = (check for check in examine(home, 0.0) if check.name == "inboxes")
    (found,) = check.findings
    assert found.what == "codex has 1 quarantined envelope"
    capsys.readouterr()
    assert run(program(), ["--home", str(home.root), *found.fix.split()[1:]], Program) == 0
    assert "torn" in capsys.readouterr().out


def test_mail_that_waits_where_nobody_reads(home: Home):
    open_inbox(home.inbox("codex")).put(message("hello"))
    open_inbox(home.inbox("agent0")).put(message("hello"))
    open_inbox(home.inbox("gemini"))
    (line,) = unread(home)
    assert line.startswith("1 envelope waits for codex since ")
    assert line.endswith("turnkeeper inbox watch codex --tmux SESSION, or: turnkeeper inbox drain codex")
    assert not findings(home, SystemClock().now().timestamp()), "it has just come"
    with ReaderLock(home.inbox("codex"), "inbox watch"):
        assert unread(home) == []
    with ProcessLock(home, "agent-runtime"):
        assert len(unread(home)) == 2, "the runtime runs and does not read agent0's"


def test_mail_whose_reader_took_it_and_is_gone(home: Home):
    inbox = open_inbox(home.inbox("codex"))
    inbox.put(message("hello"))
    with ReaderLock(home.inbox("codex"), "inbox watch"):
        assert len(inbox.claim(1)) == 1
        assert unread(home) == []
    (line,) = unread(home)
    assert line.startswith("1 envelope waits for codex since ")


def test_where_peers_listens_is_what_it_took_when_it_started_not_what_was_set_since(home: Home):
    def found() -> list[tuple[str, str]]:
        checks = {check.name: check for check in examine(home, 0.0)}
        return [(one.what, one.fix) for one in checks["listens"].findings]

    home.config.write_text('[peers]\nlisten = "127.0.0.1:1"\n')
    assert found() == []
    with ProcessLock(home, "peers"):
        (home.run / "peers.listens").write_text("127.0.0.1:1")
        assert found() == [("listens on 127.0.0.1:1", "")]
        home.config.write_text('[peers]\nlisten = "127.0.0.1:2"\n')
        what = "listens on 127.0.0.1:1; set since: 127.0.0.1:2"
        assert found() == [(what, "turnkeeper down, then turnkeeper up")]


def of_alerts(home: Home) -> list[tuple[str, str, bool]]:
    """Return what is said about alerts, with the advice, and whether the constellation counts as impaired."""
    now = SystemClock().now().timestamp()
    return [(one.what, one.fix, one.degraded) for one in findings(home, now) if "alert" in one.what]


class Slow(NamedTuple):
    """A route whose command says that it began, and ends when it is told to."""

    began: Path
    end: Path
    routes: Routes

    def tick(self, home: Home) -> None:
        """Send the alerts of a home as the supervisor does."""
        clock = SystemClock()
        log, now = EventLog(home.logs, "watchdog", clock), clock.now().timestamp()
        send_all(home, self.routes, log, os.environ, now=now, every_s=0.0)


@pytest.fixture
def slow(home: Home, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(escalation, "LONGEST_S", 300.0)
    began, end = home.root / "began", home.root / "end"
    for path in (began, end):
        os.mkfifo(path)
    return Slow(began, end, Routes(command=f"echo > {began}; read code < {end}; exit $code"))


def test_an_alert_that_is_being_delivered_needs_no_advice(home: Home, slow: Slow) -> None:
    write_orders(home, Orders(routes=slow.routes), datetime(2026, 3, 2, tzinfo=UTC))
    escalate(home, "task-runner", "1", "it does not start")
    text = f"turnkeeper: task-runner: it does not start ({home.root})"
    assert of_alerts(home) == [(f"alert not delivered: {text}", "the supervisor sends it at its next check", True)]
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(slow.tick, home)
        slow.began.read_text()
        assert of_alerts(home) == [(f"an alert is being delivered: {text}", "", False)]
        slow.end.write_text("3\n")
        sending.result()
    fix = "the supervisor tries again; to see why it failed, run: turnkeeper events --kind escalate.failed"
    assert of_alerts(home) == [(f"alert not delivered: {text}", fix, True)]


def test_an_alert_that_is_withdrawn_while_its_delivery_fails_does_not_come_back(home: Home, slow: Slow) -> None:
    escalate(home, "agent-runtime", "1", "a question waits")
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(slow.tick, home)
        slow.began.read_text()
        (path,) = markers.found(home, markers.ESCALATION)
        path.unlink()
        slow.end.write_text("3\n")
        sending.result()
    assert of_alerts(home) == []


def test_without_a_route_the_advice_on_an_alert_is_to_set_one(home: Home) -> None:
    escalate(home, "task-runner", "1", "it does not start")
    ((_, fix, _),) = of_alerts(home)
    assert fix == "set [watchdog] command or webhook in config.toml, then run: turnkeeper up"
