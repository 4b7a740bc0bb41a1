"""One task in a world without threads: the planner on its real store, and a runtime that is a dictionary.

What the daemon's parts do in their own loops happens here when it is asked for, one transaction at a time, so that a
test can lose the connection, the runner or an hour between any two of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from google.rpc import code_pb2
from sqlalchemy import MetaData, create_engine, delete, event, select
from sqlalchemy.pool import StaticPool

from task_runner.dispatcher.dispatcher import claim, record_receipts
from task_runner.dispatcher.outcomes import News, record_news
from task_runner.model.task import Fire, Task
from task_runner.planner.ledger import TurnState
from task_runner.planner.log_records import LogRecord
from task_runner.scheduler.planning import complete_request, plan_tasks
from task_runner.scheduler.rewind import bring_back, rewind
from task_runner.service import changes
from task_runner.service.task_spec import Defaults, parse_spec
from task_runner.store.rows import Key, Outgoing, fire_of
from task_runner.store.schema import audit, fires, metadata
from task_runner.store.store import Session
from tests.support.planning import plan_due
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.constellation.audit import verify
from turnkeeper.constellation.audit.records import chains_of, differences
from turnkeeper.storage import keys
from turnkeeper.storage.chain import Recorder, shared_tables_of
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire

T = TypeVar("T")
START = datetime(2026, 3, 28, 22, 0, tzinfo=UTC)  # three hours before Riga loses one
CHAINS = MetaData()  # which a store of a server has beside its tables
shared_tables_of(CHAINS)
DEFAULTS = Defaults(timezone="UTC", grace=timedelta(seconds=10))
FINAL = {
    "succeeds": TurnState.SUCCEEDED,
    "says nothing": TurnState.SILENT,
    "fails": TurnState.FAILED,
    "is cancelled": TurnState.CANCELLED,
    "pauses": TurnState.PAUSED,
}


class Crash(Exception):
    """The process dies before its transaction is on disk."""


@dataclass
class Turn:
    """What the runtime has of an attempt."""

    fire_id: str
    attempt: int
    state: str  # queued, running, interrupted, held, released, or how it ended


class Peer:
    """The runtime: one thread, its turns, and what it tells of them, in order."""

    def __init__(self) -> None:
        self.turns: dict[tuple[str, int], Turn] = {}
        self.events: list[News] = []
        self.ended: dict[tuple[str, int], datetime] = {}
        self.cancelled: set[tuple[str, int]] = set()  # before they came
        self.author_writes = False  # the thread waits for its author, without any fire of ours
        self.refuses = False

    def offer(self, fire: Fire, now: datetime) -> runtime.FireReceipt:
        key = fire.fire_id, fire.attempt
        receipt = runtime.FireReceipt(fire_id=fire.fire_id, attempt=fire.attempt, turn_id=f"turn-{len(self.turns)}")
        if key in self.turns:
            receipt.disposition = runtime.FireReceipt.DUPLICATE
            return receipt
        if self.refuses:
            receipt.error.CopyFrom(runtime.FireError(code=code_pb2.RESOURCE_EXHAUSTED, message="full"))
            return receipt
        before = self.turns.get((fire.fire_id, fire.attempt - 1))
        assert fire.attempt == 1 or (before and before.state in {"released", "fails"}), (key, before)
        receipt.disposition = runtime.FireReceipt.ACCEPTED
        turn = self.turns[key] = Turn(*key, "queued")
        if self.author_writes or self.one("interrupted"):
            self._move(turn, "held", TurnState.HELD, now)
        elif key in self.cancelled:
            self._move(turn, "is cancelled", TurnState.CANCELLED, now)
        self._start(now)
        return receipt

    def one(self, state: str) -> Turn | None:
        return next((turn for turn in self.turns.values() if turn.state == state), None)

    def end(self, how: str, now: datetime, asks: int | None = None) -> None:
        """End the turn that runs; `asks` is how many seconds later it asks to be woken."""
        turn = self.one("running") or self.one("interrupted")
        if turn is not None:
            self._move(turn, how, FINAL[how], now, asks)
            self._let_go(now)

    def cancel(self, fire_id: str, attempt: int, now: datetime) -> None:
        """End a turn at its next await, unless it waits for its author; of one not heard of yet, its start."""
        turn = self.turns.get((fire_id, attempt))
        if turn is None:
            self.cancelled.add((fire_id, attempt))
        elif turn.state in {"running", "queued"}:
            self._move(turn, "is cancelled", TurnState.CANCELLED, now)
            self._let_go(now)

    def interrupt(self, now: datetime) -> None:
        if turn := self.one("running"):
            self._move(turn, "interrupted", TurnState.INTERRUPTED, now)
            self._hold(now)

    def idle(self) -> bool:
        return not (self.author_writes or self.one("running") or self.one("interrupted"))

    def write(self, now: datetime) -> None:
        if self.idle():
            self.author_writes = True
            self._hold(now)

    def release(self, now: datetime) -> None:
        self.author_writes = False
        if turn := self.one("interrupted"):
            self._move(turn, "running", TurnState.RESUMED, now)
        self._let_go(now)

    def _hold(self, now: datetime) -> None:
        while turn := self.one("queued"):
            self._move(turn, "held", TurnState.HELD, now)

    def _let_go(self, now: datetime) -> None:
        if self.author_writes or self.one("interrupted"):
            return
        while turn := self.one("held"):
            self._move(turn, "released", TurnState.RELEASED, now)
        self._start(now)

    def _start(self, now: datetime) -> None:
        if self.one("running") is None and not self.one("interrupted") and (turn := self.one("queued")):
            self._move(turn, "running", TurnState.STARTED, now)

    def _move(self, turn: Turn, state: str, told: TurnState, now: datetime, asks: int | None = None) -> None:
        turn.state = state
        if told in FINAL.values():
            self.ended[turn.fire_id, turn.attempt] = now
        error = "it broke" if state == "fails" else ""
        self.events.append(News(turn.fire_id, turn.attempt, told, now, "turn", error, wake_after_s=asks))


def open_store(url: str = "sqlite://") -> Any:
    """Return an engine on a store that all worlds of a test share, one after the other."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=StaticPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys=ON"))
    metadata.create_all(engine)
    if engine.dialect.name != "sqlite":
        CHAINS.create_all(engine)
    return engine


class World:
    """A clock, a runner and its runtime."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.now = engine, START
        self.peer, self.entropy = Peer(), SeededEntropy(1)
        self.connected = self.stepped_back = self.dies = False
        self.receipts: list[tuple[runtime.FireReceipt, Key]] = []
        self.task_id = ""
        self.told: list[LogRecord] = []
        self.watch: Callable[[Outgoing], None] = lambda outgoing: None
        self._task: Task | None = None  # as the store has it; read again after each transaction
        self._rows: list[Fire] | None = None
        with engine.begin() as connection:
            chains = CHAINS.sorted_tables if engine.dialect.name != "sqlite" else []
            for table in (*reversed(metadata.sorted_tables), *chains):
                connection.execute(delete(table))
            recorder = Recorder([keys.Key(id="", secret="1" * keys.SECRET_DIGITS, created_at="")], "")
            audit.begin(connection, self.now, SeededEntropy(2), lambda: {"fire": 0}, recorder)

    def run(self, work: Callable[[Session], T]) -> T:
        """Run one transaction; if the process is about to die, nothing of it is on disk."""
        self._task = self._rows = None
        with self.engine.begin() as connection:
            done = work(Session(connection, lambda: self.now))
            if self.dies:
                raise Crash
        return done

    def crash(self) -> None:
        """Forget all that is not on disk, and start again."""
        self.dies = self.connected = False
        self.receipts.clear()
        self.stepped_back = True  # a runner that starts looks at its cursors

    def task(self) -> Task:
        if self._task is None:
            with self.engine.begin() as connection:
                session = Session(connection, lambda: self.now)
                self._task = session.tasks.snapshots([self.task_id])[0].task
        return self._task

    def rows(self) -> list[Fire]:
        if self._rows is None:
            with self.engine.begin() as connection:
                query = select(fires).where(fires.c.task_id == self.task_id).order_by(fires.c.entry_id)
                self._rows = [fire_of(row) for row in connection.execute(query)]
        return self._rows

    def check_records(self) -> None:
        """The chain is whole, and tells of the ledger what the ledger tells."""
        with self.engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert verify.check(chains_of(driver, "task-runner")).faults == []
            assert list(differences(driver, "task-runner")) == []

    def create(self, **fields: Any) -> None:
        spec = spec_of(fields)
        done = self.run(lambda session: changes.create(session, spec, DEFAULTS, self.now, self.entropy))
        self.task_id = done.task.id

    def edit(self, **fields: Any) -> bool:
        spec = spec_of(fields)
        parse_spec(spec, DEFAULTS, self.now)
        done = self.run(lambda session: changes.update(session, "digest", spec, DEFAULTS, self.now))
        return done.action == "updated"

    def tick(self) -> None:
        """What the loop does each time round."""
        self.look_at_cursors()
        self.told += self.run(lambda session: plan_due(session, self.now, reachable=self.connected)).events

    def look_at_cursors(self) -> None:
        """What the loop does once the clock was set back, and when it starts."""
        if self.stepped_back:
            while self.run(lambda session: rewind(session, self.now)):
                pass
            after = 0
            while after := self.run(partial(bring_back, now=self.now, after_entry=after)):
                pass
            self.stepped_back = False

    def connect(self) -> None:
        if not self.connected:
            self.connected = True
            self.run(lambda session: plan_tasks(session, session.fires.tasks_under_way(), self.now, complete=False))
            for outgoing in self.run(lambda session: session.fires.unanswered(0, 100)):
                self._offer(outgoing)

    def send(self) -> None:
        if self.connected:
            for outgoing in self.run(lambda session: claim(session, self.now, 10, 4, single=False)):
                self.watch(outgoing)
                self._offer(outgoing)

    def hear(self) -> None:
        """Take in the receipts that have arrived."""
        if self.receipts:
            receipts, keys = zip(*self.receipts, strict=True)
            self.told += self.run(lambda s: record_receipts(s, list(receipts), list(keys), self.now)).events
            self.receipts.clear()

    def follow(self, most: int = 100) -> None:
        """Take in what the runtime told of its turns."""

        def record(session: Session) -> None:
            _, after = session.outcomes_read.get()
            news = self.peer.events[after : after + most]
            if news:
                news = [each._replace(at=min(each.at, self.now)) for each in news]
                record_news(session, news, self.now)
                session.outcomes_read.move("one", after + len(news))

        if self.connected:
            self.run(record)

    def cancel(self) -> list[Fire]:
        """Ask the runtime to end what a waiting fire wants ended; return it."""
        asked = self.run(lambda session: session.fires.asked_to_end(0, 100)) if self.connected else []
        for fire in asked:
            self.peer.cancel(fire.fire_id, fire.attempt, self.now)
        return asked

    def _offer(self, outgoing: Outgoing) -> None:
        complete_request(outgoing)
        receipt = self.peer.offer(outgoing.fire, self.now)
        self.receipts.append((receipt, Key(outgoing.fire.fire_id, outgoing.fire.attempt)))


def spec_of(fields: dict[str, Any]) -> wire.TaskSpec:
    given = {key: value for key, value in fields.items() if value is not None}
    return wire.TaskSpec(name="digest", category="loop", channel="general", **({"prompt": "p"} | given))
