"""Threads in lists: facts from their turns, and their author's description, which may precede the first turn.

An author's description is a JSON object for the author's own use: no agent reads it, and it grants nothing.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, select

from agent_runtime.model.mapping import canonical, from_row, to_message
from agent_runtime.model.turn import TurnRecord
from agent_runtime.store import turn_reads
from agent_runtime.store.schema import interrupts, thread_records, turns
from turnkeeper.config.json_text import is_within, read_object
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.rpc.errors import AlreadyExists
from turnkeeper.rpc.pages import page_of
from turnkeeper.storage.statements import total, upsert
from turnkeeper.times import from_us, to_us
from turnkeeper.v1 import agent_runtime_pb2 as wire

LARGEST_METADATA = 16 << 10  # bytes


@dataclass(frozen=True, kw_only=True)
class Described:
    """An author's description of a thread. The names are those of the columns."""

    thread_id: str
    channel: str
    metadata_json: str
    created_at: datetime
    updated_at: datetime
    withdrawn_at: datetime | None


def list_threads(connection: Connection, request: wire.ListThreadsRequest) -> wire.ListThreadsResponse:
    """Return threads, newest first: by their newest turn or the time they were put. Raises InvalidInput, Conflict."""
    wanted = _metadata(request.metadata_json) if request.metadata_json else {}
    grouped, described = _grouped(connection, request), _described(connection, request)
    found = {row.thread_id: (row.last, row.newest) for row in grouped.values()}
    found = {one.thread_id: (to_us(one.created_at), 0) for one in described.values()} | found
    found = {one: at for one, at in found.items() if one not in described or described[one].withdrawn_at is None}
    ids = sorted(found, key=lambda thread_id: (*found[thread_id], thread_id), reverse=True)
    if wanted:
        ids = [one for one in ids if one in described and is_within(wanted, json.loads(described[one].metadata_json))]
    rows: list[Any] = [_Listed(one, grouped.get(one), described.get(one)) for one in ids]
    if request.status:
        turn_reads.check_status(request.status)
        rows = [row for row in rows if row.message(connection).status == request.status]
    limit = min(request.limit or 50, turn_reads.LARGEST_PAGE)
    shown, told = page_of(rows, "thread_id", limit=limit, cursor=request.cursor)
    return wire.ListThreadsResponse(threads=[row.message(connection) for row in shown], **told)


def get_thread(connection: Connection, request: wire.GetThreadRequest) -> wire.Thread:
    """Return one thread. Raises NotFound."""
    only = wire.ListThreadsRequest(thread_id=request.thread_id)
    found = list_threads(connection, only).threads if request.thread_id else ()
    if not found:
        raise NotFound(f"no thread {request.thread_id[:80]!r}", where="thread_id", hint="see: turnkeeper threads list")
    return found[0]


def channel_of(connection: Connection, thread_id: str) -> str:
    """Return the channel of a thread. Raises NotFound."""
    return get_thread(connection, wire.GetThreadRequest(thread_id=thread_id)).channel


def described_in(connection: Connection, thread_id: str) -> str:
    """Return the channel in which an author put a thread; empty if no author put it."""
    return (
        connection.execute(select(thread_records.c.channel).where(thread_records.c.thread_id == thread_id)).scalar()
        or ""
    )


def refuse_withdrawn(connection: Connection, thread_id: str) -> None:
    """Raise NotFound if a client has deleted a thread, because its id is never used again."""
    query = select(thread_records.c.withdrawn_at_us).where(thread_records.c.thread_id == thread_id)
    if connection.execute(query).scalar() is not None:
        raise NotFound(f"thread {thread_id} was deleted", where="thread_id", hint="use another thread")


def put_thread(
    connection: Connection, request: wire.PutThreadRequest, at: datetime, *, new_id: str, via: str
) -> wire.Thread:
    """Create a thread or update its metadata by key. A new id is used if none is given; a given channel must match.

    Raises:
        InvalidInput: a new thread has no channel, or the metadata is not valid.
        AlreadyExists: the thread exists, but must be new.
        Conflict: the thread belongs to another channel.
    """
    thread_id = request.thread_id or new_id
    refuse_withdrawn(connection, thread_id)
    before = next(iter(list_threads(connection, wire.ListThreadsRequest(thread_id=thread_id)).threads), None)
    if before is not None and request.must_be_new:
        raise AlreadyExists(f"thread {thread_id} already exists", where="thread_id")
    if before is not None and request.channel not in {"", before.channel}:
        what = f"thread {thread_id} belongs to channel {before.channel}"
        raise Conflict(what, where="channel", hint="omit the channel")
    channel = before.channel if before is not None else request.channel
    if not channel:
        raise InvalidInput("is required", where="channel", hint="name the channel in which the thread appears")
    said = json.loads(before.metadata_json or "{}") if before is not None else {}
    said |= _metadata(request.metadata_json) if request.metadata_json else {}
    text = canonical({key: value for key, value in said.items() if value is not None})
    if len(text.encode()) > LARGEST_METADATA:
        raise InvalidInput(f"have more than {LARGEST_METADATA} bytes", where="metadata_json")
    began = to_us(before.first_at.ToDatetime(at.tzinfo)) if before is not None and before.turns else to_us(at)
    row = {"thread_id": thread_id, "channel": channel, "metadata_json": text, "via": via}
    put = upsert(thread_records, [thread_records.c.thread_id], ["metadata_json", "via", "updated_at_us"])
    connection.execute(put.values(row | {"created_at_us": began, "updated_at_us": to_us(at)}))
    return get_thread(connection, wire.GetThreadRequest(thread_id=thread_id))


def _metadata(text: str) -> dict[str, Any]:
    return read_object(text, where="metadata_json", longest=LARGEST_METADATA)


def _grouped(connection: Connection, request: wire.ListThreadsRequest) -> dict[str, Row[Any]]:
    query = select(
        turns.c.thread_id,
        func.max(turns.c.number).label("newest"),
        func.count().label("turns"),
        func.min(turns.c.started_at_us).label("first"),
        func.max(turns.c.started_at_us).label("last"),
        total(turns.c.tokens_in).label("tokens_in"),
        total(turns.c.tokens_out).label("tokens_out"),
    ).group_by(turns.c.thread_id)
    for column, wanted in ((turns.c.channel, request.channel), (turns.c.thread_id, request.thread_id)):
        query = query.where(column == wanted) if wanted else query
    return {row.thread_id: row for row in connection.execute(query)}


def _described(connection: Connection, request: wire.ListThreadsRequest) -> dict[str, Described]:
    query = select(thread_records)
    for column, wanted in (
        (thread_records.c.channel, request.channel),
        (thread_records.c.thread_id, request.thread_id),
    ):
        query = query.where(column == wanted) if wanted else query
    found = [from_row(Described, row) for row in connection.execute(query).mappings()]
    return {one.thread_id: one for one in found}


@dataclass(frozen=True)
class _Listed:
    """A thread of a list: a summary of its turns, its author's description, or both."""

    thread_id: str
    row: Row[Any] | None
    described: Described | None

    def message(self, connection: Connection) -> wire.Thread:
        said = {} if self.described is None else {"metadata_json": self.described.metadata_json}
        if self.row is None:
            assert self.described is not None, "a thread has turns, or an author put it"
            return to_message(wire.Thread, self.described)
        first = from_us(self.row.first)
        shown = _with_turns(connection, self.row)
        shown.MergeFrom(wire.Thread(**said))  # type: ignore[arg-type]
        shown.created_at.FromDatetime(min(first, self.described.created_at) if self.described else first)
        if self.described is not None and self.described.updated_at > shown.updated_at.ToDatetime(first.tzinfo):
            shown.updated_at.FromDatetime(self.described.updated_at)
        return shown


def _with_turns(connection: Connection, row: Row[Any]) -> wire.Thread:
    newest = _newest(connection, row)
    pending = select(func.count()).where(
        interrupts.c.thread_id == newest.thread_id, interrupts.c.status == "pending", interrupts.c.kind != "pause"
    )
    return to_message(
        wire.Thread,
        newest,
        turns=row.turns,
        waiting=connection.execute(pending).scalar() or 0,
        first_at=from_us(row.first),
        last_at=newest.started_at,
        last_turn_id=newest.turn_id,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        updated_at=newest.ended_at or newest.started_at,
    )


def _newest(connection: Connection, row: Row[Any]) -> TurnRecord:
    """Return the turn that determines a thread's state."""
    turn_id = connection.execute(select(turns.c.turn_id).where(turns.c.number == row.newest)).scalar_one()
    newest = turn_reads.get_turn(connection, turn_id)
    assert newest is not None, "its number was read in this transaction"
    (shown,) = turn_reads.as_shown(connection, [turn_reads.bearing_on_thread(connection, newest.thread_id) or newest])
    return shown
