"""An author's message: which thread it continues, that it is taken once, and what is pending there."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agent_runtime.model.trigger import WAKES, message_key
from agent_runtime.model.turn import TurnRecord
from agent_runtime.service.requests import read_label, read_message, read_request_id
from agent_runtime.service.runtime import Runtime
from agent_runtime.store import turn_reads
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import Conflict, InvalidInput


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a message goes: the thread, and whether this very message went there before."""

    thread_id: str
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What an author is told of the thread that his message goes to."""

    continues: bool
    pending: Sequence[str]
    takes_over: str


class MessageIntake:
    """Accepts authors' messages."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._newest: dict[str, tuple[str, str]] = {}  # turn and thread of a channel's newest message

    async def send_message(self, request: wire.SendMessageRequest, _context: Any = None) -> wire.SendMessageResponse:
        """Accept a message; its envelope is on disk when this answers. Raises InvalidInput, Conflict, Exhausted."""
        request_id = read_request_id(request.request_id or self._runtime.entropy.hex(32))
        channel = read_label(request.channel, "channel")
        place = await self._place(request, channel, request_id)
        trigger = read_message(request, self._runtime.categories.get, thread_id=place.thread_id, request_id=request_id)
        receipt = await self._runtime.acceptor.accept(trigger)
        self._newest[channel] = (trigger.turn_id, place.thread_id)
        look = await self._runtime.store.read(lambda connection: _look(connection, place, trigger.turn_id))
        return wire.SendMessageResponse(
            turn_id=receipt.trigger.turn_id,
            thread_id=place.thread_id,
            duplicate=not receipt.fresh,
            continues=look.continues,
            pending_interrupts=look.pending,
            takes_over=look.takes_over,
        )

    async def _place(self, request: wire.SendMessageRequest, channel: str, request_id: str) -> _Place:
        lying = self._runtime.mailboxes.known(message_key(request_id))
        if lying is not None:
            return _Place(thread_id=lying.thread_id, repeated=True)
        if request.new_thread and request.thread_id:
            raise InvalidInput(
                "a new thread has no id yet", where="thread_id", hint="name a thread or ask for a new one"
            )
        named = read_label(request.thread_id, "thread_id") if request.thread_id else ""
        drawn = f"thread-{hashlib.sha256(request_id.encode()).hexdigest()[:8]}"

        def work(connection: Connection) -> _Place:
            taken = turn_reads.get_keys(connection, [message_key(request_id)])
            if taken:
                return _Place(thread_id=next(iter(taken.values())).thread_id, repeated=True)
            if named:
                _refuse_foreign(connection, named, channel)
            if named or request.new_thread:
                return _Place(thread_id=named or drawn)
            turn_id, thread_id = self._newest.get(channel, ("", ""))
            if turn_id and turn_reads.key_of_turn(connection, turn_id) is None:
                return _Place(thread_id=thread_id)  # it has no turn yet; the next message belongs with it
            newest = turn_reads.newest_visible(connection, channel)
            return _Place(thread_id=newest.thread_id if newest else drawn)

        return await self._runtime.store.read(work)


def _refuse_foreign(connection: Connection, thread_id: str, channel: str) -> None:
    newest = turn_reads.newest_on_thread(connection, thread_id)
    if newest is not None and newest.channel != channel:
        what = f"thread {thread_id} belongs to channel {newest.channel}"
        raise Conflict(what, where="thread_id", hint="send into that channel")


def _look(connection: Connection, place: _Place, turn_id: str) -> _Look:
    before = turn_reads.newest_on_thread(connection, place.thread_id, besides=turn_id)
    waiting = turn_reads.open_interrupts(connection, place.thread_id)
    return _Look(
        continues=before is not None,
        pending=[item.interrupt_id for item in waiting if item.status == "pending" and item.kind != "pause"],
        takes_over=_called(before) if before is not None and _paces_itself(before) else "",
    )


def _called(turn: TurnRecord) -> str:
    """Return what an author calls the task of a turn: a loop is listed by its id."""
    return turn.task_id if turn.task_id.startswith("loop-") else turn.task_name


def _paces_itself(turn: TurnRecord) -> bool:
    """Tell whether a turn is of a self-paced loop that would go on after it, as far as is known here."""
    ended_well = turn.status in {"succeeded", "silent"}
    return turn.kind in WAKES and not (ended_well and turn.wake_after_s is None)
