"""The bus of files for many tasks of one event loop: what waits at one moment shares one pass of syncs.

One named thread owns the inbox. It takes all that has queued up, joins neighbouring puts, and neighbouring archives,
into one group each, and answers after the group is on disk. A lone put waits for nobody.
"""

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import Inbox
from turnkeeper.bus.port import Claimed, Put, Quarantined
from turnkeeper.errors import Conflict, Exhausted, TurnkeeperError

T = TypeVar("T")
LARGEST_GROUP = 512
MOST_QUEUED = 10_000
_Kind = Literal["put", "archive", "call"]


@dataclass(frozen=True, kw_only=True)
class _Job:
    kind: _Kind
    items: Sequence[Any]
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Any]"


class GroupedInbox:
    """The `Bus` over one agent's folder. Close it to end its thread."""

    def __init__(self, inbox: Inbox) -> None:
        """Start the thread. `inbox` is its own from here; with `GroupingFiles` a group costs two syncs in all."""
        self._inbox = inbox
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"inbox-{inbox.folder.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    async def put(self, envelope: Envelope) -> Put:
        """Put one envelope; when this returns it is on disk. Raises InvalidInput or Exhausted."""
        (answer,) = await self.put_all([envelope])
        if isinstance(answer, TurnkeeperError):
            raise answer
        return answer

    async def put_all(self, envelopes: Sequence[Envelope]) -> list[Put | TurnkeeperError]:
        """Put many; answer for each, in order: what it came to, or the error that met it alone."""
        if self._queue.qsize() >= MOST_QUEUED:
            return [Exhausted(f"{MOST_QUEUED} puts are queued", hint="try again later")] * len(envelopes)
        answers: list[Put | TurnkeeperError] = await self._submit("put", envelopes, lambda: None)
        return answers

    async def known(self, key: str) -> Envelope | None:
        """Return the envelope with this key that waits or is claimed, as far as this process knows."""
        return await self._call(lambda: self._inbox.known(key))

    async def waiting(self) -> int:
        """Return how many envelopes wait."""
        return await self._call(self._inbox.waiting)

    async def claim(self, limit: int) -> list[Claimed]:
        """Take up to `limit` waiting envelopes, in order. Raises Exhausted."""
        return await self._call(lambda: self._inbox.claim(limit))

    async def adopt(self) -> list[Claimed]:
        """Return what earlier processes claimed and never archived."""
        return await self._call(self._inbox.adopt)

    async def archive(self, claimed: Claimed) -> None:
        """End an envelope, durably. Doing it twice changes nothing."""
        await self._submit("archive", [claimed], lambda: None)

    async def quarantine(self, name: str, reason: str) -> None:
        """Set a claimed envelope aside, whole, with the reason."""
        await self._call(lambda: self._inbox.quarantine(name, reason))

    async def quarantined(self) -> list[Quarantined]:
        """Return what was set aside, in order."""
        return await self._call(self._inbox.quarantined)

    async def requeue(self, name: str) -> Put:
        """Let a quarantined envelope wait again. Raises NotFound, InvalidInput or Exhausted."""
        return await self._call(lambda: self._inbox.requeue(name))

    async def _call(self, work: Callable[[], T]) -> T:
        result: T = await self._submit("call", (), work)
        return result

    async def _submit(self, kind: _Kind, items: Sequence[Any], work: Callable[[], Any]) -> Any:
        if not self._thread.is_alive():
            raise Conflict("the inbox is closed", where=str(self._inbox.folder))
        loop = asyncio.get_running_loop()
        job = _Job(kind=kind, items=items, work=work, loop=loop, answer=loop.create_future())
        self._queue.put(job)
        return await job.answer

    def _serve(self) -> None:
        while True:
            jobs = self._next_jobs()
            for kind, group in itertools.groupby((job for job in jobs if job is not None), key=lambda job: job.kind):
                self._run(kind, list(group))
            if jobs[-1] is None:
                return

    def _next_jobs(self) -> list[_Job | None]:
        jobs = [self._queue.get()]
        held = 0
        while jobs[-1] is not None and (held := held + len(jobs[-1].items)) < LARGEST_GROUP:
            try:
                jobs.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return jobs

    def _run(self, kind: str, jobs: list[_Job]) -> None:
        if kind == "call":
            for job in jobs:
                _answer([(job, *_outcome(job.work))])
            return
        items = [item for job in jobs for item in job.items]
        together = self._inbox.put_each if kind == "put" else self._inbox.archive_all
        result, error = _outcome(lambda: together(items))
        answers = iter(result or [])
        _answer([(job, list(itertools.islice(answers, len(job.items))), error) for job in jobs])


def _outcome(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  handed to the caller, whose work it was
        return None, error


def _answer(outcomes: list[tuple[_Job, Any, BaseException | None]]) -> None:
    """Wake the callers, each on its loop, with one wake-up a loop."""
    for loop in {outcome[0].loop for outcome in outcomes}:
        mine = [outcome for outcome in outcomes if outcome[0].loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:
            continue  # the loop is closed: nobody waits


def _settle(outcomes: list[tuple[_Job, Any, BaseException | None]]) -> None:
    for job, result, error in outcomes:
        if job.answer.done():
            continue  # its caller was cancelled; what it asked for is done all the same
        if error is not None:
            job.answer.set_exception(error)
        else:
            job.answer.set_result(result)
