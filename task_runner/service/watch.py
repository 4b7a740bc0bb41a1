"""Changes of tasks for those who watch: the newest of them in memory, each with a place that a reader can go on from.

Nothing is kept for a reader, so a slow one costs nothing: once the change after its place is gone, it is told to list
again. The same holds for a place in an earlier run of the daemon.
"""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

from turnkeeper.bus.event_log import EventLog
from turnkeeper.errors import InvalidInput

MOST_KEPT = 1000
REST_S = 0.25  # between a change and telling it: a person sees no difference, and what is due is sent first


class Change(StrEnum):
    """What became of a task, or of the stream."""

    WATCHING = "watching"
    LIST_AGAIN = "list_again"
    CREATED = "created"
    CHANGED = "changed"
    PAUSED = "paused"
    FIRED = "fired"
    DELETED = "deleted"


_OTHERS = frozenset({"fire.settled", "fire.skipped", "fire.interrupted", "fire.held", "fire.released"})
_NAMED = {
    "task.created": Change.CREATED,
    "task.paused": Change.PAUSED,
    "fire.sent": Change.FIRED,
    "task.deleted": Change.DELETED,
}


class Changed(NamedTuple):
    """One change.

    Attributes:
        number: from 1, without a gap.
        change: what became of the task.
        task_id: which task.
    """

    number: int
    change: Change
    task_id: str


class TaskChanges:
    """The newest changes of tasks in one run of the daemon.

    Attributes:
        newest: the number of the newest change; 0 before the first.
    """

    def __init__(self, incarnation: str, most: int = MOST_KEPT) -> None:
        self._incarnation, self._kept = incarnation, deque[Changed](maxlen=most)
        self._news, self._closed = asyncio.Event(), False
        self.newest = 0

    def note(self, events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Take in records of the event log; those that are of no task are passed over."""
        for name, fields in events:
            change = _NAMED.get(name) or (Change.CHANGED if name in _OTHERS or name[:5] == "task." else None)
            if change is not None and "task_id" in fields:
                self.newest += 1
                self._kept.append(Changed(self.newest, change, str(fields["task_id"])))
                self._news.set()

    def close(self) -> None:
        """End every watch: the daemon stops."""
        self._closed = True
        self._news.set()

    def since(self, number: int) -> Sequence[Changed] | None:
        """Return the changes after that number; None if some of them are gone."""
        if self.newest - number > len(self._kept):
            return None
        return [each for each in self._kept if each.number > number]

    async def wait(self, number: int) -> bool:
        """Wait for a change after that number; False when the daemon stops."""
        while self.newest == number and not self._closed:
            self._news.clear()
            await self._news.wait()
        return not self._closed

    def cursor(self, number: int) -> str:
        """Return the place behind a change, opaque to whoever passes it on."""
        return urlsafe_b64encode(f"{self._incarnation} {number}".encode()).decode()

    def number_at(self, cursor: str) -> int | None:
        """Return the number of the change at a cursor; None for one of another run. Raises InvalidInput."""
        with suppress(ValueError):
            incarnation, _, number = urlsafe_b64decode(cursor.encode()).decode("ascii").partition(" ")
            if incarnation.isalnum() and number.isdecimal() and len(number) < 19:
                return int(number) if incarnation == self._incarnation and int(number) <= self.newest else None
        raise InvalidInput(f"{cursor[:60]!r} is no cursor", where="cursor", hint="pass the one that a change gave")


class WatchedLog(EventLog):
    """An event log that hands on what it records, so that a change is told after it is on disk.

    Attributes:
        changes: the changes of tasks among it.
    """

    changes: TaskChanges

    def emit_all(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, durable: bool = False) -> None:
        """Append events, and hand them on."""
        super().emit_all(events, durable=durable)
        self.changes.note(events)
