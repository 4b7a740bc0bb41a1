"""A thread that serves many outlives whatever one of them does."""

import asyncio
import errno
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.clock import look_again
from turnkeeper.errors import MachineTrouble
from turnkeeper.storage.database import Call, InlineReader, WorkerThread

PATIENCE_S = 20.0


class Panic(BaseException):
    """As a library written in Rust raises when it breaks."""


def serve(batch: Sequence[Call]) -> None:
    for call in batch:
        call.result = call.work()


@pytest.fixture
def thread() -> Iterator[WorkerThread]:
    made = WorkerThread("thread", serve)
    yield made
    made.close()


def give_up(error: BaseException) -> Any:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize("error", [Panic("broke"), SystemExit(1), StopIteration(), asyncio.CancelledError()], ids=repr)
async def test_whatever_work_raises_is_told_as_an_error_and_the_thread_goes_on(
    thread: WorkerThread, error: BaseException
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match=type(error).__name__) as caught:
            await thread.run(give_up(error))
        assert caught.value.__cause__ is error
        assert await thread.run(lambda: 3) == 3
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await asyncio.to_thread(thread.run_blocking, give_up(error))
    assert await asyncio.to_thread(thread.run_blocking, lambda: 4) == 4


async def test_a_loop_that_closes_while_it_is_to_be_told_takes_nobody_with_it(thread: WorkerThread) -> None:
    loop, told, closed = asyncio.new_event_loop(), threading.Event(), threading.Event()
    wake: Any = loop.call_soon_threadsafe

    def late(*args: Any) -> Any:
        told.set()
        closed.wait(PATIENCE_S)
        return wake(*args)

    loop.call_soon_threadsafe = late  # type: ignore[method-assign]

    async def run(thread: WorkerThread) -> int:
        number: int = await thread.run(lambda: 1)
        return number

    def ask_and_leave() -> None:
        asked = loop.create_task(run(thread))
        loop.run_until_complete(asyncio.wait([asked], timeout=0))
        told.wait(PATIENCE_S)
        asked.cancel()
        loop.run_until_complete(asyncio.gather(asked, return_exceptions=True))
        loop.close()
        closed.set()

    await asyncio.to_thread(ask_and_leave)
    async with asyncio.timeout(PATIENCE_S):
        assert await thread.run(lambda: 2) == 2


LONG_S = 3600.0


@pytest.fixture
def batches() -> Iterator[tuple[WorkerThread, list[list[int]]]]:
    """A thread that returns what it was given, and the batches in which it was."""
    taken: list[list[int]] = []

    def note(batch: Sequence[Call]) -> None:
        taken.append([call.work for call in batch])
        for call in batch:
            call.result = call.work

    made = WorkerThread("batches", note)
    yield made, taken
    made.close()


async def held(thread: WorkerThread, *numbers: int, hold_s: float = LONG_S) -> list["asyncio.Future[Any]"]:
    tasks = [asyncio.ensure_future(thread.run(number, hold_s=hold_s)) for number in numbers]
    await look_again()
    return tasks


async def test_work_that_is_held_goes_first_in_the_batch_of_the_next_that_is_not(batches: Any) -> None:
    thread, taken = batches
    tasks = await held(thread, 1, 2)
    assert await thread.run(3) == 3
    assert await asyncio.gather(*tasks) == [1, 2]
    assert taken == [[1, 2, 3]]


async def test_work_that_is_held_goes_alone_once_its_time_is_over(batches: Any) -> None:
    thread, taken = batches
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*await held(thread, 1, 2, hold_s=0.001)) == [1, 2]
    assert taken == [[1, 2]]


async def test_work_that_is_held_goes_with_that_of_another_thread_by_a_flush_and_at_the_end(batches: Any) -> None:
    thread, taken = batches
    first = await held(thread, 1)
    assert await asyncio.to_thread(thread.run_blocking, 2) == 2
    second = await held(thread, 3)
    thread.flush()
    assert await asyncio.gather(*first, *second) == [1, 3]
    third = await held(thread, 4)
    await asyncio.to_thread(thread.close)
    assert await asyncio.gather(*third) == [4]
    assert taken[:2] == [[1, 2], [3]]
    assert [4] in taken
    with pytest.raises(RuntimeError, match="is closed"):
        await thread.run(5, hold_s=LONG_S)


async def test_a_quick_read_that_fails_is_done_again_on_the_thread_which_tells_what_is_wrong(
    thread: WorkerThread,
) -> None:
    here = threading.get_ident()
    ran: list[int] = []

    def work() -> int:
        ran.append(threading.get_ident())
        if ran == [here]:
            raise OSError("locked")
        return 7

    reader = InlineReader(lambda work: work(), thread)
    assert await reader.run(threading.get_ident) == here
    assert await reader.run(work) == 7
    assert len(ran) == 2
    assert ran[1] != here
    with pytest.raises(LookupError):
        await reader.run(give_up(LookupError()))


async def test_trouble_that_a_read_met_is_over_once_a_later_read_succeeds(thread: WorkerThread) -> None:
    reader = InlineReader(lambda work: work(), thread)
    with pytest.raises(MachineTrouble):
        await reader.run(give_up(OSError(errno.EIO, "bad sector")))
    assert thread.trouble
    assert await reader.run(lambda: 7) == 7
    assert thread.trouble == ""
