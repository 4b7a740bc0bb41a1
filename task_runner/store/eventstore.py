"""The port behind which it lies which tasks listen, which events were taken in, and what triggered each entry."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from task_runner.model.events import Event
from task_runner.model.task import Fire, Snapshot, Task
from task_runner.planner.event_triggers import Standing, Trigger


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What triggered a ledger entry.

    Attributes:
        entry_id: the entry; of a record, the event is the newest that it counts.
        event, event_id, at: the event.
        cause: the fire that led to it; empty for none that is known.
        chain: the tasks whose fires led to it, oldest first.
    """

    entry_id: int
    event: str
    event_id: str
    at: datetime
    cause: str = ""
    chain: tuple[str, ...] = ()


class Events(Protocol):
    """Events and the tasks that listen for them."""

    def position(self) -> tuple[str, int]:
        """Return the incarnation and the sequence of the last event of the runtime taken in; empty and 0 at first."""

    def move(self, incarnation: str, sequence: int) -> None:
        """Record a new position."""

    def wanted(self) -> frozenset[str]:
        """Return the names of events that any task listens for."""

    def listeners(self, names: Collection[str]) -> list[Task]:
        """Return the tasks that listen for events of these names, stopped ones too: a lookup in an index."""

    def remember(self, events: Sequence[Event]) -> list[Event]:
        """Write down that events are taken in; return those that were not before, in order, each once."""

    def causes(self, fire_ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return, by fire id, the tasks whose fires led to that fire, its own the last."""

    def fire_of_turn(self, turn_id: str) -> Fire | None:
        """Return the open fire of a running turn."""

    def standings(self, snapshots: Sequence[Snapshot]) -> list[Standing]:
        """Return tasks with all that their triggers depend on."""

    def note(self, entries: Iterable[tuple[Fire, Trigger]]) -> None:
        """Write down what triggered numbered entries, in place of what was written of them before."""

    def notes(self, entry_ids: Collection[int]) -> dict[int, Note]:
        """Return what triggered those entries that an event did."""

    def newest(self, task_id: str) -> Fire | None:
        """Return the newest entry of a task that an event made."""

    def forget(self, entry_ids: Collection[int]) -> None:
        """Forget what triggered entries that are removed."""

    def forget_before(self, at: datetime, limit: int) -> int:
        """Forget at most `limit` events that happened before a time; return how many."""
