"""The progress counter, and parts that outlast trouble of the machine."""

import asyncio
import errno
import gc
import os
import sqlite3
from typing import Any

import pytest

from tests.support.clock import ManualClock
from turnkeeper.bus.event_log import EventLog, read_events
from turnkeeper.config.home import Home
from turnkeeper.errors import Denied, Unreachable
from turnkeeper.rpc.process import Progress, keep_running, last_beat, loading, path_of, together


def test_beats_are_written_in_place_and_tell_of_trouble(home: Home) -> None:
    troubles = ["", "the disk is full", ""]
    progress = Progress(home, "task-runner", 4711, lambda: troubles.pop(0))
    seen = []
    for _ in range(3):
        progress.beat()
        seen.append((last_beat(home, "task-runner"), path_of(home, "task-runner").stat().st_ino))
    assert [(beat.pid, beat.count, beat.trouble) for beat, _ in seen if beat] == [
        (4711, 1, ""), (4711, 2, "the disk is full"), (4711, 3, ""),
    ]  # fmt: skip
    assert len({inode for _, inode in seen}) == 1, "a new file would need room and a descriptor"


def test_a_counter_that_somebody_removed_is_made_again(home: Home) -> None:
    progress = Progress(home, "task-runner", os.getpid())
    progress.beat()
    path_of(home, "task-runner").unlink()
    progress.beat()
    beat = last_beat(home, "task-runner")
    assert beat is not None
    assert beat.count == 2


async def test_a_part_is_begun_again_after_trouble_of_the_machine_and_ends_of_anything_else(
    home: Home, clock: ManualClock
) -> None:
    log, ran = EventLog(home.logs, "task-runner", clock), list[int]()
    errors: list[Exception] = [
        OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EMFILE, "Too many open files"), KeyError("bug"),
    ]  # fmt: skip

    async def part() -> None:
        ran.append(1)
        raise errors[len(ran) - 1]

    class Quick:
        monotonic = clock.monotonic

        async def sleep(self, seconds: float) -> None:
            clock.advance(seconds)

    quick: Any = Quick()
    with pytest.raises(KeyError):
        await keep_running(part, quick, log.emit)
    told = {(record["event"], record["tries"]) for record in read_events(home.logs)}
    assert told == {("machine.trouble", 1), ("machine.trouble", 2)}


def test_the_garbage_collector_looks_at_nothing_while_modules_load_and_never_at_them() -> None:
    before = gc.get_freeze_count()
    with loading():
        assert not gc.isenabled()
        loaded: list[object] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() - before >= len(loaded)
    with pytest.raises(ImportError), loading():
        raise ImportError
    assert gc.isenabled(), "whatever comes of it"


async def fails(error: Exception) -> None:
    raise error


async def test_of_parts_that_run_together_the_first_that_fails_ends_the_others() -> None:
    ended = []

    async def stays() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stays")

    with pytest.raises(Unreachable, match="away"):
        await together(stays(), fails(Unreachable("away")), stays())
    assert ended == ["stays", "stays"]


async def test_parts_that_run_together_may_all_end() -> None:
    done = []

    async def ends() -> None:
        done.append("ends")

    await together(ends(), ends())
    assert done == ["ends", "ends"]


async def test_the_first_part_that_ends_may_end_the_others_and_an_error_of_theirs_is_raised() -> None:
    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Unreachable("away")

    async def ends() -> None:
        pass

    with pytest.raises(Unreachable, match="away"):
        await together(ends(), fails_at_its_end(), until=asyncio.FIRST_COMPLETED)


async def test_a_mistake_is_raised_rather_than_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        await together(fails(Unreachable("away")), fails(KeyError("x")), fails(Denied("no")))


async def test_a_cancellation_that_comes_while_a_part_fails_is_not_lost() -> None:
    async def clears_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            running.cancel()

    running = asyncio.create_task(together(clears_up(), fails(Unreachable("away"))))
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOTCONN, "Transport endpoint is not connected"), sqlite3.OperationalError("who knows")]
)
async def test_a_part_outlasts_errors_of_a_disk_whose_codes_nobody_knows_and_says_why_it_rests(
    clock: ManualClock, error: Exception
) -> None:
    resting, seen = dict[str, str](), list[dict[str, str]]()
    failures = [error, error]

    async def part() -> None:
        if failures:
            raise failures.pop()

    class Quick:
        monotonic = clock.monotonic

        async def sleep(self, seconds: float) -> None:
            seen.append(dict(resting))
            clock.advance(seconds)

    quick: Any = Quick()
    await keep_running(part, quick, lambda *_event, **_fields: None, resting)
    assert [[str(error)], [str(error)]] == [list(one.values()) for one in seen]
    assert resting == {}


def test_a_counter_that_cannot_be_read_is_not_taken_for_none(home: Home) -> None:
    """A daemon that serves would count as one that starts, and be killed when its time for that is over."""
    path_of(home, "task-runner").mkdir()
    with pytest.raises(OSError, match="directory"):
        last_beat(home, "task-runner")
