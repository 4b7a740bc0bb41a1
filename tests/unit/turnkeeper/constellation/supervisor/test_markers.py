"""Markers on disk: read back exactly, replaced whole, and never taken for absent."""

import json
from datetime import UTC, datetime

import pytest

from tests.support.program import app
from turnkeeper.config.home import Home
from turnkeeper.console import run
from turnkeeper.constellation.cli.commands import LONGEST_NOTES
from turnkeeper.constellation.inspect.condition import findings
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.markers import (
    UNREADABLE,
    Budget,
    CrashLoop,
    Memory,
    Revive,
    Stall,
    clear_marker,
    forget,
    found,
    read_marker,
    recall,
    remember,
    write_marker,
)
from turnkeeper.constellation.supervisor.policy import Limits
from turnkeeper.constellation.supervisor.watchdog import Orders, is_quiet, read_orders, write_orders

PROCESS = "agent-runtime"
FULL = Memory(
    budget=Budget(restarts=(1.5, 2.0), failures=(3.0,)),
    revive=Revive(id="a", at=1.0, up_at=2.5, pid=7),
    crash_loop=CrashLoop(at=4.0, reason="why", escalated=True),
    stall=Stall(pid=7, beats=3, since=1.0, looks=2, looked_at=5.0, suspected=True),
)


def test_what_is_remembered_is_recalled(home: Home):
    remember(home, PROCESS, Memory(), FULL)
    assert recall(home, PROCESS) == FULL
    assert recall(home, "task-runner") == Memory()
    remember(home, PROCESS, FULL, Memory())
    assert recall(home, PROCESS) == Memory()


def test_a_suspicion_has_a_marker_of_its_own(home: Home):
    remember(home, PROCESS, Memory(), FULL)
    assert markers.HANG.at(home, process=PROCESS).exists()
    assert not markers.PROGRESS_SEEN.at(home, process=PROCESS).exists()


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"restarts": [NaN], "failures": []}',
        b'{"restarts": 1}',
        b"\xff\xfe",
        b'{"a":' * 9999,
    ],
    ids=["empty", "half", "list", "null", "nan", "types", "bytes", "deep"],
)
def test_a_marker_that_cannot_be_read_is_not_absent(home: Home, bad: bytes):
    for kind in (markers.ATTEMPTS, markers.INFLIGHT, markers.CRASH_LOOP):
        kind.at(home, process=PROCESS).write_bytes(bad)
    seen = recall(home, PROCESS)
    assert (seen.budget, seen.revive, seen.crash_loop) == (UNREADABLE,) * 3
    assert len([finding for finding in findings(home, 0) if finding.degraded]) == 3 or bad.startswith(b'{"r'), "told"


def test_a_folder_or_a_link_in_a_markers_place_is_not_absent(home: Home):
    folder, link = markers.ATTEMPTS.at(home, process=PROCESS), markers.INFLIGHT.at(home, process=PROCESS)
    folder.mkdir()
    link.symlink_to(home.root / "nowhere")
    assert read_marker(folder) is UNREADABLE
    assert read_marker(link) is UNREADABLE


def test_what_cannot_be_read_is_left_as_it_is_until_an_author_comes(home: Home):
    path = markers.ATTEMPTS.at(home, process=PROCESS)
    path.write_bytes(b"{")
    before = recall(home, PROCESS)
    remember(home, PROCESS, before, before)
    assert path.read_bytes() == b"{"
    forget(home, PROCESS, keep_start=False)
    assert recall(home, PROCESS) == Memory()


def test_a_half_written_successor_leaves_the_old_one(home: Home):
    path = markers.WANTED.at(home)
    write_marker(path, {"n": 1})
    path.with_name(f".{path.name}.new-1").write_bytes(b"{")
    assert read_marker(path) == {"n": 1}
    write_marker(path, {"n": 2})
    assert read_marker(path) == {"n": 2}
    clear_marker(path)
    clear_marker(path)
    assert read_marker(path) is None


def test_orders_are_read_back(home: Home):
    assert read_orders(home) is None
    orders = Orders(limits=Limits(interval_s=5, restarts=2, failed_starts=1))
    write_orders(home, orders, datetime(2026, 3, 2, tzinfo=UTC))
    assert read_orders(home) == orders


def test_orders_that_cannot_be_read_are_still_orders(home: Home):
    for bad in ("{", json.dumps({"limits": {"restarts": "many"}}), "[]"):
        markers.WANTED.at(home).write_text(bad)
        assert read_orders(home) == Orders()


def test_a_quiet_window_ends_by_itself(home: Home):
    write_marker(markers.QUIET.at(home, epoch="1000"), {})
    assert is_quiet(home, 999.5)
    assert not is_quiet(home, 1000)
    assert list(found(home, markers.QUIET)) == []


def test_a_quiet_window_without_an_end_counts_as_open(home: Home):
    (home.root / "state" / "quiet-until-soon").touch()
    assert is_quiet(home, 10**12)
    assert "names no time" in str(findings(home, 10**12)[0])


@pytest.mark.parametrize("command", [["watchdog", "suspend"], ["quiet"]], ids=" ".join)
def test_hang_detection_is_suspended_by_its_command_and_by_the_old_name(
    home: Home, monkeypatch: pytest.MonkeyPatch, command: list[str]
):
    monkeypatch.setenv("TURNKEEPER_HOME", str(home.root))
    assert run(app, [*command, "30m"]) == 0
    (marker,) = found(home, markers.QUIET)
    assert is_quiet(home, int(marker.name.removeprefix("quiet-until-")) - 1)
    assert run(app, [*command, "--clear"]) == 0
    assert list(found(home, markers.QUIET)) == []


def test_every_marker_has_a_writer_a_consumer_and_an_end():
    for kind in markers.KINDS:
        assert all((kind.path, kind.meaning, kind.writer, kind.consumer, kind.ends)), kind
    everything = [value for value in vars(markers).values() if isinstance(value, markers.Kind)]
    assert sorted(everything, key=str) == sorted(markers.KINDS, key=str)


def test_the_longest_notes_make_a_request_that_can_be_read(home: Home):
    path = markers.REQUEST.at(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    worst = "\x01" * LONGEST_NOTES  # six bytes each, as JSON
    write_marker(path, {"id": "x", "text": worst + "facts" * 1000, "at": "", "by": "author", "tries": 0})
    says = read_marker(path)
    assert isinstance(says, dict)
    assert says["text"].startswith(worst)
