"""The port behind which tasks and the ledger lie.

All work is a synchronous function of a :class:`Session`, run in one transaction: what it reads cannot change under
it, and what it writes is on disk, whole, when :meth:`Store.run` returns.

The port behind which it lies which tasks listen, which events were taken in, and what triggered each entry.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from task_runner.model.events import Event
from task_runner.model.task import Fire, Outcome, Revision, Snapshot, Task, TaskState
from task_runner.planner.event_triggers import Standing, Trigger
from task_runner.planner.plan import Plan


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


T = TypeVar("T")


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


class Tasks(Protocol):
    """The tasks of one store."""

    def add(self, tasks: Sequence[Task]) -> None:
        """Write new tasks and their first revisions. Raises AlreadyExists if a name is taken."""

    def ids_taken(self, ids: Collection[str]) -> set[str]:
        """Return those of some ids that were ever given to a task, deleted ones included."""

    def named(self, names: Collection[str]) -> dict[str, Task]:
        """Return the living tasks of those names that exist."""

    def find(self, name: str) -> Task | None:
        """Return the living task of that name, or the task, deleted ones included, of that id."""

    def listed(
        self, *, category: str = "", channel: str = "", made_by: str = "", states: Collection[TaskState] = ()
    ) -> list[Task]:
        """Return the living tasks, next to fire first, those that will not fire last, then by name."""

    def revise(self, task: Task, valid_from: datetime) -> None:
        """Write a task's new definition as its next revision."""

    def revisions(self, task_id: str) -> list[Revision]:
        """Return all revisions of a task, oldest first."""

    def snapshots(self, ids: Sequence[str]) -> list[Snapshot]:
        """Return the tasks of those ids with all that planning them needs."""

    def due(self, now: datetime, limit: int) -> list[str]:
        """Return the ids of at most `limit` tasks to be planned by `now`, earliest first: an index range scan."""

    def next_wake(self) -> datetime | None:
        """Return when the next task needs planning."""

    def ahead_of(self, at: datetime, limit: int) -> list[str]:
        """Return the ids of at most `limit` tasks whose cursor is later than `at`."""

    def quarantine(self, task_id: str, reason: str) -> None:
        """Stop a task without planning it."""

    def record_accepted(self, fires: Iterable[Fire]) -> None:
        """Add fires accepted for the first time to their tasks' counts."""

    def made_by(self, agent: str) -> int:
        """Return how many tasks that an agent made have not ended, paused and disabled ones included."""

    def paced_on(self, thread_ids: Collection[str]) -> list[Task]:
        """Return the self-paced tasks on those threads that have not ended."""

    def ephemeral(self) -> list[Task]:
        """Return the living tasks that last as long as the daemon."""

    def totals(self) -> Totals:
        """Return counts over the whole store."""


class Fires(Protocol):
    """The ledger and the requests frozen for its fires."""

    def write_plans(self, plans: Sequence[Plan], requests: Mapping[str, bytes]) -> list[tuple[Fire, ...]]:
        """Write plans: tasks, new and changed entries, and frozen requests; return each plan's entries with numbers.

        Args:
            plans: what to write.
            requests: by task id, the request to freeze for fires that get their identity now.
        """

    def add(self, fire: Fire, request: bytes) -> Fire:
        """Write a fire outside a plan; return it with its number."""

    def add_all(self, fires: Sequence[Fire], request: bytes) -> list[Fire]:
        """Write fires of one task outside a plan; return them with their numbers."""

    def add_each(self, fires: Sequence[Fire], requests: Sequence[bytes | None]) -> list[Fire]:
        """Write entries outside a plan, each with its own request, or none; return them with their numbers."""

    def touching(self, task_id: str, first: datetime, last: datetime) -> list[Fire]:
        """Return the entries of a task, of every kind, that cover or are named by a time in [first, last], in order."""

    def update(self, fires: Sequence[Fire]) -> None:
        """Replace entries by their numbers; the requests of settled ones are let go."""

    def record_sent(self, fires: Sequence[Fire]) -> None:
        """Write of entries by their numbers what sending changes: outcome, reason, and the times around it."""

    def record_accepted(self, fires: Sequence[Fire]) -> None:
        """Write of open entries by their numbers what a receipt that accepts changes."""

    def by_ids(self, fire_ids: Collection[str]) -> dict[str, Fire]:
        """Return the entries of those fire ids that exist."""

    def by_request(self, task_id: str, request_id: str) -> Fire | None:
        """Return the manual fire of a task that a client asked for under that id."""

    def ready(self, now: datetime, limit: int, *, caught_up: bool) -> list[Outgoing]:
        """Return at most `limit` fires that may be sent by `now`, caught-up ones or the others, oldest first."""

    def ready_later(self, now: datetime, after_entry: int, limit: int) -> list[Fire]:
        """Return at most `limit` fires that may be sent only later than `now`, with a greater number, in order."""

    def next_ready(self, *, caught_up: bool) -> datetime | None:
        """Return when the next fire of that sort may be sent."""

    def unanswered(self, after_entry: int, limit: int) -> list[Outgoing]:
        """Return at most `limit` fires that were sent and not answered, with a greater number, in order."""

    def tasks_under_way(self) -> list[str]:
        """Return the ids of the tasks that have a fire under way."""

    def asked_to_end(self, after_entry: int, limit: int) -> list[Fire]:
        """Return at most `limit` fires under way that one waiting behind them asks to end, by number, in order."""

    def catching_up(self) -> int:
        """Return how many caught-up fires are under way."""

    def open_fires(self, after_entry: int, limit: int) -> list[Fire]:
        """Return at most `limit` open fires that have been sent, with a greater number, in order."""

    def history(self, task_id: str, limit: int) -> list[Fire]:
        """Return a task's newest entries, newest first."""

    def glances(self, ids: Collection[str]) -> dict[str, Glance]:
        """Return what a list shows of those tasks' fires."""

    def lateness(self, task_id: str, limit: int) -> list[float]:
        """Return how late, in seconds, a task's newest fires were sent."""

    def after_nominal(self, task_id: str, at: datetime, limit: int) -> list[Fire]:
        """Return at most `limit` scheduled entries of a task that cover nominal times later than `at`."""

    def numbered(self, after_entry: int, limit: int) -> list[Fire]:
        """Return the next entries with a greater number, of every task and kind, in order."""

    def first_covered(self, task_id: str, but: Collection[int]) -> datetime | None:
        """Return the first nominal time that a task's entries cover, but for some entries and what is pruned."""

    def pruned(self, task_id: str) -> Fire | None:
        """Return the entry that stands for what was pruned of a task."""

    def leave_tails(self, entry_ids: Collection[int]) -> None:
        """Let none of these entries be extended by a skip any more."""

    def remove(self, entry_ids: Collection[int]) -> None:
        """Remove settled entries."""

    def remove_runs(self, entry_ids: Sequence[int]) -> None:
        """Remove skipped runs whose nominal times turn out to lie in the future."""


class Follow(Protocol):
    """How far the runtime's turn events have been taken in."""

    def position(self) -> tuple[str, int]:
        """Return the incarnation and the sequence of the last event taken in; empty and 0 at first."""

    def move(self, incarnation: str, sequence: int) -> None:
        """Record a new position."""


class Session(Protocol):
    """One transaction."""

    @property
    def tasks(self) -> Tasks:
        """The tasks."""

    @property
    def fires(self) -> Fires:
        """The ledger."""

    @property
    def follow(self) -> Follow:
        """The position in the runtime's events."""

    @property
    def events(self) -> Events:
        """The events that set tasks off."""


class Store(Protocol):
    """A store of tasks and fires."""

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction; return its result once that is on disk. Its exception undoes it alone."""

    async def rehearse(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction that is undone; return what it would have done."""
