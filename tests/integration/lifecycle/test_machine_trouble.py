"""Real daemons on a machine in trouble: each goes on, says so, and no command ends in a traceback."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.integration.lifecycle.chaos import SETTINGS, Chaos
from tests.support import faults
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.home import Home
from turnkeeper.constellation.inspect.condition import unwritable
from turnkeeper.constellation.supervisor.daemons import DAEMONS, SUPERVISOR, process_of

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(faults.missing()), reason=f"faults cannot be made here: {faults.missing()}"),
]
FULL = "No space left on device; free room on its disk, then try again"
NOBODY = 65534


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="tk-") as folder, faults.small_disk(Path(folder) / "h", 24) as root:
        yield Home(root=root)


@pytest.fixture
def constellation(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    made.command("turnkeeper", "init")
    yield made
    made.stop()


def pids(home: Home) -> list[int]:
    return [found.pid for daemon in (*DAEMONS, SUPERVISOR) if (found := process_of(home, daemon)) is not None]


def test_a_full_disk_ends_nobody_is_said_everywhere_and_passes(constellation: Constellation) -> None:
    home, pages = constellation.home, constellation.home.root.parent / "pages"
    home.config.write_text(SETTINGS.format(pages=pages))
    constellation.command("turnkeeper", "up")
    constellation.create("digest", "--every", "1s", "--catch-up", "run-all")
    constellation.await_outcome("digest", "succeeded", 2)
    before = pids(home)
    faults.fill(home.root)
    constellation.until("the page", lambda: pages.exists() and FULL in pages.read_text())

    def on_full_disk(*argv: str) -> CompletedProcess[str]:
        """Run a command on a full disk, which may have room again before it ends: the daemons empty their logs."""
        faults.fill(home.root)
        return constellation.attempt(*argv)

    def told() -> CompletedProcess[str] | None:
        status = on_full_disk("turnkeeper", "status")
        return status if f"{home.root}: cannot be read or written: {FULL}" in status.stderr else None

    def refused(*argv: str) -> CompletedProcess[str] | None:
        done = on_full_disk(*argv)
        return done if done.returncode else None

    assert constellation.until("status to say it", told).returncode == 6
    for argv in (("task-runner", "run", "digest"), ("task-runner", "emit", "a.b"), ("agent-runtime", "send", "c", "x")):
        done = constellation.until(f"{argv} to be refused", partial(refused, *argv))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), argv
        assert done.stderr.startswith(f"error: {home.root}/")
        assert "free room on its disk, then try again" in done.stderr
    assert constellation.attempt("turnkeeper", "up").returncode in {0, 1}
    constellation.until("doctor to say it", lambda: "free room" in on_full_disk("turnkeeper", "doctor").stdout)
    assert len(pids(home)) == 3
    faults.free(home.root)
    constellation.await_outcome(
        "digest", "succeeded", sum(f.outcome == "succeeded" for f in constellation.fires("digest")) + 2
    )
    assert pids(home) == before, "nobody ended, and nobody was started again"
    constellation.until("all to be well", lambda: constellation.attempt("turnkeeper", "status").returncode == 0)
    constellation.command("task-runner", "disable", "digest")
    constellation.until_settled("digest")
    assert constellation.violations() == []
    said_by = [alert.split(": ")[1] for alert in pages.read_text().splitlines()]
    assert set(said_by) <= {"task-runner", "agent-runtime", "watchdog"}
    assert len(said_by) == len(set(said_by)), "one alert for each process that said it, however long it lasted"


def test_a_full_disk_lets_everything_be_stopped(constellation: Constellation) -> None:
    constellation.command("turnkeeper", "up")
    backup = constellation.home.root / "backup"

    def refused() -> CompletedProcess[str] | None:
        """Return the refusal of a backup, unless the daemons have emptied their logs meanwhile."""
        shutil.rmtree(backup, ignore_errors=True)
        faults.fill(constellation.home.root)
        done = constellation.attempt("turnkeeper", "backup", str(backup))
        return done if done.stderr == f"error: {backup}: cannot be read or written: {FULL}\n" else None

    assert constellation.until("the backup to be refused", refused).returncode == 1
    constellation.command("turnkeeper", "down")
    assert pids(constellation.home) == []
    faults.fill(constellation.home.root)  # what `down` has freed
    done = constellation.attempt("turnkeeper", "up")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"error: {constellation.home.root}/state/")
    assert done.stderr.endswith(f": cannot be read or written: {FULL}\n")
    faults.fill(constellation.home.root)  # what `up` has freed
    done = constellation.attempt("agent-runtime", "inbox", "send", "--from", "codex", "--to", "agent0", "x")
    outbox = constellation.home.inbox("codex") / "outbox"
    assert (done.returncode, done.stderr) == (1, f"error: {outbox}: cannot be read or written: {FULL}\n")
    faults.free(constellation.home.root)
    constellation.command("turnkeeper", "up")


def test_failing_reads_fail_no_turn(constellation: Constellation) -> None:
    home = constellation.home
    constellation.start()
    constellation.create("digest", "--every", "1s", "--catch-up", "run-all")
    constellation.await_outcome("digest", "succeeded", 1)
    (process,) = [found for daemon in DAEMONS if daemon is AGENT_RUNTIME and (found := process_of(home, daemon))]
    under = [home.checkpoints_db, home.checkpoints_db.with_name("checkpoints.db-wal")]

    def waiting() -> str:
        met = [event["turn_id"] for event in read_events(home.logs) if event["event"] == "turn.trouble"]
        return constellation.attempt("agent-runtime", "turns", "show", met[-1]).stdout if met else ""

    def status() -> str:
        return constellation.attempt("turnkeeper", "status").stderr

    with faults.failing(process.pid, faults.READS, "EIO", under):
        constellation.until("the reason in turns show", lambda: f"waits: {home.checkpoints_db}: " in waiting())
        constellation.until("the reason in status", lambda: f"agent-runtime: {home.checkpoints_db}: " in status())
    constellation.await_outcome("digest", "succeeded", 4)
    outcomes = {fire.outcome for fire in constellation.fires("digest")}
    assert "failed" not in outcomes
    assert process_of(home, AGENT_RUNTIME) == process


def test_no_descriptors_left_ends_nobody_and_fails_no_turn(constellation: Constellation) -> None:
    home = constellation.home
    constellation.start()
    constellation.create("digest", "--every", "1s", "--catch-up", "run-all")
    constellation.await_outcome("digest", "succeeded", 1)
    before = pids(home)
    for daemon in (AGENT_RUNTIME, TASK_RUNNER):
        process = process_of(home, daemon)
        assert process is not None
        with faults.without_descriptors(process.pid):
            constellation.pass_time(1.5)
        constellation.await_outcome(
            "digest", "succeeded", sum(f.outcome == "succeeded" for f in constellation.fires("digest")) + 2
        )
    assert pids(home) == before
    assert "failed" not in {fire.outcome for fire in constellation.fires("digest")}


def test_a_read_only_home_is_named_by_every_command(constellation: Constellation) -> None:
    home = constellation.home
    with faults.read_only(home.root):
        doctor = constellation.attempt("turnkeeper", "doctor")
        assert (doctor.returncode, "make its file system writable again" in doctor.stdout) == (6, True)
        for argv in (
            ("turnkeeper", "up"),
            ("turnkeeper", "down"),
            ("task-runner", "list"),
            ("task-runner", "emit", "a.b"),
        ):
            done = constellation.attempt(*argv)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), argv
            assert "Read-only file system" in done.stderr
            assert done.stderr.startswith(f"error: {home.root}/")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_home_without_the_right_to_write_cannot_start(home: Home) -> None:
    home.create()
    home.root.parent.chmod(0o755)
    for folder in (home.root, home.run.parent, home.run, home.logs):
        os.chown(folder, NOBODY, NOBODY)
    home.run.chmod(0o500)
    os.seteuid(NOBODY)
    try:
        (found,) = unwritable(home)
    finally:
        os.seteuid(0)
    assert (
        str(found)
        == f"{home.run}: cannot be read or written: Permission denied; make it yours to write, then try again"
    )


def test_mixed_faults_lose_and_double_nothing(home: Home) -> None:
    """The short form of `make chaos`."""
    chaos = Chaos(home, seed=7, fault_s=0.5)
    all_faults = chaos.faults()
    try:
        chaos.begin()
        with all_faults["full disk"]():
            chaos.constellation.until("an alert", lambda: bool(chaos.alerts()), 60)
        for name in ("full disk", "EIO on reads of agent-runtime", "EMFILE in agent-runtime"):
            chaos.suffer(name, all_faults[name])
        chaos.end()
        chaos.damage(1)
    finally:
        chaos.constellation.stop()
    assert chaos.wrong == []
