"""A thread that serves many outlives whatever one of them does."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from turnkeeper.storage.database import Call, WorkerThread

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

    def ask_and_leave() -> None:
        asked = loop.create_task(thread.run(lambda: 1))
        loop.run_until_complete(asyncio.wait([asked], timeout=0))
        told.wait(PATIENCE_S)
        asked.cancel()
        loop.run_until_complete(asyncio.gather(asked, return_exceptions=True))
        loop.close()
        closed.set()

    await asyncio.to_thread(ask_and_leave)
    async with asyncio.timeout(PATIENCE_S):
        assert await thread.run(lambda: 2) == 2
