"""A named thread that runs queued calls in batches, for callers on an event loop or on threads of their own."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

LARGEST_BATCH = 512


class Call:
    """One call of a worker thread.

    Attributes:
        work: what to do; the thread's `serve` knows how.
        result: what the work returned.
        error: the exception it raised instead.
    """

    __slots__ = ("_future", "_loop", "error", "result", "work")

    def __init__(self, work: Any, future: "Future[Any] | asyncio.Future[Any]", loop: Any = None) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self._future = future
        self._loop = loop

    def wanted(self) -> bool:
        """Return whether the caller still waits. After this a future of `submit` can no longer be cancelled."""
        if isinstance(self._future, Future):
            return self._future.set_running_or_notify_cancel()
        return not self._future.cancelled()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that awaits the answer; None where a thread waits for it."""
        loop: asyncio.AbstractEventLoop | None = self._loop
        return loop

    def answer(self) -> None:
        """Give the caller the result or error. To be called on the loop, where there is one."""
        if self._future.done():
            return
        if self.error is None:
            self._future.set_result(self.result)
        else:
            self._future.set_exception(_for_caller(self.error))


class WorkerThread:
    """A thread that takes calls in the order they came and passes them to `serve` in batches.

    `serve` sets the result or the error of each call of its batch.
    """

    def __init__(self, name: str, serve: Callable[[Sequence[Call]], None]) -> None:
        self._serve = serve
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._open = True
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Any) -> Any:
        """Run `work` and return its result. Cancelling the caller stops only work that has not begun."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._put(Call(work, answer, loop))
        return await answer

    def run_blocking(self, work: Any) -> Any:
        """Run `work` and return its result; blocks the calling thread."""
        return self.submit(work).result()

    def submit(self, work: Any) -> "Future[Any]":
        """Queue `work` from any thread; the future gets its result."""
        answer: Future[Any] = Future()
        self._put(Call(work, answer))
        return answer

    def close(self) -> None:
        """Run what is queued, then end the thread. Calls made after this raise RuntimeError."""
        with self._guard:
            if self._open:
                self._open = False
                self._queue.put(None)
        self._thread.join()

    def _put(self, call: Call) -> None:
        with self._guard:
            if not self._open:
                raise RuntimeError(f"{self._thread.name} is closed")
            self._queue.put(call)

    def _run(self) -> None:
        going = True
        while going:
            batch, going = self._next()
            batch = [call for call in batch if call.wanted()]
            try:
                self._serve(batch)
            except BaseException as error:  # noqa: BLE001  every caller of the batch gets it; the thread goes on
                for call in batch:
                    call.error = error
            _answer(batch)

    def _next(self) -> tuple[list[Call], bool]:
        """Wait for a call and take those queued behind it; False once the thread is to end."""
        batch: list[Call] = []
        call = self._queue.get()
        while call is not None:
            batch.append(call)
            if len(batch) == LARGEST_BATCH:
                break
            try:
                call = self._queue.get_nowait()
            except queue.Empty:
                break
        return batch, call is not None


def _answer(batch: Sequence[Call]) -> None:
    """Answer a batch; each event loop is woken once, however many callers wait on it."""
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in batch:
        if call.loop is None:
            call.answer()
        else:
            loops.setdefault(call.loop, []).append(call)
    for loop, calls in loops.items():
        try:
            loop.call_soon_threadsafe(_answer_all, calls)
        except RuntimeError:
            if not loop.is_closed():  # on a closed loop nobody waits any more
                raise


def _answer_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call.answer()


def _for_caller(error: BaseException) -> Exception:
    """Return an error that a future can hold: it takes no StopIteration, and a few others would end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
