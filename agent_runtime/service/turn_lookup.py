"""What became of a fire or message: its turn, or what it is instead of a turn; and cancelling either."""

from typing import Any

from sqlalchemy import Connection

from agent_runtime.model.decide import FINISHED
from agent_runtime.model.mapping import to_message
from agent_runtime.model.trigger import turn_id_of
from agent_runtime.model.turn import KeyRecord
from agent_runtime.service import reads
from agent_runtime.service.runtime import Runtime
from agent_runtime.store import turn_reads
from agent_runtime.store.mail import terminal_delivery_of_turn
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.times import rfc3339

LONGEST_REASON = 1000
_WITHOUT_TURN = {"held": "held", "kept": "kept", "refused": "failed", "turn": "accepted"}


class TurnLookup:
    """Finds turns by their id, or by fire and attempt."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def get_turn(self, request: wire.GetTurnRequest | wire.CancelTurnRequest, _context: Any = None) -> wire.Turn:
        """Return a turn, or a stand-in for a fire or message that has none. Raises NotFound, InvalidInput."""
        wanted = _wanted(request.turn_id, request.fire_id, request.attempt)
        waiting = self._waiting(wanted)  # looked at first: an envelope leaves only once its key row is on disk
        found = await self._runtime.store.read(lambda connection: _find(connection, wanted))
        if found is None:
            if waiting is None:
                raise NotFound(f"no turn {wanted[:80]!r}", where="turn_id", hint="see: agent-runtime turns list")
            found = waiting
            found.cancel_requested = await self._runtime.store.read(turn_reads.is_cancelled, wanted)
        return found

    async def cancel_turn(self, request: wire.CancelTurnRequest, _context: Any = None) -> wire.Turn:
        """Store a cancel and have it carried out; a turn that is over stays as it is.

        A fire may be on its way still: its cancel is stored, and its start honours it. Raises NotFound, InvalidInput.
        """
        reason = request.reason[:LONGEST_REASON] or "cancelled"
        try:
            turn = await self.get_turn(request)
        except NotFound:
            if not request.fire_id:
                raise
            turn_id = turn_id_of(request.fire_id, request.attempt)
            await self._runtime.store.cancel(turn_id, reason)
            return wire.Turn(turn_id=turn_id, fire_id=request.fire_id, attempt=request.attempt, cancel_requested=True)
        if turn.status in FINISHED | {"held", "delivered"}:
            return turn
        spares = request.unless_waiting
        if await self._runtime.worker.cancel(turn.turn_id, turn.thread_id, reason, unless_waiting=spares):
            turn.cancel_requested = True
        return turn

    def _waiting(self, turn_id: str) -> wire.Turn | None:
        """Return a stand-in for a trigger whose envelope waits in an inbox, or is claimed and not yet begun."""
        for known in self._runtime.mailboxes.queued():
            if known.turn_id == turn_id:
                return to_message(wire.Turn, known, status="accepted", trigger="fire" if known.fire_id else "author")
        return None


def _delivered(connection: Connection, turn_id: str) -> wire.Turn | None:
    """Return a stand-in for a fire that is, or was, in the inbox of an agent that the runtime does not host."""
    laid = terminal_delivery_of_turn(connection, turn_id)
    if laid is None:
        return None
    status = "accepted" if laid.state == "waiting" else laid.state
    progress = reads.progress_fields(connection, turn_id)
    return to_message(wire.Turn, laid, status=status, trigger="fire", error=laid.reason, **progress)


def _wanted(turn_id: str, fire_id: str, attempt: int) -> str:
    if bool(turn_id) == bool(fire_id):
        raise InvalidInput("name a turn or a fire", where="turn_id")
    return turn_id or turn_id_of(fire_id, attempt)


def _find(connection: Connection, turn_id: str) -> wire.Turn | None:
    turn = turn_reads.get_turn(connection, turn_id)
    if turn is not None:
        return reads.turn_message(connection, turn)
    key = turn_reads.key_of_turn(connection, turn_id)
    if key is None:
        return _delivered(connection, turn_id)
    if key.became == "answer":
        return _find(connection, key.into)
    event = turn_reads.newest_event(connection, turn_id)
    return to_message(
        wire.Turn,
        key,
        turn_id=turn_id,
        status=_WITHOUT_TURN[key.became],
        trigger="fire" if key.fire_id else "author",
        summary=_why_kept(connection, key) if key.became == "kept" else "",
        error=event.error if event else "",
        **reads.progress_fields(connection, turn_id),
    )


def _why_kept(connection: Connection, key: KeyRecord) -> str:
    before = turn_reads.bearing_on_thread(connection, key.thread_id, besides=key.turn_id)
    if before is None or before.status != "paused" or before.paused_until is None:
        return "the message waits until you decide"
    until = rfc3339(before.paused_until.replace(microsecond=0))
    return f"the message waits for the next fire of {before.task_name}, at most until {until}"
