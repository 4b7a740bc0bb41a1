"""The smaller parts of the leaf."""

import doctest
import subprocess
import sys
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnkeeper.clock
import turnkeeper.config.toml_file
import turnkeeper.console.render
import turnkeeper.times
from tests.support.clock import ManualClock
from turnkeeper.config.home import Home
from turnkeeper.console import plain
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.event_log import EventLog, read_events
from turnkeeper.storage.locking import ProcessLock, holder_pid, is_held
from turnkeeper.times import format_duration, parse_duration


@pytest.mark.parametrize(
    "module",
    [turnkeeper.times, turnkeeper.config.toml_file, turnkeeper.console.render],
    ids=lambda m: m.__name__,
)
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted
    assert not results.failed


@given(st.integers(min_value=0, max_value=36_525 * 86_400))
def test_a_duration_reads_back_exactly(seconds: int) -> None:
    duration = timedelta(seconds=seconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    "text",
    ["", "5", "m", "1x", "1m2m", "-5m", "1.5h", "1e3s", "٥m", "nan", "1h\x00", "every", "99999999999d", "15m;ls"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_duration(text, field="--every")


def test_the_trail_is_whole_lines_by_day(home: Home, clock: ManualClock) -> None:
    log = EventLog(home.logs, "task-runner", clock)
    log.emit("task.created", task_id="task-1", durable=True)
    clock.advance(86_400)
    log.emit("task.paused", task_id="task-1")
    assert [record["event"] for record in read_events(home.logs)] == ["task.created", "task.paused"]
    assert sorted(path.name for path in home.logs.iterdir()) == [
        "events-task-runner-2026-03-02.jsonl",
        "events-task-runner-2026-03-03.jsonl",
    ]


def test_a_torn_last_line_is_passed_over(home: Home, clock: ManualClock) -> None:
    EventLog(home.logs, "task-runner", clock).emit("task.created")
    (path,) = home.logs.iterdir()
    with path.open("ab") as file:
        file.write(b'{"at":"2026')
    assert [record["event"] for record in read_events(home.logs)] == ["task.created"]


def test_a_second_process_is_refused_and_told_who_holds_the_lock(home: Home) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from turnkeeper.config.home import Home; from turnkeeper.storage.locking import ProcessLock\n"
            "with ProcessLock(Home(root=pathlib.Path(sys.argv[1])), 'task-runner'): print('held', flush=True); sys.stdin.read()",
            str(home.root),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert is_held(home, "task-runner")
    assert holder_pid(home, "task-runner") == holder.pid
    with pytest.raises(Conflict, match=str(holder.pid)), ProcessLock(home, "task-runner"):
        pass
    holder.kill()
    holder.communicate()
    assert not is_held(home, "task-runner")
    assert home.pid("task-runner").exists(), "a crash leaves the pid file"
    assert holder_pid(home, "task-runner") is None, "and nobody believes it"
    with ProcessLock(home, "task-runner"):
        pass


@given(st.text())
def test_no_control_character_reaches_a_terminal_raw(text: str) -> None:
    shown = plain(text)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert not set(shown) & set("\x7f\x9b\u202e\u2066\u2028")
