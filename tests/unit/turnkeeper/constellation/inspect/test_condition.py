"""What the doctor finds, and what it says to do."""

from datetime import UTC, datetime

import pytest

from tests.support.inboxes import message, open_inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.console import program, run
from turnkeeper.console.commands import Program
from turnkeeper.constellation.inspect import condition
from turnkeeper.constellation.inspect.condition import examine, findings
from turnkeeper.constellation.supervisor import markers
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
