"""A named thread that serves together all that has queued up, and answers whoever asked, on a loop or off it."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

LARGEST_BATCH = 512


class Job:
    """One piece of work, and what came of it.

    Attributes:
        work: what is asked; the thread's server knows what to do with it.
        result: of the work.
        error: why there is no result.
    """

    __slots__ = ("_answer", "_loop", "error", "result", "work")

    def __init__(self, work: Any, answer: "Future[Any] | asyncio.Future[Any]", loop: Any = None) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self._answer = answer
        self._loop = loop

    def wanted(self) -> bool:
        """Return whether anybody still waits; from here on a thread that waits no longer gives up."""
        if isinstance(self._answer, Future):
            return self._answer.set_running_or_notify_cancel()
        return not self._answer.cancelled()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop on which the answer is awaited; None where a thread waits for it."""
        loop: asyncio.AbstractEventLoop | None = self._loop
        return loop

    def tell(self) -> None:
        """End the answer; on its loop, where it has one. Nobody may be waiting any more."""
        if self._answer.done():
            return
        if self.error is None:
            self._answer.set_result(self.result)
        else:
            self._answer.set_exception(_tellable(self.error))


class Hands:
    """The thread. `serve` is given batches in the order in which their jobs came, and fills in what came of each."""

    def __init__(self, name: str, serve: Callable[[Sequence[Job]], None]) -> None:
        self._serve = serve
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._open = True
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def ask(self, work: Any) -> Any:
        """Return what comes of `work`; a caller that gives up leaves it undone only if it has not begun."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._put(Job(work, answer, loop))
        return await answer

    def ask_blocking(self, work: Any) -> Any:
        """Return what comes of `work`, for a thread that may wait."""
        return self.submit(work).result()

    def submit(self, work: Any) -> "Future[Any]":
        """Queue `work` from any thread; the future ends with what comes of it."""
        answer: Future[Any] = Future()
        self._put(Job(work, answer))
        return answer

    def close(self) -> None:
        """Do what is queued, then end the thread. What is asked after this raises RuntimeError."""
        with self._guard:
            if self._open:
                self._open = False
                self._queue.put(None)
        self._thread.join()

    def _put(self, job: Job) -> None:
        with self._guard:
            if not self._open:
                raise RuntimeError(f"{self._thread.name} is closed")
            self._queue.put(job)

    def _run(self) -> None:
        going = True
        while going:
            batch, going = self._next()
            batch = [job for job in batch if job.wanted()]
            try:
                self._serve(batch)
            except BaseException as error:  # noqa: BLE001  handed to everyone of the batch; the thread goes on
                for job in batch:
                    job.error = error
            _tell(batch)

    def _next(self) -> tuple[list[Job], bool]:
        """Wait for a job, and take those behind it; False after the last of all."""
        batch: list[Job] = []
        job = self._queue.get()
        while job is not None:
            batch.append(job)
            if len(batch) == LARGEST_BATCH:
                break
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
        return batch, job is not None


def _tell(batch: Sequence[Job]) -> None:
    """Answer a batch: each loop is woken once, however many wait on it."""
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in batch:
        if job.loop is None:
            job.tell()
        else:
            loops.setdefault(job.loop, []).append(job)
    for loop, jobs in loops.items():
        try:
            loop.call_soon_threadsafe(_tell_all, jobs)
        except RuntimeError:
            if not loop.is_closed():  # one that was closed meanwhile has nobody left who waits
                raise


def _tell_all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.tell()


def _tellable(error: BaseException) -> Exception:
    """Return what a caller may be told: an answer holds no StopIteration, and some others end a loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
