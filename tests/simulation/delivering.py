"""The process that delivers results, as a third node, and the target to which it sends.

What is real: the courier, the followers of both daemons, the outbox in its file, the calls. The target stands in for the
attempt itself (`send`): it takes a delivery, fails, hangs, or takes a delivery whose answer is lost, as the seed says.
"""

import asyncio
import random  # noqa: TID251  seeded, so that a run can be repeated
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation.loop import Loop
from tests.simulation.people import opened
from tests.simulation.processes import SETTINGS, Process, StepWorker
from tests.simulation.script import DELIVERY
from tests.simulation.transport import Channel, Network
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.constellation.delivery import __main__ as daemon
from turnkeeper.constellation.delivery import outbox
from turnkeeper.constellation.delivery.follow import Follower, Overlooker
from turnkeeper.constellation.delivery.send import LONGEST_S
from turnkeeper.constellation.delivery.targets import Target, add
from turnkeeper.rpc.channel import AsyncCaller
from turnkeeper.rpc.process import keep_running, path_of, together
from turnkeeper.storage.database import Database

TARGET = "receiver"
MOST_FAILURES = 3  # of a delivery: the pauses between its attempts grow
WAYS = ("takes", "takes", "takes", "fails", "hangs", "takes, and its answer is lost")
_STREAMS = frozenset({"WatchTurns", "WatchTasks"})
_STATE = "SELECT state FROM deliveries WHERE key = ?"
_OPEN = "SELECT count(*) FROM deliveries WHERE next_us IS NOT NULL"


def outbox_of(home: Home) -> Path:
    return home.root / "state" / "delivery.db"


def is_settled(home: Home) -> bool:
    """Return whether no delivery is open any more."""
    with opened(outbox_of(home)) as store:
        return not store.execute(_OPEN).fetchone()[0]


@dataclass(frozen=True)
class Attempt:
    """One attempt of a delivery.

    Attributes:
        key: the key by which the target recognises a repetition.
        state: the state of the delivery in the outbox at the beginning of the attempt.
        way: what the target did, one of `WAYS`.
    """

    key: str
    state: str
    way: str


class Receiver:
    """The target of all deliveries, outside the processes: it survives them.

    Attributes:
        attempts: the attempts that reached the target, in their order.
        is_well: True if it takes everything.
    """

    def __init__(self, home: Home, loop: Loop, seed: int) -> None:
        self._home, self._loop, self._seed = home, loop, seed
        self._tries: Counter[str] = Counter()
        self.attempts: list[Attempt] = []
        self.is_well = False

    def add(self) -> None:
        """Make the home deliver every result to this target."""
        add(self._home, TARGET, Target(command="true"))

    async def send(
        self, _target: Target, key: str, kind: str, _body: str, _at: datetime, *, allowed: Collection[str]
    ) -> str:
        """Do what one attempt does: return why it failed, or an empty string."""
        assert not allowed
        self._tries[key] += 1
        drawn = random.Random(f"target {self._seed} {key} {self._tries[key]}")
        may_fail = not self.is_well and self._tries[key] <= MOST_FAILURES
        way = drawn.choice(WAYS) if may_fail else WAYS[0]
        with opened(outbox_of(self._home)) as store:
            state = (store.execute(_STATE, (key,)).fetchone() or [""])[0]
        self._loop.note("target", way, kind, key, state)
        self.attempts.append(Attempt(key, state, way))
        await asyncio.sleep(LONGEST_S if way == "hangs" else drawn.random())  # noqa: TID251  in virtual time
        return "" if way == WAYS[0] else f"the target {way}"

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Let attempts reach this target within the block."""
        with (
            patch.object(daemon, "send", self.send),
            patch.object(outbox, "Database", partial(Database, worker=StepWorker)),
        ):
            yield


class Caller(AsyncCaller):
    """Calls to both daemons over the simulated connections, which need no proof of the caller."""

    def __init__(self, home: Home, networks: dict[str, Network]) -> None:
        super().__init__(home)
        self._networks = networks

    def by(self, _via: Any) -> "Caller":
        return self

    def _connect(self, address: str, **_how: Any) -> Channel:
        return Channel(self._networks[Path(address).stem])

    def _send(self, method: str, request: Any, **how: Any) -> Any:
        call, name = self._method(method, request)
        return (self._iterate if method in _STREAMS else self._answer)(call, name, request, (), **how)


class DeliveryProcess(Process):
    name = DELIVERY

    def __init__(self, *given: Any, door: Network) -> None:
        super().__init__(*given)
        self._networks = {"agent-runtime": self.network, "task-runner": door}

    def break_calls(self) -> None:
        for network in self._networks.values():
            network.break_all(of=self.node)

    async def serve(self) -> None:
        store = Database(outbox_of(self.home), migrations=outbox.MIGRATIONS, worker=StepWorker)
        log = EventLog(self.home.logs, self.name, self.clock)
        self._kept.append(store)
        self.listen(log)
        path_of(self.home, self.name).touch()
        daemons = Caller(self.home, self._networks)
        courier = daemon.Courier(self.home, SETTINGS, store, daemons, clock=self.clock, log=log)
        follower = Follower(store, daemons, courier.wake.set, courier.failpoints)
        ledger = Overlooker(self.home, store, daemons, self.clock, courier.wake.set)
        await store.run(partial(outbox.begin, now=self.clock.now()))
        self.parts = courier
        await together(
            keep_running(lambda: daemon._follow(follower, self.clock, log), self.clock, log.emit),
            keep_running(lambda: daemon._follow(ledger, self.clock, log), self.clock, log.emit),
            keep_running(courier.run, self.clock, log.emit),
            until=asyncio.FIRST_COMPLETED,
        )
