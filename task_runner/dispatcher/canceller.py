"""Asking the runtime to end turns for which a fire waits that wants them ended: overlap `cancel-running`.

The wish is on disk with the fire that waits, so it survives whatever happens here: the runtime is asked until it has
answered or the turn is over. A turn that waits for its author is left alone.
"""

import asyncio
from functools import partial
from typing import NamedTuple

from task_runner.dispatcher.runtime_client import Runtime
from task_runner.model.task import Fire
from task_runner.planner import log_records
from task_runner.planner.overlap import CANCELS
from task_runner.store.port import Session, Store
from turnkeeper.clock import Clock
from turnkeeper.errors import TurnkeeperError
from turnkeeper.event_log import EventLog

LONGEST_WAIT_S = 30.0
WHY = f"the next fire of its task is due (overlap {CANCELS})"
_PAUSE_S = 2.0
_LARGEST_BATCH = 100


class _Key(NamedTuple):
    fire_id: str
    attempt: int


class Canceller:
    """Carries out what waiting fires ask for."""

    def __init__(self, store: Store, runtime: Runtime, *, clock: Clock, trail: EventLog, work: asyncio.Event) -> None:
        """Take what it works on; `work` is set when there may be something to ask."""
        self._store, self._runtime, self._clock, self._trail = store, runtime, clock, trail
        self._work = work
        self._answered: set[_Key] = set()

    async def run(self) -> None:
        """Ask for ever; what was answered is asked again only if it has still not ended long afterwards."""
        while True:
            self._work.clear()
            answered = await self.ask()
            told = await self._clock.wait(self._work, LONGEST_WAIT_S if answered else _PAUSE_S)
            if answered and not told:
                self._answered.clear()

    async def ask(self) -> bool:
        """Ask for the end of every turn that is to end; return whether all was answered."""
        wanted, after = list[Fire](), 0
        while batch := await self._store.run(partial(_asked_to_end, after=after)):
            wanted, after = wanted + batch, batch[-1].entry_id
        keys = {_Key(fire.fire_id, fire.attempt): fire for fire in wanted}
        self._answered &= keys.keys()
        for key, fire in keys.items():
            if key in self._answered:
                continue
            try:
                await self._runtime.cancel(key.fire_id, key.attempt, WHY, unless_waiting=True)
            except TurnkeeperError:
                return False
            self._answered.add(key)
            self._trail.emit_all([log_records.of_fire("fire.asked_to_end", fire, reason=WHY)])
        return True


def _asked_to_end(session: Session, after: int) -> list[Fire]:
    return session.fires.asked_to_end(after, _LARGEST_BATCH)
