"""Keep the newest changes to tasks in memory, each with a cursor that a reader can continue from.

No state is kept per reader, so slow readers cost nothing. If the change after a reader's cursor is no longer kept, or
the cursor is from an earlier run of the daemon, the stream tells the reader to list again.
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
REST_S = 0.25  # delay before the log reports a change: too short to notice, and due fires are sent first


class Change(StrEnum):
    """The kind of a change to a task or to the stream."""

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
    """

    number: int
    change: Change
    task_id: str


class TaskChanges:
    """The newest changes to tasks in one run of the daemon.

    Attributes:
        newest: the number of the newest change; 0 before the first.
    """

    def __init__(self, incarnation: str, most: int = MOST_KEPT) -> None:
        self._incarnation, self._kept = incarnation, deque[Changed](maxlen=most)
        self._news, self._closed = asyncio.Event(), False
        self.newest = 0

    def note(self, events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Store the changes in records of the event log. Records that concern no task are skipped."""
        for name, fields in events:
            change = _NAMED.get(name) or (Change.CHANGED if name in _OTHERS or name[:5] == "task." else None)
            if change is not None and "task_id" in fields:
                self.newest += 1
                self._kept.append(Changed(self.newest, change, str(fields["task_id"])))
                self._news.set()

    def close(self) -> None:
        """End every watch, because the daemon is stopping."""
        self._closed = True
        self._news.set()

    def since(self, number: int) -> Sequence[Changed] | None:
        """Return the changes that follow change `number`; None if some of them are no longer kept."""
        if self.newest - number > len(self._kept):
            return None
        return [each for each in self._kept if each.number > number]

    async def wait(self, number: int) -> bool:
        """Wait for a change that follows change `number`. Return False if the daemon stops."""
        while self.newest == number and not self._closed:
            self._news.clear()
            await self._news.wait()
        return not self._closed

    def cursor(self, number: int) -> str:
        """Return an opaque cursor that points after change `number`."""
        return urlsafe_b64encode(f"{self._incarnation} {number}".encode()).decode()

    def number_at(self, cursor: str) -> int | None:
        """Return the change number of a cursor. None if the cursor is from another run. Raises InvalidInput."""
        with suppress(ValueError):
            incarnation, _, number = urlsafe_b64decode(cursor.encode()).decode("ascii").partition(" ")
            if incarnation.isalnum() and number.isdecimal() and len(number) < 19:
                return int(number) if incarnation == self._incarnation and int(number) <= self.newest else None
        raise InvalidInput(f"{cursor[:60]!r} is not a cursor", where="cursor", hint="pass the cursor of a change")


class WatchedLog(EventLog):
    """An event log that reports its records to watchers after the records are on disk."""

    changes: TaskChanges

    def emit_all(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, durable: bool = False) -> None:
        """Append events, then report them to watchers."""
        super().emit_all(events, durable=durable)
        self.changes.note(events)
