"""Self-paced loops: a turn of one says when the next is to come, and the runner hears it with the turn's outcome."""

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from agent_runtime.model.records import TurnRecord
from agent_runtime.model.trigger import WAKES
from agent_runtime.permissions.judge import judge
from agent_runtime.store import turn_writes
from agent_runtime.store.idempotency import Call, once, refuse_ended
from agent_runtime.store.turn_reads import get_turn
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import Clock
from turnkeeper.errors import Denied, InvalidInput

WAKEUP = "loop.wakeup"
LONGEST_WAKE_S = 7 * 86_400


class Pacing:
    """Writes into a turn's row when the turn's loop is to go on, once for each call of the tool."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def wake(self, call: Call, delay_s: float) -> Mapping[str, Any]:
        """Write when the turn's own loop is to go on, counted from the turn's end; the last call of a turn counts.

        It reaches the runner with the turn's outcome, so nothing is armed in the middle of a turn or by one that fails.

        Raises:
            Denied: not in scope, the turn has ended, or no task started it.
            InvalidInput: no delay from 0 to seven days.
        """
        verdict = judge(WAKEUP, "read", {}, call.context)
        if not verdict.allowed:
            raise Denied(verdict.reason, where=verdict.missing_scope)
        delay = _read_delay(delay_s)
        at = self._clock.now()

        def work(connection: Connection) -> Mapping[str, Any]:
            turn = on_record(connection, call.context.turn_id)
            if not turn.fire_id:
                by = "another agent" if call.context.by_agent else "the author"
                what = f"{by} began this turn, no loop: there is nothing to wake"
                raise Denied(what, hint="to begin one, call LoopCreate")

            def write() -> Mapping[str, Any]:
                turn_writes.change_turn(connection, turn.turn_id, wake_after_s=delay)
                return _woken(turn, delay)

            return once(connection, call, WAKEUP, at, refuse_ended, write).result

        return await self._store.write(work)


def on_record(connection: Connection, turn_id: str) -> TurnRecord:
    """Return a turn's row. Raises Denied where there is none."""
    turn = get_turn(connection, turn_id)
    if turn is None:
        raise Denied("the turn is not on record", where=turn_id)
    return turn


def _read_delay(asked: float) -> int:
    """Return a delay in whole seconds, rounded up.

    >>> _read_delay(0), _read_delay(2.1)
    (0, 3)

    Raises:
        InvalidInput: it is no time to come within seven days.
    """
    if not math.isfinite(asked) or not 0 <= asked <= LONGEST_WAKE_S:
        what = f"{asked} is no number of seconds from 0 to {LONGEST_WAKE_S}, seven days"
        raise InvalidInput(what, where="delay_seconds", hint="0 goes on at once; to end the loop, do not call this")
    return math.ceil(asked)


def _woken(turn: TurnRecord, delay_s: int) -> Mapping[str, Any]:
    when = f"{delay_s} s after the end of this turn" if delay_s else "as soon as this turn has ended"
    told = {"wake_after_s": delay_s, "next": f"the next iteration begins {when}; end your turn now"}
    if turn.kind not in WAKES:
        told["note"] = f"{turn.task_name} was not woken as a self-paced task: if it is none, this changes nothing"
    return told
