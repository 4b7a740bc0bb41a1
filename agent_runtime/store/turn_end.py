"""The end of a turn, and the release of what waited for it: functions of an open transaction."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from agent_runtime.model.decide import FINISHED
from agent_runtime.model.trigger import Trigger, from_meta
from agent_runtime.model.turn import TurnRecord
from agent_runtime.store import turn_reads, turn_writes
from agent_runtime.store.mail.agent_messages import owe_answer
from agent_runtime.store.turn_writes import LONGEST_SUMMARY, Happened, about, started_by, with_tokens
from turnkeeper.times import to_us


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What ending a turn came to.

    Attributes:
        state: succeeded, silent, failed or cancelled.
        released: ids of the turns whose fires may be sent again.
        kept: messages that waited for this.
        owes: an agent waits for an answer to what the turn was about.
    """

    state: str
    released: tuple[str, ...] = ()
    kept: tuple[Trigger, ...] = ()
    owes: bool = False


def end(connection: Connection, turn: TurnRecord, state: str, error: str, at: datetime) -> Finished:
    """Write how a turn ended, and release what waited for that; a turn that is over stays as it ended."""
    if turn.status in FINISHED:
        return Finished(state=turn.status)
    turn_id, cancelled = turn.turn_id, turn_reads.is_cancelled(connection, turn.turn_id)
    state = "cancelled" if cancelled and state == "succeeded" else state  # as was promised
    quiet = state == "succeeded" and turn.grant.silent and turn.trigger == "fire"
    ended = "silent" if quiet and not turn_writes.has_spoken(connection, turn_id) else state
    summary = turn_writes.last_words(connection, turn_id)[:LONGEST_SUMMARY]
    turn_writes.void_interrupts(connection, turn_id, at)
    why = error or (turn_reads.cancel_reason(connection, turn_id) if state == "cancelled" else "")
    changes = {"status": ended, "visible": ended != "silent", "summary": summary, "error": why}
    turn_writes.change_turn(connection, turn_id, ended_at_us=to_us(at), **changes)
    happened = Happened(state=ended.upper(), trigger=started_by(turn), at=at, summary=summary, error=why)
    turn_writes.add_event(connection, about(turn), with_tokens(happened, turn))
    released = release(connection, turn.thread_id, at)
    kept = tuple(from_meta(meta) for meta in turn_writes.kept(connection, turn.thread_id))
    return Finished(state=ended, released=released, kept=kept, owes=owe_answer(connection, turn_id))


def release(connection: Connection, thread_id: str, at: datetime) -> tuple[str, ...]:
    """Write that the fires that were held on a thread may be sent again; return the ids of their turns."""
    held = turn_writes.release_held(connection, thread_id)
    for what in held:
        turn_writes.add_event(connection, what, Happened(state="RELEASED", trigger="fire", at=at))
    return tuple(what.turn_id for what in held)
