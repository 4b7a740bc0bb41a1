"""What the store returns besides tasks and fires. Plain frozen values."""

from dataclasses import dataclass
from datetime import datetime

from task_runner.model.task import Fire, Outcome


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A fire that is to be sent.

    Attributes:
        fire: its ledger entry.
        request: what was frozen when it was committed, as bytes.
    """

    fire: Fire
    request: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """What a list shows of a task's fires.

    Attributes:
        open: the outcomes of its open entries.
        last: its newest entry that was sent, if any.
    """

    open: frozenset[Outcome] = frozenset()
    last: Fire | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Counts for a status line."""

    tasks: int
    paused: int
    open_fires: int
    unsent: int
    next_wake_at: datetime | None
