"""The people and programs of a run: they write messages, decide approvals, emit events, run tasks and cancel turns.

Each asks until it is answered, with the same id, as a client does that gets an error. Some answers are lost on their way
to a client, which then asks again. What was asked, and whether an answer came, is kept for the checker. Some approvals
are left to expire.
"""

import asyncio
import random  # noqa: TID251  seeded, so that a run can be repeated
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.cluster.checking import Asked
from tests.simulation.loop import Clock, Loop, context_of
from tests.simulation.processes import Process
from tests.simulation.script import Act
from turnkeeper.bus.envelope import turn_id_of
from turnkeeper.errors import Conflict, MachineTrouble, NotFound, TurnkeeperError, Unreachable, machine_trouble
from turnkeeper.v1 import agent_runtime_pb2 as runtime_wire
from turnkeeper.v1 import schedules_pb2 as wire

ATTEMPT_S = 20.0
MOST_ATTEMPTS = 200
LOST = 0.15  # the share of answers that their clients do not get
_LOOKS_S = 4.0
_LONGEST_THOUGHT_S = 30.0
_PENDING = "SELECT interrupt_id FROM interrupts WHERE status = 'pending' ORDER BY number"
_RUNNING = "SELECT turn_id FROM turns WHERE trigger = 'fire' AND status = 'running' ORDER BY number LIMIT 1"
_QUEUED = "SELECT fire_id, attempt FROM fires WHERE is_open AND turn_id = '' ORDER BY entry_id LIMIT 1"
_BEGUN = "SELECT count(*) FROM turns WHERE turn_id = ?"
_MESSAGE = "Say what you think, "


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store for reading, beside its process."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        yield connection
    finally:
        connection.close()


class People:
    """Everybody who asks something of the daemons.

    Attributes:
        asked: requests, and whether each was answered.
        withdrawn: the turns that were cancelled before they began.
        wrong: requests that were never answered.
    """

    def __init__(self, runner: Process, runtime: Process, loop: Loop, clock: Clock, seed: int) -> None:
        self._runner, self._runtime, self._loop, self._clock, self._seed = runner, runtime, loop, clock, seed
        self._loses = random.Random(f"answers {seed}")
        self._seen: set[str] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self.asked: list[Asked] = []
        self.withdrawn: list[str] = []
        self.wrong: list[str] = []

    async def ask_runner(self, method: str, request: Any) -> bool:
        """Call the runner's service until it answers; return False if it refuses."""
        return await self._ask(self._runner, lambda parts: getattr(parts.service, method)(request), method)

    async def ask_runtime(self, method: str, request: Any) -> bool:
        """Call the runtime's service until it answers; return False if it refuses."""
        return await self._ask(
            self._runtime, lambda _parts: getattr(self._runtime.servicer, method)(request, None), method
        )

    async def act(self, act: Act) -> None:
        """Do something that the script names, and keep whether it was answered."""
        key = f"{act.kind}-{act.number}"
        if act.kind == "message":
            text = f"{_MESSAGE}{key}"
            message = runtime_wire.SendMessageRequest(
                channel="talk", text=text, request_id=key, category="loop", new_thread=act.number % 3 == 0
            )
            self._keep("message", text, answered=await self.ask_runtime("SendMessage", message))
        elif act.kind == "event":
            event = wire.EmitEventRequest(name="news", event_id=key, data_json='{"new": true}')
            self._keep("event", key, answered=await self.ask_runner("emit_event", event))
        elif act.kind == "run":
            run = wire.RunTaskRequest(name=act.what, request_id=key)
            self._keep("run", key, answered=await self.ask_runner("run_task", run))
        elif act.number % 2:
            await self._cancel_queued()
        else:
            with opened(self._runtime.home.agent_db) as store:
                turn = store.execute(_RUNNING).fetchone()
            if turn is not None:
                cancel = runtime_wire.CancelTurnRequest(turn_id=turn[0])
                self._keep("cancel", turn[0], answered=await self.ask_runtime("CancelTurn", cancel))

    async def _cancel_queued(self) -> None:
        """Cancel the turn of a fire before it begins. If it has not begun at the answer, it must not run."""
        with opened(self._runner.home.schedules_db) as store:
            fire = store.execute(_QUEUED).fetchone()
        if fire is None or not fire[0]:
            return
        cancel = runtime_wire.CancelTurnRequest(fire_id=fire[0], attempt=fire[1])
        answered, turn_id = await self.ask_runtime("CancelTurn", cancel), turn_id_of(*fire)
        with opened(self._runtime.home.agent_db) as store:
            has_begun = store.execute(_BEGUN, (turn_id,)).fetchone()[0]
        if answered and not has_begun:
            self.withdrawn.append(turn_id)

    async def decide(self) -> None:
        """Decide each question of a turn after a while, or leave it to expire. Ends by being cancelled."""
        known = -1
        while True:
            await self._clock.sleep(_LOOKS_S)
            if known == (known := len(self._runtime.events)):
                continue  # nothing has happened
            with opened(self._runtime.home.agent_db) as store:
                waiting = [row[0] for row in store.execute(_PENDING)]
            for interrupt_id in waiting:
                if interrupt_id not in self._seen:
                    self._seen.add(interrupt_id)
                    self._under_way.add(asyncio.create_task(self._decide(interrupt_id)))

    async def _decide(self, interrupt_id: str) -> None:
        drawn = random.Random(f"decision {self._seed} {interrupt_id}")
        decision = drawn.choice(["approve", "approve", "reject", ""])
        await self._clock.sleep(_LONGEST_THOUGHT_S * drawn.random())
        if decision:
            request = runtime_wire.ResolveInterruptRequest(interrupt_id=interrupt_id, decision=decision)
            asked, place = Asked(what="decision", key=interrupt_id, answered=False, said=decision), len(self.asked)
            self.asked.append(asked)  # the run may end before the answer to the person
            self.asked[place] = replace(asked, answered=await self.ask_runtime("ResolveInterrupt", request))

    def _keep(self, what: str, key: str, *, answered: bool) -> None:
        self.asked.append(Asked(what=what, key=key, answered=answered))

    async def _ask(self, process: Process, call: Callable[[Any], Any], what: str) -> bool:
        was_done = False
        for _ in range(MOST_ATTEMPTS):
            if process.parts is not None and not process.is_dead:
                # The call belongs to the process: it ends with it.
                attempt = self._loop.create_task(call(process.parts), context=context_of(process.node))
                process.keep(attempt)
                done, _ = await asyncio.wait({attempt}, timeout=ATTEMPT_S)
                error = attempt.exception() if done and not attempt.cancelled() else None
                if done and error is None and self._loses.random() >= LOST:
                    return True
                was_done = was_done or bool(done and error is None)
                if isinstance(error, (Conflict, NotFound)):  # an attempt before may have made the task
                    return was_done or (isinstance(error, Conflict) and what == "create_task")
                if error is not None and not _passes(error):
                    self.wrong.append(f"{what}: {type(error).__name__}: {error}")
                    return False
            await self._clock.sleep(1)
        self.wrong.append(f"{what} is never answered")
        return False


def _passes(error: BaseException) -> bool:
    """Return whether an error is of the machine or of a process that ends, so that the caller asks again."""
    if isinstance(error, TurnkeeperError):
        return isinstance(error, (MachineTrouble, Unreachable))
    return isinstance(error, (TimeoutError, asyncio.CancelledError)) or machine_trouble(error) is not None
