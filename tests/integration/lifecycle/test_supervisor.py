"""The supervisor on real processes."""

import os
import signal
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import psutil
import pytest

from tests.integration.lifecycle.conftest import RUNNER, RUNTIME, Supervised
from tests.support.faults import without_descriptors
from tests.support.program import app
from tests.support.standin import STANDINS
from tests.support.supervised import SUPERVISED
from turnkeeper import console
from turnkeeper.config.settings import load_settings
from turnkeeper.constellation.inspect.condition import findings
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.daemons import stop
from turnkeeper.constellation.supervisor.escalation import escalate
from turnkeeper.constellation.supervisor.up_down import prepare

pytestmark = pytest.mark.process


def story_of(supervised: Supervised, capsys: pytest.CaptureFixture[str]) -> str:
    """What `turnkeeper events` says, a sentence a line."""
    assert console.run(app, ["--home", str(supervised.home.root), "events"]) == 0
    return "\n".join(line.partition("  ")[2] for line in capsys.readouterr().out.splitlines())


def test_it_starts_both_and_starts_again_whichever_dies(
    supervised: Supervised, capsys: pytest.CaptureFixture[str]
) -> None:
    supervised.want()
    supervised.supervise()
    before = {daemon: supervised.until_up(daemon) for daemon in STANDINS}
    for daemon in STANDINS:  # of one that dies beside another it may not be known yet how it ended
        supervised.kill(daemon)
        supervised.until_up(daemon, other_than=before[daemon])
    assert len(supervised.events("daemon.started")) == 4
    story = story_of(supervised, capsys)
    for name, pid in ((daemon.name, before[daemon]) for daemon in STANDINS):
        assert f"the supervisor started {name} (pid {pid})." in story
        assert f"of {name} reached the phase failed: ended by signal 9." in story
        assert f"the supervisor found that {name} had ended" in story
        assert (
            f"the supervisor started {name} (pid {supervised.pid(next(d for d in STANDINS if d.name == name))}), because"
            in story
        )


def test_it_is_killed_and_nothing_is_lost_and_the_next_one_doubles_nothing(supervised: Supervised):
    supervised.want()
    supervised.supervise()
    before = {daemon: supervised.until_up(daemon) for daemon in STANDINS}
    supervised.kill(SUPERVISED)
    supervised.until(lambda: supervised.pid(SUPERVISED) is None)
    supervised.supervise()
    supervised.until(lambda: supervised.marker(markers.PROGRESS_SEEN, RUNNER))
    assert {daemon: supervised.pid(daemon) for daemon in STANDINS} == before
    supervised.kill(RUNTIME)
    supervised.until_up(RUNTIME, other_than=before[RUNTIME])  # one that it never started itself


def test_one_that_runs_out_of_descriptors_goes_on_and_takes_nobody_for_dead(supervised: Supervised):
    supervised.want(interval_s=0.1)
    supervised.supervise()
    before = {daemon: supervised.until_up(daemon) for daemon in STANDINS}
    pid = supervised.pid(SUPERVISED)
    assert pid is not None
    with without_descriptors(pid):
        supervised.kill(RUNNER)
        (trouble,) = supervised.until(lambda: supervised.events("machine.trouble"))
    assert "open files" in trouble["reason"]
    supervised.until_up(RUNNER, other_than=before[RUNNER])
    assert supervised.pid(SUPERVISED) == pid
    assert supervised.pid(RUNTIME) == before[RUNTIME]
    assert len(supervised.events("daemon.started")) == 3


def test_ten_rounds_of_kill_9_for_everybody_in_turn(supervised: Supervised):
    supervised.want(backoff_s=0.01, restarts=100)
    for number in range(10):
        victim = (RUNTIME, RUNNER, SUPERVISED)[number % 3]
        if supervised.pid(SUPERVISED) is None:
            supervised.supervise()
        before = {daemon: supervised.until_up(daemon) for daemon in STANDINS}
        supervised.kill(victim)
        if victim is SUPERVISED:
            supervised.until(lambda: supervised.pid(SUPERVISED) is None)
        else:
            supervised.until_up(victim, other_than=before[victim])
    assert not [condition for condition in supervised.conditions() if "crash loop" in condition]


def test_it_removes_trails_that_are_longer_ago_than_is_kept(supervised: Supervised):
    old = supervised.home.logs / "events-task-runner-2020-01-01.jsonl"
    old.parent.mkdir(exist_ok=True)
    old.write_text("{}\n")
    supervised.want()
    supervised.supervise()
    supervised.until(lambda: not old.exists())
    (event,) = supervised.until(lambda: supervised.events("logs.pruned"))
    assert (event["removed"], event["cut"]) == ([old.name], [])


def test_one_that_cannot_start_ends_in_the_crash_loop_and_one_escalation(
    supervised: Supervised, capsys: pytest.CaptureFixture[str]
) -> None:
    told = supervised.home.root / "told"
    supervised.want(command=f'echo "$TURNKEEPER_TEXT" >> {told}', backoff_s=0.01)
    supervised.flag(RUNTIME, "fails").touch()
    supervised.supervise()
    supervised.until(told.exists)
    supervised.until_up(RUNNER)
    assert len(supervised.events("daemon.started")) == 4, "three of the one, one of the other"
    (line,) = supervised.until(lambda: told.read_text().splitlines())
    assert "failed to start 3 times: exit code 1; agent-runtime was told to fail" in line
    assert "secret" not in line
    assert any("crash loop suspected" in condition for condition in supervised.conditions())
    assert [status["phase"] for status in supervised.statuses() if status["process"] == RUNTIME.name] == ["failed"] * 3
    story = story_of(supervised, capsys)
    assert f"the supervisor stopped trying to start {RUNTIME.name}: " in story
    assert f"the supervisor alerts the author about {RUNTIME.name}" in story
    assert f"state/{RUNTIME.name}-crashloop-suspected has existed since then: the budget is spent" in story


def test_one_that_waited_for_its_database_is_well_as_soon_as_it_serves(supervised: Supervised):
    supervised.want(backoff_s=0.01, interval_s=3600)
    supervised.flag(RUNTIME, "waits").touch()
    supervised.supervise()
    supervised.until(lambda: any("was not verified" in condition for condition in supervised.conditions()))
    supervised.flag(RUNTIME, "waits").unlink()
    supervised.until_up(RUNTIME)
    supervised.until(lambda: not any("was not verified" in condition for condition in supervised.conditions()))


def test_one_that_waits_for_its_database_is_never_given_up(supervised: Supervised):
    told = supervised.home.root / "told"
    supervised.want(command=f'echo "$TURNKEEPER_TEXT" >> {told}', backoff_s=0.01, interval_s=0.1)
    supervised.flag(RUNTIME, "waits").touch()
    supervised.supervise()
    supervised.until_up(RUNNER)
    supervised.until(lambda: len(supervised.events("daemon.started")) > 6)
    (said,) = [condition for condition in supervised.conditions() if "the last start was not verified" in condition]
    assert "exit code 5; the database does not answer; it is started again every few seconds" in said
    assert not any("crash loop" in condition for condition in supervised.conditions())
    supervised.flag(RUNTIME, "waits").unlink()
    supervised.until_up(RUNTIME)
    (line,) = told.read_text().splitlines()
    assert "agent-runtime: exit code 5; the database does not answer" in line, "the author is told once"


def test_nothing_is_decided_about_one_that_ended_before_it_is_known_how(supervised: Supervised):
    supervised.want()
    supervised.flag(RUNTIME, "waits").touch()
    watchdog = supervised.watchdog()
    watchdog.tick()
    ended = next(event["started"] for event in supervised.events("daemon.started") if event["daemon"] == RUNTIME.name)
    supervised.until(lambda: psutil.Process(ended).status() == psutil.STATUS_ZOMBIE)
    watchdog.tick()
    (said,) = [condition for condition in supervised.conditions() if "the last start was not verified" in condition]
    assert "exit code 5; the database does not answer; it is started again every few seconds" in said


def test_up_clears_the_crash_loop_once_its_cause_is_mended(supervised: Supervised):
    supervised.want(backoff_s=0.01)
    supervised.flag(RUNTIME, "fails").touch()
    supervised.supervise()
    supervised.until(lambda: supervised.marker(markers.CRASH_LOOP, RUNTIME))
    tried = len(supervised.events("daemon.started"))
    supervised.flag(RUNTIME, "fails").unlink()
    told = supervised.until(lambda: prepare(supervised.home, load_settings(supervised.home)))
    os.kill(supervised.pid(SUPERVISED) or 0, signal.SIGHUP)
    supervised.until_up(RUNTIME)
    assert ["failed to start 3 times" in text for text in told] == [True], "whoever mends it is told of it"
    assert supervised.conditions() == []
    assert len(supervised.events("daemon.started")) == tried + 1


def test_what_a_daemon_died_of_is_told_by_its_kind_alone(supervised: Supervised):
    told = supervised.home.root / "told"
    supervised.want(command=f'echo "$TURNKEEPER_TEXT" >> {told}', backoff_s=0.01)
    supervised.flag(RUNTIME, "raises").write_text("https://user:pass-w0rd@models.example/v1?key=sk-planted")
    supervised.supervise()
    supervised.until(told.exists)
    supervised.until(lambda: "ConnectionError" in told.read_text())
    raw = supervised.home.logs / "agent-runtime.log"
    assert "sk-planted" in raw.read_text(), "what the process itself says is kept as it is"
    leaks = []
    for path in supervised.home.root.rglob("*"):
        with suppress(FileNotFoundError):  # the supervisor removes files meanwhile
            text = path.read_bytes() if path.is_file() and path != raw else b""
            leaks += [path] if b"sk-planted" in text or b"pass-w0rd" in text else []
    assert leaks == [supervised.flag(RUNTIME, "raises")]
    assert "pass-w0rd" not in str(supervised.conditions())


def test_one_that_does_not_end_when_told_is_killed_after_the_grace_and_by_force_at_once(supervised: Supervised):
    supervised.want()
    for daemon in STANDINS:
        supervised.flag(daemon, "deaf").touch()
    supervised.supervise()
    for daemon in STANDINS:
        os.kill(supervised.until_up(daemon), signal.SIGSTOP)  # what is suspended goes on, to hear that it is to end
    supervised.kill(SUPERVISED)
    assert stop(supervised.home, RUNTIME, timeout_s=0.2) == "killed after 0s"
    assert stop(supervised.home, RUNNER, force=True) == "killed"
    assert stop(supervised.home, RUNNER) == "was not running"


def test_a_stopped_process_is_noticed_killed_and_started_again(supervised: Supervised):
    supervised.want(interval_s=0.1, hang_after_s=0.5)
    supervised.supervise()
    before = supervised.until_up(RUNTIME)
    supervised.until(lambda: supervised.events("revive.verified"))
    os.kill(before, signal.SIGSTOP)
    supervised.until_up(RUNTIME, other_than=before)
    story = [event["event"] for event in supervised.events() if event.get("daemon") == RUNTIME.name]
    assert story.index("hang.suspected") < story.index("daemon.killed") < len(story) - 1
    supervised.until(lambda: len([e for e in supervised.events("revive.verified") if e["daemon"] == RUNTIME.name]) > 1)
    assert supervised.marker(markers.HANG, RUNTIME) is None
    suspected = supervised.events("hang.suspected")[0]
    assert (suspected["suspect"], suspected["pid"]) == (before, supervised.pid(SUPERVISED))


def test_a_quiet_window_keeps_a_stopped_process(supervised: Supervised):
    supervised.want(interval_s=0.1, hang_after_s=0.5)
    far = int(supervised.clock.now().timestamp()) + 3600
    markers.write_marker(markers.QUIET.at(supervised.home, epoch=str(far)), {})
    supervised.flag(RUNTIME, "still").touch()
    supervised.supervise()
    before = supervised.until_up(RUNTIME)
    supervised.until(lambda: len(supervised.events("hang.suppressed")) > 3)
    assert supervised.pid(RUNTIME) == before


def test_it_ends_when_nothing_is_wanted_any_more(supervised: Supervised):
    supervised.want()
    pid = supervised.supervise()
    before = supervised.until_up(RUNTIME)
    markers.clear_marker(markers.WANTED.at(supervised.home))
    os.kill(pid, signal.SIGHUP)
    supervised.until(lambda: supervised.pid(SUPERVISED) is None)
    assert supervised.pid(RUNTIME) == before


class _Hook(BaseHTTPRequestHandler):
    refuses = 1
    took: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if _Hook.refuses:
            _Hook.refuses -= 1
            self.send_response(503)
        else:
            _Hook.took.append(body)
            self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_an_escalation_that_no_path_takes_is_kept_and_tried_again(supervised: Supervised):
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    secret = f"http://127.0.0.1:{server.server_port}/secret-path"
    supervised.want(command="exit 3", webhook=secret, backoff_s=0.01, interval_s=0.2)
    supervised.flag(RUNTIME, "fails").touch()
    supervised.supervise()
    supervised.until(lambda: _Hook.took)
    supervised.until(lambda: not list(markers.found(supervised.home, markers.ESCALATION)))
    server.shutdown()
    server.server_close()
    assert b"failed to start" in _Hook.took[0]
    failed = [(event["route"], event["reason"]) for event in supervised.events("escalate.failed")]
    assert failed == [("command", "exit status 3"), ("webhook", "status 503"), ("command", "exit status 3")]
    assert "secret-path" not in str(supervised.events())


NAMES = {daemon.name for daemon in STANDINS}


def test_an_alert_whose_cause_is_over_is_dated_and_breaks_nothing_any_more(supervised: Supervised):
    supervised.want(interval_s=0.3)
    supervised.supervise()
    before = supervised.until_up(RUNTIME)
    supervised.until(lambda: {event["daemon"] for event in supervised.events("revive.verified")} == NAMES)
    escalate(supervised.home, RUNTIME.name, "1", "a planned restart did not end")
    escalate(supervised.home, RUNNER.name, "1", "another matter")
    assert all(finding.degraded for finding in findings(supervised.home, 0.0))
    supervised.kill(RUNTIME)
    supervised.until_up(RUNTIME, other_than=before)
    supervised.until(lambda: any("its cause is over" in line for line in supervised.conditions()))
    told = {finding.what: finding.degraded for finding in findings(supervised.home, 0.0) if "alert" in finding.what}
    assert sorted(told.values()) == [False, True], "that of the other process stands"
    assert any("a planned restart did not end" in what for what, degraded in told.items() if not degraded)
    assert len(prepare(supervised.home, load_settings(supervised.home))) == 2, "both are shown by the next up"
