"""What is kept of trails and logs, and what goes."""

import os
from datetime import UTC, datetime

import pytest

from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.retention import Kept, is_over, let_go

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
WEEK = Kept(keep_s=7 * 86_400, largest_mb=1)


@pytest.mark.parametrize(
    ("name", "over"),
    [
        ("events-task-runner-2026-11-22.jsonl", False),
        ("events-task-runner-2026-11-15.jsonl", False),
        ("events-task-runner-2026-11-14.jsonl", True),
        ("channel-acks-2025-01-01.jsonl", True),
        ("events-task-runner-2026-13-45.jsonl", False),
        ("task-runner.log", False),
        ("my-own-notes.txt", False),
    ],
)
def test_the_trail_of_a_day_goes_when_the_day_is_longer_ago_than_is_kept(name: str, over: bool) -> None:
    assert is_over(name, WEEK, NOW) is over


def test_a_log_that_is_too_large_is_cut_and_its_process_goes_on_writing_to_it(home: Home) -> None:
    log, old = home.logs / "task-runner.log", home.logs / "events-task-runner-2026-01-01.jsonl"
    old.write_text("{}\n")
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # as a daemon has it
    os.write(descriptor, b"x" * (1 << 20))
    assert let_go(home, WEEK, NOW) == ([old.name], [])
    os.write(descriptor, b"one more")
    assert let_go(home, WEEK, NOW) == ([], [log.name])
    os.write(descriptor, b"next")
    os.close(descriptor)
    assert log.read_bytes() == b"next"
    assert log.with_name("task-runner.log.1").read_bytes().endswith(b"one more")


def test_a_link_is_left_alone(home: Home) -> None:
    target = home.root / "elsewhere"
    target.write_bytes(b"x" * (2 << 20))
    (home.logs / "events-x-2020-01-01.jsonl").symlink_to(target)
    (home.logs / "x.log").symlink_to(target)
    assert let_go(home, WEEK, NOW) == ([], [])
